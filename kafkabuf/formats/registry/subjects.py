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
from collections.abc import Callable

from kafkabuf.errors import ConfigError

SubjectNameStrategy = str | Callable[[str, str, str | None], str]

_JAVA_PACKAGE = "io.confluent.kafka.serializers.subject."
_JAVA_CLASSES = {
    "TopicNameStrategy": "topic",
    "RecordNameStrategy": "record",
    "TopicRecordNameStrategy": "topic_record",
}
STRATEGIES = tuple(_JAVA_CLASSES.values())


def parse_strategy(value: object) -> SubjectNameStrategy:
    """A strategy from a callable, a name in any case, or the name of Java's class. Raises ValueError."""
    if callable(value):
        return value
    if isinstance(value, str):
        name = value.strip().removeprefix(_JAVA_PACKAGE)
        strategy = _JAVA_CLASSES.get(name, name.lower().replace("-", "_"))
        if strategy in STRATEGIES:
            return strategy
    raise ValueError(f"expected {', '.join(STRATEGIES)}, or a callable of topic, field and record name")


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
