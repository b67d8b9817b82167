"""Derives an Avro schema from the types of Arrow columns, for `Avro()` without a schema.

A nullable column becomes a union with null first and the default null. Whole numbers of up to 32 bits become int, and
others long; a uint64 above 2^63 - 1 is an error of its row. A timestamp with a zone becomes timestamp-*, without a zone
local-timestamp-*, in its own unit, seconds in milliseconds. The names of nested records and fixeds are the path of
their column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kafkabuf.arrow import types as arrow_types
from kafkabuf.arrow.types import BINARIES, INTEGERS, LISTS, REALS, TEXTS, ArrowType, type_name
from kafkabuf.errors import SerializationError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FRACTIONS = {1: "millis", 10**3: "millis", 10**6: "micros", 10**9: "nanos"}


def derive_record(columns: Sequence[ArrowType], name: str) -> dict[str, Any]:
    """A record with a field for each column. Raises SerializationError for a name or a type that Avro lacks."""
    return {"type": "record", "name": name, "fields": [_field(column, name) for column in columns]}


def derive_value(column: ArrowType, name: str) -> Any:
    """The schema of one column that is a whole key or value: its nulls are Kafka's null, and need no union."""
    return _type(column, name, column.name)


def _field(column: ArrowType, parent: str) -> dict[str, Any]:
    if not _NAME.fullmatch(column.name):
        raise SerializationError(
            f"column '{column.name}': an Avro name has letters, digits and _, and does not begin with a digit: rename "
            f"the column, or give a schema with a field that has '{column.name}' among its aliases"
        )
    kind = _nullable(column, f"{parent}.{column.name}", column.name)
    return {"name": column.name, "type": kind} | ({"default": None} if isinstance(kind, list) else {})


def _nullable(column: ArrowType, name: str, path: str) -> Any:
    kind = _type(column, name, path)
    return ["null", kind] if column.nullable and kind != "null" else kind


def _type(column: ArrowType, name: str, path: str) -> Any:
    if column.dictionary is not None:
        return _type(column.dictionary, name, path)
    text = column.format
    if text in INTEGERS:
        return "int" if text in "csiCS" else "long"
    if text in REALS:
        return "double" if text == "g" else "float"
    if text in TEXTS or text in BINARIES:
        return "string" if text in TEXTS else "bytes"
    if text in {"n", "b"}:
        return "null" if text == "n" else "boolean"
    if text in LISTS or (text.startswith("+w:") and arrow_types.width(column) is not None):
        return {"type": "array", "items": _nullable(column.children[0], f"{name}.item", f"{path}[]")}
    if (pair := arrow_types.entries(column, path)) is not None:
        return {"type": "map", "values": _nullable(pair[1], f"{name}.value", f"{path}{{}}")}
    if text == "+s":
        return derive_record(column.children, name)
    return _logical(column) or _fixed(column, name) or _refuse(column, path)


def _fixed(column: ArrowType, name: str) -> dict[str, Any] | None:
    size = arrow_types.fixed_width(column)
    return None if size is None else {"type": "fixed", "name": name, "size": size}


def _logical(column: ArrowType) -> dict[str, Any] | None:
    if column.format in {"tdD", "tdm"}:
        return {"type": "int", "logicalType": "date"}
    if (unit := arrow_types.unit(column, "ts")) is not None:
        local = "" if arrow_types.with_zone(column) else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-{_FRACTIONS[unit]}"}
    if (unit := arrow_types.unit(column, "tt")) is not None:
        if unit <= 10**3:
            return {"type": "int", "logicalType": "time-millis"}
        return {"type": "long", "logicalType": "time-micros"}
    number = arrow_types.decimal(column)
    if number is not None and 0 <= number.scale <= number.precision:
        return {"type": "bytes", "logicalType": "decimal", "precision": number.precision, "scale": number.scale}
    return None


def _refuse(column: ArrowType, path: str) -> Any:
    raise SerializationError(
        f"column '{path}' has the type {type_name(column)}, for which Avro has no type that kafkabuf derives: cast the "
        f"column, or leave it out"
    )
