"""What was sent: per task as Spark's commit message, per write as their sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from kafkabuf.errors import KafkaError
from kafkabuf.offset_range import OffsetRange, merge_ranges


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """One task attempt's records, every one acknowledged.

    `bytes` counts keys, values and headers as encoded. `ranges` has one entry per topic partition; where `rows` is
    less than the width of its range, other writers' records lie in between.
    """

    partition: int
    attempt: int
    rows: int
    bytes: int
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class WriteReport:
    """The sum over all tasks of a write; `ranges` as in `TaskReport`."""

    tasks: int
    rows: int
    bytes: int
    ranges: tuple[OffsetRange, ...]

    @classmethod
    def from_messages(cls, messages: Sequence[WriterCommitMessage | None]) -> WriteReport:
        """Raises KafkaError where a task sent no message: then nobody knows what became of its rows.

        Spark's continuous trigger ends so, without an error of its own.
        """
        reports = [message for message in messages if isinstance(message, TaskReport)]
        if len(reports) < len(messages):
            raise KafkaError(
                f"{len(messages) - len(reports)} of {len(messages)} tasks reported nothing, so their rows may be lost; "
                "the continuous trigger does this: use .trigger(processingTime=...) or .trigger(availableNow=True)"
            )
        return cls(
            tasks=len(reports),
            rows=sum(report.rows for report in reports),
            bytes=sum(report.bytes for report in reports),
            ranges=merge_ranges(entry for report in reports for entry in report.ranges),
        )

    def __str__(self) -> str:
        topics = sorted({entry.topic for entry in self.ranges})
        return (
            f"{self.rows} rows, {self.bytes} bytes by {self.tasks} tasks to {len(self.ranges)} partitions "
            f"of {', '.join(topics) or 'no topic'}"
        )
