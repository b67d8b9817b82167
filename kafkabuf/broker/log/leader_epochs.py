"""Where each leader epoch begins in a log (Kafka's LeaderEpochFileCache): how two replicas find where they part."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """(epoch, first offset) in order, both rising. Belongs to the log: `end_offset` is asked for where it ends, `save`
    is given the entries after each change."""

    def __init__(
        self,
        entries: list[tuple[int, int]],
        end_offset: Callable[[], int],
        save: Callable[[list[tuple[int, int]]], None],
    ) -> None:
        self.entries = entries
        self._end_offset = end_offset
        self._save = save

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at the log's end; nothing happens if it is no newer than the latest."""
        if epoch > self.latest:
            self._set([*(one for one in self.entries if one[1] < start_offset), (epoch, start_offset)])

    def at(self, offset: int) -> int:
        """The epoch in which `offset` was written."""
        index = bisect_right(self.entries, offset, key=lambda one: one[1])
        return self.entries[index - 1][0] if index else NO_EPOCH

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the last epoch up to `epoch`, as OffsetForLeaderEpoch answers: (-1, -1) for one that
        has not come, and `epoch` itself with the first offset known if all known ones are later."""
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, self._end_offset()
        index = bisect_right(self.entries, epoch, key=lambda one: one[0])
        return self.entries[index - 1][0] if index else epoch, self.entries[index][1]

    def truncate_to(self, end_offset: int) -> None:
        if self.entries and self.entries[-1][1] >= end_offset:
            self._set([one for one in self.entries if one[1] < end_offset])

    def drop_before(self, start_offset: int) -> None:
        """The epoch that holds `start_offset` begins there now."""
        index = bisect_right(self.entries, start_offset, key=lambda one: one[1])
        if index and self.entries[0][1] < start_offset:
            self._set([(self.entries[index - 1][0], start_offset), *self.entries[index:]])

    def _set(self, entries: list[tuple[int, int]]) -> None:
        self._save(entries)
        self.entries = entries
