"""MockProducer: a KafkaProducer without a cluster; the test acknowledges its records (Kafka's MockProducer).

`assert_messages` says what is wrong with the records that an embedded cluster got.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from kafkabuf._pool import BufferPool
from kafkabuf.append._producer import ProducerCore, TopicPolicy
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.batches.ending import ending
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import (
    ClosedError,
    IllegalStateError,
    InvalidTopicError,
    KafkaError,
    ProducerFencedError,
    PurgedError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.metadata.snapshot import PartitionInfo, TopicInfo
from kafkabuf.metadata.topic_names import TOPIC_RULE, is_legal_topic
from kafkabuf.shown import also_unfinished
from kafkabuf.transactions.groups import group_of
from kafkabuf.transactions.idempotence import producer_state

if TYPE_CHECKING:
    from kafkabuf.broker import EmbeddedCluster, Messages
    from kafkabuf.broker.message_controls import IsolationLevel

# With batch.size=0 each record has a batch, and so an outcome, of its own. A small buffer.memory is enough, even if a
# test never completes a record.
_SETTINGS = {"bootstrap_servers": "mock:9092", "batch_size": 0, "buffer_memory": 8 << 20, "max_block_ms": 0}
_LEADER = 1
_INSTANCE_ID = UUID(int=3)


def assert_messages(
    cluster: EmbeddedCluster,
    topic: str,
    expected: Iterable[Any],
    *,
    partition: int | None = None,
    timeout: float = 10.0,
    any_order: bool = False,
    isolation_level: IsolationLevel = "read_committed",
) -> Messages:
    """Wait until a topic has as many records as expected, and raise AssertionError unless they are the expected ones.

    `kafkabuf.broker.Messages` says what an expected item may be. The records are in the order of their partitions and
    offsets; with `any_order` the expected items may stand in another order. `timeout` is in seconds of real time. Every
    record that has arrived by then counts: a record too many fails. Returns the records. Without an expected item the
    call does not wait, and raises UnknownTopicOrPartitionError if there is no such topic. Raises TypeError if
    `expected` is a single item instead of a list.
    """
    __tracebackhide__ = True
    from kafkabuf.broker.messages import items_of  # late: MockProducer needs no broker

    expected = items_of(expected)
    late = ""
    try:
        if expected:
            cluster.wait_for_messages(
                topic, len(expected), timeout, partition=partition, isolation_level=isolation_level
            )
    except TimeoutError as error:
        late = f"\n\n{error}"
        if topic not in cluster.topics():
            raise AssertionError(str(error)) from None
    arrived = cluster.messages(topic, partition, isolation_level=isolation_level)
    differences = arrived.differences(expected, any_order=any_order)
    if differences:
        where = f"topic {topic!r}" if partition is None else f"{topic}-{partition}"
        raise AssertionError("\n".join([f"the messages of {where} are not the expected ones", *differences]) + late)
    return arrived


class MockRecord(NamedTuple):
    """The arguments of a send(), with the partition that was chosen."""

    topic: str
    value: Any
    key: Any
    headers: Any
    partition: int
    timestamp_ms: int | None


class MockTopics(TopicPolicy):
    """The topics of a MockProducer, whose cluster never changes."""

    def __init__(self, queues: RecordAccumulator, cluster: Mapping[str, int] | None) -> None:
        self._queues = queues
        self._cluster = cluster

    def info(self, name: str) -> TopicInfo:
        if not is_legal_topic(name):
            raise InvalidTopicError(f"{name!r:.300} is not a valid topic name: {TOPIC_RULE}")
        count = 1 if self._cluster is None else self._cluster.get(name, 0)
        if not count:
            raise UnknownTopicOrPartitionError(f"the MockProducer's cluster has no topic {name!r}: {self._cluster!r}")
        return TopicInfo(name, None, None, tuple(PartitionInfo(number, _LEADER) for number in range(count)))

    def await_topic(self, name: str, timeout: float) -> TopicQueues:
        return self._queues.topic_queues(name, self.info(name).leaders)


class MockProducer(ProducerCore):
    """KafkaProducer's own send(), with its serializers, partitioner, checks and futures, and without a connection.

    It has the methods of KafkaProducer that `kafkabuf.typing.Producer` lists. The test ends pending records with
    complete_next(), error_next(), flush() and purge(), reads history(), uncommitted_records(), uncommitted_offsets()
    and offsets_history(), and starts again with clear(); fence_producer() makes later calls raise ProducerFencedError.
    The attributes `closed`, `flushed`, `sent_offsets`, `transaction_initialized`, `transaction_in_flight`,
    `transaction_committed`, `transaction_aborted`, `producer_fenced` and `commit_count` say what the tested code did.

    Args:
        cluster: the number of partitions by topic; None: every topic exists and has one partition.
        auto_complete: acknowledge each record before send() returns. If it is False, the test ends records with
            complete_next(), error_next() and flush(), which acknowledges all records. Callbacks run in the thread that
            calls these methods.
        settings: the settings of KafkaProducer; `bootstrap_servers` is optional.

    Set an attribute `send_exception`, `flush_exception`, `close_exception`, `partitions_for_exception`,
    `init_transactions_exception`, `begin_transaction_exception`, `send_offsets_to_transaction_exception`,
    `commit_transaction_exception` or `abort_transaction_exception`, and the method of that name raises it. A few
    thousand records may be pending. Not thread-safe. There is no send_many() and no send_arrow(): test them with
    kafkabuf.broker.EmbeddedCluster.
    """

    topics: MockTopics

    def __init__(
        self,
        cluster: Mapping[str, int] | None = None,
        *,
        auto_complete: bool = True,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        clock = clock or SystemClock()
        given = {name: value for name, value in settings.items() if value is not None}
        self.config = ProducerConfig.from_mapping(_SETTINGS | given)
        self.pool = BufferPool(self.config.buffer_memory, self.config.slab_size, clock=clock)
        self._auto_complete = auto_complete
        self._queues = RecordAccumulator(self.config, self.pool, clock, producer_state=producer_state(self.config))
        self._open(self._queues, MockTopics(self._queues, cluster), self.config, clock)
        self.send_exception: BaseException | None = None
        self.flush_exception: BaseException | None = None
        self.close_exception: BaseException | None = None
        self.partitions_for_exception: BaseException | None = None
        self.init_transactions_exception: BaseException | None = None
        self.begin_transaction_exception: BaseException | None = None
        self.send_offsets_to_transaction_exception: BaseException | None = None
        self.commit_transaction_exception: BaseException | None = None
        self.abort_transaction_exception: BaseException | None = None
        self.closed = False
        self.transaction_initialized = False
        self.transaction_in_flight = False
        self.transaction_committed = False
        self.transaction_aborted = False
        self.producer_fenced = False
        self.commit_count = 0
        self._next_offset: Counter[tuple[str, int]] = Counter()
        self.clear()

    # ---- the methods of KafkaProducer --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        callback: Any = None,
        opaque: Any = None,
    ) -> RecordFuture:
        self._check_usable(self.send_exception)
        transactional = self.transaction_initialized or self.config.transactional_id is not None
        if transactional and not self.transaction_in_flight:
            raise IllegalStateError(
                "a transactional producer cannot send() outside of a transaction: call begin_transaction() first"
            )
        future = super().send(topic, value, key, headers, partition, timestamp_ms, callback, opaque)
        record = MockRecord(topic, value, key, headers, future.batch.partition, timestamp_ms)
        (self._uncommitted if self.transaction_in_flight else self._history).append(record)
        self._pending.append(future.batch)
        if self._auto_complete:
            self.complete_next()
        return future

    def flush(self, timeout: float | None = None) -> None:
        self._check_usable(self.flush_exception)
        while self.complete_next():
            pass

    def purge(self, *, in_flight: bool = True) -> None:
        """Fail every pending record. All of them count as in flight: with in_flight=False no record fails."""
        self._check_usable()
        while in_flight and self.error_next(PurgedError("the record was purged")):
            pass

    def close(self, timeout: float | None = None) -> None:
        if self.close_exception is not None:
            raise self.close_exception
        self._begin_close()
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def client_instance_id(self, timeout: float) -> UUID:
        self._check_usable()
        return _INSTANCE_ID

    def metrics(self) -> dict[str, dict[str, float]]:
        return {}

    def partitions_for(self, topic: str) -> TopicInfo:
        self._check_usable(self.partitions_for_exception)
        return self.topics.info(topic)

    def init_transactions(self) -> None:
        self._check_usable(self.init_transactions_exception)
        self._require(not self.transaction_initialized, "init_transactions() was called before: call it once")
        self.transaction_initialized = True

    def begin_transaction(self) -> None:
        self._check_usable(self.begin_transaction_exception)
        self._require(self.transaction_initialized, "init_transactions() was not called: call it first")
        self._require(not self.transaction_in_flight, "a transaction has begun already: commit or abort it first")
        self.transaction_in_flight = True
        self.transaction_committed = self.transaction_aborted = False

    def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group_metadata: Any) -> None:
        self._check_in_transaction(self.send_offsets_to_transaction_exception)
        group = group_of(group_metadata).group_id
        self._uncommitted_offsets.setdefault(group, {}).update(offsets)

    def commit_transaction(self) -> None:
        self._check_in_transaction(self.commit_transaction_exception)
        self.flush()
        self._history += self._uncommitted
        if self._uncommitted_offsets:
            self._offsets_history.append(self._uncommitted_offsets)
        self._end_transaction()
        self.transaction_committed = True
        self.commit_count += 1

    def abort_transaction(self) -> None:
        self._check_in_transaction(self.abort_transaction_exception)
        self.flush()
        self._end_transaction()
        self.transaction_aborted = True

    # ---- for the test ------------------------------------------------------------------------------------------------

    def complete_next(self) -> bool:
        """Acknowledge the oldest pending record with its partition's next offset. False if no record is pending."""
        if not self._pending:
            return False
        batch = self._take_next()
        topic_partition = (batch.topic, batch.partition)
        self._next_offset[topic_partition] += 1
        with ending(self._queues.incomplete):
            return batch.complete(self._next_offset[topic_partition] - 1, -1)

    def error_next(self, error: KafkaError) -> bool:
        """Fail the oldest pending record with `error`. False if no record is pending."""
        if not self._pending:
            return False
        with ending(self._queues.incomplete):
            return self._take_next().fail(error)

    def history(self) -> list[MockRecord]:
        """The records that were sent, in order. Records of a transaction appear when it commits."""
        return list(self._history)

    def uncommitted_records(self) -> list[MockRecord]:
        """The records of the present transaction."""
        return list(self._uncommitted)

    def uncommitted_offsets(self) -> dict[str, dict[Any, Any]]:
        """{group: offsets} of the present transaction."""
        return {group: dict(offsets) for group, offsets in self._uncommitted_offsets.items()}

    def offsets_history(self) -> list[dict[str, dict[Any, Any]]]:
        """{group: offsets} of each committed transaction that had offsets."""
        return list(self._offsets_history)

    @property
    def flushed(self) -> bool:
        """Whether every record has an outcome."""
        return not self._pending

    @property
    def sent_offsets(self) -> bool:
        """Whether the present transaction has offsets."""
        return bool(self._uncommitted_offsets)

    def fence_producer(self) -> None:
        """Act as if another producer with the same transactional.id had been started: sends and transactions raise."""
        self._check_usable()
        self._require(
            self.transaction_initialized, "only a transactional producer can be fenced: call init_transactions() first"
        )
        self.producer_fenced = True

    def clear(self) -> None:
        """Forget the history, the pending records and the uncommitted records and offsets."""
        if hasattr(self, "_pending"):
            with ending(self._queues.incomplete):
                self._queues.abort(ClosedError("clear() has dropped the record"))
        self._pending: deque[Batch] = deque()
        self._history: list[MockRecord] = []
        self._uncommitted: list[MockRecord] = []
        self._uncommitted_offsets: dict[str, dict[Any, Any]] = {}
        self._offsets_history: list[dict[str, dict[Any, Any]]] = []

    @also_unfinished
    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        sent = len(self._history) + len(self._uncommitted)
        return f"{type(self).__name__}({sent} records, {len(self._pending)} pending, {state})"

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _check_usable(self, injected: BaseException | None = None) -> None:
        self.check_open()
        if self.producer_fenced:
            raise ProducerFencedError("fence_producer() was called: this producer is fenced")
        if injected is not None:
            raise injected

    def _require(self, condition: bool, message: str) -> None:
        if not condition:
            raise IllegalStateError(message)

    def _check_in_transaction(self, injected: BaseException | None) -> None:
        self._check_usable(injected)
        self._require(self.transaction_initialized, "init_transactions() was not called: call it first")
        self._require(self.transaction_in_flight, "there is no transaction: call begin_transaction() first")

    def _end_transaction(self) -> None:
        self._uncommitted, self._uncommitted_offsets = [], {}
        self.transaction_in_flight = False

    def _take_next(self) -> Batch:
        batch = self._pending.popleft()
        self._queues.discard(batch)
        return batch
