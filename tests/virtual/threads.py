"""Simulates a second thread in one thread: the other side makes a call in the middle of this side's Python code.

Between two instructions of a Sender's turn a user may send. Between two instructions of a user's call the Sender may
take a turn. CPython stops at every instruction (tests/instructions.py), and the seed decides at which of them the other
side runs. The other side does not run while this side holds a lock. It cannot wait, since it runs to its end at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from kafkabuf import producer
from kafkabuf.append import report
from kafkabuf.batches import accumulator
from kafkabuf.metadata import metadata
from kafkabuf.sending import sender
from kafkabuf.transactions import idempotence, manager, queue
from tests.instructions import Instructions

# Of the modules that both sides run. Modules that remember something from seed to seed, such as codecs, are missing.
# Logging calls some methods, or does not, depending on its level: a seed must not depend on it.
_INSTRUCTIONS = Instructions(
    (accumulator, idempotence, manager, metadata, producer, queue, report, sender), without=("__repr__", "__str__")
)
# The most interruptions in a seed.
_MOST = 100


class Threads:
    """`chance` is the probability of an interruption at each instruction; 0 allows none."""

    def __init__(self, random: Random, chance: float) -> None:
        self._random = random
        self._chance = chance
        self._other: Callable[[], object] | None = None
        self._locked: Callable[[], bool] = bool
        self.inside = False  # the other side runs
        self._left = _MOST

    def end(self) -> None:
        """Allow no further interruption."""
        self._left = 0

    @contextmanager
    def interrupted(self, other: Callable[[], object], locked: Callable[[], bool]) -> Iterator[None]:
        """`other` may be called at any instruction of the block at which `locked()` is false."""
        if not self._chance or not self._left or self.inside:
            yield
            return
        # A wait in a user's call runs the Sender's turns. During a turn the two sides swap their roles.
        before = self._other, self._locked
        self._other, self._locked = other, locked
        _INSTRUCTIONS.watch(self._before_instruction)
        try:
            yield
        finally:
            self._other, self._locked = before
            _INSTRUCTIONS.watch(None if self._other is None else self._before_instruction)

    def _wanted(self) -> bool:
        return self._left > 0 and not self.inside and self._random.random() < self._chance

    def _before_instruction(self) -> None:
        if self._wanted() and not self._locked():
            assert self._other is not None
            self.inside = True
            self._left -= 1
            try:
                self._other()
            finally:
                self.inside = False
