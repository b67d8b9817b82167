"""How one task attempt sends its rows, in Spark's Python worker. Only tasks import this: it loads the extensions.

A row that a broker refuses is refused alone. The broker refuses the row's whole Kafka batch:

- Where the broker names the rows at fault (KIP-467), the task does with them what `onRowError` says, and sends the
  other rows of the batch again, together with those of other batches.
- Where the broker names no row (RECORD_LIST_TOO_LARGE, and brokers before Kafka 2.4), the task sends the rows of the
  batch again in halves, each half as a batch of its own, until a row is alone.

Then rows that look like the refused row go in batches of their own (suspects.py). Rows that are sent again or held back
come after rows that followed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kafkabuf.append.offset_range import OffsetRange, merge_ranges
from kafkabuf.append.report import BulkReport
from kafkabuf.arrow._columns import digest
from kafkabuf.errors import AbortableTransactionError, KafkaError, RefusedWithOthersError
from kafkabuf.metadata.topic_names import is_legal_topic
from kafkabuf.producer import KafkaProducer
from kafkabuf.sending.recovery import ERRORS_OF_RECORDS
from kafkabuf.sharing import ask_for_topics, outlive_refusals
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.options.record_formats import unencodable
from kafkabuf.spark.reports.report import CHECKSUMS, TaskReport
from kafkabuf.spark.rows.numbered import Int64Array, NumberedRows, Topics, joined
from kafkabuf.spark.rows.refusals import Refusals
from kafkabuf.spark.rows.rows import ROW_ERRORS
from kafkabuf.spark.rows.suspects import Suspects
from kafkabuf.spark.worker.limits import TopicLimits
from kafkabuf.spark.worker.place import TaskAttempt

# Arrow batches that may wait for their outcome: a task sends no more than these after its first error.
MAX_OPEN_REPORTS = 16
# Rows that share batches with refused rows wait until they are this many, or come from this many Arrow batches.
ROWS_SENT_AGAIN_TOGETHER = 10_000
MAX_WAITING_PIECES = 16


class _SentRows(NamedTuple):
    """Rows that one call of `send_arrow` queued."""

    report: BulkReport
    rows: NumberedRows
    checksum: int


class Task:
    """Sends the Arrow batches of one task attempt.

    It calls `open_producer` for the first row, not before: an empty partition opens no connection. `opening` has
    the numbers of rows of the first batches that brokers append (atomic.py). Rows outside of `limits` are refused
    before they are sent.
    """

    def __init__(
        self,
        open_producer: Callable[[], KafkaProducer],
        options: SinkOptions,
        columns: tuple[str, ...],
        limits: TopicLimits | None = None,
        opening: Sequence[int] = (),
    ) -> None:
        self._open_producer = open_producer
        self._producer: KafkaProducer | None = None
        self._options = options
        self._columns = list(columns)
        self._limits = limits
        self._opening = deque(opening)
        self._held: list[NumberedRows] = []  # too few for the next opening batch
        self._open_reports: deque[_SentRows] = deque()
        self._waiting: list[NumberedRows] = []  # to be sent again
        self._refusals = Refusals(options, self._opened)
        self._suspects = Suspects()
        self._topics: set[str] = set()  # that rows have named
        self._next_row = 0
        self._sent_again = 0
        self._totals_at_start = (0.0, 0.0)
        self.rows = self.bytes = self.checksum = 0
        self.ranges: tuple[OffsetRange, ...] = ()

    def send_all(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send every row and wait until all are acknowledged. Raises the first error that fails the task."""
        for batch in batches:
            if batch.num_rows:
                self._send(self._suspects.hold_back(self._admitted(batch)))
            self._await_reports(MAX_OPEN_REPORTS)
            if len(self._waiting) >= MAX_WAITING_PIECES or sum(map(len, self._waiting)) >= ROWS_SENT_AGAIN_TOGETHER:
                self._send_waiting()
            if self._suspects.is_full:
                self._send_suspects()
        for rows in self._held:
            self._queue(rows)
        self._send_suspects()
        while self._open_reports or self._waiting:
            self._send_waiting()
            self._opened().flush()
            self._await_reports(0)
        self._refusals.finish()

    def rows_and_checksum_given(self) -> tuple[int, int]:
        """Number and checksum of all rows that Spark gave the task, refused rows too. A replay has the same."""
        refused = self._refusals
        return self.rows + refused.count, (self.checksum + refused.checksum) % CHECKSUMS

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
            skipped=self._refusals.skipped,
            dead_lettered=self._refusals.dead_lettered,
            retries=int(retries - self._totals_at_start[0]) + self._sent_again,
            wait_seconds=waited - self._totals_at_start[1],
            given=self.rows_and_checksum_given(),
            **more,
        )

    # ---- the producer ------------------------------------------------------------------------------------------------

    def _opened(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = self._open_producer()
            if self._options.guarantee.is_transactional:
                outlive_refusals(self._producer)
            self._totals_at_start = self._totals()
        return self._producer

    def _totals(self) -> tuple[float, float]:
        """Records that the producer has sent again and seconds that it has waited for memory, in all its tasks."""
        if self._producer is None:
            return self._totals_at_start
        metrics = self._producer.metrics()["producer-metrics"]
        return metrics["record-retry-total"], metrics["bufferpool-wait-time-ns-total"] / 1e9

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _admitted(self, batch: pa.RecordBatch) -> NumberedRows:
        """The batch without the rows that cannot be encoded, or that are outside of the topic's limits."""
        rows = NumberedRows(batch.select(self._columns), np.arange(self._next_row, self._next_row + batch.num_rows))
        self._next_row += batch.num_rows
        refused = {} if self._limits is None else self._limits.judge(rows.batch)
        refused |= unencodable(batch)
        for place, error in sorted(refused.items()):
            self._refusals.refuse(rows, place, error)
        if len(refused) == len(rows):
            return rows.slice(0, 0)
        rows = rows.without(refused) if refused else rows
        return rows if self._options.topic is not None else self._by_topic(rows)

    def _by_topic(self, rows: NumberedRows) -> NumberedRows:
        """The rows, those of each topic together, whose topics the producer has begun to ask for.

        send_arrow() gives its batches back wherever the topic changes from one row to the next, and waits for the
        metadata of one new topic after the other.
        """
        topics = Topics.of(rows.batch)
        names = (name.decode(errors="replace") for name in topics.names)
        if new := {name for name in names if is_legal_topic(name)} - self._topics:
            ask_for_topics(self._opened(), new)
            self._topics |= new
        return rows if topics.are_together else rows.take(topics.order())

    def _send(self, rows: NumberedRows) -> None:
        """Send new rows, the first of them in the opening batches."""
        while self._opening and len(rows):
            rows = joined([*self._held, rows])
            self._held = []
            if len(rows) < self._opening[0]:
                self._held = [rows]
                return
            rows = self._send_opening_batch(rows)
        if len(rows):
            self._queue(rows)

    def _send_opening_batch(self, rows: NumberedRows) -> NumberedRows:
        """Send the next opening batch, and return the rows that are left. A batch with refused rows does not count."""
        size, before = self._opening[0], self.rows
        self._send_as_a_batch(rows.slice(0, size))
        if self.rows - before == size:
            self._opening.popleft()
        again, self._waiting = self._waiting, []
        return joined([*again, rows.slice(size)])

    def _send_as_a_batch(self, rows: NumberedRows) -> None:
        """Send rows in no batch with other rows, and wait for their outcome."""
        self._opened().flush()
        waiting, self._open_reports = self._open_reports, deque()
        self._queue(rows)
        self._opened().flush()
        self._await_reports(0)
        self._open_reports = waiting

    def _send_waiting(self) -> None:
        """Send the rows again that only shared their batch with refused rows."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._queue(joined(waiting))

    def _send_suspects(self) -> None:
        """Send the rows that were held back, in no batch with other rows."""
        suspects, refused = self._suspects.take(), self._refusals.count
        if suspects is not None:
            self._send_as_a_batch(suspects)
            if self._refusals.count == refused:
                self._suspects.acquit()

    def _queue(self, rows: NumberedRows) -> None:
        """Queue rows, without those that cannot be queued."""
        while len(rows):
            try:
                report = self._opened().send_arrow(rows.batch, topic=self._options.topic)
            except ROW_ERRORS as error:
                queued: int = error.rows_queued
                if queued:
                    self._note_sent(error.report, rows.slice(0, queued))
                self._refusals.refuse(rows, queued, error)
                rows = rows.slice(queued + 1)
            except AbortableTransactionError:
                self._await_reports(0)  # raises the error that made the transaction abortable
                raise
            else:
                self._note_sent(report, rows)
                return

    def _note_sent(self, report: BulkReport, rows: NumberedRows) -> None:
        self._open_reports.append(_SentRows(report, rows, digest(rows.batch)))
        for too_large in report.too_large:
            self._refusals.refuse(rows, too_large.first_row, too_large.error)

    # ---- outcomes ----------------------------------------------------------------------------------------------------

    def _await_reports(self, allowed: int) -> None:
        """Take the outcomes that are there, of the oldest Arrow batches. Wait until at most `allowed` have none."""
        while self._open_reports and (len(self._open_reports) > allowed or self._open_reports[0].report.done()):
            self._await_outcome(self._open_reports.popleft())

    def _await_outcome(self, sent: _SentRows) -> None:
        left_out: list[int] = []
        guilty: dict[int, KafkaError] = {}
        innocent: list[Int64Array] = []
        suspects: list[NumberedRows] = []
        for failed in sent.report.failed_rows():
            if failed.partition < 0:
                left_out.append(int(failed.rows[0]))
            elif isinstance(failed.error, RefusedWithOthersError):
                innocent.append(failed.rows)
            elif not isinstance(failed.error, ERRORS_OF_RECORDS):
                raise failed.error
            elif failed.records == 1:
                guilty[int(failed.rows[0])] = failed.error
            else:
                suspects.append(sent.rows.take(failed.rows))
        again = [sent.rows.take(np.sort(np.concatenate(innocent)))] if innocent else []
        refused = [sent.rows.slice(place, place + 1) for place in (*left_out, *guilty)]
        self._count(sent, [*refused, *again, *suspects])
        for place, error in sorted(guilty.items()):
            self._refusals.refuse(sent.rows, place, error)
            self._suspects.learn(sent.rows, place, error)
        self._waiting += again
        self._sent_again += sum(map(len, again))
        for rows in suspects:
            self._send_halves(rows)

    def _count(self, sent: _SentRows, failed: Sequence[NumberedRows]) -> None:
        """Count the rows that were delivered: all but the failed rows."""
        ranges = sent.report.ranges()
        self.rows += len(sent.rows) - sum(map(len, failed))
        self.checksum = (self.checksum + sent.checksum - sum(digest(rows.batch) for rows in failed)) % CHECKSUMS
        self.bytes += sum(entry.bytes for entry in ranges)
        self.ranges = merge_ranges((*self.ranges, *ranges))

    def _send_halves(self, suspects: NumberedRows) -> None:
        """Send rows again. The broker refuses some of them without naming them."""
        self._sent_again += len(suspects)
        middle = (len(suspects) + 1) // 2
        for half in (suspects.slice(0, middle), suspects.slice(middle)):
            if len(half):
                self._send_as_a_batch(half)


def count_rows(batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]) -> tuple[int, int]:
    """Rows and checksum of a replay that the task does not send."""
    rows = checksum = 0
    for batch in batches:
        rows += batch.num_rows
        checksum = (checksum + digest(batch.select(list(columns)))) % CHECKSUMS
    return rows, checksum
