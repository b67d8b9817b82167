"""One input of `kafkabuf produce`: a file, or a pipe."""

from __future__ import annotations

import os
import sys
from io import RawIOBase
from typing import NamedTuple

import click

from kafkabuf.cli.produce.inputs.resume import Resume


class Source(NamedTuple):
    """A file, or - for the standard input. `label` stands before the numbers of its lines; empty if there is no other
    input. With a `state` the reading goes on where that says."""

    file: str
    label: str = ""
    state: Resume | None = None

    @property
    def name(self) -> str:
        return self.file if self.file != "-" else "the standard input"

    @property
    def nbytes(self) -> int:
        """0 for a pipe."""
        return os.path.getsize(self.file) if self.file != "-" else 0

    @property
    def settled(self) -> tuple[int, int]:
        """The offset, and the number of lines or rows, where the reading goes on."""
        return (0, 0) if self.state is None else (self.state.offset, self.state.count)

    def place(self, unit: str, number: int) -> str:
        return f"{self.label}{': ' if self.label else ''}{unit} {number}"

    def settle(self, end: int, count: int) -> None:
        """Each line up to this offset, and up to this number, is acknowledged or left out."""
        if self.state is not None:
            self.state.settle(end, count)

    def open(self) -> RawIOBase:
        """Waits for the writer of a named pipe."""
        if self.file != "-":
            return open(self.file, "rb", buffering=0)
        if sys.stdin is None:
            raise click.ClickException("the input cannot be read: it is closed")
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
