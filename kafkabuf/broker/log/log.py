"""The log of one replica of a partition (Kafka's UnifiedLog): offsets, producers, leader epochs, retention.

Its batches lie in `Segments`, in memory or on disk. Only the cluster's event loop calls it; there is no lock. A stored
batch never changes, so responses and the logs of other replicas may refer to its bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from kafkabuf.broker.log._log import LogCore
from kafkabuf.broker.log.leader_epochs import LeaderEpochs
from kafkabuf.broker.records._batch import stamp
from kafkabuf.broker.records.batch import NO_TIMESTAMP, Data
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.records.control import Marker, control_batch, read_marker
from kafkabuf.broker.records.producer_state import AbortedTransaction
from kafkabuf.broker.records.records import MAX_MESSAGE_BYTES, first_at
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import NO_LIMIT, Head, Segments, heads, read_head
from kafkabuf.broker.storage.memory import MemorySegments
from kafkabuf.broker.waiting.slices import Work, at_once
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.errors import OffsetOutOfRangeError

_DEFAULTS = LogConfig()


class PartitionLog(LogCore):
    """The log has the offsets from `log_start_offset` up to, but not including, `end_offset`.

    Retention drops whole batches in memory and whole segments on disk, never above the high watermark. Retention by
    bytes never drops the last batch or segment. DeleteRecords may leave a batch from which readers get
    only the end. The cleaner (cleaning/) drops records of a compacted topic: then offsets have gaps. It has cleaned the
    log up to `clean_offset`. `replicated_offset` is the high watermark of an earlier run. `config` may be replaced at
    any time. The append, which drops what is old, is compiled (_log.pyx).

    Every method that changes the log raises KafkaStorageError if the disk refuses, and leaves the log as it was.
    """

    def __init__(
        self,
        config: LogConfig = _DEFAULTS,
        segments: Segments | None = None,
        clock: Clock | None = None,
        start_offset: int = 0,
    ) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.segments = segments or MemorySegments()
        self.log_start_offset = self.segments.start_offset
        self.end_offset = self.segments.end_offset
        self.leader_epochs = LeaderEpochs(self.segments.epochs(), self.segments)
        self.clean_offset = 0
        self.replicated_offset = 0
        # The cleaner stops then: the files belong to nobody, or to the next log.
        self.closed = False
        self._rebuild(start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Consumers with read_committed may read up to here, at most up to the high watermark.

        The oldest transaction without a control record below the high watermark begins here.
        """
        high_watermark = self.high_watermark
        unstable = None if self._producers is None else self._producers.first_unstable_offset
        return high_watermark if unstable is None else min(max(unstable, self.log_start_offset), high_watermark)

    @property
    def size(self) -> int:
        """Bytes kept."""
        return self.segments.size

    # ---- appending

    def append_marker(self, marker: Marker, timestamp: int, leader_epoch: int) -> None:
        """Ends the producer's transaction in this partition. Raises InvalidProducerEpochError or
        TransactionCoordinatorFencedError for a control record of an older epoch."""
        self.producers.check_end(marker)
        data, offset = control_batch(marker, timestamp), self.end_offset
        stamp(data, offset, leader_epoch)
        self._keep(StoredBatch(offset, offset, timestamp, leader_epoch, data))
        self._end(marker, offset, timestamp)
        self._appended()

    def append_as_follower(self, data: Data) -> None:
        """Appends whole batches from a leader's `read`. Offsets and epochs stay, the bytes are shared, and the state of
        producers follows from the batches. Raises OffsetOutOfRangeError for a batch that begins before `end_offset`;
        the log keeps the batches before it."""
        for at, head in heads(data, self.end_offset):
            if head.base_offset < self.end_offset:
                raise OffsetOutOfRangeError(f"the batch begins at offset {head.base_offset}, {self.end_offset} is next")
            kept = data if head.size == len(data) else memoryview(data)[at : at + head.size]
            self._keep(
                StoredBatch(head.base_offset, head.last_offset, head.info.max_timestamp, head.leader_epoch, kept)
            )
            self._follow(head, kept)
        self._appended()

    def _follow(self, head: Head, data: Data) -> None:
        """Applies a batch that was already checked to the state of its producer."""
        if head.control:
            if (marker := read_marker(data)) is not None:
                self._end(marker, head.last_offset, head.info.max_timestamp)
        elif head.info.producer_id >= 0:
            self.producers.append(head.info, head.base_offset)

    def _end(self, marker: Marker, offset: int, timestamp: int) -> None:
        aborted = self.producers.end(marker, offset, timestamp)
        if aborted is not None:
            self.segments.add_aborted(aborted, self.producers.first_open_offset(offset + 1))

    def roll(self) -> None:
        """Ends the last segment, which has batches: the next batch begins another."""
        self.segments.roll(self.producers)

    # ---- dropping

    def restarted(self, age_ms: int) -> None:
        """The node that has the log starts again. As Kafka's node, which then reads a snapshot, it knows the last batch
        of each producer that has not expired, and no producer of a log without records."""
        if self.log_start_offset == self.end_offset:
            self._producers = None
        elif self._producers is not None:
            self._producers.forget_earlier_batches()
            self.expire_producers(age_ms)

    def expire_producers(self, age_ms: int) -> None:
        """Forgets the producers whose last batch or control record is as old as that."""
        if self._producers is not None:
            self._producers.expire(self.clock.time_ms() - age_ms)

    def delete_before(self, offset: int) -> None:
        """DeleteRecords: no reader gets a record before `offset` any more. The segments of these records may wait for
        `drop_deleted`. Raises OffsetOutOfRangeError beyond the high watermark."""
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(f"offset {offset}: an offset from 0 to {self.high_watermark} is needed")
        if offset > self.log_start_offset:
            self.segments.drop_before(offset)
            self._start_at(offset)

    def drop_deleted(self) -> bool:
        """Drops segments that lie wholly before the log's start. Returns whether it has left some for the next call."""
        some = not self.closed and self.segments.start_offset < self.log_start_offset
        return some and self.segments.drop_before(self.log_start_offset)

    def replaced(self, start: int, end: int, aborted: Sequence[AbortedTransaction]) -> None:
        """The cleaner has replaced the batches from `start` to `end`: of the aborted transactions that ended there,
        only `aborted` have batches left."""
        kept = [known for known in self.producers.aborted if not start <= known.last_offset < end]
        self.producers.aborted = sorted([*kept, *aborted], key=lambda transaction: transaction.last_offset)

    def truncate_to(self, offset: int) -> None:
        """Drops every batch with an offset of `offset` or more, which a follower has and its leader has not. The log
        may forget what it knew of producers only from batches that retention has dropped."""
        if offset >= self.end_offset:
            return
        if offset < self.segments.start_offset:
            self.restart_at(offset)
            return
        self.segments.truncate_to(offset)
        self._truncated()

    def restart_at(self, offset: int) -> None:
        """Drops everything. The next batch begins at `offset`: this log and its leader's do not overlap."""
        self.segments.restart_at(offset)
        self.log_start_offset = offset
        self._truncated()

    def _truncated(self) -> None:
        self.end_offset = self.segments.end_offset
        self.log_start_offset = min(self.log_start_offset, self.end_offset)
        self.clean_offset = min(self.clean_offset, self.end_offset)
        if self._high_watermark is not None:
            self._high_watermark = max(min(self._high_watermark, self.end_offset), self.log_start_offset)
        self.leader_epochs.truncate_to(self.end_offset)
        self._rebuild(self.log_start_offset)

    def _rebuild(self, start_offset: int) -> None:
        """Derives the state of producers from the batches that readers still get, and the epochs that the checkpoint
        does not have. DeleteRecords has hidden the batches before `start_offset`."""
        start, self._producers = self.segments.producers(start_offset)
        for batch in self.segments.batches(start) if start < self.end_offset else ():
            head = read_head(batch.data, 0, batch.base_offset)
            self.leader_epochs.assign(head.leader_epoch, head.base_offset)
            self._follow(head, batch.data)
        self._replicated(self.high_watermark)

    # ---- reading

    def batches(self) -> Sequence[StoredBatch]:
        return list(self.segments.batches())

    def available(self, offset: int, limit: int = NO_LIMIT) -> int:
        """Bytes from the batch that holds `offset` up to `limit`, where a batch ends."""
        return self.segments.available(offset, limit)

    def read(self, offset: int, max_bytes: int, at_least_one: bool, limit: int = NO_LIMIT) -> list[Data]:
        """Whole batches of at most `max_bytes`, from the batch that holds `offset` up to `limit`, where a batch ends. A
        buffer from memory holds one batch, a buffer from disk many.

        With `at_least_one` the first batch comes even if it is larger (KIP-74), so that a consumer never gets stuck.
        """
        return self.segments.read(offset, max_bytes, at_least_one, limit)

    def aborted(self, offset: int, limit: int) -> list[AbortedTransaction]:
        """The aborted transactions with records between the two offsets: a reader must skip these records."""
        aborted = self.producers.aborted
        first = bisect_left(aborted, offset, key=lambda transaction: transaction.last_offset)
        return [transaction for transaction in islice(aborted, first, None) if transaction.first_offset < limit]

    def offset_at_in_steps(
        self, timestamp: int, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> Work[tuple[int, int, int] | None]:
        """(offset, timestamp, leader epoch) of the first record at or after `timestamp`; None without such a record.
        `max_message_bytes` is the topic's: it bounds what a compressed batch may become. A header that claims a newer
        timestamp than its records have ends the lookup with the batch's last record: else a log of such batches would
        be read to its end. The log may change between two steps."""
        following: int | None = self.segments.start_offset
        while following is not None and not self.closed:
            batch, following = self.segments.at_or_after(timestamp, following)
            if batch is not None:
                record = first_at(batch.data, timestamp, self.log_start_offset, max_message_bytes)
                if record is not None:
                    return record.offset, record.timestamp, self.leader_epochs.at(record.offset)
                if batch.base_offset >= self.log_start_offset and not read_head(batch.data, 0, 0).empty:
                    return batch.last_offset, batch.max_timestamp, self.leader_epochs.at(batch.last_offset)
            yield
        return None

    offset_at = at_once(offset_at_in_steps)

    def newest_in_steps(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Work[tuple[int, int, int] | None]:
        """(offset, timestamp, leader epoch) of the first record with the highest timestamp."""
        newest = yield from self.offset_at_in_steps(self.segments.newest_timestamp(), max_message_bytes)
        if newest is None and self.segments.size:
            # The batch with the highest timestamp may be a header that the cleaner has left.
            heads = (read_head(batch.data, 0, batch.base_offset) for batch in self.segments.batches())
            timestamp = max((head.info.max_timestamp for head in heads if not head.empty), default=NO_TIMESTAMP)
            if timestamp == NO_TIMESTAMP:
                return None
            newest = yield from self.offset_at_in_steps(timestamp, max_message_bytes)
        return newest

    newest = at_once(newest_in_steps)

    # ---- the end

    def flush(self) -> None:
        """Brings every appended batch to the disk, if the log lies on disk."""
        self.segments.flush()

    def close(self) -> None:
        self.closed = True
        self.segments.close(self.producers)

    def delete(self) -> None:
        """Deletes the log's files too."""
        self.closed = True
        self.segments.delete()
