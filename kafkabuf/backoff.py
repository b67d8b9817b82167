"""Exponential back-off. Its jitter spreads the retries of clients that failed at the same time."""

from __future__ import annotations

import random as _random
from collections.abc import Callable

JITTER = 0.2
# All random choices of the client use this generator; a simulation sets a seeded generator. The default is not Python's
# global generator, because a library must not advance a generator that the application has seeded. The system's
# generator gives different numbers in a forked child.
generator: _random.Random = _random.SystemRandom()


def uniform() -> float:
    """A number in [0, 1)."""
    return generator.random()


class ExponentialBackoff:
    """Delays of `initial_ms` * 2^failures, at most `max_ms`, each longer or shorter by up to 20 % (KIP-580).

    Kafka's class of this name. `random` returns numbers in [0, 1); tests replace it.
    """

    def __init__(self, initial_ms: int, max_ms: int, random: Callable[[], float] = uniform) -> None:
        self._initial, self._max = initial_ms / 1000, max_ms / 1000
        self._random = random

    def delay(self, failures: int) -> float:
        """Seconds to wait after `failures` + 1 failures in a row."""
        if self._initial >= self._max:
            return self._max  # as in Java: the delay cannot grow, and jitter could only shorten it
        # 2^32 ms is more than any maximum; without the cap the power would overflow a float.
        exponential = self._initial * 2.0 ** min(failures, 32)
        return min(exponential * (1 - JITTER + 2 * JITTER * self._random()), self._max)
