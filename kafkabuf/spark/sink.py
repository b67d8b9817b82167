"""One task's rows to Kafka. Runs in Spark's Python worker and is the same for batches and streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkabuf.errors import InvalidTopicError
from kafkabuf.spark import workers
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.report import TaskReport, merge_ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.producer import KafkaProducer
    from kafkabuf.report import ArrowReport, OffsetRange

# Batches sent and not yet looked at. A report keeps its batch's rows in view until it is read, so this bounds a task's
# memory besides buffer.memory, and how far a task runs on after its first error.
MAX_OPEN_REPORTS = 16


class _Tally:
    """Adds up reports in the order they were sent."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.ranges: tuple[OffsetRange, ...] = ()

    def add(self, report: ArrowReport) -> None:
        """Wait for all of the report's records; raise the first error among them."""
        error = report.exception()
        if error is not None:
            raise error
        ranges = report.ranges()
        self.rows += report.rows
        self.bytes += sum(entry.bytes for entry in ranges)
        self.ranges = merge_ranges((*self.ranges, *ranges))


@dataclass(frozen=True)
class ArrowSink:
    """Where rows go and which columns make a record. Pickled from the driver to every task."""

    options: SinkOptions
    columns: tuple[str, ...]

    def send(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Send every row and wait until all are acknowledged. Raises the first error, which fails the task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        tally = _Tally()
        try:
            self._send_all(batches, tally)
        except BaseException:
            # A retry in this process must not find this attempt's unsent rows in the buffer.
            workers.discard(self.options.producer)
            raise
        return TaskReport(
            partition=context.partitionId() if context else -1,
            attempt=context.attemptNumber() if context else -1,
            rows=tally.rows,
            bytes=tally.bytes,
            ranges=tally.ranges,
        )

    def _send_all(self, batches: Iterator[pa.RecordBatch], tally: _Tally) -> None:
        producer: KafkaProducer | None = None
        reports: deque[ArrowReport] = deque()
        row = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if producer is None:  # An empty partition opens no connection.
                producer = workers.producer_for(self.options.producer)
            if self.options.topic is None:
                _check_topics(batch.column("topic"), row)
            reports.append(producer.send_arrow(batch.select(list(self.columns)), topic=self.options.topic))
            row += batch.num_rows
            if len(reports) > MAX_OPEN_REPORTS:
                tally.add(reports.popleft())
        if producer is not None:
            producer.flush()
        for report in reports:
            tally.add(report)


def _check_topics(topics: pa.Array, row: int) -> None:
    if topics.null_count:
        first = row + topics.is_null().index(True).as_py()
        raise InvalidTopicError(
            f"column 'topic' is null in row {first} of this task: fill it, or filter such rows out, "
            "or name one topic for all with .option('topic', ...)"
        )
