"""The Spark sink: `df.write.format("kafkabuf")` and `df.writeStream.format("kafkabuf")`.

Spark finds the format where kafkabuf is installed; `register` is for sessions that do not see it, and `activate` for
threads that did not make the session. PySpark 3.4 and 3.5 know no such format: `write` and `foreach_batch` do without.
This module needs pyspark and loads no extension: the tasks import the producer in the executors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from kafkabuf import extras
from kafkabuf.errors import ConfigError

with extras.needs("spark", "kafkabuf.spark"):
    from kafkabuf.spark.reports.kept_report import last_report
    from kafkabuf.spark.reports.listener import ReportListener
    from kafkabuf.spark.reports.report import TaskReport, WriteReport
    from kafkabuf.spark.source import KafkabufDataSource
    from kafkabuf.spark.worker.data_sources import HAS_DATA_SOURCES, no_data_sources

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from kafkabuf.spark.reports.verification import Verification

DefaultSource = KafkabufDataSource

__all__ = [
    "DefaultSource",
    "KafkabufDataSource",
    "ReportListener",
    "TaskReport",
    "WriteReport",
    "activate",
    "align",
    "foreach_batch",
    "last_report",
    "partition_for",
    "register",
    "schema_for",
    "verify",
    "write",
]


def register(spark: SparkSession) -> None:
    """Make `format("kafkabuf")` known to `spark`, where `pyspark_kafkabuf` is not on the driver's import path.

    Raises ConfigError under PySpark 3, which has no Python data sources.
    """
    if not HAS_DATA_SOURCES:
        raise ConfigError(
            f'{no_data_sources()}, so format("kafkabuf") is unknown: call kafkabuf.spark.write(df, ...), and for '
            "streams df.writeStream.foreachBatch(kafkabuf.spark.foreach_batch(...))"
        )
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(KafkabufDataSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses a format that it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def activate(spark: SparkSession) -> None:
    """Let the calling thread write with `spark`: call it in each thread but the one that made the session.

    Spark looks for `format("kafkabuf")` in the session that is active in the calling thread. A thread of its own has no
    active session, and gets DATA_SOURCE_NOT_FOUND. Over Spark Connect each thread can write: then this does nothing.
    """
    try:
        session, jvm = spark._jsparkSession, spark._jvm
    except AttributeError:  # a session of Spark Connect, which has no JVM
        return
    assert jvm is not None
    type(spark)._get_j_spark_session_class(jvm).setActiveSession(session)


def partition_for(key: Column, partitions: int) -> Column:
    """The Kafka partition of a key, as an int column: see alignment.py."""
    from kafkabuf.spark.rows import alignment

    return alignment.partition_for(key, partitions)


def align(frame: DataFrame, partitions: int, options: Mapping[str, str] | None = None) -> DataFrame:
    """The rows, shuffled so that one task writes each Kafka partition: see alignment.py."""
    from kafkabuf.spark.rows import alignment

    return alignment.align(frame, partitions, options)


def schema_for(frame: DataFrame, options: Mapping[str, str], field: Literal["key", "value"] = "value") -> str:
    """The schema, as text, with which a write of `frame` with `options` encodes its values, or its keys.

    The given schema, or the schema that is derived from the columns. Asks no Schema Registry, which may know a newer
    one. Raises ConfigError for wrong options and without a format, SerializationError for columns that do not fit.
    """
    from kafkabuf.spark.options import format_options

    return format_options.schema_for(frame.schema, options, field)


def verify(report: WriteReport, options: Mapping[str, str], timeout: float = 60.0) -> Verification:
    """Read the rows of a write back and compare them with its report: see verification.py."""
    from kafkabuf.spark.reports import verification

    return verification.verify(report, options, timeout)


def write(frame: DataFrame, options: Mapping[str, Any] | None = None, **more: Any) -> WriteReport | None:
    """Write a DataFrame: what `df.write.format("kafkabuf").options(...).mode("append").save()` does, in any thread.

    It needs no Python data source, so PySpark 3.4 and 3.5 have it too. `options` and `more` are the options of the
    sink: `write(df, {"kafka.bootstrap.servers": "localhost:9092"}, topic="orders")`. Returns what was written; None
    over Spark Connect, whose driver logs it. Raises ConfigError, ValueError or KafkaError before any task, where the
    format does. A task that fails ends in Spark's own error.
    """
    from kafkabuf.spark import map_in_arrow

    return map_in_arrow.write(frame, {**(options or {}), **more})


def foreach_batch(options: Mapping[str, Any] | None = None, **more: Any) -> Callable[[DataFrame, int], None]:
    """A function for `df.writeStream.foreachBatch(...)`: it writes each micro-batch with the options of the sink.

    With `exactly_once` and `atomic` the markers hold the numbers of the micro-batches, as those of
    `df.writeStream.format("kafkabuf")` do. It needs no Python data source, so PySpark 3.4 and 3.5 have it too, and it
    takes output mode update, which Spark refuses for Python sinks. Raises ConfigError where the write cannot hold the
    guarantee: atomic while spark.speculation is true, and exactly_once over Spark Connect, which does not tell the
    tasks their micro-batch. There atomic writes each micro-batch at once, and twice if Spark replays it.
    """
    given = {**(options or {}), **more}

    def write_batch(frame: DataFrame, batch_id: int) -> None:
        from kafkabuf.spark import map_in_arrow

        map_in_arrow.write_micro_batch(frame, batch_id, given)

    return write_batch
