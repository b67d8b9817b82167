"""Waiting longer after each failure, with jitter so that clients that failed together do not return together."""

from __future__ import annotations

import random as _random
from collections.abc import Callable

JITTER = 0.2
# Of our own: a library must not move the generator that its user seeded. Asked of the system, it survives a fork too.
# Whatever the client leaves to chance asks this one; a simulation puts a seeded generator here.
generator: _random.Random = _random.SystemRandom()


def uniform() -> float:
    """A number in [0, 1)."""
    return generator.random()


class ExponentialBackoff:
    """Delays of `initial_ms` * 2^failures, at most `max_ms`, each moved by up to 20 % (KIP-580).

    Kafka's class of this name. `random` gives numbers in [0, 1) and is replaced in tests.
    """

    def __init__(self, initial_ms: int, max_ms: int, random: Callable[[], float] = uniform) -> None:
        self._initial, self._max = initial_ms / 1000, max_ms / 1000
        self._random = random

    def delay(self, failures: int) -> float:
        """Seconds to wait after `failures` + 1 failures in a row."""
        if self._initial >= self._max:
            return self._max  # as in Java: there is nothing to grow, and jitter would only shorten it
        # 2^32 of any unit is past every maximum; the cap keeps the power a number.
        exponential = self._initial * 2.0 ** min(failures, 32)
        return min(exponential * (1 - JITTER + 2 * JITTER * self._random()), self._max)
