"""Helpers of the buffer pool's tests: pools of small slabs, and clocks that report or decide when a thread waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from bench import compiled
from kafkabuf._pool import BufferPool
from kafkabuf.clock import Lockable, ManualClock, SystemClock

T = TypeVar("T")
SLAB = 1024
PATIENCE = 20.0  # seconds after which a thread that should have been served counts as lost


class ArrivalClock(SystemClock):
    """Lets a test wait until a thread stands in the queue."""

    def __init__(self) -> None:
        self._arrivals = threading.Semaphore(0)

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        self._arrivals.release()
        return super().wait(lock, timeout)

    def await_arrival(self) -> None:
        assert self._arrivals.acquire(timeout=PATIENCE), "no thread came to wait"


class ScriptedClock(ManualClock):
    """Runs the test's actions while a thread waits: in that thread, at the given seconds after the wait began."""

    def __init__(self, *script: tuple[float, Callable[[], object]]) -> None:
        super().__init__()
        self.script = list(script)

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        deadline = float("inf") if timeout is None else self.monotonic() + timeout
        start = self.monotonic()
        while self.script and start + self.script[0][0] <= deadline:
            after, action = self.script.pop(0)
            self.advance(start + after - self.monotonic())
            action()
            if lock.acquire(blocking=False):
                return True
        assert deadline != float("inf"), "waits for ever"
        self.advance(deadline - self.monotonic())
        return lock.acquire(blocking=False)


def in_thread(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # future.result() raises it in the test
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds. For a ManualClock, which cannot report a waiting thread."""
    pause = threading.Event()
    for _ in range(int(PATIENCE * 1000)):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("did not happen")


def make_pool(slabs: int, clock: SystemClock | ManualClock | None = None, *, loose: int = 0) -> BufferPool:
    return BufferPool(slabs * SLAB + loose, SLAB, clock=clock or ManualClock(auto_advance=True))


def release_run(pool: BufferPool, first: int, extent: int) -> None:
    """Release a run, whoever holds it. Raises ValueError for a run that is not all in use."""
    compiled.load("core").release_run(pool, first, extent)


def allocate_pairs(pool: BufferPool, pairs: int) -> None:
    """Allocate and release a slab so many times, without the GIL."""
    compiled.load("core").allocate_pairs(pool, pairs)


def assert_all_free(pool: BufferPool) -> None:
    """Every byte is free, no thread waits, and the pool's checks pass."""
    pool.check()
    assert pool.waiting == 0
    assert pool.free_bytes == pool.accounting()["free"] == pool.total - pool.loose
