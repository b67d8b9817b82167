"""Columns of the sink: which of them the DataFrame has, and whether their types fit a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)


def _is_text_or_bytes(found: DataType) -> bool:
    return isinstance(found, (StringType, BinaryType))


def _is_headers(found: DataType) -> bool:
    if not (isinstance(found, ArrayType) and isinstance(found.elementType, StructType)):
        return False
    fields = found.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


@dataclass(frozen=True)
class _Column:
    name: str
    allowed: str
    accepts: Callable[[DataType], bool]


_COLUMNS = (
    _Column("value", "string or binary", _is_text_or_bytes),
    _Column("key", "string or binary", _is_text_or_bytes),
    _Column("topic", "string", lambda found: isinstance(found, StringType)),
    _Column("partition", "int", lambda found: isinstance(found, IntegerType)),
    _Column("headers", "array<struct<key:string,value:binary>>", _is_headers),
    _Column("timestamp", "timestamp", lambda found: isinstance(found, TimestampType)),
)


def sink_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Names of the columns to send. `topic` is the value of the option `topic`: with it the column `topic` is ignored.

    As in Spark's own sink, names must match exactly, and other columns are ignored. A ValueError names the column, the
    type it has and the types allowed.
    """
    names = schema.fieldNames()
    if "value" not in names:
        raise ValueError(f"column 'value' (string or binary) is required; {_found(names, 'value')}")
    if topic is None and "topic" not in names:
        raise ValueError(f"no topic: give .option('topic', ...) or a column 'topic' (string); {_found(names, 'topic')}")
    wanted = [column for column in _COLUMNS if column.name in names and not (topic and column.name == "topic")]
    for column in wanted:
        if names.count(column.name) > 1:
            raise ValueError(f"column '{column.name}' occurs {names.count(column.name)} times: keep one, drop the rest")
        _check_type(column, schema[column.name].dataType)
    return tuple(column.name for column in wanted)


def _check_type(column: _Column, found: DataType) -> None:
    if column.accepts(found):
        return
    hint = ""
    if column.name == "timestamp" and isinstance(found, TimestampNTZType):
        # To read it as UTC would shift the records of every user who means local time.
        hint = ": it has no time zone, so it names no instant; cast it to timestamp, which uses the session's time zone"
    elif column.name in ("value", "key"):
        hint = ": cast it to string, or make JSON with to_json(struct(...))"
    raise ValueError(f"column '{column.name}' has type {found.simpleString()}; allowed: {column.allowed}{hint}")


def _found(names: list[str], wanted: str) -> str:
    near = [name for name in names if name.lower() == wanted]
    if near:
        return f"found '{near[0]}', which differs in case: rename it"
    return f"the columns are {', '.join(map(repr, names)) or 'none'}"
