"""Long work in slices: the event loop serves other clients between two slices.

Work is a generator. It yields where others may be served, which is after a step of at most a millisecond, and returns
its result. `Slices` does as much of it as a slice holds at once, and the rest in later turns of the loop, one slice a
turn, whatever number of clients asks for long work.

Works that have the same `turn` take turns: each begins when the work before it has ended. Work that changes the
catalogue is `exclusive`, which is a turn, too: so requests to Kafka's controller wait in its queue. A client that goes
away ends its work, but no work that changes something.

Thread: the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from functools import wraps
from itertools import chain, count
from typing import Any, ParamSpec, TypeVar

from kafkabuf.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")
Work = Generator[None, None, T]

# A slice ends after this time on the cluster's clock, or after this number of steps: a clock that a test moves by hand
# stands still meanwhile.
SLICE_SECONDS = 0.005
SLICE_STEPS = 500
# To count frozen objects Python walks all of them, which takes 14 ms for a million.
_FROZEN_SECONDS = 60.0
# Objects that the collector is spared between two looks at all objects.
_MOST_SPARED = 1_000_000
# CPython 3.14 has one young generation, and no generation of objects that survived one collection.
_HAS_MIDDLE = sys.version_info < (3, 14)
_CATALOGUE = "the catalogue"


def finish(work: Work[T]) -> T:
    """Does the whole work at once, and returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def at_once(steps: Callable[P, Work[T]]) -> Callable[P, T]:
    """The function or method that does the whole work of `steps` at once."""

    @wraps(steps)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        return finish(steps(*args, **kwargs))

    return whole


def next_slice() -> Work[None]:
    """Ends the slice: what follows is done in a later turn of the loop."""
    for _ in range(SLICE_STEPS):
        yield


@dataclass(slots=True, eq=False)
class _Job:
    work: Work[Any]
    done: asyncio.Future[Any]
    turn: Hashable
    goes_on: bool


class Slices:
    """`_jobs` are the works that have begun, in the order in which they get their next slices. `_waiting` are those
    that wait for the work among `_jobs` with the same turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._jobs: deque[_Job] = deque()
        self._waiting: dict[Hashable, deque[_Job]] = {}
        self._next: asyncio.Handle | None = None
        self._ask_after = float("-inf")  # when to look again whether the user's program has frozen objects
        # How often the collector has looked at all objects, and how many objects it did not have to look at since.
        self._full_collections = self._spared = 0

    def run(
        self, work: Work[T], *, exclusive: bool = False, goes_on: bool = False, turn: Hashable = None
    ) -> T | asyncio.Future[T]:
        """The result of the work, or its future if the work takes more than a slice, or has to wait for its turn.
        Raises the error of the work, or sets it in the future. A cancelled future ends the work, unless it `goes_on`
        or has a turn."""
        turn = _CATALOGUE if exclusive else turn
        job = _Job(work, self._loop.create_future(), turn, goes_on or turn is not None)
        if turn is not None and self._has(turn):
            self._waiting.setdefault(turn, deque()).append(job)
            return job.done
        if not self._advance(job):
            self._jobs.append(job)
            self._arm()
            return job.done
        result: T = job.done.result()
        return result

    def begin(self) -> Callable[[], bool]:
        """Begins a slice of work that is not a generator. The result says, after each step, whether the slice is
        over."""
        clock, left = self._clock, count(SLICE_STEPS, -1)
        end = clock.monotonic() + SLICE_SECONDS

        def over() -> bool:
            return next(left) <= 1 or clock.monotonic() >= end

        return over

    @property
    def changing(self) -> bool:
        """Whether an exclusive work is going on."""
        return self._has(_CATALOGUE)

    def _has(self, turn: Hashable) -> bool:
        return any(job.turn == turn for job in self._jobs)

    def close(self) -> None:
        """Ends every work where it is."""
        if self._next is not None:
            self._next.cancel()
        for job in (*self._jobs, *chain.from_iterable(self._waiting.values())):
            job.work.close()
            job.done.cancel()
        self._jobs.clear()
        self._waiting.clear()

    def _arm(self) -> None:
        if self._next is None and self._jobs:
            self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        job = self._jobs.popleft()
        if job.done.cancelled() and not job.goes_on:
            job.work.close()
        elif not self._advance(job):
            self._jobs.append(job)
            self._spare_collector()
        elif waiting := self._waiting.get(job.turn):
            self._jobs.append(waiting.popleft())
            if not waiting:
                del self._waiting[job.turn]
        self._arm()

    def _advance(self, job: _Job) -> bool:
        """Does one slice of a work. Returns whether the work has ended."""
        steps, end = SLICE_STEPS, self._clock.monotonic() + SLICE_SECONDS
        try:
            while steps and self._clock.monotonic() < end:
                next(job.work)
                steps -= 1
        except StopIteration as last:
            if not job.done.cancelled():
                job.done.set_result(last.value)
            return True
        except Exception as error:
            if not job.done.cancelled():
                job.done.set_exception(error)
            return True
        return False

    def _spare_collector(self) -> None:
        """Moves every young object to the collector's oldest generation, without a look at any of them.

        The replicas of ten thousand partitions are hundreds of thousands of objects that stay, and a large request
        makes as many that live as long as the work. The collector would look at all objects of the process while the
        work goes on, and stop the loop for a tenth of a second each time. `gc.unfreeze` would also thaw what the user's
        program has frozen: then the collector does as it does. So it does after a million objects: it does not count
        those that it is spared, and would never look at all objects again while long works follow one another. The
        garbage of each connection, which asyncio leaves in a circle, would stay.
        """
        now = self._clock.monotonic()
        if now < self._ask_after:
            return
        if gc.get_freeze_count():
            self._ask_after = now + _FROZEN_SECONDS
        elif self._may_spare():
            gc.freeze()
            gc.unfreeze()

    def _may_spare(self) -> bool:
        if (full := gc.get_stats()[-1]["collections"]) != self._full_collections:
            self._full_collections, self._spared = full, 0
        self._spared += _young_objects()
        return self._spared <= _MOST_SPARED


def _young_objects() -> int:
    """About how many objects are in the young generations, by the collector's own counters.

    Nothing here may visit the objects: a list of them would hold the tuple that another thread is still building, and
    CPython raises SystemError in that thread when it finds a second reference to the tuple.
    """
    allocated, collections, _ = gc.get_count()
    return allocated + (collections * gc.get_threshold()[0] if _HAS_MIDDLE else 0)
