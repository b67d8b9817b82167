"""The writers: Spark's calls on one side, `ArrowSink` on the other.

Made and asked to commit on the driver's host, in Python workers of Spark's; `write` runs in an executor's, once per
task attempt. A stream's writer is made for each micro-batch, pickled to the tasks, and made again to commit: what the
driver must know then comes with the tasks' messages.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from kafkabuf.errors import KafkaError
from kafkabuf.spark import kept_report
from kafkabuf.spark.options import Guarantee, LogReport, SinkOptions
from kafkabuf.spark.report import TaskReport, WriteReport, task_reports
from kafkabuf.spark.sink import ArrowSink, told

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
_LEVELS = {LogReport.OFF: logging.WARNING, LogReport.BATCH: logging.INFO, LogReport.TASKS: logging.DEBUG}


class _Writer:
    """What batches and streams have in common: what goes to the tasks, and what these do with it."""

    is_stream: bool

    def __init__(self, sink: ArrowSink) -> None:
        self.sink = sink
        self.begun = False
        self.shared: SharedBatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles the writer just before it makes the tasks; more than once, but one write is begun."""
        if not self.begun:
            self.shared = _begin(self.sink.options, is_stream=self.is_stream)
            self.begun = True
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return self.sink.send(iterator, self.shared)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One `df.write`: at least once, or atomic.

    At least once: a retried task sends its rows again, and what a failed job has sent stays in the topic.
    """

    is_stream = False

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        reports = task_reports(messages)
        if self.shared is not None:
            _commit_shared(self.sink, reports, None)
        _tell(WriteReport.from_messages(messages), reports, self.sink.options.log_report)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell_abort(messages, taken_back=_abort_shared(self.sink, self.shared.transaction if self.shared else None))


class StreamWriter(_Writer, StreamArrowWriter):
    """One micro-batch of a `df.writeStream`."""

    is_stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        reports = task_reports(messages)
        if self.sink.options.guarantee is Guarantee.EXACTLY_ONCE:
            _check_width(self.sink, reports, batchId)
        elif self.sink.options.guarantee is Guarantee.ATOMIC:
            _commit_shared(self.sink, reports, next((report.batch for report in reports), None))
        _tell(WriteReport.from_messages(messages, batchId), reports, self.sink.options.log_report)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = next((report.transaction for report in messages if isinstance(report, TaskReport)), None)
        _tell_abort(messages, taken_back=_abort_shared(self.sink, found))


class NotBegunError(KafkaError, pickle.PicklingError):
    """No task was made. A PicklingError, because Spark asks for the writer by pickling it: any other error that comes
    of this it buries in one of its own."""


def _begin(options: SinkOptions, *, is_stream: bool) -> SharedBatch | None:
    """What the driver does before the tasks. Brokers and topics are looked for before each write, but for a stream's
    first micro-batch only."""
    try:
        if options.guarantee is Guarantee.ATOMIC:
            from kafkabuf.spark import atomic

            return atomic.begin(options, marked=is_stream)
        from kafkabuf.spark import reach

        reach.check(options, again=not is_stream)
    except KafkaError as error:
        raise NotBegunError(str(error)) from None
    return None


def _commit_shared(sink: ArrowSink, reports: Sequence[TaskReport], batch: Batch | None) -> None:
    """End the transaction of an atomic write, unless it was written by an earlier attempt."""
    from kafkabuf.spark import atomic

    transaction = next((report.transaction for report in reports if report.transaction is not None), None)
    try:
        if transaction is not None:
            atomic.commit(sink.options, reports, transaction, batch)
    except KafkaError as error:
        raise told(error, sink.options) from None


def _check_width(sink: ArrowSink, reports: Sequence[TaskReport], batch: int) -> None:
    from kafkabuf.spark import exactly_once

    try:
        exactly_once.check_width(sink.options, reports, batch)
    except KafkaError as error:
        raise told(error, sink.options) from None


def _abort_shared(sink: ArrowSink, transaction: SharedTransaction | None) -> bool:
    """Whether what was written is taken back. Where that cannot be done now the next attempt, or time, does it."""
    if sink.options.guarantee is Guarantee.ATOMIC and transaction is not None:
        from kafkabuf.spark import atomic

        try:
            atomic.abort(sink.options, transaction)
        except Exception as error:
            logger.warning("the transaction of the failed write is left to its time-out: %s", error)
    return sink.options.guarantee is not Guarantee.AT_LEAST_ONCE


def _tell(report: WriteReport, tasks: Sequence[TaskReport], wanted: LogReport) -> None:
    _make_audible(wanted)
    for task in tasks:
        logger.debug("%s", task)
    logger.info("%s", report)
    kept_report.keep(report)


def _make_audible(wanted: LogReport) -> None:
    """The driver's Python workers have no logging set up, and Python drops what is no warning then. So it goes where
    Spark's own log goes by default, standard error; or wherever somebody has set logging up to go to."""
    logger.setLevel(_LEVELS[wanted])
    if not _is_heard():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
        logger.addHandler(handler)


def _is_heard() -> bool:
    at: logging.Logger | None = logger
    while at is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def _tell_abort(messages: Sequence[WriterCommitMessage | None], *, taken_back: bool) -> None:
    _make_audible(LogReport.BATCH)
    done = sum(message is not None for message in messages)
    stays = "readers with read_committed see no row twice" if taken_back else "which stay in the topic"
    logger.warning("the write failed: %d of %d tasks had sent all their rows, %s", done, len(messages), stays)
