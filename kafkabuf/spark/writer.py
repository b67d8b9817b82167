"""The writers: Spark's calls on one side, `ArrowSink` on the other.

Made and asked to commit on the driver's host, in Python workers of Spark's; `write` runs in an executor's, once per
task attempt. A stream's writer is made for each micro-batch, pickled to the tasks, and made again to commit: what the
driver must know then comes with the tasks' messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from kafkabuf.spark import kept_report
from kafkabuf.spark.options import Guarantee
from kafkabuf.spark.report import TaskReport, WriteReport, task_reports
from kafkabuf.spark.sink import ArrowSink

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.sharing import SharedTransaction
    from kafkabuf.spark.atomic import SharedBatch
    from kafkabuf.spark.place import Batch

    StreamArrowWriter = DataSourceStreamWriter
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:  # PySpark 4.0 takes a stream writer that is an Arrow writer too

    class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        pass


logger = logging.getLogger("kafkabuf.spark")


class BatchWriter(DataSourceArrowWriter):
    """One `df.write`: at least once, or atomic.

    At least once: a retried task sends its rows again, and what a failed job has sent stays in the topic.
    """

    def __init__(self, sink: ArrowSink) -> None:
        self.sink = sink
        self.shared: SharedBatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles the writer just before it makes the tasks; more than once, but begins one transaction."""
        if self.sink.options.guarantee is Guarantee.ATOMIC and self.shared is None:
            from kafkabuf.spark import atomic

            self.shared = atomic.begin(self.sink.options)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return self.sink.send(iterator, self.shared)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        reports = task_reports(messages)
        if self.shared is not None:
            _commit_shared(self.sink, reports, None)
        _tell(WriteReport.from_messages(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell_abort(messages, taken_back=_abort_shared(self.sink, self.shared.transaction if self.shared else None))


class StreamWriter(StreamArrowWriter):
    """One micro-batch of a `df.writeStream`."""

    def __init__(self, sink: ArrowSink) -> None:
        self.sink = sink
        self.shared: SharedBatch | None = None

    __getstate__ = BatchWriter.__getstate__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return self.sink.send(iterator, self.shared)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        reports = task_reports(messages)
        if self.sink.options.guarantee is Guarantee.EXACTLY_ONCE:
            from kafkabuf.spark import exactly_once

            exactly_once.check_width(self.sink.options, reports, batchId)
        elif self.sink.options.guarantee is Guarantee.ATOMIC:
            _commit_shared(self.sink, reports, next((report.batch for report in reports), None))
        _tell(WriteReport.from_messages(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = next((report.transaction for report in messages if isinstance(report, TaskReport)), None)
        _tell_abort(messages, taken_back=_abort_shared(self.sink, found))


def _commit_shared(sink: ArrowSink, reports: Sequence[TaskReport], batch: Batch | None) -> None:
    """End the transaction of an atomic write, unless it was written by an earlier attempt."""
    from kafkabuf.spark import atomic

    transaction = next((report.transaction for report in reports if report.transaction is not None), None)
    if transaction is not None:
        atomic.commit(sink.options, reports, transaction, batch)


def _abort_shared(sink: ArrowSink, transaction: SharedTransaction | None) -> bool:
    """Whether what was written is taken back. Where that cannot be done now the next attempt, or time, does it."""
    if sink.options.guarantee is Guarantee.ATOMIC and transaction is not None:
        from kafkabuf.spark import atomic

        try:
            atomic.abort(sink.options, transaction)
        except Exception as error:
            logger.warning("the transaction of the failed write is left to its time-out: %s", error)
    return sink.options.guarantee is not Guarantee.AT_LEAST_ONCE


def _tell(report: WriteReport) -> None:
    logger.info("%s", report)
    kept_report.keep(report)


def _tell_abort(messages: Sequence[WriterCommitMessage | None], *, taken_back: bool) -> None:
    done = sum(message is not None for message in messages)
    stays = "readers with read_committed see no row twice" if taken_back else "which stay in the topic"
    logger.warning("the write failed: %d of %d tasks had sent all their rows, %s", done, len(messages), stays)
