"""Batches in memory, dropped one by one. The logs of other replicas may share their bytes.

Only the log of a topic with cleanup.policy=compact has segments: the cleaner leaves the last segment alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from kafkabuf.broker.records.batch import NO_TIMESTAMP, Data
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.records.producer_state import AbortedTransaction, ProducerStates
from kafkabuf.broker.storage._memory import MemoryCore
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import LOOKS, MOST_BUFFERS, ClosedSegment
from kafkabuf.broker.storage.rolling import Age
from kafkabuf.clock import Clock

# Dropped batches leave holes at the start of the list, up to this many. So dropping costs O(1) a batch.
_COMPACT_AT = 1024
_NO_AGE = Age()
_HOLE = StoredBatch(-1, -1, -1, -1, b"")


class MemorySegments(MemoryCore):
    """`_positions` says where each batch begins in the sum of all bytes ever appended, `_appended`. `_bases` are the
    base offsets of the segments behind the first. `changes` counts the batches that were dropped or replaced."""

    __slots__ = ("_age", "_bases", "changes")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._age = _NO_AGE
        self.changes = 0

    # ---- segments

    def full(self, batch: StoredBatch, config: LogConfig, clock: Clock) -> bool:
        if not config.compact:
            return False
        now_ms = clock.time_ms()
        size = self._appended - self._position(self._last_base)
        if not size:
            self._age = Age(batch.max_timestamp, now_ms)
            return False
        return size + len(batch.data) > config.segment_bytes or self._aged(config, now_ms, batch.max_timestamp)

    def _aged(self, config: LogConfig, now_ms: int, timestamp: int = NO_TIMESTAMP) -> bool:
        if not self._age.known:
            # The topic was not compacted when the segment began.
            self._age = Age(self._batches[self._index(self._last_base)].max_timestamp, now_ms)
        return self._age.over(config, now_ms, timestamp)

    @property
    def _last_base(self) -> int:
        return self._bases[-1] if self._bases else self.start_offset

    def aged(self, config: LogConfig, now_ms: int) -> bool:
        return self._position(self._last_base) < self._appended and self._aged(config, now_ms)

    def roll(self, producers: ProducerStates) -> None:
        self._bases.append(self.end_offset)
        self._age = _NO_AGE

    def closed(self) -> list[ClosedSegment]:
        segments = []
        for base, following in pairwise((self.start_offset, *self._bases)):
            batches = self._batches[self._index(base) : self._index(following)]
            newest = max((batch.max_timestamp for batch in batches), default=NO_TIMESTAMP)
            first = batches[0].max_timestamp if batches else NO_TIMESTAMP
            size = self._position(following) - self._position(base)
            segments.append(ClosedSegment(base, following, size, newest, first))
        return segments

    def replace(self, segments: Sequence[ClosedSegment]) -> MemoryReplacement:
        return MemoryReplacement(self, segments[0].base_offset, segments[-1].end_offset)

    def put_in_place(self, start: int, end: int, batches: list[StoredBatch]) -> None:
        """The batches from offset `start` to `end` become `batches`, in one segment."""
        first, following = self._index(start), self._index(end)
        kept = [*self._batches[self._first : first], *batches, *self._batches[following:]]
        self._batches, self._positions, self._first, self._appended = [], [], 0, 0
        for batch in kept:
            self._batches.append(batch)
            self._positions.append(self._appended)
            self._appended += len(batch.data)
        self._bases = [base for base in self._bases if not start < base < end]
        self.changes += 1

    # ---- reading

    def read(self, offset: int, max_bytes: int, at_least_one: bool, limit: int) -> list[Data]:
        buffers: list[Data] = []
        room = max_bytes
        for batch in self.batches(offset):
            room -= len(batch.data)
            if (
                batch.base_offset >= limit
                or (room < 0 and (buffers or not at_least_one))
                or len(buffers) >= MOST_BUFFERS
            ):
                break
            buffers.append(batch.data)
        return buffers

    def available(self, offset: int, limit: int) -> int:
        return max(self._position(limit) - self._position(offset), 0)

    def batches(self, offset: int = 0) -> Iterator[StoredBatch]:
        return islice(self._batches, self._index(offset), None)

    def at_or_after(self, timestamp: int, offset: int) -> tuple[StoredBatch | None, int | None]:
        first = self._index(offset)
        following = None
        for batch in self._batches[first : first + LOOKS]:
            following = batch.last_offset + 1
            if batch.max_timestamp >= timestamp:
                return batch, following
        return None, following

    def newest_timestamp(self) -> int:
        return max((batch.max_timestamp for batch in self.batches()), default=NO_TIMESTAMP)

    def _index(self, offset: int) -> int:
        """The index of the batch that holds `offset`; the number of batches if no batch does."""
        return bisect_left(self._batches, offset, lo=self._first, key=lambda batch: batch.last_offset)

    def _position(self, offset: int) -> int:
        index = self._index(offset)
        return self._positions[index] if index < len(self._positions) else self._appended

    # ---- dropping

    def drop_old(self, size: int, timestamp: int, limit: int, producers: ProducerStates) -> bool:
        index, last = self._first, len(self._batches) - 1
        while index <= last:
            batch = self._batches[index]
            superfluous = index < last and self._appended - self._positions[index + 1] >= size
            if not (superfluous or 0 <= batch.max_timestamp < timestamp) or batch.last_offset >= limit:
                break
            index += 1
        self._drop(index)
        return False

    def drop_before(self, offset: int) -> bool:
        self._drop(self._index(offset))
        self.start_offset = min(self.start_offset, offset)
        return False

    def _drop(self, index: int) -> None:
        if index == self._first:
            return
        self.changes += 1
        for dropped in range(self._first, index):
            self._batches[dropped] = _HOLE
        self._first = index
        self.start_offset = self._batches[index].base_offset if index < len(self._batches) else self.end_offset
        if index >= _COMPACT_AT:
            del self._batches[:index], self._positions[:index]
            self._first = 0
        self._bases = [base for base in self._bases if base > self.start_offset]

    def truncate_to(self, offset: int) -> None:
        index = self._index(offset)
        if index < len(self._batches):
            self.end_offset = min(self._batches[index].base_offset, offset)
            self._appended = self._positions[index]
            del self._batches[index:], self._positions[index:]
            self._bases = [base for base in self._bases if base < self.end_offset]
            self.changes += 1

    def restart_at(self, offset: int) -> None:
        self._batches, self._positions, self._first, self._appended = [], [], 0, 0
        self.start_offset = self.end_offset = offset
        self._bases = []
        self.changes += 1

    # ---- what a log on disk stores besides batches: memory stores nothing

    def producers(self, log_start_offset: int) -> tuple[int, ProducerStates | None]:
        return self.start_offset, None

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


class MemoryReplacement:
    """The cleaned batches of the segments from offset `start` to `end`."""

    def __init__(self, segments: MemorySegments, start: int, end: int) -> None:
        self._segments = segments
        self._start = start
        self._end = end
        self._changes = segments.changes
        self._batches: list[StoredBatch] = []

    def append(self, batch: StoredBatch) -> None:
        self._batches.append(batch)

    def written(self) -> None:
        return None

    def commit(self, aborted: Sequence[AbortedTransaction]) -> bool:
        if self._segments.changes != self._changes:
            return False
        self._segments.put_in_place(self._start, self._end, self._batches)
        return True

    def abandon(self) -> None:
        self._batches = []
