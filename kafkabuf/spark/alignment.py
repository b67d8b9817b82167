"""Rows by Kafka partition: the partition of a key, and a DataFrame in which one task writes each partition."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from kafkabuf.spark.schema import ALIGNED

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
        from kafkabuf.append._columns import partitions_of

        found = partitions_of(pa.record_batch({"key": keys, "value": keys}), partitions)
        return pa.array(found, pa.int32(), mask=found < 0)

    # Spark reads the annotations, and takes no strings for types.
    choose.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    return choose


def _partition_of_key(partitions: int) -> Any:
    def choose(key: bytes | None) -> int | None:
        from kafkabuf.partitioner import partition_for_key

        return None if key is None else partition_for_key(key, partitions)

    return choose


def align(frame: DataFrame, partitions: int) -> DataFrame:
    """The rows, shuffled so that one task writes each Kafka partition.

    deliveryGuarantee 'atomic' needs this. `partitions` is the number of partitions of the topic. The key chooses the
    partition, and rows without a key are spread by their value. A column `partition` that exists chooses instead, and
    is kept. Else the metadata of `key` and `value` tell the sink that task n writes partition n. PySpark 4.0 cannot
    send partition n to task n: there the frame gets a column `partition`. Warns where spark.speculation is true.
    """
    if speculates(frame):
        warnings.warn(f"{SPECULATION}, and align() is for such writes", stacklevel=3)
    given = "partition" in frame.columns
    if not given:
        spread = F.pmod(F.xxhash64(F.col("value")), F.lit(partitions)).cast("int")
        chosen = F.coalesce(partition_for(F.col("key"), partitions), spread) if "key" in frame.columns else spread
        frame = frame.withColumn("partition", chosen)
    if not hasattr(frame, "repartitionById"):  # PySpark 4.0: by a hash of the partition
        return frame.repartition(partitions, F.col("partition"))
    frame = frame.repartitionById(partitions, F.col("partition"))
    return frame if given else _tagged(frame.drop("partition"), partitions)


def _tagged(frame: DataFrame, partitions: int) -> DataFrame:
    """The frame whose key and value say that task n has the rows of partition n: the user may replace one of them."""
    for name in {"key", "value"} & set(frame.columns):
        frame = frame.withMetadata(name, {**frame.schema[name].metadata, ALIGNED: partitions})
    return frame
