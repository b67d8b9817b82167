"""A timing wheel that the event loop drives: deadlines on an injected clock, and operations that expire.

With the system clock the loop sleeps until the wheel's next bucket is due. A test with a `ManualClock` moves the clock
and calls `advance`: then exactly the due tasks run, and no test sleeps.

Thousands of tasks may be due at once: clients choose the time-outs of their sessions and transactions. The loop runs
them in slices of time, and serves clients in between.
"""

from __future__ import annotations

import asyncio
import sys

from kafkabuf.broker.waiting._timing_wheel import Timeout, TimingWheel
from kafkabuf.broker.waiting.slices import SLICE_SECONDS
from kafkabuf.clock import Clock

__all__ = ["Timeout", "Timer"]


class Timer(TimingWheel):
    """Thread: the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        super().__init__(clock)
        self._loop = loop
        self._armed: asyncio.TimerHandle | None = None
        self.on_earlier = self._arm

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        timeout = self.after(seconds, over.set)
        try:
            await over.wait()
        finally:
            timeout.cancel()

    def advance(self, most: int = sys.maxsize) -> int:
        """Runs every due task, or `most` of them, in order of deadline. After an error of a task the loop runs the
        rest."""
        try:
            return super().advance(most)
        finally:
            self._arm()

    def _run_due(self) -> None:
        """Runs due tasks for a slice of time. The next turn of the loop runs the rest."""
        end = self._loop.time() + SLICE_SECONDS
        try:
            while super().advance(1) and self._loop.time() < end:
                pass
        finally:
            self._arm()

    def close(self) -> None:
        super().close()
        self._arm()

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        expiry = self.next_expiry()
        if expiry is not None:
            self._armed = self._loop.call_later(max(0.0, expiry - self.clock.monotonic()), self._run_due)
