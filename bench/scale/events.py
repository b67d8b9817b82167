"""Virtual time: events in their order, and threads that share cores."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

Step = Callable[..., object]


class Simulation:
    """Runs steps at their times. Steps of the same time run in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Step, tuple[Any, ...]]] = []
        self._number = count()

    def at(self, when: float, step: Step, *arguments: Any) -> None:
        heapq.heappush(self._planned, (max(when, self.now), next(self._number), step, arguments))

    def after(self, seconds: float, step: Step, *arguments: Any) -> None:
        self.at(self.now + seconds, step, *arguments)

    def run(self) -> None:
        """Until no step is planned."""
        planned = self._planned
        while planned:
            self.now, _, step, arguments = heapq.heappop(planned)
            step(*arguments)


class Cores:
    """The cores of a machine. Threads that find none free wait in order."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, begin: Callable[[], None]) -> None:
        """Call `begin` as soon as a core is free for it."""
        if self._free:
            self._free -= 1
            begin()
        else:
            self._waiting.append(begin)

    def release(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1


class Thread:
    """Does one piece of work after the other. `busy_s` is the CPU time that it has used."""

    def __init__(self, simulation: Simulation, cores: Cores) -> None:
        self._simulation = simulation
        self._cores = cores
        self._work: deque[tuple[float | Callable[[], float], Step, tuple[Any, ...]]] = deque()
        self.busy_s = 0.0

    def do(self, seconds: float | Callable[[], float], then: Step, *arguments: Any) -> None:
        """Work for so many seconds of CPU time, which may be known only when the work begins; then take the step."""
        self._work.append((seconds, then, arguments))
        if len(self._work) == 1:
            self._cores.take(self._begin)

    def _begin(self) -> None:
        work = self._work[0][0]
        seconds = work() if callable(work) else work
        self.busy_s += seconds
        self._simulation.after(seconds, self._end)

    def _end(self) -> None:
        _, then, arguments = self._work[0]
        then(*arguments)  # it may add work, which the thread then does next
        self._work.popleft()
        self._cores.release()
        if self._work:
            self._cores.take(self._begin)
