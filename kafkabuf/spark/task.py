"""One task's rows to Kafka, in Spark's Python worker. The only part of the sink that loads extensions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from kafkabuf.errors import InvalidTopicError, RecordTooLargeError
from kafkabuf.offset_range import OffsetRange, merge_ranges
from kafkabuf.report import ERRORS, BulkReport
from kafkabuf.spark import workers
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.report import TaskReport

# Batches sent and not yet looked at: this bounds how far a task runs on after its first error.
MAX_OPEN_REPORTS = 16


def send(batches: Iterator[pa.RecordBatch], options: SinkOptions, columns: tuple[str, ...]) -> TaskReport:
    """See `ArrowSink.send`."""
    try:
        tally = _send_all(batches, options, list(columns))
    except BaseException:
        # A retry in this process must not find this attempt's unsent rows in the buffer.
        workers.discard(options.producer)
        raise
    context = TaskContext.get()
    return TaskReport(
        partition=context.partitionId() if context else -1,
        attempt=context.attemptNumber() if context else -1,
        rows=tally.rows,
        bytes=tally.bytes,
        ranges=tally.ranges,
    )


class _Tally:
    """Adds up reports in the order they were sent."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.ranges: tuple[OffsetRange, ...] = ()

    def add(self, report: BulkReport) -> None:
        """Wait for all of the report's records; raise the first error among them."""
        error = report.exception()
        if error is not None:
            raise error
        ranges = report.ranges()
        self.rows += report.rows
        self.bytes += sum(entry.bytes for entry in ranges)
        self.ranges = merge_ranges((*self.ranges, *ranges))


def _send_all(batches: Iterator[pa.RecordBatch], options: SinkOptions, columns: list[str]) -> _Tally:
    tally, reports, row = _Tally(), deque[BulkReport](), 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        producer = workers.producer_for(options.producer)  # not before: an empty partition opens no connection
        if options.topic is None:
            _check_topics(batch.column("topic"), row)
        report = producer.send_arrow(batch.select(columns), topic=options.topic, report=ERRORS)
        _check_sizes(report, row)
        reports.append(report)
        row += batch.num_rows
        if len(reports) > MAX_OPEN_REPORTS:
            tally.add(reports.popleft())
    if reports:
        producer.flush()
    for report in reports:
        tally.add(report)
    return tally


def _check_topics(topics: pa.Array, row: int) -> None:
    if topics.null_count:
        first = row + topics.is_null().index(True).as_py()
        raise InvalidTopicError(
            f"column 'topic' is null in row {first} of this task: fill it, or filter such rows out, "
            "or name one topic for all with .option('topic', ...)"
        )


def _check_sizes(report: BulkReport, row: int) -> None:
    for failure in report.too_large:
        raise RecordTooLargeError(
            f"row {row + failure.first_row} of this task cannot be sent. Of its Arrow batch, {failure.error}: make it "
            "smaller, filter it out, or raise max.request.size, and the topic's max.message.bytes with it"
        )
