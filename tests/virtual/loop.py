"""An event loop in virtual time: no sockets, no waiting, the same order in every run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kafkabuf.clock import ManualClock


class _Nothing:
    """A selector of nothing."""

    def select(self, timeout: float | None) -> tuple[()]:
        return ()


class VirtualLoop(asyncio.BaseEventLoop):
    """Its time is the clock's. It runs when it is told to, by `turn` and `settle`, between `enter` and `close`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._selector = _Nothing()
        self._virtual = clock

    def time(self) -> float:
        return self._virtual.monotonic()

    def _process_events(self, events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def enter(self) -> None:
        """From now on whatever this thread calls runs in the loop."""
        asyncio._set_running_loop(self)

    def turn(self) -> None:
        """Runs what is ready now, not what follows from it."""
        self._run_once()  # type: ignore[attr-defined]

    @property
    def quiet(self) -> bool:
        return not self._ready  # type: ignore[attr-defined]

    def next_due(self) -> float:
        """When the next timer fires; infinite where none is set."""
        timers = self._scheduled  # type: ignore[attr-defined]
        return min((one.when() for one in timers if not one.cancelled()), default=float("inf"))

    def settle(self) -> None:
        """Runs all that is due, and all that follows from it."""
        self.turn()
        while not self.quiet:
            self.turn()

    def do(self, call: Callable[[], Any]) -> Any:
        """The result of a function, or of a coroutine that waits for nothing but this loop. All has settled then."""
        found = call()
        if asyncio.iscoroutine(found):
            task = self.create_task(found)
            self.settle()
            return task.result()
        self.settle()
        return found

    def close(self) -> None:
        asyncio._set_running_loop(None)
        super().close()
