"""The threads in which an event loop's producer waits: each call that they take is made."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import pytest

from kafkabuf.aio import threads as aio_threads
from kafkabuf.aio.threads import Call
from rigs.producer import PATIENCE
from tests.waiting import wait_until


class Waiting(threading.Event):
    """Waits for one call, and counts how often it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = 0

    def end(self, value: object, error: BaseException | None) -> None:
        self.ends += 1
        self.set()


class Short(Call):
    """A call that finds no memory for its first statement, `failures` times."""

    failures = 0

    def __call__(self) -> None:
        if self.failures:
            self.failures -= 1
            raise MemoryError
        super().__call__()


def call_of(made: Waiting, *, failures: int = 0) -> Short:
    call = Short("nothing", lambda: None, made)
    call.failures = failures
    return call


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
    made = [Waiting() for _ in range(3)]
    threads = aio_threads.Threads(1, "calls")

    class LateWorker(aio_threads._Worker):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.work = Late(self.work, lambda: threads.start(call_of(made[1])))  # type: ignore[assignment]

    monkeypatch.setattr(aio_threads, "_Worker", LateWorker)
    threads.start(call_of(made[0]))
    assert made[1].wait(PATIENCE)
    waited = threading.Event()
    deadline = time.monotonic() + PATIENCE
    while not threads._idle and time.monotonic() < deadline:
        waited.wait(0.001)
    for _ in range(20):  # a release that nobody had taken would give the worker another turn
        waited.wait(0.001)
    assert len(threads._idle) == 1, "the worker stands there once"
    threads.start(call_of(made[2]))
    assert made[2].wait(PATIENCE)
    threads.end()


@pytest.mark.parametrize("failures", [1, 3])
def test_call_that_found_no_memory_to_begin_is_made_once_there_is_some(failures: int) -> None:
    threads, made, later = aio_threads.Threads(1, "calls"), Waiting(), Waiting()
    threads.start(call_of(made, failures=failures))
    threads.start(call_of(later))
    assert made.wait(PATIENCE)
    assert later.wait(PATIENCE)
    assert (made.ends, later.ends) == (1, 1)
    threads.end()


def test_call_that_has_begun_is_made_once_whatever_it_raises() -> None:
    class Broken(Waiting):
        def end(self, value: object, error: BaseException | None) -> None:
            super().end(value, error)
            raise MemoryError

    threads, made, later = aio_threads.Threads(1, "calls"), Broken(), Waiting()
    threads.start(call_of(made))
    threads.start(call_of(later))
    assert later.wait(PATIENCE)
    assert made.ends == 1
    threads.end()


def test_call_that_no_idle_thread_can_be_given_leaves_the_thread_to_later_calls() -> None:
    class Full(deque[Call]):
        def append(self, _: Call) -> None:
            raise MemoryError

    threads, made = aio_threads.Threads(1, "calls"), [Waiting(), Waiting(), Waiting()]
    threads.start(call_of(made[0]))
    wait_until(lambda: threads._idle)
    (worker,) = threads._idle
    whole, worker.calls = worker.calls, Full()
    with pytest.raises(MemoryError):
        threads.start(call_of(made[1]))
    worker.calls = whole
    threads.start(call_of(made[2]))
    assert made[2].wait(PATIENCE)
    assert (threads.count, made[1].ends) == (1, 0)
    threads.end()


def test_thread_that_runs_although_its_start_raised_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is refused, and the thread, which then finds no call, does not count as one that has ended."""
    runs: list[Any] = []

    class Interrupted:
        def start(self) -> None:
            raise MemoryError

    def new_thread(run: Any, name: str) -> Interrupted:
        runs.append(run)
        return Interrupted()

    threads, made = aio_threads.Threads(1, "calls", idle_time=0), Waiting()
    monkeypatch.setattr(aio_threads, "new_thread", new_thread)
    with pytest.raises(MemoryError):
        threads.start(call_of(made))
    runs[0]()
    assert (threads.count, made.ends) == (0, 0)
