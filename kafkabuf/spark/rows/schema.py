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

    from kafkabuf.spark.options.format_options import FormatOptions
# Metadata of columns: align() has shuffled the rows for a topic with this number of partitions.
ALIGNED = "kafkabuf.aligned"
# The options that say what the key is, by which align() has shuffled the rows; missing without such options.
ALIGNED_BY = "kafkabuf.aligned.by"


def _is_text_or_bytes(data_type: DataType) -> bool:
    return isinstance(data_type, (StringType, BinaryType))


def _is_headers(data_type: DataType) -> bool:
    if not (isinstance(data_type, ArrayType) and isinstance(data_type.elementType, StructType)):
        return False
    fields = data_type.elementType.fields
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


_KEY = _Column("key", "string or binary", _is_text_or_bytes)
_TIMESTAMP = _Column("timestamp", "timestamp", lambda data_type: isinstance(data_type, TimestampType))
_COLUMNS = (
    _Column("value", "string or binary", _is_text_or_bytes),
    _KEY,
    _Column("topic", "string", lambda data_type: isinstance(data_type, StringType)),
    _Column("partition", "int", lambda data_type: isinstance(data_type, IntegerType)),
    _Column("headers", "array<struct<key:string,value:binary>>", _is_headers),
    _TIMESTAMP,
)


def sink_columns(
    schema: StructType, topic: str | None, timestamp_column: str | None = None, formats: FormatOptions | None = None
) -> tuple[str, ...]:
    """Names of the columns to send, after `as_record`. With the option `topic` the column `topic` is ignored.

    As in Spark's own sink, names must match exactly, and other columns are ignored. What a format makes may have any
    type: `value` and `key` are then columns that a task makes (encoded_rows.py). A ValueError names the column, the
    type it has and the types allowed. For `timestamp_column` see SinkOptions.
    """
    names = schema.fieldNames()
    made = () if formats is None else _made_columns(schema, formats)
    if "value" not in (*names, *made):
        given = _columns_given(names, "value")
        raise ValueError(f"column 'value' (string or binary) is required; {given}. Option 'valueFormat' encodes others")
    if topic is None and "topic" not in names:
        raise ValueError(
            f"no topic: give .option('topic', ...) or a column 'topic' (string); {_columns_given(names, 'topic')}"
        )
    wanted = {column.name: column for column in _COLUMNS if column.name in names and column.name not in made}
    if topic is not None:
        wanted.pop("topic", None)
    if timestamp_column is not None or ignored_timestamp(schema, timestamp_column):
        wanted.pop("timestamp", None)
    if timestamp_column:
        wanted[timestamp_column] = _TIMESTAMP
        if timestamp_column not in names:
            given = _columns_given(names, timestamp_column)
            raise ValueError(f"option 'timestampColumn' is '{timestamp_column}', but there is no such column; {given}")
    for name, column in wanted.items():
        _check_once(name, names)
        _check_type(name, column, schema[name].dataType)
    return (*made, *(column.name for column in wanted.values()))


def _made_columns(schema: StructType, formats: FormatOptions) -> tuple[str, ...]:
    """Which of `value` and `key` the tasks make, of columns that exist once."""
    names = schema.fieldNames()
    key = formats.key_columns or (("key",) if formats.key is not None else ())
    value = () if formats.value is None else ("value",) if "value" in names else tuple(names)
    for name in key:
        if name not in names:
            option = f"option 'keyColumns' is '{','.join(key)}'" if formats.key_columns else "option 'keyFormat' is set"
            raise ValueError(f"{option}, but there is no column '{name}'; {_columns_given(names, name)}")
    for name in (*key, *value):
        _check_once(name, names)
    if key and formats.key is None:
        _check_type(key[0], _KEY, schema[key[0]].dataType)
    return (*(("value",) if value else ()), *(("key",) if key else ()))


def aligned_partitions(schema: StructType) -> int | None:
    """The number of partitions for which align() has shuffled the rows; None where a column `partition` chooses."""
    if "partition" in schema.fieldNames():
        return None
    partition_counts = (field.metadata.get(ALIGNED) for field in schema.fields)
    return next((int(partitions) for partitions in partition_counts if partitions is not None), None)


def aligned_by(schema: StructType) -> str:
    """The options that say what the key is, as align() got them (format_options.py)."""
    rules = (field.metadata.get(ALIGNED_BY) for field in schema.fields)
    return next((str(rule) for rule in rules if rule is not None), "")


def ignored_timestamp(schema: StructType, timestamp_column: str | None) -> str | None:
    """A warning where the column `timestamp` has another type, so that the sink ignores it as Spark's own sink does."""
    data_type = schema["timestamp"].dataType if "timestamp" in schema.fieldNames() else None
    if timestamp_column is not None or data_type is None or _TIMESTAMP.accepts(data_type):
        return None
    return (
        f"the sink ignores column 'timestamp': it has type {data_type.simpleString()}, allowed: timestamp"
        f"{_hint('timestamp', data_type)}. Each record gets the time of sending; option 'timestampColumn' names "
        "another column, or 'none'"
    )


def left_out(
    schema: StructType, topic: str | None, timestamp_column: str | None, formats: FormatOptions | None
) -> str | None:
    """A warning where a column is in no part of the record: the value leaves out its name, and the sink ignores it."""
    names = schema.fieldNames()
    if formats is None or formats.value is None or "value" in names:
        return None
    ignored = {"topic"} if topic is not None else set()
    if timestamp_column not in (None, "timestamp") or ignored_timestamp(schema, timestamp_column):
        ignored.add("timestamp")
    lost = sorted(ignored.intersection(names).difference(formats.key_columns))
    if not lost:
        return None
    columns = " and ".join(f"'{name}'" for name in lost)
    return (
        f"the value has no column {columns}: such a name is the record's own, and the sink ignores the column here. To "
        "keep the data, rename the column, or make a struct 'value' of all columns"
    )


def as_record(batch: pa.RecordBatch, timestamp_column: str | None) -> pa.RecordBatch:
    """The batch with the column that `timestampColumn` names under the name `timestamp`."""
    if timestamp_column in (None, "", "timestamp"):
        return batch
    new_names = {timestamp_column: "timestamp", "timestamp": ""}
    return batch.rename_columns([new_names.get(name, name) for name in batch.schema.names])


def _check_once(name: str, names: list[str]) -> None:
    if names.count(name) > 1:
        raise ValueError(f"column '{name}' occurs {names.count(name)} times: keep one, drop the rest")


def _check_type(name: str, column: _Column, data_type: DataType) -> None:
    if not column.accepts(data_type):
        hint = _hint(column.name, data_type)
        raise ValueError(f"column '{name}' has type {data_type.simpleString()}; allowed: {column.allowed}{hint}")


def _hint(name: str, data_type: DataType) -> str:
    if name == "timestamp" and isinstance(data_type, TimestampNTZType):
        # To read it as UTC would shift the records of every user who means local time.
        return ": it has no time zone, so it names no instant; cast it to timestamp, which uses the session's time zone"
    if name == "key":
        return ": cast it to string, or encode it with option 'keyFormat'"
    return ": cast it to string, or encode it with option 'valueFormat'" if name == "value" else ""


def _columns_given(names: list[str], wanted: str) -> str:
    near = [name for name in names if name.lower() == wanted.lower()]
    if near:
        return f"found '{near[0]}', which differs in case: rename it"
    return f"the columns are {', '.join(map(repr, names)) or 'none'}"
