"""The broker's lines in the log: one line for each warning, and no flood of them.

Topic names, client ids, principals and tokens come from clients, and warnings quote them. A filter writes each
character that is not printable as an escape, so that a client can neither end a line and forge another, nor send codes
to the terminal that shows the log.

A bad client can cause a warning with each connection. `LimitedWarnings` logs the first of them, and from then on one
line a second with their number. Thread: the event loop.
"""

from __future__ import annotations

import logging
from textwrap import indent

from kafkabuf.broker.waiting.timer import Timer

log = logging.getLogger("kafkabuf.broker")

# So many warnings are logged before the node only counts them.
FIRST_WARNINGS = 10
_WINDOW_SECONDS = 1.0
_TRACEBACK_INDENT = "    "
_FORMATTER = logging.Formatter()


def one_line(text: str) -> str:
    """The text with an escape in place of each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _escape(record: logging.LogRecord) -> bool:
    """A filter of `logging`: it changes the record, and lets every record pass."""
    if not (message := record.getMessage()).isprintable():
        record.msg, record.args = one_line(message), ()
    if record.exc_info and not record.exc_text:
        # A traceback has several lines, and the last of them may quote a client. No line of it begins as a record does.
        lines = _FORMATTER.formatException(record.exc_info).split("\n")
        record.exc_text = indent("\n".join(map(one_line, lines)), _TRACEBACK_INDENT, lambda line: True)
    return True


def guard_log() -> None:
    """Installs the filter on the broker's logger. A second call does nothing."""
    log.addFilter(_escape)


class LimitedWarnings:
    """Logs FIRST_WARNINGS warnings, then counts. Each second on the cluster's clock it logs how many it has counted. A
    second without a warning that was only counted ends the counting."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._logged = 0
        self._counted = 0
        self._window_open = False

    def warn(self, text: str, *values: object, exc_info: bool = False) -> None:
        if self._logged < FIRST_WARNINGS:
            self._logged += 1
            log.log(logging.ERROR if exc_info else logging.WARNING, text, *values, exc_info=exc_info)
        else:
            self._counted += 1
        if not self._window_open:
            self._window_open = True
            self._timer.after(_WINDOW_SECONDS, self._end_window)

    def _end_window(self) -> None:
        self._window_open = False
        if self._counted:
            self.report()
            self._window_open = True
            self._timer.after(_WINDOW_SECONDS, self._end_window)
        else:
            self._logged = 0

    def report(self) -> None:
        """Logs the number of the warnings that were only counted."""
        if self._counted:
            log.warning("%d more warnings about connections, which are not logged one by one", self._counted)
            self._counted = 0
