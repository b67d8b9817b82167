"""Names and times as `kafkabuf spark` shows them, in tables and in lines."""

from __future__ import annotations

from datetime import datetime

from kafkabuf.cli.units import span
from kafkabuf.process import _time

UNKNOWN = "?"


def printable(text: str) -> str:
    """The text without control characters: they stand as escapes, so that a name cannot steer the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def when(time_ms: int | None, between: str = " ") -> str:
    """The local time, and how far away it is."""
    if time_ms is None:
        return UNKNOWN
    seconds = (_time.time_ms() - time_ms) / 1000
    distance = f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"
    return f"{datetime.fromtimestamp(time_ms / 1000):%Y-%m-%d %H:%M:%S}{between}({distance})"
