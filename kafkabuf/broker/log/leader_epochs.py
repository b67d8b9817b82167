"""Where each leader epoch begins in a log: it shows where two replicas diverge (Kafka's LeaderEpochFileCache)."""

from __future__ import annotations

from bisect import bisect_right

from kafkabuf.broker.storage.batches import Segments

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """`entries`: (epoch, first offset), both rising. The log owns it."""

    __slots__ = ("_segments", "entries")

    def __init__(self, entries: list[tuple[int, int]], segments: Segments) -> None:
        self.entries = entries
        self._segments = segments

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at `start_offset`, the log's end. An epoch that is not newer than the latest changes
        nothing."""
        if epoch > self.latest:
            self._set([*(entry for entry in self.entries if entry[1] < start_offset), (epoch, start_offset)])

    def at(self, offset: int) -> int:
        """The epoch in which `offset` was written."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[index - 1][0] if index else NO_EPOCH

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the greatest known epoch up to `epoch`, as OffsetForLeaderEpoch answers. (-1, -1) for
        an epoch that has not begun. (`epoch`, first known offset) if every known epoch is later."""
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, self._segments.end_offset
        index = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return self.entries[index - 1][0] if index else epoch, self.entries[index][1]

    def truncate_to(self, end_offset: int) -> None:
        if self.entries and self.entries[-1][1] >= end_offset:
            self._set([entry for entry in self.entries if entry[1] < end_offset])

    def drop_before(self, start_offset: int) -> None:
        """The epoch that contains `start_offset` begins there now."""
        index = bisect_right(self.entries, start_offset, key=lambda entry: entry[1])
        if index and self.entries[0][1] < start_offset:
            self._set([(self.entries[index - 1][0], start_offset), *self.entries[index:]])

    def _set(self, entries: list[tuple[int, int]]) -> None:
        self._segments.save_epochs(entries)
        self.entries = entries
