"""The settings as a table, read from the model: the output of `kafkabuf config`, and docs/configuration.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafkabuf.config.kinds import Setting, dotted
from kafkabuf.config.model import ProducerConfig
from kafkabuf.config.refused import JAVA_ONLY, NOT_YET
from kafkabuf.config.schema_registry import PREFIX
from kafkabuf.config.security import SecuritySettings
from kafkabuf.config.values import PARTITIONERS, SERIALIZERS

# Defaults as a user writes them, where the value differs.
_DEFAULTS = {"acks": "all", "bootstrap_servers": "required"}
INTRODUCTION = """\
# Settings

`kafkabuf config --format markdown` prints this page. Give a setting under its dotted name in a mapping, or as a keyword
with underscores: `KafkaProducer({"linger.ms": 20})`, `KafkaProducer(linger_ms=20)`. Values may be strings: commas
separate the entries of a list, and `true`, `false` and most names of choices may be in any case. `None` is the default,
as if the setting was left out. kafkabuf expands nothing in a value (`${env:HOME}` stays as it is) and imports nothing
that a value names: give the object itself. Passwords appear in no `repr`, log or error; a pickled configuration
contains them. `.ms` settings are milliseconds, `.bytes` settings are bytes. The error for a setting of kafka-python,
aiokafka or librdkafka names the setting here that has its meaning.

Some settings take an object. These names, and the names of the same classes in Java, stand for objects of kafkabuf:

- serializers: @SERIALIZERS
- `partitioner.class`: @PARTITIONERS

The settings `schema.registry.*` are those of the client of a Schema Registry, which `send_arrow()` asks for the schemas
of its formats: see [schema-registry.md](schema-registry.md). They need `schema.registry.url`.
"""


@dataclass(frozen=True)
class Row:
    """One setting. `valid` is empty if every value of the type is valid; `here` says what the setting does."""

    name: str
    type: str
    default: str
    valid: str
    here: str


def rows() -> list[Row]:
    """Every setting: the producer's, those of security, those of the Schema Registry, and refused settings."""
    fields = ProducerConfig.model_fields
    ordered = sorted(fields, key=lambda name: (name.startswith(PREFIX), name in vars(SecuritySettings)))
    return [_row(name, fields[name]) for name in ordered] + list(_java_only())


def markdown() -> str:
    """The table as a page."""
    head = "| Setting | Type | Default | Valid | Here |\n|---|---|---|---|---|\n"
    lines = (f"| `{row.name}` | {row.type} | {_code(row.default)} | {row.valid} | {row.here} |\n" for row in rows())
    introduction = INTRODUCTION.replace("@SERIALIZERS", _names(SERIALIZERS)).replace(
        "@PARTITIONERS", _names(PARTITIONERS)
    )
    return f"{introduction}\n{head}{''.join(lines)}"


def _names(known: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(known.values())))


def _row(name: str, setting: Setting) -> Row:
    default = _DEFAULTS.get(name) or _default_text(setting.default)
    not_yet = " Not supported yet: only the default is allowed." if name.startswith(NOT_YET) else ""
    return Row(dotted(name), setting.type, default, setting.valid, f"{setting.description}{not_yet}")


def _java_only() -> Iterator[Row]:
    for name, setting in sorted(JAVA_ONLY.items()):
        default = _default_text(setting.default)
        yield Row(name, setting.type, default, "only the default", f"Refused: {setting.reason}.")


def _default_text(default: Any) -> str:
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(default) if isinstance(default, tuple) else str(default)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
