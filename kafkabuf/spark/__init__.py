"""Spark sink: `df.write.format("kafkabuf")` and `df.writeStream.format("kafkabuf")`.

Spark finds the format by itself where this package is installed; `register` is for sessions that cannot see it.
Importing this module needs pyspark and loads no extension: the producer is imported in the executors, by the task that
sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kafkabuf.errors import ConfigError
from kafkabuf.spark.kept_report import last_report
from kafkabuf.spark.report import TaskReport, WriteReport
from kafkabuf.spark.source import KafkabufDataSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from kafkabuf.spark.verification import Verification

DefaultSource = KafkabufDataSource

__all__ = [
    "DefaultSource",
    "KafkabufDataSource",
    "TaskReport",
    "WriteReport",
    "align",
    "foreach_batch",
    "last_report",
    "partition_for",
    "register",
    "verify",
]


def register(spark: SparkSession) -> None:
    """Make `format("kafkabuf")` known to `spark`, where `pyspark_kafkabuf` is not on the driver's import path."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(KafkabufDataSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses what it has found itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def partition_for(key: Column, partitions: int) -> Column:
    """The Kafka partition of a key as an int column: see alignment.py."""
    from kafkabuf.spark import alignment

    return alignment.partition_for(key, partitions)


def align(frame: DataFrame, partitions: int) -> DataFrame:
    """The rows, shuffled so that each Kafka partition is written by one task: see alignment.py."""
    from kafkabuf.spark import alignment

    return alignment.align(frame, partitions)


def verify(report: WriteReport, options: Mapping[str, str], timeout: float = 60.0) -> Verification:
    """Read a write's rows back and compare: see verification.py."""
    from kafkabuf.spark import verification

    return verification.verify(report, options, timeout)


def foreach_batch(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """For `df.writeStream.foreachBatch(...)`: each micro-batch is written with `options`, at least once.

    It takes output mode update, which Spark refuses to Python sinks. ConfigError for exactly_once, and for atomic where
    spark.speculation is on.
    """
    guarantee = next((value for name, value in options.items() if name.lower() == "deliveryguarantee"), "")
    guarantee = guarantee.strip().lower()
    if guarantee == "exactly_once":
        raise ConfigError(
            "foreach_batch() writes at least once, or each micro-batch at once (atomic): exactly_once needs "
            'df.writeStream.format("kafkabuf")'
        )

    def write(frame: DataFrame, batch_id: int) -> None:
        from kafkabuf.spark import alignment

        if guarantee == "atomic" and alignment.speculates(frame):
            raise ConfigError(f"{alignment.SPECULATION}: set it to false")
        frame.write.format("kafkabuf").options(**options).mode("append").save()

    return write
