"""Connections that fail in numbers are told of in a few lines."""

from __future__ import annotations

import logging

log = logging.getLogger("kafkabuf.network")

MOST = 10  # warnings in a
PERIOD = 60.0  # of seconds
NEVER = float("inf")


class FailureLog:
    """Warnings about connections, MOST in each PERIOD; of the rest how many they were, once the period is over.

    `due`: when `tell_rest` has something to say.
    """

    def __init__(self) -> None:
        self._told = 0
        self._left_out = 0
        self._last = ""
        self._ends = 0.0
        self.due = NEVER

    def warn(self, text: str, now: float) -> None:
        if now >= self._ends:
            self.tell_rest()
            self._told, self._ends = 0, now + PERIOD
        if self._told < MOST:
            self._told += 1
            log.warning("%s", text)
            return
        self._left_out += 1
        self._last = text
        self.due = self._ends
        log.debug("%s", text)

    def tell_rest(self) -> None:
        if self._left_out:
            text = "%d more connections failed in the last minute, the last one so: %s"
            log.warning(text, self._left_out, self._last)
        self._left_out = 0
        self.due = NEVER
