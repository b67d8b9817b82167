"""Everything that outlives a cluster besides records: a dictionary in a file of JSON lines, [key, value].

A key is a list, a value any JSON. The journal writes each change at once, as a line. The last line of a key counts, and
null removes the key. When most lines are outdated, the journal rewrites the file, whole or not at all, a little with
each later change: thousands of lines at once would stop the event loop. Opening cuts off a last line without an end,
which a killed process leaves.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from kafkabuf.broker.storage.disk import create_file, on_disk, read_file, sync_path, write_all
from kafkabuf.errors import KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

Key = tuple[str | int, ...]
_VERSION = 1
_HEAD = f'["kafkabuf", {_VERSION}]\n'.encode()
_ENCODER = json.JSONEncoder(separators=(",", ":"))
# The journal never rewrites the file for fewer outdated lines.
_MIN_OUTDATED = 1000
# A new file takes this number of values with each change, and flushes pieces of this size.
_VALUES_AT_ONCE = 20
_PIECE = 64 * 1024


class _NewFile:
    """The file that will take the place of the journal's. It has the values of the time when it was begun, or newer
    ones, and then the lines of all changes since: so it ends in the same state, in the same order. Every method raises
    OSError if the disk refuses."""

    def __init__(self, path: Path, values: Mapping[Key, Any]) -> None:
        self.lines = self.size = 0
        self._path, self._part = path, path.with_name(path.name + ".tmp")
        self._values, self._keys = values, iter(list(values))
        self._unwritten, self._changes = bytearray(_HEAD), list[bytes]()
        self.descriptor = create_file(self._part)

    def add(self, line: bytes) -> None:
        """Takes the line of a change."""
        self._changes.append(line)

    def go_on(self) -> bool:
        """Takes the next values. Returns whether there are no more."""
        keys = list(islice(self._keys, _VALUES_AT_ONCE))
        for key in keys:
            if key in self._values:
                self._unwritten += _encode(key, self._values[key])
                self.lines += 1
        if len(self._unwritten) >= _PIECE:
            self._write()
        return len(keys) < _VALUES_AT_ONCE

    def take_place(self) -> None:
        self.lines += len(self._changes)
        self._unwritten += b"".join(self._changes)
        self._write()
        self._part.replace(self._path)

    def _write(self) -> None:
        write_all(self.descriptor, self._unwritten)
        os.fsync(self.descriptor)
        self.size += len(self._unwritten)
        self._unwritten.clear()

    def give_up(self) -> None:
        os.close(self.descriptor)
        with suppress(OSError):
            self._part.unlink()


class Journal:
    """Without a path the journal writes and keeps nothing. Thread: the event loop."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._values: dict[Key, Any] = {}
        self._lines = 0
        # With more lines than these the journal begins a new file.
        self._most_lines = 0
        self._new: _NewFile | None = None
        self._file: int | None = None
        # The bytes of whole lines in the file.
        self._size = 0
        # The file was rewritten, and a power cut may bring the former file back: the folder was not flushed since.
        self._renamed = False

    def open(self) -> None:
        """Reads the file. Raises KafkaStorageError if the disk refuses, or the file is not a journal of this
        version."""
        if self.path is None:
            return
        data = read_file(self.path) or b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole and not whole.startswith(_HEAD):
            raise KafkaStorageError(
                f"{self.path} does not begin with {_HEAD.decode().strip()}: another version wrote the file"
            )
        if len(whole) < len(data):
            log.warning("%s: the last %d bytes are not a whole line and are cut off", self.path, len(data) - len(whole))
        for number, line in enumerate(whole[len(_HEAD) :].splitlines(), 2):
            self._take(number, line)
        self._rewrite()

    def _take(self, number: int, line: bytes) -> None:
        try:
            key, value = json.loads(line)
            self._set(tuple(key), value)
        except (ValueError, TypeError) as error:
            raise KafkaStorageError(f"{self.path}, line {number}, is not [key, value] in JSON: {error}") from error

    def _set(self, key: Key, value: Any) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def find(self, *prefix: str | int) -> Iterator[tuple[Key, Any]]:
        """(rest of the key, value) of every key that begins with `prefix`."""
        for key, value in list(self._values.items()):
            if key[: len(prefix)] == prefix:
                yield key[len(prefix) :], value

    def put(self, key: Key, value: Any) -> None:
        """Sets `key`; the value None removes it. Raises KafkaStorageError, and changes nothing, if the disk refuses.
        `value` is not copied."""
        if self._file is None or self._values.get(key) == value:
            return
        assert self.path is not None
        line = _encode(key, value)
        with on_disk("write", self.path):
            if os.fstat(self._file).st_size > self._size:
                # A part of a line that the disk has refused before.
                os.ftruncate(self._file, self._size)
            try:
                write_all(self._file, line)
            except OSError:
                os.ftruncate(self._file, self._size)
                raise
        self._size += len(line)
        self._set(key, value)
        self._lines += 1
        if self._new is not None:
            self._new.add(line)
        if self._new is not None or self._lines > self._most_lines:
            self._shorten()

    def _shorten(self) -> None:
        """The change that was due before is in the file already: a disk that refuses the new file takes nothing
        back."""
        try:
            self._go_on()
        except KafkaStorageError as error:
            self._give_up()
            self._most_lines = self._lines + _MIN_OUTDATED
            log.error("%s stays long: %s", self.path, error)

    def _go_on(self) -> bool:
        """Writes a little of the new file. Returns whether it was whole and has taken the journal's place."""
        assert self.path is not None
        with on_disk("write", self.path):
            new = self._new = self._new or _NewFile(self.path, self._values)
            if not new.go_on():
                return False
            new.take_place()
        self._new = None
        self.close()
        self._file, self._size, self._lines, self._renamed = new.descriptor, new.size, new.lines, True
        self._most_lines = 2 * len(self._values) + _MIN_OUTDATED
        return True

    def _give_up(self) -> None:
        if self._new is not None:
            self._new.give_up()
            self._new = None

    def _rewrite(self) -> None:
        try:
            while not self._go_on():
                pass
        except BaseException:
            self._give_up()
            raise

    def close(self) -> None:
        self._give_up()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def flush(self) -> None:
        if self.path is not None and self._file is not None:
            sync_path(self.path)
            if self._renamed:
                sync_path(self.path.parent.resolve())  # the data folder may be a link
                self._renamed = False


def _encode(key: Key, value: Any) -> bytes:
    return _ENCODER.encode([key, value]).encode() + b"\n"
