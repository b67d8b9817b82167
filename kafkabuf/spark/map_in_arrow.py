"""Writes over `DataFrame.mapInArrow`: PySpark 3.4 and 3.5 have no Python data sources, and newer ones have this too.

This module does what Spark's planner does with a data source, with the same objects. So the sink is the same:

    KafkabufDataSource.writer, streamWriter   driver   check the options and the columns
    writer.begin                              driver   before Spark makes the tasks
    writer.write                              task     once for each attempt; the task's only row is its report
    writer.commit                             driver   after every task has succeeded
    writer.abort                              driver   after a task or the commit has failed

The driver is the user's process here. Spark gives it the row of one attempt of each task, as it gives a data source the
message of one attempt. Spark may run other attempts: after a failure, beside a slow task, or with a whole stage. The
driver learns nothing of them, here as there. The guarantees count on that: a task of `exactly_once` finds the marker of
an attempt that was committed. With `atomic` a second attempt fails, or the contents of the transaction reveal it.

Two things differ. After a failed task the driver does not know how many tasks there were, so `abort` gets no reports.
And a micro-batch is known by Spark's local properties, which only the thread has that calls foreachBatch's function.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkabuf.errors import ConfigError, IllegalStateError, KafkaError
from kafkabuf.spark.options.options import Guarantee, SinkOptions
from kafkabuf.spark.reports.report import TaskReport, WriteReport
from kafkabuf.spark.rows import alignment
from kafkabuf.spark.source import KafkabufDataSource
from kafkabuf.spark.worker.data_sources import HAS_DATA_SOURCES, no_data_sources
from kafkabuf.spark.worker.place import MicroBatch
from kafkabuf.spark.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Send = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_REPORT = "report binary"


def write(frame: DataFrame, options: Mapping[str, Any]) -> WriteReport | None:
    """See `kafkabuf.spark.write`."""
    from kafkabuf.spark.worker import workers

    given = _texts(options)
    if frame.isStreaming:
        raise ConfigError("write() is for batches: use df.writeStream.foreachBatch(kafkabuf.spark.foreach_batch(...))")
    if _is_remote(frame):
        _save(frame, given)
        return None
    writer = KafkabufDataSource(given).writer(frame.schema, overwrite=False)
    try:
        return run(frame, writer, None)
    finally:
        # The user's program may write no more. A stream keeps its connections for the next micro-batch.
        workers.close_all()


def write_micro_batch(frame: DataFrame, batch_id: int, options: Mapping[str, Any]) -> WriteReport | None:
    """See `kafkabuf.spark.foreach_batch`."""
    given = _texts(options)
    if _is_remote(frame):
        _save(frame, given)
        return None
    return run(frame, KafkabufDataSource(given).streamWriter(frame.schema, overwrite=False), batch_id)


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """The options as Spark gives them to a data source: names in lower case, values as text. A None is left out."""
    given = {name.lower(): value for name, value in options.items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def run(frame: DataFrame, writer: BatchWriter | StreamWriter, batch_id: int | None) -> WriteReport:
    """Write a DataFrame with its writer, and commit. `batch_id` is for the writer of a stream."""
    options = writer.sink.options
    _check_speculation(frame, options.guarantee)
    if batch_id is not None and options.guarantee.is_transactional:
        _check_micro_batch(frame.sparkSession, batch_id, options)
    writer.begin()
    reports: list[TaskReport] = []
    try:
        reports += _run_tasks(frame, writer)
        return writer.finish(reports, batch_id)
    except BaseException:  # also where the user stops the query or the program
        writer.take_back(reports)
        raise


def _check_speculation(frame: DataFrame, guarantee: Guarantee | None) -> None:
    if guarantee is not None and guarantee.forbids_second_attempts and alignment.speculates(frame):
        raise ConfigError(f"{alignment.SPECULATION}: set it to false")


def _check_micro_batch(session: SparkSession, batch_id: int, options: SinkOptions) -> None:
    """Raises IllegalStateError where the tasks would not know their micro-batch, or would take another for it."""
    micro_batch = MicroBatch.of_properties(session.sparkContext.getLocalProperty)
    if micro_batch is None or micro_batch.number != batch_id:
        raise IllegalStateError(
            f"deliveryGuarantee '{options.guarantee}' marks micro-batches by their number, and this thread does not "
            f"belong to micro-batch {batch_id} of a query: call the function of foreach_batch() in the thread in which "
            "Spark calls the function given to foreachBatch(), and leave PYSPARK_PIN_THREAD as it is (true)"
        )


def _run_tasks(frame: DataFrame, writer: BatchWriter | StreamWriter) -> list[TaskReport]:
    """The reports of all tasks, in the order of Spark's partitions."""
    rows = frame.mapInArrow(_sending(writer), _REPORT).collect()
    if not rows:
        # A frame without partitions gets one task, as it does from a data source: its marker is that of no rows.
        rows = frame.sparkSession.range(0, 1, 1, 1).mapInArrow(_sending_nothing(writer), _REPORT).collect()
    reports = [pickle.loads(row.report) for row in rows]
    _check_complete(reports)
    return reports


def _check_complete(reports: Sequence[TaskReport]) -> None:
    partitions = [report.partition for report in reports]
    if partitions != list(range(len(reports))):
        raise KafkaError(f"Spark gave the reports of the tasks {partitions}, and each task has one: the write failed")


def _sending(writer: BatchWriter | StreamWriter) -> Send:
    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        report = pickle.dumps(writer.write(batches))
        yield pa.record_batch({"report": pa.array([report], pa.binary())})

    return send


def _sending_nothing(writer: BatchWriter | StreamWriter) -> Send:
    send = _sending(writer)
    # The task reads its rows: it would take rows that are left for those of an input that is cut off (whole_rows.py).
    return lambda batches: send(filter(lambda _: False, batches))


# ---- Spark Connect ---------------------------------------------------------------------------------------------------


def _is_remote(frame: DataFrame) -> bool:
    """Whether the frame belongs to a session of Spark Connect: its driver is another process."""
    return type(frame).__module__.startswith("pyspark.sql.connect.")


def _save(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Write with the data source, whose driver's part Spark runs where the driver is."""
    if not HAS_DATA_SOURCES:
        raise ConfigError(f"{no_data_sources()}, and the sink needs them over Spark Connect: use a classic session")
    _check_speculation(frame, Guarantee.named_in(options))
    frame.write.format("kafkabuf").options(**options).mode("append").save()
