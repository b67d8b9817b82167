"""Rows by Kafka partition: which one a key belongs to, and a DataFrame whose tasks have partitions to themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def partition_for(key: Column, partitions: int) -> Column:
    """The Kafka partition of a string or binary key, as Java's producer and every kafkabuf producer choose it: murmur2.

    An int; null where the key is null, which belongs to none. `partitions` is the number the topic has.
    """
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, found {partitions}")

    @pandas_udf("int")  # type: ignore[call-overload, untyped-decorator, unused-ignore]
    def chosen(keys: pd.Series) -> pd.Series:
        import pyarrow as pa

        from kafkabuf._columns import partitions_of

        array = pa.array(keys, pa.binary(), from_pandas=True)
        found = partitions_of(pa.record_batch({"key": array, "value": array}), partitions)
        return pd.Series(found, dtype="Int32").mask(found < 0)

    column: Column = chosen(key.cast("binary"))
    return column


def align(frame: DataFrame, partitions: int) -> DataFrame:
    """The rows with a column `partition`, shuffled so that each Kafka partition is written by one task.

    What deliveryGuarantee 'atomic' needs. `partitions` is the number the topic has. An existing `partition` column is
    kept; else keys decide, and rows without one are spread over all, by their value.
    """
    if "partition" not in frame.columns:
        spread = F.pmod(F.xxhash64(F.col("value")), F.lit(partitions)).cast("int")
        chosen = F.coalesce(partition_for(F.col("key"), partitions), spread) if "key" in frame.columns else spread
        frame = frame.withColumn("partition", chosen)
    if hasattr(frame, "repartitionById"):  # Spark 4.1: partition n to task n, instead of a hash of n
        return frame.repartitionById(partitions, F.col("partition"))
    return frame.repartition(partitions, F.col("partition"))
