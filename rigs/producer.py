"""A rig for tests of accumulator, Sender and producer: the test calls the Sender's turns. Clocks that make races."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kafkabuf._pool import BufferPool
from kafkabuf.append._bulk_arrow import append_arrow
from kafkabuf.append._bulk_many import append_many
from kafkabuf.append.appender import RecordAppender
from kafkabuf.append.report import ROWS, BulkReport
from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock, Lockable, ManualClock
from kafkabuf.config import ProducerConfig
from kafkabuf.formats.plan import formats_of
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network.client import NetworkClient
from kafkabuf.protocol import messages
from kafkabuf.sending.sender import Sender
from kafkabuf.spool.evidence import Outcome, Proof, SpooledPartition, Verdict
from kafkabuf.spool.file import Layout, SpoolFile
from kafkabuf.spool.recovery import recover
from kafkabuf.spool.settling import settle
from kafkabuf.transactions.idempotence import producer_state
from rigs.fake_client import Answer, FakeClient, Record, Sent, encode_answer, read_records

if TYPE_CHECKING:
    from kafkabuf.formats.registry import SchemaRegistry

SLAB = 1024
TOPIC = "orders"
PRODUCER_ID = 77
PATIENCE = 30.0  # seconds of real time that a test waits for an event before it fails


def assert_whole(pool: BufferPool) -> None:
    """Every byte is free, no thread waits, the accounting is right, and the pool has never refused a wrong release."""
    pool.check()
    assert (pool.waiting, pool.refused_total) == (0, 0)
    assert pool.accounting() == {
        "free": pool.total - pool.loose, "open": 0, "closed": 0, "in_flight": 0, "scratch": 0, "loose": pool.loose,
    }  # fmt: skip


class HookClock(ManualClock):
    """Runs `hook` once when its time is read, as if another thread ran there."""

    hook: Callable[[], object] | None = None

    def monotonic(self) -> float:
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return super().monotonic()

    def at_call(self, number: int, action: Callable[[], object]) -> None:
        """Run `action` at the call of that number, counted from 0 from now on."""
        self.hook = action if number == 0 else lambda: self.at_call(number - 1, action)


class InterruptingClock(ManualClock):
    """Runs `action` whenever its time is read, but not within `action`: another thread runs at every opportunity."""

    action: Callable[[], object] | None = None

    def monotonic(self) -> float:
        action, self.action = self.action, None
        if action is not None:
            try:
                action()
            finally:
                self.action = action
        return super().monotonic()


class TurningClock(ManualClock):
    """A wait calls `turn` until it gets the lock: the Sender and its broker run in the waiting thread."""

    turn: Callable[[], object]

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        for _ in range(1000):
            if lock.acquire(blocking=False):
                return True
            self.turn()
        raise AssertionError("the wait has no end")


@contextmanager
def collecting_everywhere(action: Callable[[], object]) -> Iterator[None]:
    """The garbage collector runs at every allocation, and calls `action`, as a finalizer would."""

    def callback(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            action()

    before = gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(callback)


class Appender(RecordAppender):
    """send(), send_many() and send_arrow() without threads and network, for the topics that the test has created."""

    def __init__(self, accumulator: RecordAccumulator, config: ProducerConfig, clock: Clock) -> None:
        super().__init__(config, accumulator, clock)
        self.clock = clock
        self.registry: SchemaRegistry | None = None

    def send_arrow(
        self,
        data: Any,
        topic: str | None = None,
        report: str = ROWS,
        *,
        value_format: Any = None,
        key_format: Any = None,
        key: Any = None,
    ) -> BulkReport:
        formats = formats_of(value_format, key_format, key, getattr(self, "registry", None))
        pending = BulkReport(self.clock, report)
        append_arrow(self, pending, data, topic, formats)
        return pending

    def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Any = None,
        partitions: Any = None,
        timestamps_ms: Any = None,
        report: str = ROWS,
    ) -> BulkReport:
        pending = BulkReport(self.clock, report)
        append_many(self, pending, topic, values, keys, headers, partitions, timestamps_ms)
        return pending


class Rig:
    """Pool, accumulator, metadata and Sender of one producer under a ManualClock. The test calls the Sender's turns.

    `leaders` are the node ids of TOPIC's partitions. `settings` have Kafka's names in Python's spelling. The memory has
    `slabs` slabs of SLAB bytes, and lies in `file` if one is given: what the file holds is queued first. `proven` has
    the outcome of each batch of a partition of the file, as the cluster would give it; without it the cluster has none.
    """

    def __init__(
        self,
        leaders: Sequence[int] = (1,),
        *,
        slabs: int = 32,
        clock: ManualClock | None = None,
        client: FakeClient | None = None,
        wakeup: Callable[[], object] = lambda: None,
        file: Path | None = None,
        proven: Callable[[SpooledPartition], Sequence[Verdict]] | None = None,
        **settings: Any,
    ) -> None:
        memory = {"batch_size": SLAB, "buffer_memory": slabs * SLAB}
        defaults = {"bootstrap_servers": "localhost:9", "linger_ms": 10} | memory
        self.config = ProducerConfig.from_mapping(defaults | settings)
        self.clock = clock or ManualClock(auto_advance=True)
        # The pool fills a released slab with 0xDD: kafka-python refuses a request from such a slab.
        layout = Layout(self.config.buffer_memory, self.config.slab_size)
        self.file = None if file is None else SpoolFile(file, layout)
        arena = None if self.file is None else self.file.arena
        self.pool = BufferPool(*layout, clock=self.clock, poison=True, memory=arena)
        self.client = client or FakeClient()
        self.client.limit = self.config.max_in_flight_requests_per_connection
        self.metadata = Metadata(self.config, self.clock)
        self.wakeup = wakeup
        state, tables = producer_state(self.config), None if self.file is None else self.file.tables
        self.accumulator = RecordAccumulator(
            self.config, self.pool, self.clock, self._woken, producer_state=state, tables=tables
        )
        self.recovered = None if self.file is None else recover(self.file, self.accumulator)
        network = cast(NetworkClient, self.client)
        self.sender = Sender(self.config, self.accumulator, self.metadata, network, self.clock)
        self.producer = Appender(self.accumulator, self.config, self.clock)
        if self.recovered is not None:
            for held in self.recovered.partitions.values():
                verdicts = [Verdict(Outcome.ABSENT)] * len(held.batches) if proven is None else proven(held.evidence)
                keep = self.config.buffer_unproven == "keep"
                settle(self.accumulator, self.recovered, Proof(held.evidence, verdicts), keep=keep)
        self.topic = self.accumulator.topic_queues(TOPIC, list(leaders))
        # The producer has its id, and each leader is proven, as after a first batch.
        if state is not None:
            state.set_producer_id_and_epoch(PRODUCER_ID, 0)
        for queue in self.topic.queues:
            if state is not None and not queue.in_sequence and not queue.goes_on:
                state.start_sequences_at_beginning(queue)
            queue.proven = True
        self.log: dict[tuple[str, int], list[Record]] = {}  # the records that the broker has stored

    def _woken(self) -> None:
        self.client.wakeup()
        self.wakeup()

    # ---- appending

    def send(self, value: bytes | None = b"v", partition: int | None = 0, **more: Any) -> RecordFuture:
        return self.producer.send(TOPIC, value, partition=partition, **more)

    def fill(self, partition: int = 0, batches: int = 1) -> list[RecordFuture]:
        """Send records each of which fills a batch."""
        return [self.send(b"x" * (SLAB - 200), partition) for _ in range(batches)]

    # ---- the Sender's turns

    def turn(self) -> None:
        self.sender.run_once(0)

    def linger_over(self) -> None:
        self.clock.advance(self.config.linger_ms / 1000)

    def sent_after_turn(self) -> list[Sent]:
        """Run a turn, and return the requests that it sends."""
        before = len(self.client.sent)
        self.turn()
        return self.client.sent[before:]

    def ack_under_way(self) -> None:
        """The broker stores the records of all requests in `log`; the next turn takes its responses."""
        for sent in list(self.client.under_way):
            answers = {}
            for key, data in sent.produced.records.items():
                log = self.log.setdefault(key, [])
                answers[key] = Answer(base_offset=len(log))
                log += read_records(data)
            self.client.answer_with(sent, encode_answer(sent.request.version, sent.correlation_id, answers))

    def ack_all(self) -> None:
        """Run turns until every batch has its outcome. Each request succeeds, and time moves past back-offs."""
        for _ in range(1000):
            self.turn()
            self.ack_under_way()
            if not self.accumulator.incomplete and not self.client.under_way:
                self.turn()
                return
            self.clock.advance(0.5)
        raise AssertionError("the Sender does not finish its work")

    # ---- metadata

    def lead(self, *leaders: int) -> None:
        """Take a Metadata response with these leaders of TOPIC's partitions; -1 is no leader."""
        self.metadata.add_topic(TOPIC)
        self.metadata.begin_update(self.clock.monotonic())
        partitions = [
            {"partition_index": p, "leader_id": leader, "leader_epoch": 1, "replica_nodes": [], "isr_nodes": [],
             "offline_replicas": [], "error_code": 0}
            for p, leader in enumerate(leaders)
        ]  # fmt: skip
        brokers = [{"node_id": node, "host": "localhost", "port": node + 9000, "rack": None} for node in (1, 2, 3)]
        self.metadata.on_response(
            messages.build_response(
                messages.METADATA,
                9,
                brokers=brokers,
                controller_id=1,
                topics=[{"name": TOPIC, "error_code": 0, "partitions": partitions}],
            )
        )

    @property
    def update_wanted(self) -> bool:
        """Whether the Sender has requested fresh metadata since the last response."""
        return self.metadata.time_to_update(self.clock.monotonic() + 10) == 0

    # ---- state

    def queue(self, partition: int = 0) -> Any:
        return self.topic.queues[partition]

    def incomplete(self) -> list[Batch]:
        return list(self.accumulator.incomplete)

    def drain_one(self, partition: int = 0, topic: str = TOPIC) -> Batch:
        """Drain the oldest batch of a partition, even if it may not go out yet."""
        batch = self.accumulator.drain_one(self.accumulator.topics[topic].queues[partition])
        assert batch is not None
        return batch

    def bytes_in(self, state: str) -> int:
        return self.pool.accounting()[state]


def quick_rig(**settings: Any) -> Rig:
    """A Rig that does not linger, and whose records expire after a second."""
    defaults = {"linger_ms": 0, "request_timeout_ms": 500, "delivery_timeout_ms": 1_000, "retry_backoff_ms": 100}
    return Rig(**(defaults | settings))


def only_request(rig: Rig) -> Sent:
    """Run a turn, and return the only request that it sends."""
    (sent,) = rig.sent_after_turn()
    return sent
