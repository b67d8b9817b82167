"""An event loop in virtual time: no sockets, no waiting, the same order in every run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from kafkabuf.clock import ManualClock


class _NoSelector:
    """A selector without files."""

    def select(self, timeout: float | None) -> tuple[()]:
        return ()


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop whose time is the clock's. It runs only in `turn` and `settle`, between `enter` and `close`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._virtual = clock
        self._outer: asyncio.AbstractEventLoop | None = None

    def time(self) -> float:
        return self._virtual.monotonic()

    def _process_events(self, events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def enter(self) -> None:
        """Make this the running loop of the thread until `close`, which gives the place back to the loop before."""
        self._outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)

    def turn(self) -> None:
        """Run the callbacks that are ready now, but not those that these add."""
        self._run_once()  # type: ignore[attr-defined]

    @property
    def quiet(self) -> bool:
        return not self._ready  # type: ignore[attr-defined]

    def next_due(self) -> float:
        """The time at which the next timer fires; infinite without timers."""
        timers = self._scheduled  # type: ignore[attr-defined]
        return min((timer.when() for timer in timers if not timer.cancelled()), default=float("inf"))

    def settle(self) -> None:
        """Run all callbacks that are due, and all that these add."""
        self.turn()
        while not self.quiet:
            self.turn()

    def do(self, call: Callable[[], Any]) -> Any:
        """The result of a function, or of a coroutine that waits only for this loop. Settles the loop, too."""
        result = call()
        if inspect.iscoroutine(result):
            task = self.create_task(result)
            self.settle()
            return task.result()
        self.settle()
        return result

    def close(self) -> None:
        asyncio._set_running_loop(self._outer)
        super().close()
