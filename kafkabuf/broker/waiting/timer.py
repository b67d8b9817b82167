"""A timing wheel driven by the event loop: deadlines on an injected clock, and operations that expire.

With the system clock the loop sleeps until the wheel's next bucket. With a `ManualClock` somebody calls `advance` after
moving it: then exactly what is due runs, and no test sleeps.
"""

from __future__ import annotations

import asyncio

from kafkabuf.broker.waiting._timing_wheel import Timeout, TimingWheel
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

    def advance(self) -> int:
        """Runs all that is due, in order of deadline; after an error the rest runs from the loop."""
        try:
            return super().advance()
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
            self._armed = self._loop.call_later(max(0.0, expiry - self.clock.monotonic()), self.advance)
