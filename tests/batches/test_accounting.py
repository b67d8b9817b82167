"""The pool's accounting after each random step: whatever fails, no slab is lost and no outcome comes twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import BufferExhaustedError, NetworkError
from rigs.producer import PATIENCE, SLAB, TOPIC, Rig, assert_whole
from tests.effort import effort
from tests.memory.pool_support import in_thread

PARTITIONS = 3
# Success, and: corrupt, unknown partition, no leader here, timed out, batch too large, invalid record.
CODES = (0, 0, 0, 2, 3, 6, 7, 10, 87)
HEADERS = [("a", b"1"), ("b", None)]


class Life:
    """A producer that takes every kind of step and fault, in an order drawn from `seed`."""

    def __init__(self, seed: int, clock: ManualClock | None = None, **settings: Any) -> None:
        self.random = random.Random(seed)
        times = {"request_timeout_ms": 500, "delivery_timeout_ms": 1_000, "max_block_ms": 200, "linger_ms": 20}
        self.rig = Rig([1, 2, 1], slabs=12, clock=clock, **(times | settings))
        self.called: Counter[int] = Counter()
        self.sent = 0
        self.reports: list[Any] = []

    # ---- what users do

    def send(self, draw: random.Random | None = None) -> None:
        draw = draw or self.random
        size = draw.choice([0, 10, 100, 900, SLAB, 3 * SLAB])
        number = self.sent
        self.sent += 1
        more: dict[str, Any] = draw.choice([{}, {"key": b"k"}, {"headers": HEADERS}])

        def callback(metadata: object, error: object) -> None:
            self.called[number] += 1

        try:
            self.rig.send(b"x" * size, draw.choice([None, 0, 1, 2]), callback=callback, **more)
        except BufferExhaustedError:
            self.called[number] += 1  # the exception is its outcome

    def send_arrow(self) -> None:
        values = [b"y" * self.random.choice([0, 10, 500]) for _ in range(self.random.randrange(30))]
        try:
            self.reports.append(
                self.rig.producer.send_arrow(pa.record_batch({"value": pa.array(values, "binary")}), TOPIC)
            )
        except BufferExhaustedError:
            pass

    # ---- what the broker and the network do

    def answer(self) -> None:
        if self.rig.client.under_way:
            sent = self.random.choice(self.rig.client.under_way)
            self.rig.client.answer(sent, *(self.random.choice(CODES) for _ in sent.partitions))

    def answer_nonsense(self) -> None:
        if self.rig.client.under_way:
            self.rig.client.answer_with(self.random.choice(self.rig.client.under_way), b"\0\0\0")

    def cut(self) -> None:
        if self.rig.client.under_way:
            self.rig.client.fail(self.random.choice(self.rig.client.under_way), NetworkError("cut"))

    def lead(self) -> None:
        self.rig.lead(*(self.random.choice([-1, 1, 2]) for _ in range(PARTITIONS)))

    def hold(self) -> None:
        self.rig.client.unready ^= {self.random.choice([1, 2])}

    def wait(self) -> None:
        self.rig.clock.advance(self.random.choice([0.001, 0.05, 0.3]))

    # ---- the books

    def check(self) -> None:
        self.rig.pool.check()
        books = self.rig.pool.accounting()
        waiting = self.rig.incomplete()
        assert books["open"] >= SLAB * sum(not batch.closed for batch in waiting)
        if not waiting and self.rig.client.quiet:
            assert books["open"] == books["closed"] == books["in_flight"] == 0
        assert self.rig.pool.refused_total == 0
        assert not self.called or max(self.called.values()) == 1

    def end(self) -> None:
        self.rig.client.unready.clear()
        self.rig.lead(1, 2, 1)
        self.rig.ack_all()
        assert set(self.called) == set(range(self.sent))
        assert max(self.called.values()) == 1
        for report in self.reports:
            report.result(0, errors="return")
        self.rig.accumulator.release_scratch()
        assert_whole(self.rig.pool)

    @property
    def deeds(self) -> list[Callable[[], object]]:
        often = [self.send] * 6 + [self.rig.turn] * 5 + [self.answer] * 3 + [self.wait] * 2
        return [*often, self.send_arrow, self.cut, self.answer_nonsense, self.lead, self.hold]


CUT: dict[str, Any] = {
    "batch_size": 8 * SLAB,
    "buffer_memory": 40 * SLAB,
}  # slabs that are cut into blocks, so that batches grow


@pytest.mark.parametrize("memory", [{}, CUT])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("seed", range(effort(15)))
def test_no_slab_is_lost_and_every_outcome_comes_once(seed: int, compression: str, memory: dict[str, Any]) -> None:
    life = Life(seed, compression_type=compression, **memory)
    for _ in range(400):
        life.random.choice(life.deeds)()
        life.check()
    life.end()


@pytest.mark.parametrize("memory", [{}, CUT])
@pytest.mark.parametrize("seed", range(3))
def test_no_slab_is_lost_between_threads(seed: int, memory: dict[str, Any]) -> None:
    """Three threads send during the Sender's random steps. A thread that waits does not advance the clock."""
    life = Life(seed, clock=ManualClock(), **memory)
    rig, total = life.rig, 400

    def send(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        for _ in range(total):
            life.send(draw)

    running = [in_thread(lambda number=number: send(number)) for number in range(3)]  # type: ignore[misc]
    deeds = [rig.turn] * 5 + [life.answer] * 3 + [life.cut, life.wait, life.hold, life.answer_nonsense]
    while not all(thread.done() for thread in running):
        life.random.choice(deeds)()
        rig.pool.check()
    for thread in running:
        thread.result(PATIENCE)
    life.end()
