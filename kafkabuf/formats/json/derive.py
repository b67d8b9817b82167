"""Derives a JSON Schema (draft 2020-12) from the types of Arrow columns: what Json writes for them is valid by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafkabuf.arrow import types as arrow_types
from kafkabuf.arrow.types import BINARIES, INTEGERS, LISTS, REALS, ArrowType
from kafkabuf.formats.json.compile import UUID, Choices

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NOT_FINITE = ["NaN", "Infinity", "-Infinity"]

Schema = dict[str, Any]


def derive_rows(columns: Sequence[ArrowType], choices: Choices, title: str) -> Schema:
    """An object with a property for each column."""
    return {"$schema": DRAFT, "title": title, **_object(columns, choices)}


def derive_value(column: ArrowType, choices: Choices) -> Schema:
    """The schema of one column that is a whole key or value: its nulls are Kafka's null."""
    return {"$schema": DRAFT, **_type(column, choices, null=False)}


def _object(columns: Sequence[ArrowType], choices: Choices) -> Schema:
    """A member may be missing only where nulls are left out."""
    required = [kind.name for kind in columns if not (choices.ignore_null_fields and _nullable(kind))]
    properties = {kind.name: _type(kind, choices, null=not choices.ignore_null_fields) for kind in columns}
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _nullable(kind: ArrowType) -> bool:
    values = kind.dictionary or kind
    return kind.nullable or values.nullable or values.format == "n"


def _type(kind: ArrowType, choices: Choices, *, null: bool) -> Schema:
    """`null`: a null of the column is written as null."""
    values = kind.dictionary or kind
    schema = _value(values, choices)
    # NaN is null in orjson's dialect.
    absent = (null and _nullable(kind)) or (values.format in REALS and not choices.spark)
    if not absent or schema.get("type") == "null":
        return schema
    if "type" in schema:
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [*schema["anyOf"], {"type": "null"}]}


def _value(kind: ArrowType, choices: Choices) -> Schema:
    text = kind.format
    if text in {"n", "b"}:
        return {"type": "null" if text == "n" else "boolean"}
    if text in INTEGERS:
        return {"type": "integer"}
    if text in REALS and choices.spark:
        return {"anyOf": [{"type": "number"}, {"enum": _NOT_FINITE}]}
    if text in REALS or text.startswith("d:"):
        return {"type": "number"}
    if text == "+s":
        return _object(kind.children, choices)
    if text in LISTS or text.startswith("+w:"):
        return {"type": "array", "items": _type(kind.children[0], choices, null=True)}
    if (pair := arrow_types.entries(kind, kind.name)) is not None:
        return {"type": "object", "additionalProperties": _type(pair[1], choices, null=True)}
    return {"type": "string"} | _text(kind, choices)


def _text(kind: ArrowType, choices: Choices) -> Schema:
    """What more is known of a text. A format is given only for what always has it."""
    text = kind.format
    if kind.extension == UUID and arrow_types.width(kind) == 16:
        return {"format": "uuid"}
    if text in BINARIES or text.startswith("w:"):
        return {"contentEncoding": "base64"}
    if text in {"tdD", "tdm"} and choices.date_format is None and not choices.spark:
        return {"format": "date"}
    if arrow_types.with_zone(kind) and choices.timestamp_format is None and not choices.spark:
        return {"format": "date-time"}
    return {}
