"""`atomic`: all tasks of a write share one transaction. The whole DataFrame becomes visible at once, or not at all.

1. The driver initialises the transactional id. That fences every earlier writer with this sinkId and ends the
   transaction that an earlier writer left open. The driver begins a transaction and reads the marker (marker.py) of a
   stream. Spark pickles both to the tasks as `SharedBatch`.
2. Each task joins the transaction (sharing.py): it sends its rows under the same producer id and epoch, and leaves. A
   task whose micro-batch the marker covers sends nothing.
3. The driver checks the transaction, sends the marker of the micro-batch, and commits.
4. If a task or the commit fails, the driver aborts the transaction. If the driver dies, the next initialisation of the
   transactional id aborts it, or the coordinator does after transaction.timeout.ms. A replay may have other rows.

Sequence numbers count by partition and producer id. So one task writes each Kafka partition, and a task has only one
attempt: a second attempt fails at once. Before the commit the driver checks what the tasks cannot see: no two tasks
wrote a partition, and the transaction holds exactly the rows that the tasks reported.

Spark may also run a whole stage again, because its shuffle files were lost with an executor. Then a task has a second
attempt with number 0, perhaps beside the first attempt, which still runs. The second attempt finds that its partition
has rows in this transaction, and fails. If both attempts looked before either wrote, the sequence numbers reveal the
second attempt: each attempt sends its first rows in two small batches, whose sizes differ between attempts. A leader
refuses a batch that overlaps an earlier batch without being equal to it. Without these sizes the leader could take the
second attempt's batch for a repetition, drop the batch, and acknowledge it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkabuf.errors import IllegalStateError
from kafkabuf.metadata.admin import ActiveProducer, Admin
from kafkabuf.offset_range import OffsetRange
from kafkabuf.sharing import SharedTransaction, begin_shared, join, leave
from kafkabuf.spark.delivery import Delivery
from kafkabuf.spark.marker import Marker, read_marker, transactional_id_for
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.place import MicroBatch, TaskAttempt
from kafkabuf.spark.preflight import check_cluster
from kafkabuf.spark.report import CHECKSUMS, TaskReport
from kafkabuf.spark.task import Task
from kafkabuf.spark.workers import close_after_failure, task_settings, transactional_producer

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.metadata.groups import TopicPartition
    from kafkabuf.producer import KafkaProducer

_OFFSETS_TOPIC = "__consumer_offsets"
_SEQUENCES = 2**31
_LARGEST_OPENING = 251  # rows
_NAMED = 5  # partitions that an error names


@dataclass(frozen=True)
class SharedBatch:
    """What the driver gives its tasks: the transaction, and the marker of the newest micro-batch."""

    transaction: SharedTransaction
    marker: Marker | None


class Atomic(Delivery[SharedBatch]):
    """See the protocol above."""

    after_abort = "readers with read_committed see no row twice"

    # ---- the driver, before the tasks --------------------------------------------------------------------------------

    def begin(self, *, is_stream: bool) -> SharedBatch:
        sink_id, marker_topic = self.options.sink_id_and_marker_topic()
        name = transactional_id_for(sink_id)
        producer = transactional_producer(self.options.producer, name)
        try:
            with Admin(producer.config) as admin:
                check_cluster(admin, self.options)
                producer.init_transactions()
                # `df.write` has no micro-batch that a marker could name.
                marker = read_marker(admin, name, marker_topic) if is_stream else None
            return SharedBatch(begin_shared(producer), marker)
        finally:
            producer.close()

    # ---- a task ------------------------------------------------------------------------------------------------------

    def send(self, batches: Iterator[pa.RecordBatch], begun: SharedBatch) -> TaskReport:
        attempt, transaction = TaskAttempt.current(), begun.transaction
        if _is_written(attempt.micro_batch, begun):
            deque(batches, maxlen=0)
            return TaskReport(
                attempt.partition, attempt.attempt, 0, 0, (), already_written=True, batch=attempt.micro_batch
            )
        if attempt.attempt > 0:
            raise IllegalStateError(
                f"attempt {attempt.attempt} of task {attempt.partition}: with deliveryGuarantee 'atomic' Spark can try "
                "a task only once, because the rows of an earlier attempt stay in the transaction. The whole write "
                "fails and can be repeated; set spark.speculation to false"
            )
        part = _TransactionPart(self.options, transaction, _opening_sizes(attempt.attempt_id))
        task = Task(part.producer, self.options, self.columns)
        try:
            task.send_all(part.watch(batches))
            part.leave(task.ranges)
        except BaseException:
            part.close_after_failure()
            raise
        return task.report(attempt, transaction=transaction)

    # ---- the driver, after the tasks ---------------------------------------------------------------------------------

    def commit(self, reports: Sequence[TaskReport], batch_id: int | None) -> None:
        """End the transaction, unless an earlier attempt has written the micro-batch.

        Raises IllegalStateError where the transaction does not hold exactly the rows of the reports.
        """
        transaction = next((report.transaction for report in reports if report.transaction is not None), None)
        if transaction is None:
            return
        micro_batch = None if batch_id is None else reports[0].batch
        ranges = [entry for report in reports for entry in report.ranges]
        producer = transactional_producer(self.options.producer, transaction.transactional_id)
        try:
            with Admin(producer.config) as admin:
                _check_contents(admin, ranges, transaction)
            if ranges or micro_batch is not None:
                join(producer, transaction)
                if micro_batch is not None:
                    self._send_marker(producer, reports, micro_batch)
                producer.commit_transaction()
        except BaseException:
            producer.close(timeout=0)
            raise
        producer.close()

    def _send_marker(self, producer: KafkaProducer, reports: Sequence[TaskReport], micro_batch: MicroBatch) -> None:
        rows = sum(report.rows + report.skipped for report in reports)
        marker = Marker(micro_batch, rows, sum(report.checksum for report in reports) % CHECKSUMS)
        name = producer.config.transactional_id
        assert name is not None
        _, marker_topic = self.options.sink_id_and_marker_topic()
        producer.send_offsets_to_transaction({(marker_topic, 0): marker.offset()}, name)

    def abort(self, reports: Sequence[TaskReport], begun: SharedBatch | None) -> None:
        """Abort the transaction at once, because readers wait for its end."""
        if begun is not None:
            transaction: SharedTransaction | None = begun.transaction
        else:
            transaction = next((report.transaction for report in reports), None)
        if transaction is None:
            return
        producer = transactional_producer(self.options.producer, transaction.transactional_id)
        try:
            join(producer, transaction)
            producer.abort_transaction()
        finally:
            close_after_failure(producer)


def _is_written(micro_batch: MicroBatch | None, begun: SharedBatch) -> bool:
    """Whether an earlier attempt has committed the micro-batch."""
    if micro_batch is None or begun.marker is None:
        return False
    return begun.marker.covers(micro_batch, begun.transaction.transactional_id)


# ---- a task's part in the transaction --------------------------------------------------------------------------------


def _opening_sizes(attempt_id: int) -> deque[int]:
    """Rows in the two opening batches. Equal only for attempts whose ids differ by a multiple of 63,001."""
    return deque(1 + digit % _LARGEST_OPENING for digit in reversed(divmod(attempt_id, _LARGEST_OPENING)))


class _TransactionPart:
    """What one task does in the transaction. A task without rows opens no producer."""

    def __init__(self, options: SinkOptions, transaction: SharedTransaction, opening: deque[int]) -> None:
        self._options = options
        self._transaction = transaction
        self._opening = opening
        """Rows that are left to send in each of the two opening batches."""
        self._producer: KafkaProducer | None = None
        self._checked_topics: set[str] = set()
        self._written_before: set[TopicPartition] = set()
        """Partitions with rows of this transaction before the task sent its first row to their topic."""

    def producer(self) -> KafkaProducer:
        """The task's own producer, which has joined the transaction."""
        if self._producer is None:
            settings = task_settings(self._options)
            self._producer = transactional_producer(settings, self._transaction.transactional_id)
            join(self._producer, self._transaction)
        return self._producer

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, with the opening batches split off. Calls `_note_writers` before a topic gets its first row."""
        for batch in self._split_opening(batches):
            if batch.num_rows:
                topic = self._options.topic
                topics = {topic} if topic else set(batch.column("topic").unique().to_pylist())
                self._note_writers({name for name in topics if name} - self._checked_topics)
            yield batch

    def _split_opening(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while self._opening and batch.num_rows:
                opening = batch.slice(0, self._opening[0])
                yield opening
                batch = batch.slice(opening.num_rows)
                self._opening[0] -= opening.num_rows
                if not self._opening[0]:
                    self.producer().flush()
                    self._opening.popleft()
            yield batch

    def _note_writers(self, topics: set[str]) -> None:
        if not topics:
            return
        self._checked_topics |= topics
        with Admin(self.producer().config) as admin:
            for topic in topics:
                partitions = [(topic, number) for number in range(admin.partitions_of(topic))]
                found = admin.active_producers(partitions)
                self._written_before |= {
                    partition for partition in partitions if _writer_in(found[partition], self._transaction)
                }

    def leave(self, ranges: Sequence[OffsetRange]) -> None:
        """Wait until all rows are acknowledged, and leave them to the driver."""
        if self._producer is None:
            return
        leave(self._producer)
        twice = sorted({(entry.topic, entry.partition) for entry in ranges} & self._written_before)
        if twice:
            raise IllegalStateError(_written_by_two(twice))
        self._producer.close()

    def close_after_failure(self) -> None:
        """Drop the unsent rows. The driver aborts the transaction."""
        if self._producer is not None:
            self._producer.close(timeout=0)


# ---- what the transaction holds --------------------------------------------------------------------------------------


def _writer_in(found: Sequence[ActiveProducer], transaction: SharedTransaction) -> ActiveProducer | None:
    """The transaction's producer, if it has written to the partition in this transaction."""
    for active in found:
        is_ours = (active.producer_id, active.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)
        if is_ours and active.transaction_start >= 0:
            return active
    return None


def _written_by_two(partitions: Sequence[TopicPartition]) -> str:
    names = ", ".join(f"{topic}-{number}" for topic, number in partitions[:_NAMED])
    names += ", ..." if len(partitions) > _NAMED else ""
    return (
        f"{names}: written by two tasks, which deliveryGuarantee 'atomic' does not allow. Let one task write each "
        "Kafka partition: kafkabuf.spark.align(df, partitions=...)"
    )


def _check_contents(admin: Admin, ranges: Sequence[OffsetRange], transaction: SharedTransaction) -> None:
    """Raises IllegalStateError where the cluster has other rows in the transaction than the tasks reported."""
    partitions = [(entry.topic, entry.partition) for entry in ranges]
    twice = sorted({partition for partition in partitions if partitions.count(partition) > 1})
    if twice:
        raise IllegalStateError(_written_by_two(twice))
    if not partitions:
        return
    known = admin.transaction(transaction.transactional_id)
    if (known.producer_id, known.producer_epoch) != (transaction.producer_id, transaction.producer_epoch):
        raise IllegalStateError(
            f"another writer has taken over {transaction.transactional_id}, or the transaction took longer than "
            "transaction.timeout.ms: no row of this write is visible"
        )
    written = {partition for partition in known.partitions if partition[0] != _OFFSETS_TOPIC}
    unmatched = sorted(written ^ set(partitions))
    if unmatched:
        raise IllegalStateError(
            f"{unmatched[0][0]}-{unmatched[0][1]} (and {len(unmatched) - 1} more) is not part of both the transaction "
            "and the tasks' reports: Spark ran a task again and did not tell the sink. No row of this write is visible"
        )
    found = admin.active_producers(partitions)
    for entry in ranges:
        writer = _writer_in(found[entry.topic, entry.partition], transaction)
        if writer is None or writer.last_sequence != (entry.rows - 1) % _SEQUENCES:
            rows = 0 if writer is None else writer.last_sequence + 1
            raise IllegalStateError(
                f"{entry.topic}-{entry.partition} has {rows} rows of this transaction, the tasks reported "
                f"{entry.rows}: Spark ran a task again and did not tell the sink. No row of this write is visible"
            )
