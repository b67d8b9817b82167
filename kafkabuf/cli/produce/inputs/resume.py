"""How far an input has been acknowledged, in a small file, so that a later run goes on there: `kafkabuf produce`.

The file is replaced as a whole, about once a second and at the end. A run that was killed sends again what was
acknowledged behind the last state: each line arrives at least once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kafkabuf.process._time import monotonic

_SECONDS = 1.0
_HEAD = 4096


class Resume:
    """The state of one input for one topic. `offset` and `count` say where to go on: bytes and lines, or rows.

    What makes a state stale is another file under the same name, or a shorter one: the constructor raises
    click.ClickException then, as for a file that is no state.
    """

    def __init__(self, path: Path, source: str, topic: str, kind: str, *, now: Callable[[], float] = monotonic) -> None:
        self._path = path
        self._now = now
        self._saved = now()
        self.offset, self.count = 0, 0
        self._identity = {"topic": topic, "format": kind}
        self._head = _head_of(source, _HEAD)
        self._nbytes = os.path.getsize(source)
        if path.exists():
            self._load(source)

    def settle(self, offset: int, count: int) -> None:
        """Everything up to here is acknowledged or left out."""
        self.offset, self.count = offset, count
        if self._now() - self._saved >= _SECONDS:
            self.save()

    def save(self) -> None:
        """Replaces the file in one step. Raises click.ClickException where that fails: the file is then as it was."""
        state = self._identity | {"offset": self.offset, "count": self.count}
        state |= {
            "bytes": self._nbytes,
            "head_bytes": len(self._head),
            "head_sha256": hashlib.sha256(self._head).hexdigest(),
        }
        beside = self._path.with_name(f"{self._path.name}.new")
        try:
            with beside.open("w", encoding="utf-8") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            raise click.ClickException(
                f"the state {self._path} cannot be written: {error.strerror}; the next run begins at an earlier one"
            ) from error
        self._saved = self._now()

    def _load(self, source: str) -> None:
        try:
            state: dict[str, Any] = json.loads(self._path.read_bytes())
            self.offset, self.count = int(state["offset"]), int(state["count"])
            nbytes, head, digest = int(state["bytes"]), int(state["head_bytes"]), str(state["head_sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise click.ClickException(f"{self._path} is no state of this command") from error
        for name, wanted in self._identity.items():
            if state.get(name) != wanted:
                raise click.ClickException(f"{self._path} is of {name} {state.get(name)!r}, not of {wanted!r}")
        # Lines may be added behind the others. A table is written as a whole.
        grows = self._identity["format"] in ("lines", "jsonl")
        fits = self._nbytes >= self.offset if grows else self._nbytes == nbytes
        if not fits or hashlib.sha256(_head_of(source, head)).hexdigest() != digest:
            raise click.ClickException(f"{source} is another file than {self._path} is of: remove it to begin anew")
        if grows and self._nbytes > self.offset > 0:
            self.offset, self.count = _at_a_line(source, self.offset, self.count)


def _at_a_line(source: str, offset: int, count: int) -> tuple[int, int]:
    """Where to go on if the last line had no line feed when it was sent. If it has one now, behind that; if more has
    been written to the line, at its start: it is another line now."""
    with open(source, "rb") as file:
        file.seek(offset - 1)
        before, behind = file.read(1), file.read(1)
        if before == b"\n":
            return offset, count
        if behind == b"\n":
            return offset + 1, count
        while offset:
            start = max(offset - _HEAD, 0)
            file.seek(start)
            head, feed, _ = file.read(offset - start).rpartition(b"\n")
            if feed:
                return start + len(head) + 1, count - 1
            offset = start
    return 0, count - 1


def _head_of(source: str, nbytes: int) -> bytes:
    with open(source, "rb") as file:
        return file.read(nbytes)
