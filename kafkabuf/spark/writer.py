"""The writers: Spark calls them, or map_in_arrow.py does, and they call the guarantee of the write (delivery.py).

Python workers on the driver's host make a writer and ask it to commit. `write` runs in the Python workers of the
executors, once for each task attempt. Spark makes the writer of a stream for each micro-batch, pickles it to the tasks,
and makes it again to commit. So the reports of the tasks carry what the driver must know to commit.

A task that has named a row at fault (`onRowError` `fail`) would name it in each attempt, behind the rows that it sends
again. So it does not fail: it reports the row (RefusedRow), and the driver fails the write in place of the commit. The
other tasks under the same JVM find a note of it, and end at their next rows.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kafkabuf.errors import KafkaError
from kafkabuf.spark.options.options import LogReport
from kafkabuf.spark.reports import kept_report
from kafkabuf.spark.reports.report import RefusedRow, TaskReport, WriteReport, task_reports
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import notes
from kafkabuf.spark.worker.data_sources import DataSourceArrowWriter, StreamArrowWriter, WriterCommitMessage
from kafkabuf.spark.worker.place import TaskAttempt

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("kafkabuf.spark")
_LEVELS = {
    LogReport.OFF: logging.WARNING,
    LogReport.BATCH: logging.INFO,
    LogReport.KEY_VALUE: logging.INFO,
    LogReport.TASKS: logging.DEBUG,
}


class _Writer:
    """What batches and streams have in common."""

    is_stream: bool

    def __init__(self, sink: ArrowSink) -> None:
        self.sink = sink
        self.has_begun = False
        self.begun: Any = None
        """The result of `Delivery.begin`."""
        self.refusal = ""
        """The name of the note that a task has named a row at fault; no other write has this name."""

    def __getstate__(self) -> dict[str, Any]:
        """Begin the write: Spark pickles the writer just before it makes the tasks. It may pickle more than once."""
        try:
            self.begin()
        except KafkaError as error:
            raise NotBegunError(str(error)) from None
        return self.__dict__

    def begin(self) -> None:
        """Begin the write, once. Raises KafkaError where no task could write."""
        if not self.has_begun:
            self.sink = self.sink.with_formats()
            self.begun = self.sink.delivery().begin(is_stream=self.is_stream)
            self.refusal = f"refused-{os.urandom(16).hex()}"
            self.has_begun = True

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport | RefusedRow:
        # Imported late: it loads an extension.
        from kafkabuf.spark.rows.rows import REPEATING_ERRORS

        try:
            return self.sink.send(self._until_refused(iterator), self.begun)
        except _RowRefusedError as error:
            return error.row
        except REPEATING_ERRORS as error:
            row = RefusedRow(TaskAttempt.current().partition, type(error).__name__, str(error))
            notes.put(self.refusal, asdict(row))
            return row

    def _until_refused(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, until another task under this JVM has named a row at fault. Then it raises _RowRefusedError."""
        for batch in batches:
            if (note := notes.find(self.refusal)) is not None:
                raise _RowRefusedError(RefusedRow(**note))
            yield batch

    def finish(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> WriteReport:
        """Commit, and report. `batch_id` is None for the writer of a `df.write`."""
        reports = task_reports(messages)
        self.sink.commit(reports, batch_id, self.begun)
        options = self.sink.options
        report = WriteReport.from_messages(messages, batch_id, sink_id=options.sink_id, write_id=options.write_id)
        _log_write(report, reports, options.log_report)
        kept_report.keep(report)
        return report

    def take_back(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort. `messages` has None for each task that has not succeeded. It is empty where the tasks are unknown."""
        delivery = self.sink.delivery()
        try:
            delivery.abort([message if isinstance(message, TaskReport) else None for message in messages], self.begun)
        except Exception as error:
            # The next attempt ends the transaction, or the coordinator does after transaction.timeout.ms.
            logger.warning("the transaction of the failed write stays open until its time-out: %s", error)
        _log_failure(messages, delivery.after_abort)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One `df.write`: at least once, or atomic.

    At least once: a task that Spark runs again sends its rows again, and the rows of a failed job stay in the topic.
    """

    is_stream = False

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.finish(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.take_back(messages)


class StreamWriter(_Writer, StreamArrowWriter):
    """One micro-batch of a `df.writeStream`."""

    is_stream = True

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.finish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.take_back(messages)


class _RowRefusedError(Exception):
    """Another task of this write has named a row at fault."""

    def __init__(self, row: RefusedRow) -> None:
        super().__init__(row.text)
        self.row = row


class NotBegunError(KafkaError, pickle.PicklingError):
    """The driver could not begin the write, and Spark made no task.

    It is a PicklingError because Spark pickles the writer, and replaces any other error by an error of its own.
    """


# ---- the driver's log ------------------------------------------------------------------------------------------------


def _log_write(report: WriteReport, tasks: Sequence[TaskReport], wanted: LogReport) -> None:
    _set_up_logging(wanted)
    for task in tasks:
        logger.debug("%s", task)
    logger.info("%s", report.key_values() if wanted is LogReport.KEY_VALUE else report)


def _log_failure(messages: Sequence[WriterCommitMessage | None], after_abort: str) -> None:
    _set_up_logging(LogReport.BATCH)
    done = sum(isinstance(message, TaskReport) for message in messages)
    sent = f"{done} of {len(messages)} tasks had sent all their rows" if messages else "tasks may have sent rows"
    logger.warning("the write failed: %s, %s", sent, after_abort)


def _set_up_logging(wanted: LogReport) -> None:
    """Log to standard error, as Spark does by default, unless the user has set up logging.

    The driver's Python workers have no logging set up, and Python then drops every message below a warning.
    """
    logger.setLevel(_LEVELS[wanted])
    if not _has_handler():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
        logger.addHandler(handler)


def _has_handler() -> bool:
    """Whether a message of the logger comes to a handler that writes it."""
    current: logging.Logger | None = logger
    while current is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False
