"""BufferPool beside a model that predicts exactly which slabs each request gets (hypothesis, rule based)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkabuf._pool import BufferPool, Slab
from kafkabuf.clock import ManualClock
from kafkabuf.errors import AllocationTooLargeError, BufferExhaustedError, ClosedError
from tests.effort import effort
from tests.memory.pool_support import SLAB, release_run


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a model of lists that predicts exactly which slabs each request gets."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(150 * SLAB + 11, SLAB, clock=ManualClock(auto_advance=True))
        self.free = list(reversed(range(150)))  # the pool hands out the last entry first
        self.held: list[tuple[Slab, str]] = []
        self.closed = False

    def expected(self, n: int) -> list[int] | None:
        if n == 1:
            return self.free[-1:] or None
        free = set(self.free)
        runs = (list(range(slab, slab + n)) for slab in sorted(free))
        return next((run for run in runs if free.issuperset(run)), None)

    @rule(n=st.one_of(st.integers(1, 4), st.integers(1, 150)), short=st.integers(0, SLAB - 1))
    def allocate(self, n: int, short: int) -> None:
        run = self.expected(n)
        if self.closed or run is None:
            with pytest.raises(ClosedError if self.closed else BufferExhaustedError):
                self.pool.allocate(n * SLAB - short, 0.1)
            return
        handle = self.pool.allocate(n * SLAB - short, 0.1)
        assert list(range(handle.first, handle.first + handle.extent)) == run
        self.free = [slab for slab in self.free if slab not in run]
        self.held.append((handle, "open"))

    @rule(n=st.integers(151, 1 << 50))
    def ask_too_much(self, n: int) -> None:
        with pytest.raises(AllocationTooLargeError):
            self.pool.allocate(n * SLAB, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), forget=st.booleans())
    def release(self, data: st.DataObject, forget: bool) -> None:
        handle, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.free += reversed(range(handle.first, handle.first + handle.extent))
        if not forget:
            handle.release()
            with pytest.raises(ValueError, match="released"):
                handle.release()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), state=st.sampled_from(["open", "closed", "in_flight", "scratch"]))
    def set_state(self, data: st.DataObject, state: str) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        self.held[at][0].state = state
        self.held[at] = (self.held[at][0], state)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def release_what_is_free(self, data: st.DataObject) -> None:
        with pytest.raises(ValueError, match="not all in use"):
            release_run(self.pool, data.draw(st.sampled_from(self.free)), 1)

    @precondition(lambda self: len(self.held) > 3)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.pool.close()

    @invariant()
    def every_byte_is_accounted_for(self) -> None:
        self.pool.check()
        expected = dict.fromkeys(["open", "closed", "in_flight", "scratch"], 0)
        for handle, state in self.held:
            expected[state] += handle.nbytes
        assert self.pool.accounting() == {"free": len(self.free) * SLAB, "loose": 11, **expected}
        assert self.pool.free_bytes == len(self.free) * SLAB


TestPoolAgainstItsModel = PoolMachine.TestCase
TestPoolAgainstItsModel.settings = settings(max_examples=effort(60), stateful_step_count=40, deadline=None)
