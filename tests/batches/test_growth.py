"""A batch that opens in a part of a slab, and grows while memory is short."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import BufferExhaustedError
from rigs.fake_client import Answer, Sent, encode_answer
from rigs.producer import TOPIC, Rig, TurningClock, assert_whole

SLAB = 16 * 1024
VALUE = b"v" * 100


def small_rig(partitions: int = 2, slabs: int = 4, clock: ManualClock | None = None, **settings: object) -> Rig:
    """A Rig with slabs that can be cut, and less than three quarters of its memory free."""
    memory = {"batch_size": SLAB, "buffer_memory": slabs * SLAB, "linger_ms": 1_000, "enable_idempotence": False}
    return Rig(leaders=[1] * partitions, clock=clock, **(memory | settings))  # type: ignore[arg-type]


def crowd(rig: Rig, slabs: int) -> list[object]:
    """Hold so many slabs, so that batches save memory."""
    return [rig.pool.allocate(SLAB, 0) for _ in range(slabs)]


def open_bytes(rig: Rig, crowding: list[object]) -> int:
    return rig.pool.accounting()["open"] - SLAB * len(crowding)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("way", ["send", "send_arrow", "send_many"])
def test_batch_that_grows_keeps_its_records(way: str, magic: int, compression: str) -> None:
    rig = small_rig(slabs=16, record_magic=magic, compression_type=compression)
    crowding = crowd(rig, 8)
    dice = random.Random(way)
    values = [dice.randbytes(dice.randrange(200)) for _ in range(200)]
    partitions = [dice.randrange(2) for _ in values]
    if way == "send":
        sizes = set()
        for value, partition in zip(values, partitions, strict=True):
            rig.send(value, partition)
            sizes.add(open_bytes(rig, crowding))
            rig.pool.check()
        assert len(sizes) > 5
    elif way == "send_arrow":
        rows = {"value": pa.array(values, "binary"), "partition": pa.array(partitions, pa.int32())}
        rig.producer.send_arrow(pa.record_batch(rows), TOPIC)
    else:
        rig.producer.send_many(TOPIC, values, partitions=partitions)
    assert len(rig.accumulator.incomplete_batches()) <= 4
    rig.linger_over()
    rig.ack_all()
    for partition in range(2):  # kafka-python has read the records
        expected = [value for value, number in zip(values, partitions, strict=True) if number == partition]
        assert [record.value for record in rig.log[TOPIC, partition]] == expected
    del crowding
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


def test_batch_takes_as_much_memory_as_its_records_need() -> None:
    rig = small_rig()
    crowding = crowd(rig, 2)
    taken = [1024]
    while taken[-1] < SLAB:
        future = rig.send(VALUE)
        assert future.batch.size <= open_bytes(rig, crowding) < max(2 * future.batch.size, 1025)
        if open_bytes(rig, crowding) != taken[-1]:
            taken.append(open_bytes(rig, crowding))
    assert taken == [1024, 2048, 4096, 8192, SLAB]
    assert len(rig.queue().batches) == 1


@pytest.mark.parametrize(("records", "opened"), [(60, 1024), (100, SLAB)])
def test_queue_opens_with_a_slab_if_its_last_batch_filled_more_than_half_of_one(records: int, opened: int) -> None:
    rig = small_rig()
    crowding = crowd(rig, 2)
    for _ in range(records):
        rig.send(VALUE)
    rig.linger_over()
    rig.ack_all()
    rig.send(VALUE)
    assert open_bytes(rig, crowding) == opened


def test_batch_grows_to_a_slab_at_once_while_there_is_plenty_of_memory() -> None:
    rig = small_rig(slabs=8)
    sizes = []
    for _ in range(20):
        rig.send(VALUE)
        sizes.append(rig.pool.accounting()["open"])
    assert sorted({*sizes}) == [1024, SLAB]


def test_a_thousand_partitions_open_no_slab_that_they_do_not_fill() -> None:
    """The memory of all open batches is at most twice their records, and 1 KiB for each partition."""
    rig = small_rig(partitions=1_000, slabs=256)
    for number in range(12_000):
        rig.send(VALUE, number % 1_000)
    batches = rig.accumulator.incomplete_batches()
    assert len(batches) == 1_000
    assert rig.pool.accounting()["open"] <= sum(max(1024, 2 * batch.size) for batch in batches)
    rig.linger_over()
    rig.ack_all()
    assert_whole(rig.pool)


def test_growth_waits_for_memory_and_the_batch_stays_open() -> None:
    clock = TurningClock()
    rig = small_rig(slabs=1, clock=clock, max_block_ms=1_000)
    others = [rig.pool.allocate(1024, 0) for _ in range(15)]
    futures = [rig.send(VALUE) for _ in range(8)]
    clock.turn = lambda: others.pop().release()
    futures.append(rig.send(VALUE))
    assert len({future.batch for future in futures}) == 1
    assert futures[0].batch.size > 1024
    others.clear()
    rig.linger_over()
    rig.ack_all()
    assert [future.result(0).offset for future in futures] == list(range(9))
    assert_whole(rig.pool)


def test_sender_takes_the_batch_that_waits_for_memory() -> None:
    clock = TurningClock()
    rig = small_rig(slabs=1, clock=clock)
    clock.turn = rig.ack_all
    futures = [rig.send(VALUE, number % 2) for number in range(400)]
    rig.linger_over()
    rig.ack_all()
    assert all(future.done() for future in futures)
    for partition in range(2):
        assert len(rig.log[TOPIC, partition]) == 200
    assert_whole(rig.pool)


def test_record_without_memory_changes_nothing() -> None:
    rig = small_rig(slabs=1, max_block_ms=100)
    others = [rig.pool.allocate(1024, 0) for _ in range(15)]
    futures = [rig.send(VALUE) for _ in range(8)]
    books = rig.pool.accounting()
    with pytest.raises(BufferExhaustedError, match="no 2048 bytes"):
        rig.send(VALUE)
    assert rig.pool.accounting() == books
    assert rig.queue().head.count == 8
    others.clear()
    rig.linger_over()
    rig.ack_all()
    assert all(future.done() for future in futures)
    assert_whole(rig.pool)


@pytest.mark.parametrize("in_flight", [False, True])
def test_expired_batch_that_grew_gives_back_exactly_its_memory(in_flight: bool) -> None:
    rig = small_rig(delivery_timeout_ms=2_000, request_timeout_ms=500)
    crowding = crowd(rig, 2)
    for _ in range(25):
        future = rig.send(VALUE)
    other = rig.send(VALUE, partition=1)
    free = rig.pool.free_bytes
    if in_flight:
        rig.linger_over()
        rig.turn()
        (sent,) = rig.client.under_way
    rig.clock.advance(3)
    rig.turn()
    assert future.exception(0) is not None
    assert other.exception(0) is not None
    if in_flight:
        assert rig.pool.free_bytes == free  # a socket may read the bytes
        assert rig.pool.accounting()["in_flight"] == 4096 + 1024
        rig.client.answer(sent)
        rig.turn()
    assert rig.pool.free_bytes == free + 4096 + 1024
    del crowding
    assert_whole(rig.pool)


def test_sticky_partition_grows_before_it_changes() -> None:
    rig = small_rig(partitions=8, slabs=8)
    crowding = crowd(rig, 4)
    while (future := rig.send(VALUE, partition=None)).batch.size < SLAB - 200:
        assert len(rig.accumulator.active) == 1
    assert future.batch.count > 100
    del crowding


def test_ten_thousand_queues_get_a_record_without_a_wait_for_memory() -> None:
    rig = small_rig(partitions=10_000, slabs=2048)
    for partition in range(10_000):
        rig.send(VALUE, partition)
    assert rig.pool.waits_total == 0
    assert len(rig.accumulator.incomplete_batches()) == 10_000
    rig.accumulator.abort()
    assert_whole(rig.pool)


class SlowBrokers:
    """Brokers that need `batch_cost` microseconds for a batch, whatever its size. Each serves its requests in turn."""

    def __init__(self, rig: Rig, batch_cost: float) -> None:
        self.rig, self.batch_cost = rig, batch_cost
        self.now = 0.0  # microseconds
        self.batches = 0
        self.ends: dict[int, float] = {}  # when the broker ends each request, by its correlation id
        self.busy_until: dict[int, float] = {}  # by node id

    def advance(self, microseconds: float) -> None:
        self.now += microseconds
        self.rig.clock.advance(microseconds / 1e6)

    def run(self) -> None:
        """A turn of the Sender, and the responses that are due."""
        self.rig.turn()
        while (first := self._next()) is not None and self.ends[first.correlation_id] <= self.now:
            answers = {key: Answer(base_offset=-1) for key in first.produced.records}
            self.rig.client.answer_with(first, encode_answer(first.request.version, first.correlation_id, answers))
            self.rig.turn()

    def wait(self) -> None:
        """A thread waits for memory: time passes until the next response, if any is under way."""
        self.rig.turn()
        first = self._next()
        self.advance(100 if first is None else max(self.ends[first.correlation_id] - self.now, 0))
        self.run()

    def _next(self) -> Sent | None:
        for sent in self.rig.client.under_way:
            if sent.correlation_id not in self.ends:
                batches = len(sent.produced.records)
                self.batches += batches
                end = max(self.now, self.busy_until.get(sent.node_id, 0)) + self.batch_cost * batches
                self.busy_until[sent.node_id] = self.ends[sent.correlation_id] = end
        return min(self.rig.client.under_way, key=lambda sent: self.ends[sent.correlation_id], default=None)


@pytest.mark.parametrize("turn_every", [50, 500])
@pytest.mark.parametrize("linger_ms", [0, 1])
@pytest.mark.parametrize("nodes", [1, 3, 10])
def test_batches_of_few_records_do_not_hold_all_memory_in_flight(nodes: int, linger_ms: int, turn_every: int) -> None:
    """Each broker needs as long for a batch as the producer for 37 records: with one record a batch it is too slow."""
    partitions, rounds = 1_000, 36
    clock = TurningClock()
    leaders = [1 + partition % nodes for partition in range(partitions)]
    rig = Rig(leaders=leaders, clock=clock, linger_ms=linger_ms, batch_size=SLAB, buffer_memory=200 * SLAB,
              max_request_size=100 * 1024)  # fmt: skip
    brokers = SlowBrokers(rig, batch_cost=37)
    clock.turn = brokers.wait
    for number in range(partitions * rounds):
        rig.send(VALUE, number % partitions)
        brokers.advance(1)
        if number % turn_every == 0:
            brokers.run()
    assert brokers.now < 1.75 * partitions * rounds  # microseconds, of which the producer's own are 1 a record
    clock.turn = lambda: None
    rig.ack_all()
    assert_whole(rig.pool)


def test_node_that_does_not_respond_leaves_others_their_share_of_scarce_memory() -> None:
    """Its open batches hold at most its own share, so that another node's batches go, and their memory comes back."""
    partitions, slabs = 420, 64
    rig = Rig(leaders=[1] * 400 + [2] * 20, batch_size=SLAB, buffer_memory=slabs * SLAB, linger_ms=0)
    rig.client.limit = 10
    crowding = crowd(rig, 18)
    for number in range(700):
        rig.send(VALUE, number % 400)
        if number % 100 == 99:
            rig.turn()
    assert 0 < rig.pool.accounting()["in_flight"] <= slabs * SLAB // 2 + 1024
    future = [rig.send(VALUE, partition) for partition in range(400, partitions)][-1]
    rig.turn()
    for sent in rig.client.under_way:
        if sent.node_id == 2:
            rig.client.answer(sent)
    rig.turn()
    assert future.done()
    del crowding
    rig.ack_all()
    assert_whole(rig.pool)
