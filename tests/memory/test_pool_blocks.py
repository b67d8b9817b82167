"""The pool's blocks, parts of slabs, beside a model that knows which parts are free (hypothesis, rule based)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkabuf._pool import BufferPool, Slab
from kafkabuf.clock import ManualClock
from kafkabuf.errors import BufferExhaustedError
from rigs.producer import assert_whole
from tests.effort import effort
from tests.memory.pool_support import ArrivalClock, in_thread, release_run

SLABS = 5
SLAB = 16 * 1024
LEVELS = 4  # down to 1 KiB
LOOSE = 7


def slabs_of(pool: BufferPool, handle: Slab) -> set[tuple[int, int]]:
    """The smallest parts of the run, as (slab, part)."""
    if handle.extent > 0:
        return {(handle.first + slab, part) for slab in range(handle.extent) for part in range(1 << LEVELS)}
    slab, part = divmod(handle.first, 1 << LEVELS)
    return {(slab, part + more) for more in range(1 << (LEVELS + handle.extent))}


class BlockMachine(RuleBasedStateMachine):
    """Each allocation succeeds exactly when an aligned part is free; no two runs share a byte."""

    @initialize(odd=st.sampled_from([0, 1, 13, 1023]))
    def begin(self, odd: int) -> None:
        self.slab_size = SLAB + odd
        self.pool = BufferPool(
            SLABS * self.slab_size + LOOSE, self.slab_size, clock=ManualClock(auto_advance=True), poison=True
        )
        self.held: list[tuple[Slab, str, bytes]] = []
        self.marks = 0

    def used(self) -> set[tuple[int, int]]:
        return set().union(*(slabs_of(self.pool, handle) for handle, _, _ in self.held))

    def free_parts(self, parts: int) -> set[int]:
        """The slabs with so many free parts that make one block."""
        used = self.used()
        return {
            slab
            for slab in range(SLABS)
            for first in range(0, 1 << LEVELS, parts)
            if used.isdisjoint((slab, first + more) for more in range(parts))
        }

    def take(self, nbytes: int) -> Slab | None:
        try:
            handle = self.pool.allocate(nbytes, 0.1)
        except BufferExhaustedError:
            return None
        assert self.used().isdisjoint(slabs_of(self.pool, handle)), "two owners"
        self.marks += 1
        mark = bytes([self.marks % 200])
        handle.buffer[:] = mark * handle.nbytes
        self.held.append((handle, "open", mark))
        return handle

    @rule(level=st.integers(0, LEVELS), share=st.floats(0.51, 1))
    def allocate(self, level: int, share: float) -> None:
        size = (self.slab_size >> LEVELS) << (LEVELS - level) if level else self.slab_size
        nbytes = int(size * share)
        parts = 1 << (LEVELS - level)
        whole = self.free_parts(1 << LEVELS)
        room = self.free_parts(parts)
        handle = self.take(nbytes)
        assert (handle is None) == (not room)
        if handle is not None:
            assert handle.nbytes == size
            slab = handle.first >> LEVELS if handle.extent < 0 else handle.first
            assert slab in (room - whole if level else whole) or room == whole, "a whole slab was cut without need"

    @rule(slabs=st.integers(2, SLABS))
    def allocate_adjacent_slabs(self, slabs: int) -> None:
        whole = self.free_parts(1 << LEVELS)
        room = any(whole.issuperset(range(slab, slab + slabs)) for slab in range(SLABS - slabs + 1))
        assert (self.take(slabs * self.slab_size) is not None) == room

    @precondition(lambda self: self.held)
    @rule(data=st.data(), forget=st.booleans())
    def release(self, data: st.DataObject, forget: bool) -> None:
        handle, _, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if not forget:
            first, extent = handle.first, handle.extent
            handle.release()
            with pytest.raises(ValueError, match="released"):
                handle.release()
            with pytest.raises(ValueError, match="not all in use"):
                release_run(self.pool, first, extent)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), state=st.sampled_from(["open", "closed", "in_flight", "scratch"]))
    def set_state(self, data: st.DataObject, state: str) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        handle, _, mark = self.held[at]
        handle.state = state
        assert handle.state == state
        self.held[at] = (handle, state, mark)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_a_block_of_another_size(self, data: st.DataObject) -> None:
        handle, _, _ = self.held[data.draw(st.integers(0, len(self.held) - 1))]
        if handle.extent < 0:
            for extent in set(range(-LEVELS - 1, 1)) - {handle.extent}:
                with pytest.raises(ValueError, match="not all in use"):
                    release_run(self.pool, handle.first, extent)
            with pytest.raises(ValueError, match="not all in use"):
                release_run(self.pool, handle.first >> LEVELS, 1)

    @invariant()
    def every_byte_is_accounted_for_and_unchanged(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        books = self.pool.accounting()
        expected = dict.fromkeys(["open", "closed", "in_flight", "scratch"], 0)
        for handle, state, mark in self.held:
            expected[state] += handle.nbytes
            assert bytes(handle.buffer) == mark * handle.nbytes
        assert {state: books[state] for state in expected} == expected
        assert sum(books.values()) == self.pool.total
        assert books["free"] == self.pool.free_bytes
        assert LOOSE <= books["loose"] <= LOOSE + SLABS * ((1 << LEVELS) - 1)

    @precondition(lambda self: len(self.held) > 8)
    @rule()
    def release_everything(self) -> None:
        while self.held:
            self.held.pop()[0].release()
        assert self.pool.free_bytes == SLABS * self.slab_size


TestBlocksAgainstTheirModel = BlockMachine.TestCase
TestBlocksAgainstTheirModel.settings = settings(max_examples=effort(60), stateful_step_count=50, deadline=None)


def test_stale_owner_of_a_block_can_neither_read_nor_release() -> None:
    pool = BufferPool(SLAB, SLAB, clock=ManualClock(auto_advance=True))
    stale = pool.allocate(1024, 0)
    release_run(pool, stale.first, stale.extent)  # as a batch that expired would
    for nbytes in (SLAB, 2048, 1024):  # the next owners of the same bytes
        with pool.allocate(nbytes, 0) as owner:
            assert owner.first == stale.first == 0
            with pytest.raises(ValueError, match="not by this handle"):
                stale.release() if nbytes == 1024 else stale.buffer
            assert pool.accounting()["open"] == owner.nbytes
    assert pool.free_bytes == SLAB


def test_blocks_are_no_smaller_than_a_kibibyte() -> None:
    for slab_size, smallest in ((512, 512), (1024, 1024), (2047, 2047), (2048, 1024), (100_000, 1562), (4 << 20, 4096)):
        assert BufferPool(4 * slab_size, slab_size).allocate(1, 0).nbytes == smallest


@pytest.mark.parametrize("size", [1024, SLAB])
def test_no_thread_overtakes_a_thread_that_waits_for_a_block(size: int) -> None:
    clock = ArrivalClock()
    pool = BufferPool(SLAB, SLAB, clock=clock)
    half = pool.allocate(SLAB // 2, 0)
    quarter = pool.allocate(SLAB // 4, 0)
    first = in_thread(lambda: pool.allocate(SLAB // 2, 20))
    clock.await_arrival()
    with pytest.raises(BufferExhaustedError):
        pool.allocate(1, 0)  # a quarter is free, but the first thread waits
    second = in_thread(lambda: pool.allocate(size, 20))
    clock.await_arrival()
    quarter.release()  # the free quarters merge
    with first.result(20) as mine:
        assert mine.nbytes == SLAB // 2
        if size == SLAB:
            assert not second.done()
    half.release()
    second.result(20).release()
    assert_whole(pool)
