"""Chooses the logs to clean, and cleans them one after the other (Kafka's LogCleaner and LogCleanerManager).

Every log.cleaner.backoff.ms the cleaner cleans each log of a topic with cleanup.policy=compact whose dirty part is more
than min.cleanable.dirty.ratio of what can be cleaned, or whose oldest dirty segment is older than
max.compaction.lag.ms. It reads only closed segments, whose records are all older than min.compaction.lag.ms, below the
last stable offset. Each node cleans its own replicas. A log that the cleaner cannot read is left alone.

Deviation: the cleaner ends the last segment of a compacted topic once it is older than segment.ms or
max.compaction.lag.ms by the broker's clock. Kafka ends it when the next record comes.
"""

from __future__ import annotations

import asyncio
import logging

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.storage.batches import ClosedSegment
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.errors import CorruptMessageError, InvalidRecordError, KafkaStorageError

log = logging.getLogger("kafkabuf.broker")

Key = tuple[int, str, int]


class LogCleaner:
    """No timer runs while there is no compacted topic. `watch` and `forget` follow the logs, which have a node, a topic
    and a partition as key."""

    def __init__(self, timer: Timer, backoff: float) -> None:
        self._timer = timer
        self._backoff = backoff
        self._logs: dict[Key, PartitionLog] = {}
        self._unreadable: set[PartitionLog] = set()
        self._next: Timeout | None = None
        self._round: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    def watch(self, key: Key, partition_log: PartitionLog) -> None:
        """Call this when a log is opened, and when its configs change."""
        if not partition_log.config.compact:
            self.forget(key)
            return
        self._logs[key] = partition_log
        if self._next is None:
            self._next = self._timer.after(self._backoff, self._begin_round)

    def forget(self, key: Key) -> None:
        partition_log = self._logs.pop(key, None)
        if partition_log is not None:
            self._unreadable.discard(partition_log)

    def close(self) -> None:
        self._logs.clear()
        if self._round is not None:
            self._round.cancel()

    # ---- rounds

    def _begin_round(self) -> None:
        self._next = None
        if self._logs:
            self._round = asyncio.get_running_loop().create_task(self._clean_all())

    async def settled(self) -> None:
        """Waits for the end of the present round."""
        if self._round is not None:
            await asyncio.wait([self._round])

    async def _clean_all(self) -> None:
        try:
            for key, partition_log in list(self._logs.items()):
                if self._logs.get(key) is partition_log and partition_log not in self._unreadable:
                    await self._clean_if_due(key, partition_log)
        finally:
            if self._logs:
                self._next = self._timer.after(self._backoff, self._begin_round)

    async def _clean_if_due(self, key: Key, partition_log: PartitionLog) -> None:
        try:
            if partition_log.segments.aged(partition_log.config, partition_log.clock.time_ms()):
                partition_log.roll()
            upper = cleanable_end(partition_log)
            if is_due(partition_log, upper):
                await self.clean(partition_log, upper)
        except KafkaStorageError as error:
            log.error("%s-%d of node %d was not cleaned: %s", key[1], key[2], key[0], error)
        except (CorruptMessageError, InvalidRecordError) as error:
            self._unreadable.add(partition_log)
            log.error("%s-%d of node %d is not cleaned any more: %s", key[1], key[2], key[0], error)

    async def clean(self, partition_log: PartitionLog, upper: int) -> int:
        """Cleans up to `upper`. Returns how many records are gone."""
        # Loaded with the first use, so that an import of the package stays short.
        from kafkabuf.broker.log.upkeep.cleaning import Cleaning

        async with self._lock:
            removed, goes_on = 0, True
            while goes_on:
                before = partition_log.clean_offset
                cleaning = Cleaning(partition_log, upper)
                if not await cleaning.run():
                    log.info("a cleaning is given up, because the log has dropped batches meanwhile, or is closed")
                removed += cleaning.removed
                # A cleaning ends early where there are too many keys.
                goes_on = before < partition_log.clean_offset < upper
            return removed

    async def clean_now(self, partition_log: PartitionLog) -> int:
        """Ends the last segment, and cleans whatever min.compaction.lag.ms and the last stable offset allow. Returns
        how many records are gone."""
        closed = partition_log.segments.closed()
        if partition_log.end_offset > (closed[-1].end_offset if closed else partition_log.segments.start_offset):
            partition_log.roll()
        return await self.clean(partition_log, cleanable_end(partition_log))


def cleanable_end(partition_log: PartitionLog) -> int:
    """The offset up to which the log can be cleaned: the end of a closed segment."""
    config, stable = partition_log.config, partition_log.last_stable_offset
    youngest = partition_log.clock.time_ms() - config.min_compaction_lag_ms
    end = partition_log.segments.start_offset
    for segment in partition_log.segments.closed():
        too_young = config.min_compaction_lag_ms > 0 and segment.newest > youngest
        if segment.end_offset > stable or (too_young and segment.base_offset >= partition_log.clean_offset):
            break
        end = segment.end_offset
    return end


def is_due(partition_log: PartitionLog, upper: int) -> bool:
    """Whether the dirty segments below `upper` are many or old enough."""
    config = partition_log.config
    clean: list[ClosedSegment] = []
    dirty: list[ClosedSegment] = []
    for segment in partition_log.segments.closed():
        if segment.end_offset <= upper:
            (dirty if segment.end_offset > partition_log.clean_offset else clean).append(segment)
    dirty_size, clean_size = sum(segment.size for segment in dirty), sum(segment.size for segment in clean)
    if not dirty_size:
        return False
    oldest = min((segment.first_timestamp for segment in dirty if segment.first_timestamp > 0), default=None)
    too_old = oldest is not None and partition_log.clock.time_ms() - oldest > config.max_compaction_lag_ms
    return too_old or dirty_size / (clean_size + dirty_size) > config.min_cleanable_dirty_ratio
