"""A thread that waits looks for signals now and then: one that comes just before the wait must not be lost."""

from __future__ import annotations

import pytest

from kafkabuf.clock import SystemClock
from kafkabuf.process import threads
from kafkabuf.process.threads import TURN, Event, acquire_in_turns, sleep


class Lock:
    """A lock that is released at a time, on a clock that a wait moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, released: float) -> None:
        self.now, self.released = 100.0, 100.0 + released
        self.waits: list[float] = []
        monkeypatch.setattr(threads, "monotonic", lambda: self.now)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        assert 0 <= timeout <= TURN
        self.waits.append(timeout)
        end = min(self.now + timeout, self.released)
        self.now = max(self.now, end)
        return self.now >= self.released

    def release(self) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("timeout", "released", "seconds"),
    [(None, 7.2, 7.2), (60, 7.2, 7.2), (3.3, 7.2, 3.3), (0.2, 7.2, 0.2), (0.2, 0.1, 0.1), (0, 7.2, 0), (-1, 1, 0)],
)
def test_wait_lasts_as_long_as_it_should_in_turns(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None, released: float, seconds: float
) -> None:
    lock = Lock(monkeypatch, released)
    assert SystemClock().wait(lock, timeout) == (timeout is None or released <= timeout)
    assert lock.now == pytest.approx(100 + seconds)
    assert len(lock.waits) <= seconds / TURN + 2


def test_infinite_time_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert acquire_in_turns(Lock(monkeypatch, 1.2), float("inf"))


def test_sleep_and_event_wait_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    locks: list[Lock] = []

    def new_waiter() -> Lock:
        locks.append(Lock(monkeypatch, 1e9))
        return locks[-1]

    monkeypatch.setattr(threads, "new_waiter", new_waiter)
    sleep(1.7)
    assert not Event().wait(1.7)
    assert [lock.now for lock in locks] == [pytest.approx(101.7)] * 2
