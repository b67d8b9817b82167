"""How one task attempt sends its rows, in Spark's Python worker. Only tasks import this: it loads the extensions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from kafkabuf.append._columns import digest
from kafkabuf.append.report import ERRORS, ROWS, BulkReport
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import AbortableTransactionError, KafkaError
from kafkabuf.offset_range import OffsetRange, merge_ranges
from kafkabuf.producer import KafkaProducer
from kafkabuf.spark.options import OnRowError, SinkOptions
from kafkabuf.spark.place import TaskAttempt
from kafkabuf.spark.report import CHECKSUMS, TaskReport
from kafkabuf.spark.rows import ROW_ERRORS, row_error, send_dead_letter

# Arrow batches that may wait for their outcome: a task sends no more than these after its first error.
MAX_OPEN_REPORTS = 16
# Dead letters that may wait for their outcome.
MAX_OPEN_DEAD_LETTERS = 1_000


class _SentRows(NamedTuple):
    """Rows that one call of `send_arrow` queued. `first` is the number of the first of these rows in the task."""

    report: BulkReport
    rows: pa.RecordBatch
    first: int


class Task:
    """Sends the Arrow batches of one task attempt.

    It calls `open_producer` for the first row, not before: an empty partition opens no connection.
    """

    def __init__(
        self, open_producer: Callable[[], KafkaProducer], options: SinkOptions, columns: tuple[str, ...]
    ) -> None:
        self._open_producer = open_producer
        self._producer: KafkaProducer | None = None
        self._options = options
        self._columns = list(columns)
        self._report_kind = ERRORS if options.on_row_error is OnRowError.FAIL else ROWS
        self._open_reports: deque[_SentRows] = deque()
        self._open_dead_letters: deque[RecordFuture] = deque()
        self._next_row = 0
        self._totals_at_start = (0.0, 0.0)
        self._refused_checksum = 0  # of the rows that were skipped or dead-lettered
        self.rows = self.bytes = self.checksum = self.skipped = self.dead_lettered = 0
        self.ranges: tuple[OffsetRange, ...] = ()

    def send_all(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send every row and wait until all are acknowledged. Raises the first error that fails the task."""
        for batch in batches:
            if batch.num_rows:
                self._send(batch.select(self._columns))
                self._next_row += batch.num_rows
            self._await_reports(MAX_OPEN_REPORTS)
        if self._producer is not None:
            self._producer.flush()
        self._await_reports(0)
        if self._open_dead_letters and self._producer is not None:
            self._producer.flush()
        self._await_dead_letters(0)

    def rows_and_checksum_given(self) -> tuple[int, int]:
        """Of all rows that Spark gave the task, the refused ones too: `count_rows` finds the same in a replay."""
        return self.rows + self.skipped + self.dead_lettered, (self.checksum + self._refused_checksum) % CHECKSUMS

    def report(self, attempt: TaskAttempt, **more: Any) -> TaskReport:
        """What the task has sent, as Spark's commit message."""
        retries, waited = self._totals()
        return TaskReport(
            partition=attempt.partition,
            attempt=attempt.attempt,
            batch=attempt.micro_batch,
            rows=self.rows,
            bytes=self.bytes,
            ranges=self.ranges,
            checksum=self.checksum,
            skipped=self.skipped,
            dead_lettered=self.dead_lettered,
            retries=int(retries - self._totals_at_start[0]),
            wait_seconds=waited - self._totals_at_start[1],
            given=self.rows_and_checksum_given(),
            **more,
        )

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _opened(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = self._open_producer()
            self._totals_at_start = self._totals()
        return self._producer

    def _totals(self) -> tuple[float, float]:
        """Records that the producer has sent again and seconds that it has waited for memory, in all its tasks."""
        if self._producer is None:
            return self._totals_at_start
        found = self._producer.metrics()["producer-metrics"]
        return found["record-retry-total"], found["bufferpool-wait-time-ns-total"] / 1e9

    def _send(self, rows: pa.RecordBatch) -> None:
        """Send one Arrow batch, without the rows that cannot be queued."""
        first = self._next_row
        while rows.num_rows:
            try:
                report = self._opened().send_arrow(rows, topic=self._options.topic, report=self._report_kind)
            except ROW_ERRORS as error:
                queued: int = error.rows_queued
                if queued:
                    self._note_sent(error.report, rows.slice(0, queued), first)
                self._refuse(rows, queued, first, error)
                rows, first = rows.slice(queued + 1), first + queued + 1
            except AbortableTransactionError:
                self._await_reports(0)  # raises the error that made the transaction abortable
                raise
            else:
                self._note_sent(report, rows, first)
                return

    def _note_sent(self, report: BulkReport, rows: pa.RecordBatch, first: int) -> None:
        self._open_reports.append(_SentRows(report, rows, first))
        self.rows += rows.num_rows
        self._add_checksum(digest(rows))
        for too_large in report.too_large:
            self._uncount(rows, too_large.first_row, first, too_large.error)

    def _await_reports(self, allowed: int) -> None:
        """Wait for the outcome of the oldest Arrow batches, until no more than `allowed` wait for theirs."""
        while len(self._open_reports) > allowed:
            self._await_outcome(self._open_reports.popleft())

    def _await_outcome(self, sent: _SentRows) -> None:
        failures = [found for found in sent.report.failures() if found.partition >= 0]
        for found in failures:
            if not isinstance(found.error, ROW_ERRORS):
                raise found.error
        if failures and self._options.on_row_error is OnRowError.FAIL:
            is_one_row = failures[0].rows == 1 and failures[0].first_row == failures[0].last_row
            error = failures[0].error
            raise row_error(sent.rows, failures[0].first_row, sent.first, error) if is_one_row else error
        if failures:
            errors = {found.error.code: found.error for found in failures}
            result = sent.report.result()
            for row in ((result.error_code != 0) & (result.partition >= 0)).nonzero()[0]:
                self._uncount(sent.rows, int(row), sent.first, errors[int(result.error_code[row])])
        ranges = sent.report.ranges()
        self.bytes += sum(entry.bytes for entry in ranges)
        self.ranges = merge_ranges((*self.ranges, *ranges))

    # ---- rows that are refused ---------------------------------------------------------------------------------------

    def _uncount(self, rows: pa.RecordBatch, row: int, first: int, error: KafkaError) -> None:
        """Refuse a row that was counted as sent."""
        self.rows -= 1
        self._add_checksum(-digest(rows.slice(row, 1)))
        self._refuse(rows, row, first, error)

    def _refuse(self, rows: pa.RecordBatch, row: int, first: int, error: KafkaError) -> None:
        """Do with the row what `onRowError` says."""
        options = self._options
        if options.on_row_error is OnRowError.FAIL:
            raise row_error(rows, row, first, error) from error
        self._refused_checksum += digest(rows.slice(row, 1))
        if options.on_row_error is OnRowError.SKIP:
            self.skipped += 1
            return
        assert options.dead_letter_topic is not None
        try:
            letter = send_dead_letter(self._opened(), options.dead_letter_topic, rows, row, error, options.topic)
        except ROW_ERRORS as refused:
            raise _undeliverable(refused) from None
        self._open_dead_letters.append(letter)
        self.dead_lettered += 1
        self._await_dead_letters(MAX_OPEN_DEAD_LETTERS)

    def _await_dead_letters(self, allowed: int) -> None:
        """Wait for the outcome of the oldest dead letters, until no more than `allowed` wait for theirs."""
        while len(self._open_dead_letters) > allowed:
            error = self._open_dead_letters.popleft().exception()
            if error is not None:
                raise _undeliverable(error)

    def _add_checksum(self, checksum: int) -> None:
        self.checksum = (self.checksum + checksum) % CHECKSUMS


def _undeliverable(error: KafkaError) -> KafkaError:
    return type(error)(
        f"a dead letter cannot be sent either: {error}. Let 'deadLetterTopic' accept such records, or set option "
        "'onRowError' to 'skip'"
    )


def count_rows(batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]) -> tuple[int, int]:
    """Rows and checksum of a replay that the task does not send."""
    rows = checksum = 0
    for batch in batches:
        rows += batch.num_rows
        checksum = (checksum + digest(batch.select(list(columns)))) % CHECKSUMS
    return rows, checksum
