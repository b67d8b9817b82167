"""Compacted logs without a cluster: random histories, and what consumers read of them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import cramjam
from aiokafka.record import MemoryRecords

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.upkeep.cleaner import LogCleaner, cleanable_end
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock
from tests.broker.log.support import Producer, append, end, on_disk
from tests.broker.raw_client import NOW, batch

CODECS: tuple[Callable[[bytes], bytes], ...] = (
    bytes,
    lambda body: gzip.compress(body, mtime=0),
    lambda body: bytes(cramjam.snappy.compress_raw(body)),
    lambda body: bytes(cramjam.lz4.compress(body)),
    lambda body: bytes(cramjam.zstd.compress(body)),
)
COMPACTED = LogConfig(segment_bytes=700, delete=False, compact=True, delete_retention_ms=1000)
Item = tuple[bytes | None, bytes | None]


class Read(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def keyed(
    log: PartitionLog,
    *items: Item,
    producer: Producer = (-1, -1, -1),
    transactional: bool = False,
    codec: int = 0,
    time: int = NOW,
) -> int:
    """Appends a batch of (key, value)."""
    keys, values = [key for key, _ in items], [value for _, value in items]
    times = [time + index for index in range(len(items))]
    attributes = codec | 0x10 * transactional
    body = CODECS[codec](batch(values, keys=keys, timestamps=times)[61:])
    return append(log, batch(values, keys=keys, timestamps=times, attributes=attributes, producer=producer, body=body))


def logs(folder: Path | None, config: LogConfig = COMPACTED, recovery_point: int = 0) -> PartitionLog:
    """A log in memory, or in a folder."""
    if folder is None:
        return PartitionLog(config, clock=ManualClock(wall_ms=NOW))
    return on_disk(folder, config, recovery_point)


def fill(log: PartitionLog, seed: int) -> None:
    """A random history of three kinds of producers over a few keys. It ends without an open transaction."""
    random = Random(seed)
    sequences = {7: 0, 8: 0, 9: 0}
    pending: set[int] = set()

    def producer(producer_id: int, count: int) -> Producer:
        sequence = sequences[producer_id]
        sequences[producer_id] += count
        return producer_id, 0, sequence

    for step in range(random.randrange(20, 90)):
        items = [
            (b"k%d" % random.randrange(9), None if random.random() < 0.2 else b"v%d" % step)
            for _ in range(random.randrange(1, 4))
        ]
        kind, codec = random.randrange(5), random.randrange(5)
        if kind < 2:
            keyed(log, *items, codec=codec, time=NOW + step)
        elif kind == 2:
            keyed(log, *items, codec=codec, producer=producer(7, len(items)), time=NOW + step)
        else:
            owner = 5 + kind
            keyed(log, *items, codec=codec, producer=producer(owner, len(items)), transactional=True, time=NOW + step)
            pending.add(owner)
        for owner in [owner for owner in pending if random.random() < 0.3]:
            pending.discard(owner)
            end(log, (owner, 0, 0), random.random() < 0.5)
    for owner in sorted(pending):
        end(log, (owner, 0, 0), random.random() < 0.5)


def clean(log: PartitionLog) -> int:
    """Ends the active segment, and cleans everything. Returns how many records are gone."""
    return asyncio.run(LogCleaner(Timer(None, log.clock), 1.0).clean_now(log))  # type: ignore[arg-type]


def clean_closed(log: PartitionLog) -> int:
    return asyncio.run(LogCleaner(Timer(None, log.clock), 1.0).clean(log, cleanable_end(log)))  # type: ignore[arg-type]


def consume(log: PartitionLog, committed: bool = True) -> list[Read]:
    """What aiokafka decodes, fetch by fetch. With `committed` without the records of aborted transactions, by the
    rules of a consumer with read_committed."""
    found: list[Read] = []
    offset, stop = log.log_start_offset, log.last_stable_offset if committed else log.end_offset
    aborting: set[int] = set()
    coming = sorted(log.aborted(offset, stop), key=lambda known: known.first_offset) if committed else []
    while buffers := log.read(offset, 500, True, stop):
        records = MemoryRecords(b"".join(map(bytes, buffers)))
        while (stored := records.next_batch()) is not None:
            while coming and coming[0].first_offset < stored.next_offset:
                aborting.add(coming.pop(0).producer_id)
            if stored.is_control_batch:
                if any(record.key[3] == 0 for record in stored):
                    aborting.discard(stored.producer_id)
            elif not (stored.is_transactional and stored.producer_id in aborting):
                found += [Read(record.offset, record.timestamp, record.key, record.value) for record in stored]
            offset = stored.next_offset
    return found


def table(records: list[Read]) -> dict[bytes | None, Read]:
    """The last record of each key, but no tombstones."""
    last = {record.key: record for record in records}
    return {key: record for key, record in last.items() if record.value is not None}
