"""The threads in which an event loop's producer waits: each call that they take is made."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kafkabuf.aio import threads as aio_threads
from rigs.producer import PATIENCE


class Late:
    """A worker's lock. A call comes when the worker's first wait is over, and before the worker says so."""

    def __init__(self, lock: Any, comes: Any) -> None:
        self.lock = lock
        self.comes = comes

    def acquire(self, *arguments: Any, **named: Any) -> bool:
        if "timeout" in named and self.comes is not None:
            comes, self.comes = self.comes, None
            comes()
            return False
        return bool(self.lock.acquire(*arguments, **named))

    def release(self) -> None:
        self.lock.release()


def test_call_that_comes_as_its_thread_stops_to_wait_is_made_and_hides_no_later_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [threading.Event() for _ in range(3)]
    threads = aio_threads.Threads(1, "calls")

    class LateWorker(aio_threads._Worker):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.work = Late(self.work, lambda: threads.start(made[1].set))  # type: ignore[assignment]

    monkeypatch.setattr(aio_threads, "_Worker", LateWorker)
    threads.start(made[0].set)
    assert made[1].wait(PATIENCE)
    waited = threading.Event()
    deadline = time.monotonic() + PATIENCE
    while not threads._idle and time.monotonic() < deadline:
        waited.wait(0.001)
    for _ in range(20):  # a release that nobody had taken would give the worker another turn
        waited.wait(0.001)
    assert len(threads._idle) == 1, "the worker stands there once"
    threads.start(made[2].set)
    assert made[2].wait(PATIENCE)
    threads.end()
