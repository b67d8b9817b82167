"""Ends the waits of a registry's calls, from another thread or from a signal handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafkabuf.errors import ClosedError
from kafkabuf.process.threads import RLock


class Closing:
    """What the calls of one registry wait for, until `close`."""

    def __init__(self) -> None:
        self._lock = RLock()  # a signal handler may close what it has interrupted
        self._wakers: list[Callable[[], object]] = []
        self._because: str | None = None

    def close(self, because: str) -> None:
        """End each wait, now and later, with a ClosedError of this text."""
        with self._lock:
            if self._because is None:
                self._because = because
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """During the block `close` calls `wake`, once. Raises ClosedError, before and after the block."""
        with self._lock:
            self._check()
            self._wakers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                if wake in self._wakers:
                    self._wakers.remove(wake)
        self._check()

    def _check(self) -> None:
        if self._because is not None:
            raise ClosedError(self._because)
