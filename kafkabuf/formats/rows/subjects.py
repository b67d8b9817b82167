"""Subjects: the names under which a Schema Registry keeps the versions of a schema.

| strategy | subject | Java's class |
|---|---|---|
| `topic` | TOPIC-key, TOPIC-value | TopicNameStrategy |
| `record` | the record's full name | RecordNameStrategy |
| `topic_record` | TOPIC-RECORD | TopicRecordNameStrategy |

A callable `f(topic, field, record_name)` returns the subject itself; `field` is "key" or "value".
"""

from __future__ import annotations

import json

from kafkabuf.config.schema_registry import SubjectNameStrategy
from kafkabuf.errors import ConfigError


def subject_name(strategy: SubjectNameStrategy, topic: str, field: str, record_name: str | None = None) -> str:
    """The subject of a topic's keys or values. Raises ConfigError if the strategy needs a record name."""
    if callable(strategy):
        subject = strategy(topic, field, record_name)
        if not isinstance(subject, str) or not subject:
            raise ConfigError(f"the subject name strategy must return text, it returned {subject!r} for {topic}")
        return subject
    if strategy == "topic":
        return f"{topic}-{field}"
    if not record_name:
        raise ConfigError(
            f"the subject name strategy {strategy} needs a schema with a name, and the {field} schema of {topic} has "
            "none: use the strategy topic"
        )
    return record_name if strategy == "record" else f"{topic}-{record_name}"


def avro_record_name(schema: str) -> str | None:
    """The full name of an Avro schema: a record's, an enum's or a fixed's. A schema without a name gives None."""
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError):
        return None
    name = parsed.get("name") if isinstance(parsed, dict) else None
    if not isinstance(name, str):
        return None
    namespace = parsed.get("namespace")
    return f"{namespace}.{name}" if "." not in name and isinstance(namespace, str) and namespace else name
