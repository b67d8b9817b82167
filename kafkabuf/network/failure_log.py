"""Limits how many warnings about failed connections are logged."""

from __future__ import annotations

from kafkabuf.process.producer_log import producer_log

log = producer_log("kafkabuf.network")

MOST_WARNINGS = 10  # in one period
PERIOD = 60.0  # seconds
NEVER = float("inf")


class FailureLog:
    """Logs at most MOST_WARNINGS warnings in each PERIOD, and after the period how many it left out.

    `due`: when to call `log_left_out`.
    """

    def __init__(self) -> None:
        self._logged = 0
        self._left_out = 0
        self._last_text = ""
        self._period_ends = 0.0
        self.due = NEVER

    def warn(self, text: str, now: float) -> None:
        if now >= self._period_ends:
            self.log_left_out()
            self._logged, self._period_ends = 0, now + PERIOD
        if self._logged < MOST_WARNINGS:
            self._logged += 1
            log.warning("%s", text)
            return
        self._left_out += 1
        self._last_text = text
        self.due = self._period_ends
        log.debug("%s", text)

    def log_left_out(self) -> None:
        if self._left_out:
            text = "%d more connections failed in the last minute, the last of them with: %s"
            log.warning(text, self._left_out, self._last_text)
        self._left_out = 0
        self.due = NEVER
