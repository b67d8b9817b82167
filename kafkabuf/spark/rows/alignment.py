"""Rows by Kafka partition: the partition of a key, and a DataFrame in which one task writes each partition."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from kafkabuf.errors import ConfigError
from kafkabuf.spark.options.format_options import FormatOptions, key_rule
from kafkabuf.spark.options.option_names import producer_settings
from kafkabuf.spark.options.options import max_block_seconds
from kafkabuf.spark.options.record_formats import RecordFormats
from kafkabuf.spark.rows.schema import ALIGNED, ALIGNED_BY, column_named

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


SPECULATION = "spark.speculation is true: a second attempt of a slow task fails a write with deliveryGuarantee 'atomic'"


def speculates(frame: DataFrame) -> bool:
    """Whether Spark may run two attempts of a task side by side. Spark does not tell a sink."""
    return str(frame.sparkSession.conf.get("spark.speculation", "false")).lower() == "true"


def partition_for(key: Column, partitions: int) -> Column:
    """The Kafka partition of a string or binary key, by murmur2, as Java's producer and every kafkabuf producer choose.

    The column is an int, and null where the key is null. `partitions` is the number of partitions of the topic.
    """
    if partitions < 1:
        raise ValueError(f"partitions is {partitions}, but a topic has at least one partition")
    if hasattr(F, "arrow_udf"):
        column: Column = F.arrow_udf(_partitions_of_array(partitions), "int")(key.cast("binary"))
    else:  # PySpark 4.0: row by row
        column = F.udf(_partition_of_key(partitions), "int")(key.cast("binary"))
    return column


def _partitions_of_array(partitions: int) -> Any:
    def choose(keys: pa.Array) -> pa.Array:
        from kafkabuf.arrow._columns import partitions_of

        chosen = partitions_of(pa.record_batch({"key": keys, "value": keys}), partitions)
        return pa.array(chosen, pa.int32(), mask=chosen < 0)

    # Spark reads the annotations, and takes no strings for types.
    choose.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    return choose


def _partition_of_key(partitions: int) -> Any:
    def choose(key: bytes | None) -> int | None:
        from kafkabuf.partitioner import partition_for_key

        return None if key is None else partition_for_key(key, partitions)

    return choose


def align(frame: DataFrame, partitions: int, options: Mapping[str, str] | None = None) -> DataFrame:
    """The rows, shuffled so that one task writes each Kafka partition.

    deliveryGuarantee 'atomic' needs this. `partitions` is the number of partitions of the topic. The key chooses the
    partition, and rows without a key are spread by their value. A column `partition` that exists chooses instead, and
    is kept. Else the metadata of columns tell the sink that task n writes partition n. PySpark 4.0 cannot send
    partition n to task n: there the frame gets a column `partition`. Warns where spark.speculation is true.

    `options` are those of the write, where they say what the key is: `keyColumns` and `keyFormat`. The encoded key
    chooses the partition. So the Schema Registry of the options is asked. Raises ConfigError for wrong options.
    """
    if speculates(frame):
        warnings.warn(f"{SPECULATION}, and align() is for such writes", stacklevel=3)
    given = "partition" in frame.columns
    if not given:
        spread = F.pmod(F.xxhash64(*_values(frame)), F.lit(partitions)).cast("int")
        by_key = _partition_of_the_key(frame, partitions, options or {})
        frame = frame.withColumn("partition", spread if by_key is None else F.coalesce(by_key, spread))
    if not hasattr(frame, "repartitionById"):  # PySpark 4.0: by a hash of the partition
        return frame.repartition(partitions, F.col("partition"))
    frame = frame.repartitionById(partitions, F.col("partition"))
    return frame if given else _tagged(frame.drop("partition"), partitions, key_rule(options or {}))


def _tagged(frame: DataFrame, partitions: int, rule: str) -> DataFrame:
    """The frame whose key and value say that task n has the rows of partition n: the user may replace one of them.

    A frame without `value` says so in each column.
    """
    tags = {ALIGNED: partitions, ALIGNED_BY: rule} if rule else {ALIGNED: partitions}
    tagged = {"key", "value"} if "value" in frame.columns else set(frame.columns)
    columns = (
        F.col(_quoted(field.name)).alias(field.name, metadata={**field.metadata, **tags})
        if field.name in tagged
        else F.col(_quoted(field.name))
        for field in frame.schema.fields
    )
    return frame.select(*columns)


def _values(frame: DataFrame) -> list[Column]:
    """The columns by whose values rows without a key are spread. Spark hashes no map."""
    names = ["value"] if "value" in frame.columns else frame.columns
    return [F.col(_quoted(name)) for name in names if "map<" not in frame.schema[name].dataType.simpleString()]


def _partition_of_the_key(frame: DataFrame, partitions: int, options: Mapping[str, str]) -> Column | None:
    """An int column; None where rows have no key."""
    given = {name.lower(): value for name, value in options.items()}
    formats = FormatOptions.parse(given)
    given_names = () if formats is None else formats.key_columns
    names = [column_named(name, frame.schema, "keyColumns") for name in given_names] or ["key"]
    if formats is None or formats.key is None:
        return partition_for(F.col(_quoted(names[0])), partitions) if names[0] in frame.columns else None
    if not hasattr(F, "arrow_udf"):
        raise ConfigError(
            "PySpark 4.0 cannot align rows by an encoded key: use PySpark 4.1 or newer, or add a column 'partition'"
        )
    keys = frame.select(*(F.col(_quoted(name)) for name in names)).schema
    # The options need not name the brokers.
    settings = {"bootstrap.servers": "localhost:9092", **producer_settings(given)}
    topic, timeout = given.get("topic", "").strip() or None, max_block_seconds(settings)
    named = tuple(names) if given_names else ()
    resolved = replace(formats, value=None, key_columns=named).resolved(keys, topic, timeout)
    choose = F.arrow_udf(_partitions_of_encoded(resolved, partitions), "int")
    column: Column = choose(F.struct(*(F.col(_quoted(name)) for name in names)))
    return column


def _partitions_of_encoded(formats: RecordFormats, partitions: int) -> Any:
    def choose(keys: pa.Array) -> pa.Array:
        from kafkabuf.arrow._columns import partitions_of
        from kafkabuf.spark.options.record_formats import unencodable
        from kafkabuf.spark.rows.encoded_rows import RowEncoder

        rows = pa.RecordBatch.from_struct_array(keys)
        made = RowEncoder(formats, rows.schema).records(rows, None)
        chosen = partitions_of(made.append_column("value", made.column("key")), partitions)
        # The write refuses a row whose key cannot be encoded, wherever the row goes.
        chosen[list(unencodable(made))] = -1
        return pa.array(chosen, pa.int32(), mask=chosen < 0)

    # Spark reads the annotations, and takes no strings for types.
    choose.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    return choose


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
