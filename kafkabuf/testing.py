"""MockProducer: a KafkaProducer without a cluster; the test acknowledges its records (Kafka's MockProducer)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafkabuf._pool import BufferPool
from kafkabuf.append._producer import ProducerCore
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.batches.ending import ending
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import (
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    PurgedError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.metadata.snapshot import PartitionInfo, TopicInfo
from kafkabuf.transactions.idempotence import producer_state

# One record, one batch, one outcome; and what is held by a test that never completes anything stays small.
_SETTINGS = {"bootstrap_servers": "mock:9092", "batch_size": 0, "buffer_memory": 8 << 20, "max_block_ms": 0}
_LEADER = 1


class MockRecord(NamedTuple):
    """What send() was given, and the partition that was chosen."""

    topic: str
    value: Any
    key: Any
    headers: Any
    partition: int
    timestamp_ms: int | None


class MockProducer(ProducerCore):
    """send() is the real one: serializers, partitioner, checks and futures are those of KafkaProducer. Nothing is sent.

    Args:
        cluster: topics and how many partitions each has; None: whatever topic is asked for is there, with one.
        auto_complete: records are acknowledged before send() returns; else by complete_next() and error_next(), and by
            flush(), which acknowledges all. Callbacks run in the thread that calls these.
        settings: as of KafkaProducer; `bootstrap_servers` is not needed.

    The attributes `send_exception`, `flush_exception`, `close_exception`, `partitions_for_exception`,
    `init_transactions_exception`, `begin_transaction_exception`, `send_offsets_to_transaction_exception`,
    `commit_transaction_exception` and `abort_transaction_exception` make these methods raise while they are set. A few
    thousand records may be pending. Not thread-safe, and without send_many() and send_arrow(): for these there is
    kafkabuf.broker.EmbeddedCluster.
    """

    def __init__(
        self,
        cluster: Mapping[str, int] | None = None,
        *,
        auto_complete: bool = True,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        clock = clock or SystemClock()
        self.config = ProducerConfig.from_mapping(_SETTINGS | settings)
        self.pool = BufferPool(self.config.buffer_memory, self.config.slab_size, clock=clock)
        self._cluster = cluster
        self._auto_complete = auto_complete
        self._queues = RecordAccumulator(self.config, self.pool, clock, producer_state=producer_state(self.config))
        self._open(self._queues, self.config, clock)
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

    # ---- as KafkaProducer's ------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        callback: Any = None,
    ) -> RecordFuture:
        self._go(self.send_exception)
        if self.transaction_initialized and not self.transaction_in_flight:
            raise IllegalStateError("send() of a transactional producer outside of a transaction: begin_transaction()")
        future = super().send(topic, value, key, headers, partition, timestamp_ms, callback)
        record = MockRecord(topic, value, key, headers, future.batch.partition, timestamp_ms)
        (self._uncommitted if self.transaction_in_flight else self._history).append(record)
        self._pending.append(future.batch)
        if self._auto_complete:
            self.complete_next()
        return future

    def flush(self, timeout: float | None = None) -> None:
        self._go(self.flush_exception)
        while self.complete_next():
            pass

    def purge(self, *, in_flight: bool = True) -> None:
        """Every record without an outcome fails with PurgedError, as if all were in flight; none does without that."""
        self._go()
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

    def metrics(self) -> dict[str, dict[str, float]]:
        return {}

    def partitions_for(self, topic: str) -> TopicInfo:
        self._go(self.partitions_for_exception)
        count = 1 if self._cluster is None else self._cluster.get(topic, 0)
        if not count:
            raise UnknownTopicOrPartitionError(f"the MockProducer's cluster has no topic {topic!r}: {self._cluster!r}")
        return TopicInfo(topic, None, None, tuple(PartitionInfo(number, _LEADER) for number in range(count)))

    def init_transactions(self) -> None:
        self._go(self.init_transactions_exception)
        self._require(not self.transaction_initialized, "init_transactions() was called before")
        self.transaction_initialized = True

    def begin_transaction(self) -> None:
        self._go(self.begin_transaction_exception)
        self._require(self.transaction_initialized, "init_transactions() comes first")
        self._require(not self.transaction_in_flight, "a transaction is under way")
        self.transaction_in_flight = True
        self.transaction_committed = self.transaction_aborted = False

    def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group_metadata: Any) -> None:
        self._in_transaction(self.send_offsets_to_transaction_exception)
        group = getattr(group_metadata, "group_id", group_metadata)
        self._uncommitted_offsets.setdefault(group, {}).update(offsets)

    def commit_transaction(self) -> None:
        self._in_transaction(self.commit_transaction_exception)
        self.flush()
        self._history += self._uncommitted
        if self._uncommitted_offsets:
            self._offsets_history.append(self._uncommitted_offsets)
        self._end_transaction()
        self.transaction_committed = True
        self.commit_count += 1

    def abort_transaction(self) -> None:
        self._in_transaction(self.abort_transaction_exception)
        self.flush()
        self._end_transaction()
        self.transaction_aborted = True

    # ---- the test's --------------------------------------------------------------------------------------------------

    def complete_next(self) -> bool:
        """Acknowledge the oldest record without an outcome, with the next offset of its partition; False: none."""
        if not self._pending:
            return False
        batch = self._take_next()
        where = (batch.topic, batch.partition)
        self._next_offset[where] += 1
        with ending(self._queues.incomplete):
            return batch.complete(self._next_offset[where] - 1, -1)

    def error_next(self, error: KafkaError) -> bool:
        """Fail the oldest record without an outcome; False: there is none."""
        if not self._pending:
            return False
        with ending(self._queues.incomplete):
            return self._take_next().fail(error)

    def history(self) -> list[MockRecord]:
        """Records sent, in order; those of a transaction from its commit on."""
        return list(self._history)

    def uncommitted_records(self) -> list[MockRecord]:
        """Records of the transaction under way."""
        return list(self._uncommitted)

    def uncommitted_offsets(self) -> dict[str, dict[Any, Any]]:
        """{group: offsets} of the transaction under way."""
        return {group: dict(offsets) for group, offsets in self._uncommitted_offsets.items()}

    def offsets_history(self) -> list[dict[str, dict[Any, Any]]]:
        """{group: offsets} of each transaction that committed some."""
        return list(self._offsets_history)

    @property
    def flushed(self) -> bool:
        """Whether every record has an outcome."""
        return not self._pending

    @property
    def sent_offsets(self) -> bool:
        """Whether the transaction under way commits offsets."""
        return bool(self._uncommitted_offsets)

    def fence_producer(self) -> None:
        """From now on another producer with the same transactional.id is there."""
        self._go()
        self._require(self.transaction_initialized, "only a producer after init_transactions() can be fenced")
        self.producer_fenced = True

    def clear(self) -> None:
        """Forget history, pending records and uncommitted ones."""
        if hasattr(self, "_pending"):
            with ending(self._queues.incomplete):
                self._queues.abort()
        self._pending: deque[Batch] = deque()
        self._history: list[MockRecord] = []
        self._uncommitted: list[MockRecord] = []
        self._uncommitted_offsets: dict[str, dict[Any, Any]] = {}
        self._offsets_history: list[dict[str, dict[Any, Any]]] = []

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _go(self, injected: BaseException | None = None) -> None:
        self.check_open()
        if self.producer_fenced:
            raise ProducerFencedError("fence_producer() was called: this producer is fenced")
        if injected is not None:
            raise injected

    def _require(self, right: bool, what: str) -> None:
        if not right:
            raise IllegalStateError(what)

    def _in_transaction(self, injected: BaseException | None) -> None:
        self._go(injected)
        self._require(self.transaction_initialized, "init_transactions() comes first")
        self._require(self.transaction_in_flight, "there is no transaction: begin_transaction()")

    def _end_transaction(self) -> None:
        self._uncommitted, self._uncommitted_offsets = [], {}
        self.transaction_in_flight = False

    def _take_next(self) -> Batch:
        batch = self._pending.popleft()
        self._queues.discard(batch)
        return batch

    def _await_topic(self, name: str) -> TopicQueues:
        return self._queues.topic_queues(name, self.partitions_for(name).leaders)

    def _await_partition(self, name: str, partition: int, timeout: float) -> None:
        """The cluster is as it was given."""
