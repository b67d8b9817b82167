"""The log of one partition, in memory: stored batches in offset order, trimmed from the head by bytes.

Belongs to the cluster's event loop; nothing here is locked. A stored batch is never changed once appended, so that
responses may refer to it without copying.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from kafkabuf.broker.batch import BatchInfo, stamp
from kafkabuf.broker.control import Marker, control_batch
from kafkabuf.broker.producer_state import AbortedTransaction, ProducerStates
from kafkabuf.broker.records import read_records
from kafkabuf.errors import OffsetOutOfRangeError

# Dropped batches are kept as holes at the head of the list until there are this many: trimming stays O(1) per batch.
_COMPACT_AT = 1024
_NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """`position` is the batch's place in the sum of all bytes ever appended."""

    base_offset: int
    last_offset: int
    position: int
    max_timestamp: int
    leader_epoch: int
    data: bytes | bytearray


class PartitionLog:
    """`log_start_offset` <= offsets kept < `end_offset`. Retention drops whole batches, never the last one; records
    deleted by request may leave a batch of which only the end counts."""

    def __init__(self, retention_bytes: int | None = None) -> None:
        self.retention_bytes = retention_bytes
        self.log_start_offset = 0
        self.end_offset = 0
        self.producers = ProducerStates()
        # Called after every append and change of leader: how parked fetches learn of news.
        self.watchers: set[Callable[[], None]] = set()
        self._batches: list[StoredBatch] = []
        self._first = 0
        self._appended = 0

    @property
    def high_watermark(self) -> int:
        """Up to here consumers may read: everything, as long as there is one replica."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Up to here consumers with read_committed may read: where the oldest open transaction began."""
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else max(unstable, self.log_start_offset)

    @property
    def size(self) -> int:
        """Bytes kept."""
        return self._appended - self._batches[self._first].position if self._first < len(self._batches) else 0

    def append(self, data: bytes | bytearray, info: BatchInfo, leader_epoch: int, now_ms: int = 0) -> int:
        """Takes over `data`, already stamped with `end_offset` and checked against `producers`. Returns the base
        offset. From `now_ms`, the broker's time, the producer's silence counts."""
        base = self.end_offset
        if info.producer_id >= 0:
            self.producers.append(info, base, now_ms)
        self._keep(data, info, leader_epoch)
        return base

    def append_marker(self, marker: Marker, timestamp: int, leader_epoch: int) -> None:
        """Ends the producer's transaction in this partition. InvalidProducerEpochError or
        TransactionCoordinatorFencedError if the marker comes too late."""
        self.producers.check_end(marker)
        data = control_batch(marker, timestamp)
        stamp(data, self.end_offset, leader_epoch)
        self.producers.end(marker, self.end_offset, timestamp)
        self._keep(data, BatchInfo(1, timestamp, 2), leader_epoch)

    def _keep(self, data: bytes | bytearray, info: BatchInfo, leader_epoch: int) -> None:
        base = self.end_offset
        self.end_offset = base + info.count
        stored = StoredBatch(base, self.end_offset - 1, self._appended, info.max_timestamp, leader_epoch, data)
        self._batches.append(stored)
        self._appended += len(data)
        if self.retention_bytes is not None:
            self._trim(self.retention_bytes)
        self.wake()

    def wake(self) -> None:
        """Has parked fetches look again."""
        for look in tuple(self.watchers):
            look()

    def _trim(self, limit: int) -> None:
        # As Kafka: a batch goes only if what stays still fills the limit, so that no less than the limit is kept.
        while self._first < len(self._batches) - 1:
            following = self._batches[self._first + 1]
            if self._appended - following.position < limit:
                break
            self._first += 1
            self.log_start_offset = following.base_offset
            self.producers.forget_aborted_before(self.log_start_offset)
        self._compact()

    def _compact(self) -> None:
        if self._first >= _COMPACT_AT:
            del self._batches[: self._first]
            self._first = 0

    def delete_before(self, offset: int) -> None:
        """DeleteRecords: what lies before `offset` cannot be read any more. OffsetOutOfRangeError beyond the end."""
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(f"offset {offset}: records before 0 to {self.high_watermark} can be deleted")
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._first = self._index(offset)
            self.producers.forget_aborted_before(offset)
            self._compact()

    def batches(self) -> Sequence[StoredBatch]:
        return self._batches[self._first :]

    def available(self, offset: int, limit: int = _NO_LIMIT) -> int:
        """Bytes of the batches from the one that holds `offset` to `limit`, where one ends."""
        return max(self._position(limit) - self._position(offset), 0)

    def _position(self, offset: int) -> int:
        index = self._index(offset)
        return self._batches[index].position if index < len(self._batches) else self._appended

    def read(self, offset: int, max_bytes: int, at_least_one: bool, limit: int = _NO_LIMIT) -> list[bytes | bytearray]:
        """Whole batches from the one that holds `offset` to `limit`, where one ends, at most `max_bytes` of them.

        With `at_least_one` the first comes even if it is larger (KIP-74), so that a consumer never gets stuck.
        """
        found: list[bytes | bytearray] = []
        room = max_bytes
        for stored in islice(self._batches, self._index(offset), None):
            room -= len(stored.data)
            if stored.base_offset >= limit or (room < 0 and (found or not at_least_one)):
                break
            found.append(stored.data)
        return found

    def aborted(self, offset: int, limit: int) -> list[AbortedTransaction]:
        """The transactions whose records between two offsets a reader has to pass over."""
        found = self.producers.aborted
        first = bisect_left(found, offset, key=lambda one: one.last_offset)
        return [one for one in islice(found, first, None) if one.first_offset < limit]

    def _index(self, offset: int) -> int:
        """The index of the batch that holds `offset`; the number of batches if there is none."""
        return bisect_left(self._batches, offset, lo=self._first, key=lambda stored: stored.last_offset)

    def offset_at(self, timestamp: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record at or after `timestamp`; None if there is none."""
        for stored in islice(self._batches, self._first, None):
            if stored.max_timestamp >= timestamp:
                for record in read_records(stored.data):
                    if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                        return record.offset, record.timestamp, stored.leader_epoch
        return None

    def newest(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the record with the highest timestamp, the first if several have it."""
        batches = self.batches()
        if not batches:
            return None
        return self.offset_at(max(stored.max_timestamp for stored in batches))
