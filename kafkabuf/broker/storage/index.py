"""The sparse indexes of a segment, in Kafka's format: an entry for about every 4 KiB of the log, big-endian.

.index       offset i32, relative to the segment's base offset | position i32
.timeindex   timestamp i64 | offset i32, relative to the segment's base offset
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from pathlib import Path

from kafkabuf.broker.storage.disk import append_whole, read_file, truncate_file

OFFSETS = struct.Struct(">ii")
TIMES = struct.Struct(">qi")


class SparseIndex:
    """Pairs of numbers; keys and values both rise. `save` writes new pairs to the file; after a crash the segment makes
    the missing pairs again."""

    def __init__(self, path: Path, entry: struct.Struct) -> None:
        self.path = path
        self.keys = array("q")
        self.values = array("q")
        self._entry = entry
        self._saved = 0

    def __len__(self) -> int:
        return len(self.keys)

    def load(self) -> bool:
        """Reads the file. Returns False, and loads nothing, if the file is missing or malformed."""
        data = read_file(self.path)
        if data is None:
            return False
        pairs = list(self._entry.iter_unpack(data)) if len(data) % self._entry.size == 0 else []
        keys, values = array("q", [key for key, _ in pairs]), array("q", [value for _, value in pairs])
        if len(data) != len(pairs) * self._entry.size or not (_rises(keys) and _rises(values)):
            return False
        self.keys, self.values, self._saved = keys, values, len(keys)
        return True

    def add(self, key: int, value: int) -> None:
        """Adds the pair if `key` is greater than the last key."""
        if not self.keys or key > self.keys[-1]:
            self.keys.append(key)
            self.values.append(value)

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last pair whose key is at most `key`."""
        index = bisect_right(self.keys, key)
        return (self.keys[index - 1], self.values[index - 1]) if index else None

    def keep_keys(self, last: int) -> None:
        self._truncate(bisect_right(self.keys, last))

    def keep_values(self, last: int) -> None:
        self._truncate(bisect_right(self.values, last))

    def _truncate(self, count: int) -> None:
        del self.keys[count:], self.values[count:]
        if count < self._saved:
            truncate_file(self.path, count * self._entry.size)
            self._saved = count

    def save(self) -> None:
        new = range(self._saved, len(self.keys))
        pairs = b"".join(self._entry.pack(self.keys[index], self.values[index]) for index in new)
        append_whole(self.path, pairs, self._saved * self._entry.size)
        self._saved = len(self.keys)


def _rises(numbers: array[int]) -> bool:
    return all(numbers[index] < numbers[index + 1] for index in range(len(numbers) - 1))
