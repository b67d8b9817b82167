"""Spark sink: `df.write.format("kafkabuf")`.

Spark finds the format by itself where this package is installed; `register` is for sessions that cannot see it.
Importing this module needs pyspark and loads no extension: the producer is imported in the executors, by the task that
sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkabuf.spark.report import TaskReport, WriteReport
from kafkabuf.spark.source import KafkabufDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DefaultSource = KafkabufDataSource

__all__ = ["DefaultSource", "KafkabufDataSource", "TaskReport", "WriteReport", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("kafkabuf")` known to `spark`, where `pyspark_kafkabuf` is not on the driver's import path."""
    spark.dataSource.register(KafkabufDataSource)
