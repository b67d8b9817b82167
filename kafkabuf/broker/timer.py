"""Deadlines on an injected clock, run in the event loop.

With the system clock the loop sleeps until the next deadline. With a `ManualClock` somebody calls `advance` after
moving it: then exactly what is due runs, and no test sleeps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from kafkabuf.clock import Clock


class Timeout:
    """Handle of a scheduled call; cancelling is O(1), the entry leaves the heap when its time comes."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Timer:
    """Thread: the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.clock = clock
        self._loop = loop
        self._heap: list[tuple[float, int, Timeout]] = []
        self._order = count()
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")

    def after(self, seconds: float, call: Callable[[], None]) -> Timeout:
        timeout = Timeout(call)
        deadline = self.clock.monotonic() + seconds
        heapq.heappush(self._heap, (deadline, next(self._order), timeout))
        if deadline < self._armed_for:
            self._arm()
        return timeout

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        timeout = self.after(seconds, over.set)
        try:
            await over.wait()
        finally:
            timeout.cancel()

    def advance(self) -> None:
        """Runs all that is due, in order of deadline."""
        now = self.clock.monotonic()
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].call is None):
            timeout = heapq.heappop(self._heap)[2]
            if timeout.call is not None:
                call, timeout.call = timeout.call, None
                call()
        self._arm()

    def close(self) -> None:
        self._heap.clear()
        self._arm()

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        self._armed_for = self._heap[0][0] if self._heap else float("inf")
        if self._heap:
            self._armed = self._loop.call_later(max(0.0, self._armed_for - self.clock.monotonic()), self.advance)
