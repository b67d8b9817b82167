"""Locks, and exceptions that come between two bytecodes: a Ctrl-C, or one that another thread throws in."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from kafkabuf.process.threads import Lock, RLock

THROWN = 2_000


class Thrown(Exception):
    pass


@pytest.fixture
def armed() -> Iterator[list[bool]]:
    """While its item is true, a signal raises Thrown in this thread every 50 µs."""
    flag = [False]

    def handler(number: int, frame: FrameType | None) -> None:
        if flag[0]:
            flag[0] = False
            raise Thrown

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00005)
    yield flag
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def enter_until_thrown(lock: Any, armed: list[bool]) -> None:
    armed[0] = True
    while True:
        with lock:
            pass


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_no_exception_comes_between_the_taking_of_a_lock_and_its_block(
    kind: Callable[[], Any], armed: list[bool]
) -> None:
    lock = kind()
    is_held = lock._is_owned if kind is RLock else lock.locked
    for _ in range(THROWN):
        with pytest.raises(Thrown):
            enter_until_thrown(lock, armed)
        assert not is_held()


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_block_that_raises_gives_its_lock_back(kind: Callable[[], Any]) -> None:
    lock = kind()
    with pytest.raises(Thrown), lock:
        raise Thrown
    assert lock.acquire(False)
    assert repr(lock).startswith("<locked")
    lock.release()
