"""Columns of the sink: which of them the DataFrame has, and whether their types fit a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    import pyarrow as pa
# Metadata of the columns `key` and `value`: align() has shuffled the rows for a topic with this number of partitions.
ALIGNED = "kafkabuf.aligned"


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


_TIMESTAMP = _Column("timestamp", "timestamp", lambda found: isinstance(found, TimestampType))
_COLUMNS = (
    _Column("value", "string or binary", _is_text_or_bytes),
    _Column("key", "string or binary", _is_text_or_bytes),
    _Column("topic", "string", lambda found: isinstance(found, StringType)),
    _Column("partition", "int", lambda found: isinstance(found, IntegerType)),
    _Column("headers", "array<struct<key:string,value:binary>>", _is_headers),
    _TIMESTAMP,
)


def sink_columns(schema: StructType, topic: str | None, timestamp_column: str | None = None) -> tuple[str, ...]:
    """Names of the columns to send, after `as_record`. With the option `topic` the column `topic` is ignored.

    As in Spark's own sink, names must match exactly, and other columns are ignored. A ValueError names the column, the
    type it has and the types allowed. For `timestamp_column` see SinkOptions.
    """
    names = schema.fieldNames()
    if "value" not in names:
        raise ValueError(f"column 'value' (string or binary) is required; {_found(names, 'value')}")
    if topic is None and "topic" not in names:
        raise ValueError(f"no topic: give .option('topic', ...) or a column 'topic' (string); {_found(names, 'topic')}")
    wanted = {column.name: column for column in _COLUMNS if column.name in names}
    if topic is not None:
        wanted.pop("topic", None)
    if timestamp_column is not None or ignored_timestamp(schema, timestamp_column):
        wanted.pop("timestamp", None)
    if timestamp_column:
        wanted[timestamp_column] = _TIMESTAMP
        if timestamp_column not in names:
            found = _found(names, timestamp_column)
            raise ValueError(f"option 'timestampColumn' is '{timestamp_column}', but there is no such column; {found}")
    for name, column in wanted.items():
        if names.count(name) > 1:
            raise ValueError(f"column '{name}' occurs {names.count(name)} times: keep one, drop the rest")
        _check_type(name, column, schema[name].dataType)
    return tuple(column.name for column in wanted.values())


def aligned_partitions(schema: StructType) -> int | None:
    """The number of partitions for which align() has shuffled the rows; None where a column `partition` chooses."""
    if "partition" in schema.fieldNames():
        return None
    found = (field.metadata.get(ALIGNED) for field in schema.fields if field.name in ("key", "value"))
    return next((int(partitions) for partitions in found if partitions is not None), None)


def ignored_timestamp(schema: StructType, timestamp_column: str | None) -> str | None:
    """A warning where the column `timestamp` has another type, so that the sink ignores it as Spark's own sink does."""
    found = schema["timestamp"].dataType if "timestamp" in schema.fieldNames() else None
    if timestamp_column is not None or found is None or _TIMESTAMP.accepts(found):
        return None
    return (
        f"the sink ignores column 'timestamp': it has type {found.simpleString()}, allowed: timestamp"
        f"{_hint('timestamp', found)}. Each record gets the time of sending; option 'timestampColumn' names another "
        "column, or 'none'"
    )


def as_record(batch: pa.RecordBatch, timestamp_column: str | None) -> pa.RecordBatch:
    """The batch with the column that `timestampColumn` names under the name `timestamp`."""
    if timestamp_column in (None, "", "timestamp"):
        return batch
    others = {timestamp_column: "timestamp", "timestamp": ""}
    return batch.rename_columns([others.get(name, name) for name in batch.schema.names])


def _check_type(name: str, column: _Column, found: DataType) -> None:
    if not column.accepts(found):
        hint = _hint(column.name, found)
        raise ValueError(f"column '{name}' has type {found.simpleString()}; allowed: {column.allowed}{hint}")


def _hint(name: str, found: DataType) -> str:
    if name == "timestamp" and isinstance(found, TimestampNTZType):
        # To read it as UTC would shift the records of every user who means local time.
        return ": it has no time zone, so it names no instant; cast it to timestamp, which uses the session's time zone"
    return ": cast it to string, or make JSON with to_json(struct(...))" if name in ("value", "key") else ""


def _found(names: list[str], wanted: str) -> str:
    near = [name for name in names if name.lower() == wanted.lower()]
    if near:
        return f"found '{near[0]}', which differs in case: rename it"
    return f"the columns are {', '.join(map(repr, names)) or 'none'}"
