"""The outcome of an operation, for which a thread waits."""

from __future__ import annotations

from collections import deque

from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError
from kafkabuf.process.threads import RLock, Waiter, new_waiter
from kafkabuf.transactions.states import State


class Result:
    """The outcome of an operation. A thread whose wait timed out may wait again."""

    def __init__(self, operation: str, arguments: object = None) -> None:
        self.operation = operation
        self.arguments = arguments
        self.error: KafkaError | None = None
        self.done = False
        # The state in which the operation began, and the exception that interrupted its beginning, until it is undone.
        self.before: State | None = None
        self.interruption: BaseException | None = None
        self._lock = RLock()  # reentrant: a signal handler may wait for the same outcome
        self._waiters: deque[Waiter] = deque()  # a list may need memory to give one away

    def end(self, error: KafkaError | None = None) -> None:
        """Set the outcome and wake the waiting threads. The first call decides.

        A call that finds no memory may be repeated: a later call wakes the threads that still wait.
        """
        with self._lock:
            if not self.done:
                self.error, self.done = error, True
            while self._waiters:
                self._waiters.popleft().release()

    def is_held_here(self) -> bool:
        """Whether the calling thread holds the lock: a signal handler has interrupted its change."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def wait(self, timeout: float, clock: Clock) -> bool:
        """Wait for the outcome. False when `timeout` seconds pass first."""
        waiter = new_waiter()
        with self._lock:
            if self.done:
                return True
            self._waiters.append(waiter)
        try:
            clock.wait(waiter, timeout)
        finally:
            with self._lock:
                if waiter in self._waiters:  # else `end` has taken it
                    self._waiters.remove(waiter)
        return self.done
