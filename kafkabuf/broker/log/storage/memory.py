"""Batches in memory, dropped one by one. The logs of other copies may share their bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from kafkabuf.broker.log.batch import NO_TIMESTAMP, Data
from kafkabuf.broker.log.producer_state import AbortedTransaction, ProducerStates
from kafkabuf.broker.log.storage.batches import StoredBatch

# Dropped batches leave holes at the start of the list, up to this many. So dropping costs O(1) a batch.
_COMPACT_AT = 1024
_HOLE = StoredBatch(-1, -1, -1, -1, b"")


class MemorySegments:
    """`_positions` says where each batch begins in the sum of all bytes ever appended, `_appended`."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self._batches: list[StoredBatch] = []
        self._positions: list[int] = []
        self._first = 0
        self._appended = 0

    @property
    def size(self) -> int:
        return self._appended - self._position(0)

    @property
    def recovery_point(self) -> int:
        return self.end_offset

    def full(self, batch: StoredBatch, segment_bytes: int) -> bool:
        return False

    def roll(self, producers: ProducerStates) -> None:
        """Memory has no segments."""

    def append(self, batch: StoredBatch) -> None:
        self._batches.append(batch)
        self._positions.append(self._appended)
        self._appended += len(batch.data)
        self.end_offset = batch.last_offset + 1

    # ---- reading

    def read(self, offset: int, max_bytes: int, at_least_one: bool, limit: int) -> list[Data]:
        buffers: list[Data] = []
        room = max_bytes
        for batch in self.batches(offset):
            room -= len(batch.data)
            if batch.base_offset >= limit or (room < 0 and (buffers or not at_least_one)):
                break
            buffers.append(batch.data)
        return buffers

    def available(self, offset: int, limit: int) -> int:
        return max(self._position(limit) - self._position(offset), 0)

    def batches(self, offset: int = 0) -> Iterator[StoredBatch]:
        return islice(self._batches, self._index(offset), None)

    def at_or_after(self, timestamp: int) -> Iterator[StoredBatch]:
        return (batch for batch in self.batches() if batch.max_timestamp >= timestamp)

    def newest_timestamp(self) -> int:
        return max((batch.max_timestamp for batch in self.batches()), default=NO_TIMESTAMP)

    def _index(self, offset: int) -> int:
        """The index of the batch that holds `offset`; the number of batches if no batch does."""
        return bisect_left(self._batches, offset, lo=self._first, key=lambda batch: batch.last_offset)

    def _position(self, offset: int) -> int:
        index = self._index(offset)
        return self._positions[index] if index < len(self._positions) else self._appended

    # ---- dropping

    def drop_old(self, size: int, timestamp: int, limit: int, producers: ProducerStates) -> None:
        index, last = self._first, len(self._batches) - 1
        while index <= last:
            batch = self._batches[index]
            superfluous = index < last and self._appended - self._positions[index + 1] >= size
            if not (superfluous or 0 <= batch.max_timestamp < timestamp) or batch.last_offset >= limit:
                break
            index += 1
        self._drop(index)

    def drop_before(self, offset: int) -> None:
        self._drop(self._index(offset))

    def _drop(self, index: int) -> None:
        for dropped in range(self._first, index):
            self._batches[dropped] = _HOLE
        self._first = index
        self.start_offset = self._batches[index].base_offset if index < len(self._batches) else self.end_offset
        if index >= _COMPACT_AT:
            del self._batches[:index], self._positions[:index]
            self._first = 0

    def truncate_to(self, offset: int) -> None:
        index = self._index(offset)
        if index < len(self._batches):
            self.end_offset, self._appended = self._batches[index].base_offset, self._positions[index]
            del self._batches[index:], self._positions[index:]

    def restart_at(self, offset: int) -> None:
        self._batches, self._positions, self._first = [], [], 0
        self.start_offset = self.end_offset = offset

    # ---- what a log on disk stores besides batches: memory stores nothing

    def producers(self) -> tuple[int, ProducerStates]:
        return self.start_offset, ProducerStates()

    def add_aborted(self, aborted: AbortedTransaction, last_stable_offset: int) -> None:
        pass

    def epochs(self) -> list[tuple[int, int]]:
        return []

    def save_epochs(self, entries: list[tuple[int, int]]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self, producers: ProducerStates) -> None:
        pass

    def delete(self) -> None:
        pass
