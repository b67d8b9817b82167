"""Rows by Kafka partition: which one a key belongs to, and a DataFrame whose tasks have partitions to themselves."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


SPECULATION = "spark.speculation is true: a second attempt of a slow task fails a write with deliveryGuarantee 'atomic'"


def speculates(frame: DataFrame) -> bool:
    """Whether Spark may run two attempts of a task side by side. A sink is not told."""
    return str(frame.sparkSession.conf.get("spark.speculation", "false")).lower() == "true"


def partition_for(key: Column, partitions: int) -> Column:
    """The Kafka partition of a string or binary key, as Java's producer and every kafkabuf producer choose it: murmur2.

    An int; null where the key is null, which belongs to none. `partitions` is the number the topic has.
    """
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, found {partitions}")
    if hasattr(F, "arrow_udf"):
        column: Column = F.arrow_udf(_of_array(partitions), "int")(key.cast("binary"))
    else:  # PySpark 4.0: row by row
        column = F.udf(_of_one(partitions), "int")(key.cast("binary"))
    return column


def _of_array(partitions: int) -> Any:
    def chosen(keys: pa.Array) -> pa.Array:
        from kafkabuf.append._columns import partitions_of

        found = partitions_of(pa.record_batch({"key": keys, "value": keys}), partitions)
        return pa.array(found, pa.int32(), mask=found < 0)

    chosen.__annotations__ = {"keys": pa.Array, "return": pa.Array}  # Spark reads them, and no strings
    return chosen


def _of_one(partitions: int) -> Any:
    def chosen(key: bytes | None) -> int | None:
        from kafkabuf.partitioner import partition_for_key

        return None if key is None else partition_for_key(key, partitions)

    return chosen


def align(frame: DataFrame, partitions: int) -> DataFrame:
    """The rows with a column `partition`, shuffled so that each Kafka partition is written by one task.

    What deliveryGuarantee 'atomic' needs. `partitions` is the number the topic has. An existing `partition` column is
    kept; else keys decide, and rows without one are spread over all, by their value. Warns of spark.speculation.
    """
    if speculates(frame):
        warnings.warn(f"{SPECULATION}, which is what align() is for", stacklevel=3)
    if "partition" not in frame.columns:
        spread = F.pmod(F.xxhash64(F.col("value")), F.lit(partitions)).cast("int")
        chosen = F.coalesce(partition_for(F.col("key"), partitions), spread) if "key" in frame.columns else spread
        frame = frame.withColumn("partition", chosen)
    if hasattr(frame, "repartitionById"):  # Spark 4.1: partition n to task n, instead of a hash of n
        return frame.repartitionById(partitions, F.col("partition"))
    return frame.repartition(partitions, F.col("partition"))
