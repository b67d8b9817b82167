"""The settings as a table: what `kafkabuf config` prints and docs/configuration.md holds, read from the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from kafkabuf.config.model import ProducerConfig
from kafkabuf.config.refused import JAVA_ONLY, NOT_YET
from kafkabuf.config.security import SecuritySettings
from kafkabuf.config.values import INT32_MAX, INT64_MAX, PARTITIONERS, SERIALIZERS, dotted

_TYPES = {bool: "boolean", int: "int", float: "float", str: "string", tuple: "list", SecretStr: "password"}
# Spelt as they are given, not as they are kept.
_SPELT = {
    "acks": ("string", "all", "all, -1, 0, 1"),
    "bootstrap_servers": ("list", "required", "host:port"),
    "compression_gzip_level": ("int", "-1", "1 to 9, or -1"),
}
INTRODUCTION = """\
# Settings

Made by `kafkabuf config --format markdown`. A setting is given under its dotted name in a mapping, or as a keyword
with underscores: `KafkaProducer({"linger.ms": 20})`, `KafkaProducer(linger_ms=20)`. Values may be strings: lists are
separated by commas, `true`, `false` and most names of choices are read in any case. Nothing in a value is expanded
(`${env:HOME}` stays as it is), and nothing is imported by its name: objects are given themselves. Passwords appear in
no `repr`, log or error; a pickled configuration holds them. `.ms` is milliseconds, `.bytes` bytes.

Where a setting takes an object, these names stand for one, and Java's names of the same: for serializers @SERIALIZERS,
for `partitioner.class` @PARTITIONERS.
"""


@dataclass(frozen=True)
class Row:
    """One setting. `valid` is empty where everything of the type is."""

    name: str
    type: str
    default: str
    valid: str
    here: str


def rows() -> list[Row]:
    """Every setting of Kafka's producer and ours: those of the producer, those of security, those without use here."""
    fields = ProducerConfig.model_fields
    ordered = sorted(fields, key=lambda name: name in SecuritySettings.model_fields)
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


def _row(name: str, field: FieldInfo) -> Row:
    kind, default, valid = _SPELT.get(name) or _describe(field)
    late = " Not supported yet but at its default." if name.startswith(NOT_YET) else ""
    return Row(dotted(name), kind, default, valid, f"{field.description}{late}")


def _java_only() -> Iterator[Row]:
    for name, known in sorted(JAVA_ONLY.items()):
        yield Row(name, known.type, _spelt(known.default), "the default alone", f"Refused: {known.reason}.")


def _describe(field: FieldInfo) -> tuple[str, str, str]:
    kind, limits = _unwrapped(field.annotation, list(field.metadata))
    default = _spelt(field.default)
    if kind is Any:
        return "object", default, ""
    if get_origin(kind) is tuple:
        element, _ = _unwrapped(get_args(kind)[0], [])
        objects = "objects" if element is Any else _choices(element)
        return "list", default, objects
    if get_origin(kind) is Literal:
        return "string", default, _choices(kind)
    return _TYPES[kind], default, "true, false" if kind is bool else _range(limits)


def _unwrapped(kind: Any, limits: list[Any]) -> tuple[Any, list[Any]]:
    """A type without None and Annotated, and all that is annotated to it."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        first, *rest = get_args(kind)
        if get_origin(kind) is Annotated:
            limits = [*limits, *rest]
        kind = first
    found: list[Any] = []
    for limit in limits:
        found += limit.metadata if isinstance(limit, FieldInfo) else [limit]
    return kind, found


def _choices(kind: Any) -> str:
    return ", ".join(str(choice) or "empty" for choice in get_args(kind)) if get_origin(kind) is Literal else ""


def _range(limits: list[Any]) -> str:
    low = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    high = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    if low is None:
        return ""
    return f"{low} and above" if high in (None, INT32_MAX, INT64_MAX) else f"{low} to {high}"


def _spelt(default: Any) -> str:
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(default) if isinstance(default, tuple) else str(default)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
