"""One cleaning of one log (Kafka's Cleaner).

The cleaner reads the dirty segments, which no cleaning has read yet, and notes the last offset of each key. Then it
rewrites all closed segments up to there, and leaves out

- a record whose key has a later record below the end of the dirty segments;
- a record of an aborted transaction, and a record without a key;
- a tombstone, and the control record of a transaction without records, once its delete horizon has passed.

The last batch of each producer stays, without records if need be, because it has the producer's last sequence. So does
the last batch of each new segment, where the next segment follows. Offsets stay as they are. Several small segments
become one.

The cleaning runs on the event loop in slices. Between two slices the log takes appends and reads. A log that drops
batches meanwhile, or is closed, gives the cleaning up.

Deviation: message sets of magic 0 and 1 stay whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.upkeep.transactions import TransactionWalk
from kafkabuf.broker.records.producer_state import ProducerStates, sequence_count
from kafkabuf.broker.records.rewriting import KeyedRecord, OpenBatch, delete_horizon, filtered, record_count
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import ClosedSegment, Head, Replacement, read_head
from kafkabuf.broker.storage.segment import GREATEST_DELTA
from kafkabuf.broker.waiting.slices import Work

T = TypeVar("T")

# Stored bytes that a slice reads. Ten thousand small records take some 30 ms.
_SLICE = 128 * 1024
# Batches in a slice.
_BATCHES = 256
# Records between two turns of others.
_RECORDS = 300
# The number of keys whose last offset a cleaning knows: some 50 MiB. The next cleaning goes on behind them (Kafka's
# log.cleaner.dedupe.buffer.size).
_MOST_KEYS = 250_000


class Cleaning:
    """`upper` is the offset up to which the log can be cleaned. `removed` counts the records that are gone."""

    def __init__(self, log: PartitionLog, upper: int) -> None:
        self.removed = 0
        self._log = log
        self._upper = upper
        # The keys up to here are known. Every later record stays.
        self._noted = upper
        self._now_ms = log.clock.time_ms()
        self._last_offsets: dict[bytes, int] = {}
        self._walk = TransactionWalk(())
        self._last_batches = _last_batches(log.producers)

    def _new_walk(self, start: int) -> TransactionWalk:
        """A walk from `start`, behind the transactions that ended before."""
        aborted = self._log.producers.aborted
        return TransactionWalk(
            known for known in aborted if known.last_offset >= start and known.first_offset < self._upper
        )

    async def run(self) -> bool:
        """Returns False if it gave up, because the log has dropped batches or is closed. Raises CorruptMessageError or
        InvalidRecordError for batches that it cannot read, KafkaStorageError if the disk refuses."""
        segments = [segment for segment in self._log.segments.closed() if segment.end_offset <= self._upper]
        if not segments:
            return True
        start = max(self._log.clean_offset, segments[0].base_offset)
        self._walk = self._new_walk(start)
        async for batch in self._batches(start, self._upper):
            await self._note(batch, start)
            if self._noted < self._upper:
                break
        segments = [segment for segment in segments if segment.base_offset < self._noted]
        self._walk = self._new_walk(segments[0].base_offset)
        if self._log.closed:
            return False
        for group in grouped(segments, self._log.config.segment_bytes):
            if not await self._clean(group):
                return False
        self._log.clean_offset = self._noted
        return True

    async def _batches(self, offset: int, end: int) -> AsyncIterator[StoredBatch]:
        """The batches up to `end`. Looks each slice up again, because the log may change between two slices."""
        while offset < end and not self._log.closed and (batches := self._slice(offset, end)):
            for batch in batches:
                yield batch
            offset = batches[-1].last_offset + 1
            if offset < end:
                await asyncio.sleep(0)

    def _slice(self, offset: int, end: int) -> list[StoredBatch]:
        batches: list[StoredBatch] = []
        size = 0
        for batch in self._log.segments.batches(offset):
            if batch.base_offset >= end or size >= _SLICE or len(batches) == _BATCHES:
                break
            batches.append(batch)
            size += len(batch.data)
        return batches

    # ---- the keys of the dirty segments

    async def _note(self, batch: StoredBatch, start: int) -> None:
        """Notes the last offset of each key, from the offset `start` on, until there are too many keys."""
        head = read_head(batch.data, 0, batch.base_offset)
        if head.control:
            self._walk.is_over(head, batch)
        elif not self._walk.is_aborted(head) and head.info.magic >= 2:
            for number, record in enumerate((await self._open(batch)).records(), 1):
                if record.key is not None and record.offset >= start:
                    self._last_offsets[record.key] = record.offset
                    if len(self._last_offsets) >= _MOST_KEYS:
                        self._noted = record.offset + 1
                        return
                if not number % _RECORDS:
                    await asyncio.sleep(0)

    async def _open(self, batch: StoredBatch) -> OpenBatch:
        return await in_turns(OpenBatch.opened(batch.data, self._log.config.max_message_bytes))

    # ---- rewriting segments

    async def _clean(self, group: Sequence[ClosedSegment]) -> bool:
        start, end = group[0].base_offset, group[-1].end_offset
        replacement = self._log.segments.replace(group)
        try:
            before = len(self._walk.kept)
            removed = await self._copy(replacement, start, end)
            if self._log.closed:
                return False
            if (written := replacement.written()) is not None:
                await asyncio.wrap_future(written)
            if self._log.closed:
                return False
            aborted = [transaction for transaction in self._walk.kept[before:] if transaction.last_offset < end]
            if not replacement.commit(aborted):
                return False
            self._log.replaced(start, end, aborted)
            self.removed += removed
            return True
        finally:
            replacement.abandon()

    async def _copy(self, replacement: Replacement, start: int, end: int) -> int:
        """Returns the number of records that it leaves out."""
        removed = 0
        last: StoredBatch | None = None
        async for batch in self._batches(start, end):
            if last is not None:
                removed += await self._copy_batch(replacement, last, is_last=False)
            last = batch
        return removed if last is None else removed + await self._copy_batch(replacement, last, is_last=True)

    async def _copy_batch(self, replacement: Replacement, batch: StoredBatch, is_last: bool) -> int:
        head = read_head(batch.data, 0, batch.base_offset)
        data = batch.data if head.info.magic < 2 else await self._filter(head, batch, is_last)
        if data is None:
            return record_count(batch.data)
        if data is batch.data:
            replacement.append(batch)
            return 0
        newest = read_head(data, 0, batch.base_offset).info.max_timestamp
        replacement.append(StoredBatch(batch.base_offset, batch.last_offset, newest, batch.leader_epoch, data))
        return record_count(batch.data) - record_count(data)

    async def _filter(self, head: Head, batch: StoredBatch, is_last: bool) -> bytes | bytearray | memoryview | None:
        keep_empty = is_last or self._is_last_of_producer(head)
        horizon = self._now_ms + self._log.config.delete_retention_ms
        opened = await self._open(batch)
        if head.control:
            over = self._walk.is_over(head, batch)
            drop = over and self._passed(delete_horizon(batch.data))
            return await in_turns(
                filtered(
                    opened,
                    batch.data,
                    lambda record: not drop,
                    keep_empty=keep_empty,
                    horizon=horizon,
                    gets_horizon=over,
                )
            )
        if self._walk.is_aborted(head):
            return await in_turns(
                filtered(opened, batch.data, lambda record: False, keep_empty=keep_empty, horizon=horizon)
            )
        keep_tombstones = not self._passed(delete_horizon(batch.data))

        def keep(record: KeyedRecord) -> bool:
            if record.offset >= self._noted:
                return True
            if record.key is None or record.offset < self._last_offsets.get(record.key, -1):
                return False
            return keep_tombstones or not record.tombstone

        return await in_turns(filtered(opened, batch.data, keep, keep_empty=keep_empty, horizon=horizon))

    def _passed(self, horizon: int | None) -> bool:
        return horizon is not None and horizon <= self._now_ms

    def _is_last_of_producer(self, head: Head) -> bool:
        """Whether the batch has the last sequence of its producer, or its last epoch if no batch has a sequence."""
        last = self._last_batches.get(head.info.producer_id)
        if last is None:
            return False
        offset, epoch = last
        return head.last_offset == offset if offset >= 0 else head.control and head.info.producer_epoch == epoch


async def in_turns(work: Work[T]) -> T:
    """The result of the work. Other tasks have a turn between two steps."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def _last_batches(producers: ProducerStates) -> dict[int, tuple[int, int]]:
    """By producer id: the offset of its last record (-1: the log has no record of its epoch), and its epoch."""
    return {
        producer_id: (
            batches[-1].base_offset + sequence_count(batches[-1]) - 1 if (batches := entry.batches) else -1,
            entry.epoch,
        )
        for producer_id, entry in producers
    }


def grouped(segments: Sequence[ClosedSegment], max_size: int) -> list[list[ClosedSegment]]:
    """Neighbouring segments that together fit into one segment."""
    groups: list[list[ClosedSegment]] = []
    size = 0
    for segment in segments:
        fits = size + segment.size <= max_size
        if groups and fits and segment.end_offset - groups[-1][0].base_offset <= GREATEST_DELTA:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return groups
