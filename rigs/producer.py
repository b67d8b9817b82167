"""What the tests of accumulator, Sender and producer share: a Sender turned by hand, and clocks with surprises."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from kafkabuf._pool import BufferPool
from kafkabuf.append._bulk_arrow import append_arrow
from kafkabuf.append._bulk_many import append_many
from kafkabuf.append._producer import ProducerCore
from kafkabuf.append.report import ROWS, BulkReport
from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock, Lockable, ManualClock
from kafkabuf.config import ProducerConfig
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network.client import NetworkClient
from kafkabuf.protocol import messages
from kafkabuf.sending.sender import Sender
from kafkabuf.transactions.idempotence import producer_state
from rigs.fake_client import Answer, FakeClient, Record, Sent, encode_answer, read_records

SLAB = 1024
TOPIC = "orders"
PRODUCER_ID = 77
PATIENCE = 30.0  # seconds of real time after which what should have happened counts as lost


def assert_whole(pool: BufferPool) -> None:
    """Every byte is back, nobody waits, the books agree, and nothing was ever released or moved wrongly."""
    pool.check()
    assert (pool.waiting, pool.refused_total) == (0, 0)
    assert pool.accounting() == {
        "free": pool.total - pool.loose, "open": 0, "closed": 0, "in_flight": 0, "scratch": 0, "loose": pool.loose,
    }  # fmt: skip


class HookClock(ManualClock):
    """Runs `hook`, once, when it is asked for the time, as if another thread had got its turn there."""

    hook: Callable[[], object] | None = None

    def monotonic(self) -> float:
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return super().monotonic()

    def at_call(self, number: int, what: Callable[[], object]) -> None:
        """Run `what` at the call of that number from now on, counted from 0."""
        self.hook = what if number == 0 else lambda: self.at_call(number - 1, what)


class RestlessClock(ManualClock):
    """Runs `what` whenever it is asked for the time, but not within itself: another thread at every opportunity."""

    what: Callable[[], object] | None = None

    def monotonic(self) -> float:
        what, self.what = self.what, None
        if what is not None:
            try:
                what()
            finally:
                self.what = what
        return super().monotonic()


class TurningClock(ManualClock):
    """Who waits lets `turn` run until it is served: the Sender and its broker in the waiting thread."""

    turn: Callable[[], object]

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        for _ in range(1000):
            if lock.acquire(blocking=False):
                return True
            self.turn()
        raise AssertionError("waits for ever")


@contextmanager
def collecting_everywhere(what: Callable[[], object]) -> Iterator[None]:
    """The garbage collector runs at every allocation, and runs `what`, as somebody's finalizer might."""

    def callback(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            what()

    before = gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(callback)


class Appender(ProducerCore):
    """send() and send_arrow() without threads and network. Topics are those that the Rig has made."""

    def __init__(self, accumulator: RecordAccumulator, config: ProducerConfig, clock: Clock) -> None:
        self._open(accumulator, config, clock)
        self.clock = clock

    def _await_topic(self, name: str) -> Any:
        raise AssertionError(f"the test made no topic {name!r}")

    def _await_partition(self, name: str, partition: int, timeout: float) -> None:
        """A partition unknown so far stays so."""

    def send_arrow(self, data: Any, topic: str | None = None, report: str = ROWS) -> BulkReport:
        pending = BulkReport(self.clock, report)
        append_arrow(self, pending, data, topic)
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
    """Pool, accumulator, metadata and Sender of one producer, turned by hand under a ManualClock.

    `leaders` are the node ids of TOPIC's partitions. Settings in Kafka's Python names; memory in slabs of SLAB bytes.
    """

    def __init__(
        self,
        leaders: Sequence[int] = (1,),
        *,
        slabs: int = 32,
        clock: ManualClock | None = None,
        client: FakeClient | None = None,
        wakeup: Callable[[], object] = lambda: None,
        **settings: Any,
    ) -> None:
        memory = {"batch_size": SLAB, "buffer_memory": slabs * SLAB}
        defaults = {"bootstrap_servers": "localhost:9", "linger_ms": 10} | memory
        self.config = ProducerConfig.from_mapping(defaults | settings)
        self.clock = clock or ManualClock(auto_advance=True)
        # Poison: whoever sends a slab that was given back sends 0xDD, and kafka-python refuses it.
        self.pool = BufferPool(self.config.buffer_memory, self.config.slab_size, clock=self.clock, poison=True)
        self.client = client or FakeClient()
        self.client.limit = self.config.max_in_flight_requests_per_connection
        self.metadata = Metadata(self.config, self.clock)
        self.wakeup = wakeup
        self.accumulator = RecordAccumulator(
            self.config, self.pool, self.clock, self._woken, producer_state=producer_state(self.config)
        )
        network = cast(NetworkClient, self.client)
        self.sender = Sender(self.config, self.accumulator, self.metadata, network, self.clock)
        self.producer = Appender(self.accumulator, self.config, self.clock)
        self.topic = self.accumulator.topic_queues(TOPIC, list(leaders))
        # As after a first batch; what comes before that has tests of its own.
        if (state := self.accumulator.producer_state) is not None:
            state.set_producer_id_and_epoch(PRODUCER_ID, 0)
        for queue in self.topic.queues:
            if state is not None:
                state.start_sequences_at_beginning(queue)
            queue.proven = True
        self.log: dict[tuple[str, int], list[Record]] = {}  # what the broker has stored

    def _woken(self) -> None:
        self.client.wakeup()
        self.wakeup()

    # ---- appending

    def send(self, value: bytes | None = b"v", partition: int | None = 0, **more: Any) -> RecordFuture:
        return self.producer.send(TOPIC, value, partition=partition, **more)

    def fill(self, partition: int = 0, batches: int = 1) -> list[RecordFuture]:
        """So many batches of one record that leaves no room for another."""
        return [self.send(b"x" * (SLAB - 200), partition) for _ in range(batches)]

    # ---- the Sender's turns

    def turn(self) -> None:
        self.sender.run_once(0)

    def linger_over(self) -> None:
        self.clock.advance(self.config.linger_ms / 1000)

    def sent_after_turn(self) -> list[Sent]:
        """The requests that one turn makes."""
        before = len(self.client.sent)
        self.turn()
        return self.client.sent[before:]

    def ack_under_way(self) -> None:
        """The broker stores all it was sent, in `log`, and says so at the next turn."""
        for sent in list(self.client.under_way):
            answers = {}
            for key, data in sent.produced.records.items():
                log = self.log.setdefault(key, [])
                answers[key] = Answer(base_offset=len(log))
                log += read_records(data)
            self.client.answer_with(sent, encode_answer(sent.request.version, sent.correlation_id, answers))

    def ack_all(self) -> None:
        """Turn until nothing is left to do, a successful answer for each request; time moves for back-offs."""
        for _ in range(1000):
            self.turn()
            self.ack_under_way()
            if not self.accumulator.incomplete and not self.client.under_way:
                self.turn()
                return
            self.clock.advance(0.5)
        raise AssertionError("the Sender does not come to an end")

    # ---- metadata

    def lead(self, *leaders: int) -> None:
        """A Metadata answer that names these leaders of TOPIC's partitions; -1: none."""
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
        """Whether fresh metadata has been asked for since the last answer."""
        return self.metadata.time_to_update(self.clock.monotonic() + 10) == 0

    # ---- looking

    def queue(self, partition: int = 0) -> Any:
        return self.topic.queues[partition]

    def incomplete(self) -> list[Batch]:
        return list(self.accumulator.incomplete)

    def drain_one(self, partition: int = 0, topic: str = TOPIC) -> Batch:
        """The oldest batch of a partition, however young it is."""
        batch = self.accumulator.drain_one(self.accumulator.topics[topic].queues[partition])
        assert batch is not None
        return batch

    def bytes_in(self, state: str) -> int:
        return self.pool.accounting()[state]


def eager(**settings: Any) -> Rig:
    """A Rig that sends at once and expires after a second."""
    defaults = {"linger_ms": 0, "request_timeout_ms": 500, "delivery_timeout_ms": 1_000, "retry_backoff_ms": 100}
    return Rig(**(defaults | settings))


def one_sent(rig: Rig) -> Sent:
    (sent,) = rig.sent_after_turn()
    return sent
