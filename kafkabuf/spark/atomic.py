"""`atomic`: one transaction for all tasks of a write. The whole DataFrame becomes visible at once, or not at all.

The driver begins it before the tasks are made, and pickles it to them (sharing.py); each writes its rows under the
same producer id and epoch; the driver ends it, with a marker of the micro-batch in it. A batch that fails is aborted,
or ended by whoever initialises the transactional id next, and replayed. It need not have the same rows then.

Sequence numbers count by partition and producer id: so each Kafka partition is written by one task, whose first attempt
is its only one. A second attempt fails at once. What the tasks cannot see the driver checks before it commits: that no
two of them wrote a partition, and that the cluster has in this transaction just what they reported.

But a stage that Spark runs again, because shuffle files went with an executor, has another first attempt of a task,
perhaps beside the former, which runs on. It finds the partition written and fails; or, where neither had written when
both looked, it is told by sequence numbers: a task's first rows go ahead in two portions, whose sizes are those of no
other attempt. Leaders refuse the second of two batches that overlap without being equal. Equal ones they would take for
one that is sent again, drop it, and say that all is well.
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
from kafkabuf.spark.marker import Marker, identity, read
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.place import Batch, Place
from kafkabuf.spark.reach import look
from kafkabuf.spark.report import CHECKSUMS, TaskReport
from kafkabuf.spark.task import Task
from kafkabuf.spark.workers import give_up, sized, transactional

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.metadata.groups import TopicPartition
    from kafkabuf.producer import KafkaProducer

_OFFSETS_TOPIC = "__consumer_offsets"
_SEQUENCES = 2**31
_LARGEST_HEAD = 251  # rows


@dataclass(frozen=True)
class SharedBatch:
    """What the driver gives its tasks: the transaction, and the marker of the newest micro-batch."""

    transaction: SharedTransaction
    marker: Marker | None


# ---- the driver, before the tasks ------------------------------------------------------------------------------------


def begin(options: SinkOptions, *, marked: bool) -> SharedBatch:
    """Fence whoever wrote under this sinkId before, end what was left open, and begin a transaction.

    `marked`: for a micro-batch, which leaves a marker, and may find its own.
    """
    sink_id, marker_topic = options.marks()
    name = identity(sink_id)
    producer = transactional(options.producer, name)
    try:
        with Admin(producer.config) as admin:
            look(admin, options)
            producer.init_transactions()
            marker = read(admin, name, marker_topic) if marked else None
        return SharedBatch(begin_shared(producer), marker)
    finally:
        producer.close()


# ---- tasks -----------------------------------------------------------------------------------------------------------


def send(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, columns: tuple[str, ...], shared: SharedBatch
) -> TaskReport:
    """See `ArrowSink.send`."""
    place, marker = Place.here(), shared.marker
    name = shared.transaction.transactional_id
    if place.batch is not None and marker is not None and marker.covers(place.batch, name):
        deque(batches, maxlen=0)
        return TaskReport(place.partition, place.attempt, 0, 0, (), already_written=True, batch=place.batch)
    if place.attempt > 0:
        raise IllegalStateError(
            f"attempt {place.attempt} of task {place.partition}: with deliveryGuarantee 'atomic' a task is tried once, "
            "for what an earlier attempt wrote cannot be taken back alone. The whole write fails and can be repeated; "
            "set spark.speculation to false"
        )
    joined = _Joined(options, shared.transaction, _heads(place.attempt_id))
    task = Task(joined.producer, options, columns)
    try:
        task.send_all(joined.watch(batches))
        joined.leave(task.ranges)
    except BaseException:
        joined.give_up()
        raise
    return task.report(place, transaction=shared.transaction)


def _heads(attempt_id: int) -> deque[int]:
    """Rows that go ahead, in two portions: equal for attempts whose ids are a multiple of 63,001 apart."""
    return deque(1 + digit % _LARGEST_HEAD for digit in reversed(divmod(attempt_id, _LARGEST_HEAD)))


class _Joined:
    """A task's part in the transaction. Nothing is opened for a task without rows, of which `heads` go ahead."""

    def __init__(self, options: SinkOptions, transaction: SharedTransaction, heads: deque[int]) -> None:
        self._options = options
        self._transaction = transaction
        self._heads = heads
        self._producer: KafkaProducer | None = None
        self._topics: set[str] = set()
        self._written: set[TopicPartition] = set()  # in this transaction, before our first row

    def producer(self) -> KafkaProducer:
        """The task's own, once it has joined."""
        if self._producer is None:
            self._producer = transactional(sized(self._options), self._transaction.transactional_id)
            join(self._producer, self._transaction)
        return self._producer

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, with the heads by themselves; before rows of a topic are sent, who wrote there is asked."""
        for batch in self._behead(batches):
            if batch.num_rows:
                topics = (
                    {self._options.topic} if self._options.topic else set(batch.column("topic").unique().to_pylist())
                )
                self._look_at({topic for topic in topics if topic} - self._topics)
            yield batch

    def _behead(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while self._heads and batch.num_rows:
                head = batch.slice(0, self._heads[0])
                yield head
                batch = batch.slice(head.num_rows)
                self._heads[0] -= head.num_rows
                if not self._heads[0]:
                    self.producer().flush()
                    self._heads.popleft()
            yield batch

    def _look_at(self, topics: set[str]) -> None:
        if not topics:
            return
        self._topics |= topics
        with Admin(self.producer().config) as admin:
            for topic in topics:
                places = [(topic, number) for number in range(admin.partitions_of(topic))]
                found = admin.active_producers(places)
                self._written |= {place for place in places if _ours(found[place], self._transaction)}

    def leave(self, ranges: Sequence[OffsetRange]) -> None:
        """All rows are acknowledged: they are the driver's from here on."""
        if self._producer is None:
            return
        leave(self._producer)
        twice = sorted({(entry.topic, entry.partition) for entry in ranges} & self._written)
        if twice:
            raise IllegalStateError(_written_twice(twice))
        self._producer.close()

    def give_up(self) -> None:
        """The driver aborts the transaction."""
        if self._producer is not None:
            self._producer.close(timeout=0)


def _ours(found: Sequence[ActiveProducer], transaction: SharedTransaction) -> ActiveProducer | None:
    """Our producer, if it has written in this transaction."""
    for one in found:
        same = (one.producer_id, one.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)
        if same and one.transaction_start >= 0:
            return one
    return None


def _written_twice(places: Sequence[TopicPartition]) -> str:
    names = ", ".join(f"{topic}-{number}" for topic, number in places[:5]) + (", ..." if len(places) > 5 else "")
    return (
        f"{names}: written by two tasks, which deliveryGuarantee 'atomic' cannot have. Let each Kafka partition be "
        "written by one task: kafkabuf.spark.align(df, partitions=...)"
    )


# ---- the driver, after the tasks -------------------------------------------------------------------------------------


def commit(
    options: SinkOptions, reports: Sequence[TaskReport], transaction: SharedTransaction, batch: Batch | None
) -> None:
    """End the transaction, if the cluster has in it just what the tasks reported. Else IllegalStateError."""
    ranges = [entry for report in reports for entry in report.ranges]
    producer = transactional(options.producer, transaction.transactional_id)
    try:
        with Admin(producer.config) as admin:
            _check(admin, ranges, transaction)
        if ranges or batch is not None:
            join(producer, transaction)
            if batch is not None:
                _mark(producer, options, reports, batch)
            producer.commit_transaction()
    except BaseException:
        producer.close(timeout=0)
        raise
    producer.close()


def _mark(producer: KafkaProducer, options: SinkOptions, reports: Sequence[TaskReport], batch: Batch) -> None:
    rows = sum(report.rows + report.skipped for report in reports)
    marker = Marker(batch, rows, sum(report.checksum for report in reports) % CHECKSUMS)
    name = producer.config.transactional_id
    assert name is not None
    producer.send_offsets_to_transaction({(options.marks()[1], 0): marker.offset()}, name)


def _check(admin: Admin, ranges: Sequence[OffsetRange], transaction: SharedTransaction) -> None:
    places = [(entry.topic, entry.partition) for entry in ranges]
    twice = sorted({place for place in places if places.count(place) > 1})
    if twice:
        raise IllegalStateError(_written_twice(twice))
    if not places:
        return
    known = admin.transaction(transaction.transactional_id)
    if (known.producer_id, known.producer_epoch) != (transaction.producer_id, transaction.producer_epoch):
        raise IllegalStateError(
            f"{transaction.transactional_id} has been taken over, or took longer than transaction.timeout.ms: "
            "nothing of this write is visible"
        )
    strange = sorted({place for place in known.partitions if place[0] != _OFFSETS_TOPIC} ^ set(places))
    if strange:
        raise IllegalStateError(
            f"{strange[0][0]}-{strange[0][1]} (and {len(strange) - 1} more) is not part of both the transaction and "
            "what the tasks reported: a task was run again unnoticed. Nothing of this write is visible"
        )
    found = admin.active_producers(places)
    for entry in ranges:
        ours = _ours(found[entry.topic, entry.partition], transaction)
        if ours is None or ours.last_sequence != (entry.rows - 1) % _SEQUENCES:
            there = 0 if ours is None else ours.last_sequence + 1
            raise IllegalStateError(
                f"{entry.topic}-{entry.partition} has {there} rows of this transaction, the tasks reported "
                f"{entry.rows}: a task was run again unnoticed. Nothing of this write is visible"
            )


def abort(options: SinkOptions, transaction: SharedTransaction) -> None:
    """End the transaction without its rows, so that readers are not held up; nothing, if it has ended."""
    producer = transactional(options.producer, transaction.transactional_id)
    try:
        join(producer, transaction)
        producer.abort_transaction()
    finally:
        give_up(producer)
