"""What the parent knows of each record of a killed child: a byte for each number, in a mapped file.

A kill takes no store back. So a number is marked before the call that sends it, and again behind it.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from pathlib import Path
from typing import Self

from tests.spool.kills.plan import MOST, THREADS


class Mark(IntEnum):
    """What is known of a record."""

    NEVER = 0  # the call was never made
    UNDER_WAY = 1  # the call has not returned
    RETURNED = 2
    REFUSED = 3  # the call has raised
    PURGED = 4  # purged, and no broker had seen it
    PERHAPS = 5  # purge() was called, and nobody asked what became of the record
    OPEN = 6  # the call was made in a transaction whose commit was not begun
    COMMITTING = 7  # the commit of its transaction was begun


class Phase(IntEnum):
    """How far a child is."""

    STARTED = 0
    OPENED = 1
    CLOSING = 2
    CLOSED = 3


class Ledger:
    """The marks of all processes of a case, and the phase of each. Behind the marks lies a byte for each phase."""

    def __init__(self, path: Path, lives: int) -> None:
        self._marks = lives * THREADS * MOST
        size = self._marks + lives
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), size)

    def mark(self, number: int, mark: Mark) -> None:
        self._bytes[number] = mark

    def mark_all(self, first: int, end: int, mark: Mark) -> None:
        self._bytes[first:end] = bytes((mark,)) * (end - first)

    def replace(self, first: int, end: int, old: Mark, new: Mark) -> None:
        """Change the marks of a range that are `old`."""
        self._bytes[first:end] = self._bytes[first:end].replace(bytes((old,)), bytes((new,)))

    def __getitem__(self, number: int) -> Mark:
        return Mark(self._bytes[number])

    def marks(self) -> bytes:
        return self._bytes[: self._marks]

    def enter(self, life: int, phase: Phase) -> None:
        self._bytes[self._marks + life] = phase

    def phase(self, life: int) -> Phase:
        return Phase(self._bytes[self._marks + life])

    def close(self) -> None:
        self._bytes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
