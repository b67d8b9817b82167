"""The sparse indexes of a segment, in Kafka's format: an entry for every 4 KiB or so of the log, big-endian.

.index       offset i32, relative to the segment's | position i32
.timeindex   timestamp i64 | offset i32, relative to the segment's
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from pathlib import Path

from kafkabuf.broker.log.storage.disk import on_disk

OFFSETS = struct.Struct(">ii")
TIMES = struct.Struct(">qi")


class SparseIndex:
    """Pairs of numbers of which both rise. New ones reach the file by `save`: after a crash they are made anew."""

    def __init__(self, path: Path, entry: struct.Struct) -> None:
        self.path = path
        self.keys = array("q")
        self.values = array("q")
        self._entry = entry
        self._saved = 0

    def __len__(self) -> int:
        return len(self.keys)

    def load(self) -> bool:
        """False, and nothing is loaded, if the file is not there or cannot be right."""
        with on_disk("read", self.path):
            data = self.path.read_bytes() if self.path.exists() else b"?"
        found = list(self._entry.iter_unpack(data)) if len(data) % self._entry.size == 0 else []
        keys, values = array("q", [key for key, _ in found]), array("q", [value for _, value in found])
        if len(data) != len(found) * self._entry.size or not (_rises(keys) and _rises(values)):
            return False
        self.keys, self.values, self._saved = keys, values, len(keys)
        return True

    def add(self, key: int, value: int) -> None:
        """Unless `key` is no greater than the last."""
        if not self.keys or key > self.keys[-1]:
            self.keys.append(key)
            self.values.append(value)

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is no greater."""
        index = bisect_right(self.keys, key)
        return (self.keys[index - 1], self.values[index - 1]) if index else None

    def keep_keys(self, last: int) -> None:
        self._truncate(bisect_right(self.keys, last))

    def keep_values(self, last: int) -> None:
        self._truncate(bisect_right(self.values, last))

    def _truncate(self, count: int) -> None:
        del self.keys[count:], self.values[count:]
        if count < self._saved:
            with on_disk("truncate", self.path):
                os.truncate(self.path, count * self._entry.size)
            self._saved = count

    def save(self) -> None:
        new = range(self._saved, len(self.keys))
        with on_disk("write", self.path), self.path.open("ab") as file:
            # A former save may have got stuck halfway.
            file.truncate(self._saved * self._entry.size)
            file.write(b"".join(self._entry.pack(self.keys[index], self.values[index]) for index in new))
        self._saved = len(self.keys)


def _rises(numbers: array[int]) -> bool:
    return all(numbers[index] < numbers[index + 1] for index in range(len(numbers) - 1))
