"""Injected time: all code that waits or expires something uses a `Clock`, so that tests never sleep."""

from __future__ import annotations

import threading  # ManualClock is for tests, whose threads may be greenlets  # noqa: TID251

from kafkabuf.process import _time
from kafkabuf.process.threads import Lockable as Lockable
from kafkabuf.process.threads import acquire_in_turns


class Clock:
    """The time source of the producer and the broker (Kafka's `Time`).

    `monotonic` is in seconds and never goes back; `time_ms` is the wall clock in milliseconds since the epoch, the unit
    of record timestamps.
    """

    def monotonic(self) -> float:
        raise NotImplementedError

    def time_ms(self) -> int:
        raise NotImplementedError

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        """Acquire `lock` within `timeout` seconds (None: for ever). Returns whether it acquired the lock."""
        raise NotImplementedError


class SystemClock(Clock):
    """The machine's clocks, also where a program has patched `time`.

    A signal can interrupt a wait, as it can interrupt `threading.Lock.acquire`, and never comes too early to do so.
    """

    monotonic = staticmethod(_time.monotonic)  # the Sender calls it several times a turn: this saves a Python frame

    time_ms = staticmethod(_time.time_ms)

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        return acquire_in_turns(lock, timeout)


class ManualClock(Clock):
    """A clock that only moves when a test advances it (Kafka's `MockTime`).

    With `auto_advance` a wait that cannot acquire its lock at once moves the clock to its deadline: a single-threaded
    test of a time-out takes no time. Without `auto_advance` a thread waits until the lock is released or `advance`
    passes its deadline.
    """

    def __init__(self, start: float = 1_000.0, *, wall_ms: int = 1_600_000_000_000, auto_advance: bool = False) -> None:
        self._condition = threading.Condition()
        self._start = self._now = start
        self._wall_ms = wall_ms
        self._auto_advance = auto_advance

    def monotonic(self) -> float:
        return self._now

    def time_ms(self) -> int:
        return self._wall_ms + round((self._now - self._start) * 1000)

    def advance(self, seconds: float) -> None:
        with self._condition:
            self._now += seconds
            self._condition.notify_all()

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        deadline = None if timeout is None else self._now + timeout
        with self._condition:
            while not lock.acquire(blocking=False):
                if deadline is not None and self._auto_advance:
                    self._now = max(self._now, deadline)
                if deadline is not None and self._now >= deadline:
                    return lock.acquire(blocking=False)
                # A release of the lock does not notify the condition, so try again every millisecond of real time.
                self._condition.wait(0.001)
            return True
