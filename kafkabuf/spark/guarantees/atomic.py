"""`atomic`: all tasks of a write share one transaction. The whole DataFrame becomes visible at once, or not at all.

1. The driver initialises the transactional id. That fences every earlier writer with this sinkId and ends the
   transaction that an earlier writer left open. The driver reads the marker (marker.py): of the newest micro-batch, or
   of the `df.write` with this writeId. It begins a transaction. Spark pickles both to the tasks as `SharedBatch`.
2. Each task joins the transaction (sharing.py): it sends its rows under the same producer id and epoch, and leaves. A
   task whose micro-batch or write was committed before sends nothing.
3. The driver checks the transaction, sends the marker, and commits. If no response says whether the commit was carried
   out, the driver fences the transaction and looks whether the marker is there: then the write has succeeded.
4. If a task or the commit fails, the driver aborts the transaction and gives the transactional id a new epoch: a task
   that lives on can add nothing. If the driver dies, the next initialisation of the transactional id aborts the
   transaction, or the coordinator does after transaction.timeout.ms. A replay may have other rows.

Sequence numbers count by partition and producer id. So one task writes each Kafka partition, and a task has only one
attempt: a second attempt fails at once. Before the commit the driver checks what the tasks cannot see: no two tasks
wrote a partition, and the transaction holds exactly the rows that the tasks reported.

Spark may also run a whole stage again, because its shuffle files were lost with an executor. Then a task has a second
attempt with number 0, perhaps beside the first attempt, which still runs. The second attempt finds that its partition
has rows in this transaction, and fails. If both attempts looked before either wrote, the sequence numbers reveal the
second attempt: each attempt sends its first rows in two small batches, whose sizes differ between attempts. The task
sends such a batch again, filled up with other rows, until the leader has appended it whole (task.py). A leader
refuses a batch that overlaps an earlier batch without being equal to it. Without these sizes the leader could take the
second attempt's batch for a repetition, drop the batch, and acknowledge it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkabuf.admin.admin import ActiveProducer, Admin, TransactionDescription
from kafkabuf.append.offset_range import OffsetRange
from kafkabuf.errors import (
    IllegalStateError,
    KafkaError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from kafkabuf.metadata.topic_names import is_legal_topic
from kafkabuf.sharing import SharedTransaction, assign, begin_shared, join, leave
from kafkabuf.shown import escaped
from kafkabuf.spark.guarantees import preflight
from kafkabuf.spark.guarantees.delivery import Delivery
from kafkabuf.spark.options.option_names import Settings
from kafkabuf.spark.options.options import Guarantee, SinkOptions
from kafkabuf.spark.reports.marker import (
    Marker,
    WriteMarker,
    is_written,
    read_marker,
    read_write_marker,
    refuse_lost,
    refuse_other_guarantee,
    transactional_id_for,
    write_group_for,
)
from kafkabuf.spark.reports.report import CHECKSUMS, TaskReport
from kafkabuf.spark.rows.task import Task, count_rows
from kafkabuf.spark.worker import workers
from kafkabuf.spark.worker.limits import TopicLimits
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.producer import KafkaProducer
    from kafkabuf.transactions.groups import TopicPartition

_OFFSETS_TOPIC = "__consumer_offsets"
_SEQUENCES = 2**31
_LARGEST_OPENING = 251  # rows
_NAMED = 5  # partitions that an error names
_ONE_TASK = (
    "deliveryGuarantee 'atomic' does not allow that: let one task write each Kafka partition, with "
    "kafkabuf.spark.align(df, partitions=...)"
)


@dataclass(frozen=True)
class SharedBatch:
    """What the driver gives its tasks: the transaction, and the marker of the newest micro-batch or of this write.

    `write` is the name of a `df.write`: its writeId or a random name; "" for a micro-batch. A write that was committed
    before has no transaction.
    """

    transaction: SharedTransaction | None
    marker: Marker | WriteMarker | None
    write: str = ""
    limits: TopicLimits | None = None


class Atomic(Delivery[SharedBatch]):
    """See the protocol above."""

    after_abort = "readers with read_committed see no row twice"

    # ---- the driver, before the tasks --------------------------------------------------------------------------------

    def begin(self, *, is_stream: bool) -> SharedBatch:
        preflight.check(self.options, repeat=not is_stream)
        limits = preflight.read_limits(self.options)
        sink_id, _ = self.options.sink_id_and_marker_topic()
        with workers.lent_transactional(self.options.producer) as producer:
            assign(producer, transactional_id_for(sink_id))
            producer.init_transactions()
            if is_stream:
                return SharedBatch(begin_shared(producer), self._newest_marker(), limits=limits)
            write = self.options.write_id or uuid.uuid4().hex
            marker = None if self.options.write_id is None else self._write_marker()
            return SharedBatch(None if marker is not None else begin_shared(producer), marker, write, limits)

    def _newest_marker(self) -> Marker | None:
        sink_id, marker_topic = self.options.sink_id_and_marker_topic()
        with workers.lent_admin(self.options.producer) as admin:
            marker = read_marker(admin, transactional_id_for(sink_id), marker_topic)
            if marker is None and read_marker(admin, transactional_id_for(sink_id, 0), marker_topic) is not None:
                refuse_other_guarantee(self.options, Guarantee.EXACTLY_ONCE)
        return marker

    def _write_marker(self) -> WriteMarker | None:
        sink_id, marker_topic = self.options.sink_id_and_marker_topic()
        with workers.lent_admin(self.options.producer) as admin:
            return read_write_marker(admin, write_group_for(sink_id, self.options.write_id), marker_topic)

    # ---- a task ------------------------------------------------------------------------------------------------------

    def send(self, batches: Iterator[pa.RecordBatch], begun: SharedBatch) -> TaskReport:
        attempt, transaction = TaskAttempt.current(), begun.transaction
        if transaction is None or self._is_written(attempt.micro_batch, begun, transaction.transactional_id):
            return self._already_written(batches, attempt)
        if attempt.attempt > 0:
            raise IllegalStateError(
                f"attempt {attempt.attempt} of task {attempt.partition}: with deliveryGuarantee 'atomic' Spark can try "
                "a task only once, because the rows of an earlier attempt stay in the transaction. The whole write "
                "fails and can be repeated; set spark.speculation to false"
            )
        with ExitStack() as lent:
            settings = workers.task_settings(self.options, begun.limits)
            part = _TransactionPart(self.options, settings, transaction, lent)
            opening = _opening_sizes(attempt.attempt_id)
            task = Task(part.producer, self.options, self.columns, begun.limits, opening)
            try:
                task.send_all(part.watch(batches))
                part.leave(task.ranges)
            except OutOfOrderSequenceNumberError as error:
                raise IllegalStateError(
                    f"a broker refused rows of task {attempt.partition}: another task wrote the same Kafka partition, "
                    f"or Spark ran the task again ({error}). {_ONE_TASK}"
                ) from error
            return task.report(attempt, transaction=transaction)

    def _is_written(self, micro_batch: MicroBatch | None, begun: SharedBatch, group: str) -> bool:
        """Whether an earlier attempt has committed the micro-batch. Raises IllegalStateError as `is_written` does."""
        if micro_batch is None or isinstance(begun.marker, WriteMarker):
            return False
        if is_written(begun.marker, micro_batch, group):
            return True
        newest = -1 if begun.marker is None else begun.marker.micro_batch.number
        if newest < micro_batch.number - 1:
            state = "there is no marker" if begun.marker is None else f"the marker is that of micro-batch {newest}"
            refuse_lost(group, micro_batch, self.options, state)
        return False

    def _already_written(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> TaskReport:
        """The report of a task whose rows were committed before. It counts the rows that it would have sent."""
        rows, checksum = count_rows(batches, self.columns)
        return TaskReport(
            attempt.partition,
            attempt.attempt,
            0,
            0,
            (),
            already_written=True,
            batch=attempt.micro_batch,
            given=(rows, checksum),
        )

    # ---- the driver, after the tasks ---------------------------------------------------------------------------------

    def commit(self, reports: Sequence[TaskReport], batch_id: int | None, begun: SharedBatch | None) -> None:
        """End the transaction, unless the micro-batch or the write was committed before.

        Raises IllegalStateError where the transaction does not hold exactly the rows of the reports.
        """
        transaction = next((report.transaction for report in reports if report.transaction is not None), None)
        if transaction is None:
            if begun is not None and isinstance(begun.marker, WriteMarker):
                _compare(begun.marker, reports)
            return
        marker = self._marker_of(reports, begun)
        ranges = [entry for report in reports for entry in report.ranges]
        with workers.lent_admin(self.options.producer) as admin:
            _check_contents(admin, ranges, transaction)
        may_be_committed = False
        try:
            # The error closes the producer: its commit may still be under way, so no other write may use it.
            with workers.lent_transactional(self.options.producer, close_seconds=0.0) as producer:
                join(producer, transaction)
                _, marker_topic = self.options.sink_id_and_marker_topic()
                producer.send_offsets_to_transaction({(marker_topic, 0): marker.offset()}, self._group_of(marker))
                may_be_committed = True
                producer.commit_transaction()
        except KafkaError as error:
            if not (may_be_committed and self._is_committed(marker, error)):
                raise

    def _marker_of(self, reports: Sequence[TaskReport], begun: SharedBatch | None) -> Marker | WriteMarker:
        rows, checksum = _given(reports)
        micro_batch = reports[0].batch
        if begun is not None and begun.write:
            return WriteMarker(begun.write, rows, checksum)
        assert micro_batch is not None
        return Marker(micro_batch, rows, checksum)

    def _group_of(self, marker: Marker | WriteMarker) -> str:
        sink_id, _ = self.options.sink_id_and_marker_topic()
        if isinstance(marker, WriteMarker):
            return write_group_for(sink_id, self.options.write_id)
        return transactional_id_for(sink_id)

    def _is_committed(self, marker: Marker | WriteMarker, error: KafkaError) -> bool:
        """Whether the commit was carried out although it ended with `error`.

        The commit may still be on its way to the coordinator. So the driver first fences the transaction: then the
        commit was carried out before, or never will be. Raises KafkaError where the cluster cannot be asked.
        """
        sink_id, marker_topic = self.options.sink_id_and_marker_topic()
        group = self._group_of(marker)
        try:
            with workers.lent_admin(self.options.producer) as admin:
                if not isinstance(error, ProducerFencedError):  # else another writer has fenced this one
                    admin.fence(transactional_id_for(sink_id))
                if isinstance(marker, Marker):
                    return read_marker(admin, group, marker_topic) == marker
                committed = read_write_marker(admin, group, marker_topic)
                if committed is not None and committed.write != marker.write and self.options.write_id is None:
                    raise KafkaError(f"another df.write with sinkId '{sink_id}' has written its marker since")
                return committed == marker
        except KafkaError as unknown:
            raise type(unknown)(
                f"it is unknown whether the write was committed: {error}. The driver could not find out: {unknown}. "
                f"Before you repeat the write, see whether `kafkabuf spark status {sink_id}` shows this marker in "
                f"group {group!r}: {marker.offset().metadata}. Option 'writeId' makes a repetition safe"
            ) from None

    def abort(self, reports: Sequence[TaskReport | None], begun: SharedBatch | None) -> None:
        """Abort the transaction at once, because readers wait for its end, and fence the tasks that live on."""
        transaction = next((report.transaction for report in reports if report and report.transaction), None)
        if begun is not None:
            transaction = begun.transaction
            if transaction is None:
                return
        sink_id, _ = self.options.sink_id_and_marker_topic()
        with workers.lent_admin(self.options.producer) as admin:
            # Without a report this driver does not know its transaction. It fences in any case: at worst it fails a
            # micro-batch of the query's next run, which Spark then repeats.
            if transaction is None or _is_open(admin, transaction):
                admin.fence(transactional_id_for(sink_id))


def _is_open(admin: Admin, transaction: SharedTransaction) -> bool:
    """Whether the transaction may still be open: no other writer has the transactional id."""
    try:
        return _is_its_producer(admin.transaction(transaction.transactional_id), transaction)
    except TransactionalIdNotFoundError:
        return False


def _given(reports: Sequence[TaskReport]) -> tuple[int, int]:
    """Rows and checksum of all rows of the write."""
    rows, checksums = zip(*(report.given for report in reports), strict=True)
    return sum(rows), sum(checksums) % CHECKSUMS


def _compare(marker: WriteMarker, reports: Sequence[TaskReport]) -> None:
    """Raises IllegalStateError where a repeated write has other rows than the write that was committed."""
    rows, checksum = _given(reports)
    if (rows, checksum) != (marker.rows, marker.checksum):
        raise IllegalStateError(
            f"writeId '{marker.write}' was written before with {marker.rows} rows (checksum {marker.checksum:016x}); "
            f"this write has {rows} ({checksum:016x}), and nothing of it was written. To write these rows, give "
            "another writeId"
        )


# ---- a task's part in the transaction --------------------------------------------------------------------------------


def _opening_sizes(attempt_id: int) -> list[int]:
    """Rows in the two opening batches. Equal only for attempts whose ids differ by a multiple of 63,001."""
    return [1 + digit % _LARGEST_OPENING for digit in reversed(divmod(attempt_id, _LARGEST_OPENING))]


class _TransactionPart:
    """What one task does in the transaction. A task without rows opens no producer."""

    def __init__(
        self, options: SinkOptions, settings: Settings, transaction: SharedTransaction, lent: ExitStack
    ) -> None:
        self._options = options
        self._settings = settings
        self._lent = lent
        """Gives the producer back when the task has ended. After an error the driver aborts the transaction."""
        self._transaction = transaction
        self._producer: KafkaProducer | None = None
        self._checked: set[TopicPartition] = set()
        self._written_before: set[TopicPartition] = set()
        """Partitions with rows of this transaction before the task sent its first row to them."""

    def producer(self) -> KafkaProducer:
        """The task's own producer, which has joined the transaction."""
        if self._producer is None:
            self._producer = self._lent.enter_context(workers.lent_transactional(self._settings, close_seconds=0.0))
            join(self._producer, self._transaction)
        return self._producer

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches. Calls `_note_writers` before a partition gets its first row."""
        for batch in batches:
            if batch.num_rows:
                self._note_writers(self._partitions_of(batch) - self._checked)
            yield batch

    def _partitions_of(self, batch: pa.RecordBatch) -> set[TopicPartition]:
        """The partitions to which the rows of the batch may go."""
        topic = self._options.topic
        names = {topic} if topic else set(map(escaped, batch.column("topic").unique()))
        topics = [name for name in names if name and is_legal_topic(name)]
        with workers.lent_admin(self._options.producer) as admin:
            counts = {topic: admin.partitions_of(topic) for topic in topics}
        if "partition" in batch.schema.names and not batch.column("partition").null_count:
            chosen = set(batch.column("partition").unique().to_pylist())
            return {(topic, number) for topic in topics for number in chosen & set(range(counts[topic]))}
        return {(topic, number) for topic in topics for number in range(counts[topic])}

    def _note_writers(self, partitions: set[TopicPartition]) -> None:
        if not partitions:
            return
        self._checked |= partitions
        with workers.lent_admin(self._options.producer) as admin:
            active = admin.active_producers(sorted(partitions))
        self._written_before |= {
            partition for partition, producers in active.items() if _writer_in(producers, self._transaction)
        }

    def leave(self, ranges: Sequence[OffsetRange]) -> None:
        """Wait until all rows are acknowledged, and leave them to the driver."""
        if self._producer is None:
            return
        leave(self._producer)
        twice = sorted({(entry.topic, entry.partition) for entry in ranges} & self._written_before)
        if twice:
            raise IllegalStateError(_written_by_two(twice))


# ---- what the transaction holds --------------------------------------------------------------------------------------


def _is_its_producer(known: ActiveProducer | TransactionDescription, transaction: SharedTransaction) -> bool:
    """Whether the cluster means the producer of this transaction."""
    return (known.producer_id, known.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)


def _writer_in(producers: Sequence[ActiveProducer], transaction: SharedTransaction) -> ActiveProducer | None:
    """The transaction's producer, if it has written to the partition in this transaction."""
    return next(
        (each for each in producers if _is_its_producer(each, transaction) and each.transaction_start >= 0), None
    )


def _written_by_two(partitions: Sequence[TopicPartition]) -> str:
    names = ", ".join(f"{topic}-{number}" for topic, number in partitions[:_NAMED])
    names += ", ..." if len(partitions) > _NAMED else ""
    return f"{names}: written by two tasks. {_ONE_TASK}"


def _check_contents(admin: Admin, ranges: Sequence[OffsetRange], transaction: SharedTransaction) -> None:
    """Raises IllegalStateError where the cluster has other rows in the transaction than the tasks reported."""
    partitions = [(entry.topic, entry.partition) for entry in ranges]
    twice = sorted({partition for partition in partitions if partitions.count(partition) > 1})
    if twice:
        raise IllegalStateError(_written_by_two(twice))
    known = admin.transaction(transaction.transactional_id)
    if not _is_its_producer(known, transaction):
        raise IllegalStateError(
            f"another writer has taken over {transaction.transactional_id}, or the transaction took longer than "
            "transaction.timeout.ms: no row of this write is visible"
        )
    reported = {(entry.topic, entry.partition): entry.rows for entry in ranges}
    # A partition whose rows the broker refused, all of them, is part of the transaction and has no row of it.
    known_to_coordinator = {partition for partition in known.partitions if partition[0] != _OFFSETS_TOPIC}
    active = admin.active_producers(sorted(known_to_coordinator | set(partitions)))
    for partition, producers in active.items():
        writer = _writer_in(producers, transaction)
        rows = reported.get(partition, 0)
        # A sequence number counts the rows from 0. It starts again from 0 after 2^31 rows.
        is_complete = writer is None if rows == 0 else writer and writer.last_sequence == (rows - 1) % _SEQUENCES
        if not is_complete:
            raise IllegalStateError(
                f"{partition[0]}-{partition[1]} has {0 if writer is None else writer.last_sequence + 1} rows of this "
                f"transaction, the tasks reported {rows}: Spark ran a task again and did not tell the sink. No row of "
                "this write is visible"
            )
