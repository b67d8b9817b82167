"""Columns of the sink: which of them the DataFrame has, and whether their types fit a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
    from kafkabuf.spark.options.options import SinkOptions
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

    As in Spark's own sink, these names must match exactly, and other columns are ignored. What a format makes may have
    any type: `value` and `key` are then columns that a task makes (encoded_rows.py). A ValueError names the column, the
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


def with_names_of(schema: StructType, options: SinkOptions) -> SinkOptions:
    """The options with the names that columns have, where options name them in another case.

    Spark's analyser finds a column so, unless spark.sql.caseSensitive is true. The driver's Python workers do not see
    that setting: a column of exactly the given name goes before all others. Raises ValueError where several columns
    differ from the name in case.
    """
    timestamp, formats = options.timestamp_column, options.formats
    if timestamp:
        timestamp = column_named(timestamp, schema, "timestampColumn")
    if formats is not None:
        keys = tuple(column_named(name, schema, "keyColumns") for name in formats.key_columns)
        if len(set(keys)) < len(keys):
            raise ValueError(f"option 'keyColumns' is '{','.join(formats.key_columns)}', which names a column twice")
        formats = replace(formats, key_columns=keys)
    return replace(options, timestamp_column=timestamp, formats=formats)


def column_named(name: str, schema: StructType, option: str) -> str:
    """The column that an option names: see `with_names_of`. The name itself where there is no such column."""
    names = schema.fieldNames()
    near = [column for column in names if column.lower() == name.lower()]
    if name in names or not near:
        return name
    if len(near) > 1:
        raise ValueError(f"option '{option}' is '{name}', and several columns differ in case: {', '.join(near)}")
    return near[0]


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


def ignored_for_case(schema: StructType, topic: str | None, formats: FormatOptions | None) -> str | None:
    """A warning where a part of the record would be a column but for its case. Spark's own sink ignores it silently."""
    names = schema.fieldNames()
    if formats is not None and formats.value is not None and "value" not in names:
        return None  # the column is in the value
    parts = {"key", "partition", "headers", *(("topic",) if topic is None else ())}.difference(names)
    lost = [name for name in names if name.lower() in parts]
    if not lost:
        return None
    columns = " and ".join(f"'{name}'" for name in lost)
    return (
        f"the sink ignores column {columns}, as Spark's own sink does: write the name in lower case, and the column is "
        "part of the record"
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
    """The batch with the column that `timestampColumn` names under the name `timestamp`.

    Without the option, rows with a time before 1970 get the time of sending, as all rows do in Spark's own sink: Kafka
    has no such times, and Spark's source gives one to a record that has none.
    """
    if timestamp_column is None:
        return _without_times_before_1970(batch)
    if timestamp_column in ("", "timestamp"):
        return batch
    new_names = {timestamp_column: "timestamp", "timestamp": ""}
    return batch.rename_columns([new_names.get(name, name) for name in batch.schema.names])


def _without_times_before_1970(batch: pa.RecordBatch) -> pa.RecordBatch:
    number = batch.schema.get_field_index("timestamp")
    if number < 0 or getattr(batch.schema.field(number).type, "tz", None) is None:
        return batch
    # Imported late: they load extensions, and the driver needs none.
    import pyarrow as pa
    import pyarrow.compute as pc

    times = batch.column(number)
    since_1970 = times.cast(pa.int64())
    lowest = pc.min(since_1970).as_py()
    if lowest is None or lowest >= 0:
        return batch
    columns = list(batch.columns)
    columns[number] = pc.if_else(pc.less(since_1970, 0), pa.scalar(None, times.type), times)
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


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
