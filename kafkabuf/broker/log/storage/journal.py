"""What has to be remembered besides records: a dictionary in a file of JSON lines, [key, value], a list and anything.

Each change is a line, written at once; the last line of a key counts, and null forgets it. When most lines are
outdated the file is written anew, as a whole or not at all. A last line without an end, of a process that was killed,
is cut off.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafkabuf.broker.log.storage.disk import on_disk, sync_path, write_whole
from kafkabuf.errors import KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

Key = tuple[str | int, ...]
_VERSION = 1
_HEAD = f'["kafkabuf", {_VERSION}]\n'.encode()
# So many outdated lines are nothing to worry about.
_OUTDATED = 1000


class Journal:
    """Without a path nothing is written, and everything forgotten with the object. Thread: the event loop."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._values: dict[Key, Any] = {}
        self._lines = 0
        self._file: int | None = None

    def open(self) -> None:
        """KafkaStorageError if the file cannot be had, or holds something else."""
        if self.path is None:
            return
        with on_disk("read", self.path):
            data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole and not whole.startswith(_HEAD):
            raise KafkaStorageError(
                f"{self.path} does not begin with {_HEAD.decode().strip()}: it is not for this version"
            )
        if len(whole) < len(data):
            log.warning("%s: %d bytes at the end are no whole line and are cut off", self.path, len(data) - len(whole))
        for number, line in enumerate(whole[len(_HEAD) :].splitlines(), 2):
            self._take(number, line)
        self._rewrite()

    def _take(self, number: int, line: bytes) -> None:
        try:
            key, value = json.loads(line)
            self._set(tuple(key), value)
        except (ValueError, TypeError) as error:
            raise KafkaStorageError(f"{self.path}, line {number}, is no [key, value] in JSON: {error}") from error

    def _set(self, key: Key, value: Any) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def find(self, *prefix: str | int) -> Iterator[tuple[Key, Any]]:
        """What has a key that begins so, by the rest of it."""
        for key, value in list(self._values.items()):
            if key[: len(prefix)] == prefix:
                yield key[len(prefix) :], value

    def put(self, key: Key, value: Any) -> None:
        """None forgets. KafkaStorageError, and nothing has changed, if the disk refuses. `value` is not copied."""
        if self._file is None or self._values.get(key) == value:
            return
        assert self.path is not None
        line = _encode(key, value)
        with on_disk("write", self.path):
            end = os.lseek(self._file, 0, os.SEEK_END)
            if os.write(self._file, line) < len(line):
                os.ftruncate(self._file, end)
                raise KafkaStorageError(f"{self.path}: the disk is full; make room on it")
        self._set(key, value)
        self._lines += 1
        if self._lines > 2 * len(self._values) + _OUTDATED:
            self._rewrite()

    def _rewrite(self) -> None:
        assert self.path is not None
        write_whole(self.path, _HEAD + b"".join(_encode(key, value) for key, value in self._values.items()), sync=True)
        self.close()
        with on_disk("open", self.path):
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(self._values)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def flush(self) -> None:
        if self.path is not None and self._file is not None:
            sync_path(self.path)


def _encode(key: Key, value: Any) -> bytes:
    return json.dumps([key, value], separators=(",", ":")).encode() + b"\n"
