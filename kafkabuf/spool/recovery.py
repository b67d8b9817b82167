"""What the process before has left in the file goes back into the queues of the next process.

Each batch returns to its partition's queue in the order in which the batches were opened, with the numbers under which
it may have been sent, and before anything new. A batch of a transaction that was not committed is dropped: its
coordinator aborts the transaction. A damaged batch stays where it is, and nobody uses its memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.process.producer_log import producer_log
from kafkabuf.spool._entries import (
    DamagedError,
    drop,
    is_transactional,
    live_entries,
    mend,
    partition_of,
    size_of,
)
from kafkabuf.spool.file import SpoolFile

log = producer_log("kafkabuf.producer")


@dataclass
class Recovered:
    """What an opened file held. Counts of records are by (topic, partition)."""

    records: Counter[tuple[str, int]] = field(default_factory=Counter)
    bytes: int = 0
    uncommitted: Counter[tuple[str, int]] = field(default_factory=Counter)  # of a transaction: dropped
    damaged: list[str] = field(default_factory=list)  # why a batch was left where it lies, one line each


def recover(file: SpoolFile, accumulator: RecordAccumulator) -> Recovered:
    """Queue the batches of a file. The accumulator is new, over a pool in the file's arena."""
    recovered = Recovered()
    accumulator.tables = file.tables
    for name, partitions, topic_id in file.tables.noted_topics():
        accumulator.made_topic(name, [-1] * partitions, topic_id=topic_id)
    for place in live_entries(file.tables):
        try:
            _recover(file, accumulator, place, recovered)
        except DamagedError as error:
            recovered.damaged.append(f"batch {place} of {file.path}: {error}")
    if recovered.records or recovered.uncommitted or recovered.damaged:
        log.info(
            "%s held %d records of %d partitions, %d of an uncommitted transaction (dropped), and %d damaged batches",
            file.path, recovered.records.total(), len(recovered.records), recovered.uncommitted.total(),
            len(recovered.damaged),
        )  # fmt: skip
    return recovered


def _recover(file: SpoolFile, accumulator: RecordAccumulator, place: int, recovered: Recovered) -> None:
    count = mend(file.tables, accumulator.pool, place)
    topic, partition = partition_of(file.tables, place)
    if count == 0:
        drop(file.tables, place)
    elif is_transactional(file.tables, place):
        recovered.uncommitted[topic, partition] += count
        drop(file.tables, place)
    else:
        queues = accumulator.made_topic(topic, [-1] * (partition + 1))
        queues.grow(partition + 1)
        size = size_of(file.tables, place)
        if not accumulator.adopt(queues.queues[partition], place):
            raise DamagedError("its memory belongs to another batch, too")
        recovered.records[topic, partition] += count
        recovered.bytes += size
