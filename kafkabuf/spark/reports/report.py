"""What a task has sent, as Spark's commit message; and what a write has sent, as the sum over its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from kafkabuf import errors
from kafkabuf.append.offset_range import OffsetRange, merge_ranges
from kafkabuf.errors import KafkaError
from kafkabuf.spark.worker.data_sources import WriterCommitMessage

if TYPE_CHECKING:
    from kafkabuf.sharing import SharedTransaction
    from kafkabuf.spark.reports.marker import Marker
    from kafkabuf.spark.worker.place import MicroBatch

CHECKSUMS = 2**64


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """The records of one task attempt. The brokers have acknowledged all of them.

    `bytes` counts keys, values and headers as encoded. `ranges` has one entry for each topic partition; where `rows` is
    less than the width of its range, records of other writers lie in between. `checksum` covers the keys, values and
    headers of the rows in any order: the checksum of a sum of rows is the sum of checksums, modulo 2^64. `rows` does
    not count the rows that `onRowError` left out: `skipped` and `dead_lettered` do. `retries` counts rows that were
    sent again, `wait_seconds` the time spent waiting for memory.

    `already_written`: an earlier attempt wrote all rows, and the counts are 0. `is_replay`: an earlier run of the query
    may have written a part of the micro-batch. `transaction` is the transaction that the driver ends. `batch` is the
    micro-batch. `marker` is the marker that the task found. `given` has the number and the checksum of all rows that
    Spark gave the task, sent or not.
    """

    partition: int
    attempt: int
    rows: int
    bytes: int
    ranges: tuple[OffsetRange, ...]
    checksum: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    retries: int = 0
    wait_seconds: float = 0.0
    already_written: bool = False
    is_replay: bool = False
    marker: Marker | None = None
    transaction: SharedTransaction | None = None
    batch: MicroBatch | None = None
    given: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        if self.already_written:
            return f"task {self.partition}, attempt {self.attempt}: an earlier attempt had written its rows"
        places = ", ".join(f"{r.topic}-{r.partition} {r.first_offset}..{r.last_offset}" for r in self.ranges)
        return (
            f"task {self.partition}, attempt {self.attempt}: {self.rows} rows, {self.bytes} bytes, {self.skipped} "
            f"skipped, {self.dead_lettered} dead letters, {self.retries} sent again, {self.wait_seconds:.1f} s waited "
            f"for memory; offsets: {places or 'none'}"
        )


@dataclass(frozen=True)
class RefusedRow(WriterCommitMessage):
    """What a task sends in place of its report where it has named a row that each further attempt would refuse.

    `kind` is the class of the error.
    """

    partition: int
    kind: str
    text: str

    def error(self) -> KafkaError:
        """The error that fails the write."""
        kind: type[KafkaError] = getattr(errors, self.kind)
        error = kind(self.text)
        error.add_note(f"Task {self.partition} says so. Spark did not run it again, because each attempt would end so.")
        return error


@dataclass(frozen=True)
class WriteReport:
    """The sum over all tasks of a write; fields as in `TaskReport`.

    `already_written` counts tasks. `batch`, `query_id` and `run_id` name the micro-batch, also that of a `df.write`
    within foreachBatch; they are -1 and None for any other `df.write`. `sink_id` and `write_id` are the options.
    `committed_at` is the end of the write, in seconds since 1970.
    """

    tasks: int
    rows: int
    bytes: int
    ranges: tuple[OffsetRange, ...]
    checksum: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    retries: int = 0
    wait_seconds: float = 0.0
    already_written: int = 0
    batch: int = -1
    query_id: str | None = None
    run_id: str | None = None
    sink_id: str | None = None
    write_id: str | None = None
    committed_at: float = 0.0

    @classmethod
    def from_messages(
        cls,
        messages: Sequence[WriterCommitMessage | None],
        batch_id: int | None = None,
        *,
        sink_id: str | None = None,
        write_id: str | None = None,
    ) -> WriteReport:
        """Add up the messages of all tasks, which the driver has just committed. Raises what `task_reports` raises."""
        reports = task_reports(messages)
        micro_batch = next((report.batch for report in reports if report.batch is not None), None)
        if batch_id is None and micro_batch is not None:
            batch_id = micro_batch.number
        from kafkabuf.process._time import time_ns  # late: Spark's discovery loads no extension

        return cls(
            tasks=len(reports),
            rows=sum(report.rows for report in reports),
            bytes=sum(report.bytes for report in reports),
            ranges=merge_ranges(entry for report in reports for entry in report.ranges),
            checksum=sum(report.checksum for report in reports) % CHECKSUMS,
            skipped=sum(report.skipped for report in reports),
            dead_lettered=sum(report.dead_lettered for report in reports),
            retries=sum(report.retries for report in reports),
            wait_seconds=sum(report.wait_seconds for report in reports),
            already_written=sum(report.already_written for report in reports),
            batch=-1 if batch_id is None else batch_id,
            query_id=None if micro_batch is None else micro_batch.query_id,
            run_id=None if micro_batch is None else micro_batch.run_id,
            sink_id=sink_id,
            write_id=write_id,
            committed_at=time_ns() / 1e9,
        )

    def key_values(self) -> str:
        """The report as one line of `name=value` for programs, without the offset ranges."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "ranges"}
        known["checksum"] = f"{self.checksum:016x}"
        known["wait_seconds"] = f"{self.wait_seconds:.3f}"
        known["committed_at"] = f"{self.committed_at:.3f}"
        known["topics"] = ",".join(self.topics())
        return " ".join(f"{name}={value}" for name, value in known.items() if value is not None)

    def topics(self) -> list[str]:
        """The topics of the rows, sorted."""
        return sorted({entry.topic for entry in self.ranges})

    def __str__(self) -> str:
        text = (
            f"{self.rows} rows, {self.bytes} bytes by {self.tasks} tasks to {len(self.ranges)} partitions "
            f"of {', '.join(self.topics()) or 'no topic'}"
        )
        if self.batch >= 0:
            text = f"micro-batch {self.batch}: {text}"
        for count, what in (
            (self.already_written, "tasks found that their rows had been written"),
            (self.skipped, "rows skipped"),
            (self.dead_lettered, "rows sent to the dead-letter topic"),
            (self.retries, "rows sent again"),
        ):
            text += f", {count} {what}" if count else ""
        return text + (f", {self.wait_seconds:.1f} s waited for memory" if self.wait_seconds >= 0.05 else "")


def task_reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    """The messages with their type. Raises the error of a row that a task has refused, and KafkaError if a task sent no
    message: the state of its rows is unknown."""
    for message in messages:
        if isinstance(message, RefusedRow):
            raise message.error()
    reports = [message for message in messages if isinstance(message, TaskReport)]
    if len(reports) < len(messages):
        raise KafkaError(
            f"{len(messages) - len(reports)} of {len(messages)} tasks reported nothing, so their rows are lost. The "
            "continuous trigger does this: with it Spark gives Python sinks no rows, and the query goes on after this "
            "error. Stop the query, and start it with .trigger(processingTime=...) or .trigger(availableNow=True), and "
            "with a new checkpointLocation"
        )
    return reports
