"""The purgatory of Kafka 0.8, for comparison: a queue of all time-outs, and lists that a thread sweeps.

Written from its description. A thread polls the queue of time-outs. Completed operations stay in the queue and in the
lists of their keys, until there are too many; then the thread sweeps all of them.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from kafkabuf.clock import Clock

POLL_S = 0.2
PURGE_INTERVAL = 1000


class Operation(Protocol):
    """The members of DelayedOperation that SweptPurgatory needs."""

    timeout: float

    @property
    def is_completed(self) -> bool: ...
    def try_complete(self) -> bool: ...
    def force_complete(self) -> bool: ...


class SweptPurgatory:
    """Any thread may watch and complete operations. The reaper's thread expires and sweeps them, until `close`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._watched: defaultdict[str, list[Operation]] = defaultdict(list)
        self._timeouts: list[tuple[float, int, Operation]] = []
        self._order = count()
        self._since_sweep = 0
        self._closed = threading.Event()
        self._reaper = threading.Thread(target=self._reap)
        self._reaper.start()

    def try_complete_else_watch(self, operation: Operation, keys: Sequence[str]) -> bool:
        if operation.try_complete():
            return True
        for key in keys:
            with self._lock:
                self._watched[key].append(operation)
        if operation.try_complete():
            return True
        deadline = self._clock.monotonic() + operation.timeout
        with self._lock:
            self._since_sweep += 1
            heapq.heappush(self._timeouts, (deadline, next(self._order), operation))
        return False

    def close(self) -> None:
        self._closed.set()
        self._reaper.join()

    def _reap(self) -> None:
        while not self._closed.wait(self._pause()):
            while (operation := self._expired()) is not None:
                operation.force_complete()
            if self._since_sweep > PURGE_INTERVAL:
                self._sweep()

    def _pause(self) -> float:
        with self._lock:
            first = self._timeouts[0][0] if self._timeouts else float("inf")
        return min(max(first - self._clock.monotonic(), 0.0), POLL_S)

    def _expired(self) -> Operation | None:
        with self._lock:
            if self._timeouts and self._timeouts[0][0] <= self._clock.monotonic():
                return heapq.heappop(self._timeouts)[2]
        return None

    def _sweep(self) -> None:
        with self._lock:
            self._since_sweep = 0
            for operations in self._watched.values():
                operations[:] = [operation for operation in operations if not operation.is_completed]
            self._timeouts[:] = [item for item in self._timeouts if not item[2].is_completed]
            heapq.heapify(self._timeouts)
