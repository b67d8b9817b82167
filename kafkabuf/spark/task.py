"""One task's rows to Kafka, in Spark's Python worker. Only tasks import this: it loads the extensions."""

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
from kafkabuf.spark.place import Place
from kafkabuf.spark.report import CHECKSUMS, TaskReport
from kafkabuf.spark.rows import OF_A_ROW, failure, send_dead_letter

# Batches sent and not yet looked at: this bounds how far a task runs on after its first error.
MAX_OPEN_REPORTS = 16
# Dead letters likewise.
MAX_OPEN_LETTERS = 1_000


class _Sent(NamedTuple):
    """Rows that were queued together; `first` is the number of the first of them in the task."""

    report: BulkReport
    rows: pa.RecordBatch
    first: int


class Task:
    """The way of one task attempt through its Arrow batches.

    `producer` is called for the first row, not before: an empty partition opens no connection.
    """

    def __init__(self, producer: Callable[[], KafkaProducer], options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._producer_for = producer
        self._producer: KafkaProducer | None = None
        self._options = options
        self._columns = list(columns)
        self._keep = ERRORS if options.on_row_error is OnRowError.FAIL else ROWS
        self._open: deque[_Sent] = deque()
        self._letters: deque[RecordFuture] = deque()
        self._next_row = 0
        self._before = (0.0, 0.0)
        self._left_out = 0  # checksum of the rows that were skipped or dead-lettered
        self.rows = self.bytes = self.checksum = self.skipped = self.dead_lettered = 0
        self.ranges: tuple[OffsetRange, ...] = ()

    def send_all(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send every row and wait until all are acknowledged. Raises the first error that fails the task."""
        for batch in batches:
            if batch.num_rows:
                self._send(batch.select(self._columns))
                self._next_row += batch.num_rows
            self._settle_sent(MAX_OPEN_REPORTS)
        if self._producer is not None:
            self._producer.flush()
        self._settle_sent(0)
        if self._letters and self._producer is not None:
            self._producer.flush()
        self._settle_letters(0)

    def asked_to_send(self) -> tuple[int, int]:
        """Rows and checksum of all the task was given, refused ones too: what `count` finds when it is replayed."""
        return self.rows + self.skipped + self.dead_lettered, (self.checksum + self._left_out) % CHECKSUMS

    def report(self, place: Place, **more: Any) -> TaskReport:
        """What has been sent, as Spark's commit message."""
        retries, waited = self._counts()
        return TaskReport(
            partition=place.partition,
            attempt=place.attempt,
            batch=place.batch,
            rows=self.rows,
            bytes=self.bytes,
            ranges=self.ranges,
            checksum=self.checksum,
            skipped=self.skipped,
            dead_lettered=self.dead_lettered,
            retries=int(retries - self._before[0]),
            wait_seconds=waited - self._before[1],
            **more,
        )

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _opened(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = self._producer_for()
            self._before = self._counts()
        return self._producer

    def _counts(self) -> tuple[float, float]:
        """Records sent again and seconds waited for memory, since the producer was opened."""
        if self._producer is None:
            return self._before
        found = self._producer.metrics()["producer-metrics"]
        return found["record-retry-total"], found["bufferpool-wait-time-ns-total"] / 1e9

    def _send(self, rows: pa.RecordBatch) -> None:
        """One Arrow batch, but for rows that cannot be queued."""
        first = self._next_row
        while rows.num_rows:
            try:
                report = self._opened().send_arrow(rows, topic=self._options.topic, report=self._keep)
            except OF_A_ROW as error:
                queued: int = error.rows_queued
                if queued:
                    self._sent(error.report, rows.slice(0, queued), first)
                self._refuse(rows, queued, first, error)
                rows, first = rows.slice(queued + 1), first + queued + 1
            except AbortableTransactionError:
                self._settle_sent(0)  # raises what made it so
                raise
            else:
                self._sent(report, rows, first)
                return

    def _sent(self, report: BulkReport, rows: pa.RecordBatch, first: int) -> None:
        self._open.append(_Sent(report, rows, first))
        self.rows += rows.num_rows
        self._add(digest(rows))
        for left_out in report.too_large:
            self._take_out(rows, left_out.first_row, first, left_out.error)

    def _settle_sent(self, open_ones: int) -> None:
        """Wait for the oldest rows, until no more than `open_ones` batches are left."""
        while len(self._open) > open_ones:
            self._settle(self._open.popleft())

    def _settle(self, sent: _Sent) -> None:
        """Wait for the outcome of the rows."""
        failures = [found for found in sent.report.failures() if found.partition >= 0]
        for found in failures:
            if not isinstance(found.error, OF_A_ROW):
                raise found.error
        if failures and self._options.on_row_error is OnRowError.FAIL:
            of_one = failures[0].rows == 1 and failures[0].first_row == failures[0].last_row
            error = failures[0].error
            raise failure(sent.rows, failures[0].first_row, sent.first, error) if of_one else error
        if failures:
            errors = {found.error.code: found.error for found in failures}
            result = sent.report.result()
            for row in ((result.error_code != 0) & (result.partition >= 0)).nonzero()[0]:
                self._take_out(sent.rows, int(row), sent.first, errors[int(result.error_code[row])])
        ranges = sent.report.ranges()
        self.bytes += sum(entry.bytes for entry in ranges)
        self.ranges = merge_ranges((*self.ranges, *ranges))

    # ---- rows that are refused ---------------------------------------------------------------------------------------

    def _take_out(self, rows: pa.RecordBatch, row: int, first: int, error: KafkaError) -> None:
        """A row that was counted as sent, and was not."""
        self.rows -= 1
        self._add(-digest(rows.slice(row, 1)))
        self._refuse(rows, row, first, error)

    def _refuse(self, rows: pa.RecordBatch, row: int, first: int, error: KafkaError) -> None:
        options = self._options
        if options.on_row_error is OnRowError.FAIL:
            raise failure(rows, row, first, error) from error
        self._left_out += digest(rows.slice(row, 1))
        if options.on_row_error is OnRowError.SKIP:
            self.skipped += 1
            return
        assert options.dead_letter_topic is not None
        try:
            letter = send_dead_letter(self._opened(), options.dead_letter_topic, rows, row, error, options.topic)
        except OF_A_ROW as refused:
            raise _undeliverable(refused) from None
        self._letters.append(letter)
        self.dead_lettered += 1
        self._settle_letters(MAX_OPEN_LETTERS)

    def _settle_letters(self, open_ones: int) -> None:
        """Wait for the oldest dead letters, until no more than `open_ones` are left."""
        while len(self._letters) > open_ones:
            error = self._letters.popleft().exception()
            if error is not None:
                raise _undeliverable(error)

    def _add(self, digest_of_some: int) -> None:
        self.checksum = (self.checksum + digest_of_some) % CHECKSUMS


def _undeliverable(error: KafkaError) -> KafkaError:
    return type(error)(
        f"a dead letter cannot be sent either: {error}. Make room for it in 'deadLetterTopic', or 'skip'"
    )


def count(batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]) -> tuple[int, int]:
    """Rows and checksum of what is not sent, because it has been."""
    rows = checksum = 0
    for batch in batches:
        rows += batch.num_rows
        checksum = (checksum + digest(batch.select(list(columns)))) % CHECKSUMS
    return rows, checksum
