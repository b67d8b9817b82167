"""The end of an operation, for which a thread waits."""

from __future__ import annotations

import threading

from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError


class Result:
    """The end of an operation. A thread that ran out of time may come back and wait on."""

    def __init__(self, operation: str, arguments: object = None) -> None:
        self.operation = operation
        self.arguments = arguments
        self.error: KafkaError | None = None
        self.done = False
        self._lock = threading.RLock()  # a signal's handler may wait for the same end
        self._waiters: list[threading.Lock] = []

    def end(self, error: KafkaError | None = None) -> None:
        """The first call decides."""
        with self._lock:
            if not self.done:
                self.error, self.done = error, True
                for waiter in self._waiters:
                    waiter.release()

    def is_held_here(self) -> bool:
        """Whether this thread is in the middle of a change here, which a signal's handler has interrupted."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def wait(self, timeout: float, clock: Clock) -> bool:
        """False when `timeout` seconds pass first."""
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if self.done:
                return True
            self._waiters.append(waiter)
        try:
            clock.wait(waiter, timeout)
        finally:
            with self._lock:
                self._waiters.remove(waiter)
        return self.done
