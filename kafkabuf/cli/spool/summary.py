"""What `kafkabuf spool inspect` finds in a file, by partition and transaction. The fields are the keys of `--json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from kafkabuf.errors import printable
from kafkabuf.spool.commits import Commit
from kafkabuf.spool.file import VERSION
from kafkabuf.spool.reading import DamagedBatch, HeldBatch, SpoolReader


@dataclass
class Topic:
    topic: str
    partitions: int
    topic_id: UUID | None


@dataclass
class PartitionSummary:
    """Records that wait, and what the file remembers of the partition's log: -1 for nothing."""

    topic: str
    partition: int
    records: int = 0
    bytes: int = 0
    batches: int = 0
    may_be_in_cluster: int = 0  # records that were sent, or were about to be
    oldest_ms: int | None = None  # when the oldest batch was opened
    producer_id: int = -1
    producer_epoch: int = -1
    last_acknowledged_sequence: int = -1
    last_acknowledged_offset: int = -1

    def add(self, batch: HeldBatch) -> None:
        self.records += batch.records
        self.bytes += batch.nbytes
        self.batches += 1
        self.may_be_in_cluster += batch.records if batch.may_be_in_cluster else 0
        self.oldest_ms = batch.opened_ms if self.oldest_ms is None else min(self.oldest_ms, batch.opened_ms)


@dataclass
class Transaction:
    """Records of a transaction that is not committed, in one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    records: int = 0
    bytes: int = 0


@dataclass
class Batch:
    place: int
    topic: str
    partition: int
    records: int
    bytes: int
    opened_ms: int
    magic: int
    compression: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool


@dataclass
class Damage:
    place: int
    reason: str


@dataclass
class Summary:
    path: str
    format: int
    buffer_memory: int
    batch_size: int
    file_bytes: int
    held_by: int | None  # the process that has the file open
    last_opened_by: int | None
    of_this_boot: bool  # whether the machine has run ever since then
    cluster_id: str  # "" if the file knows none
    commit: Commit | None  # the commit that the last process had begun last
    records: int = 0
    bytes: int = 0
    oldest_ms: int | None = None
    topics: list[Topic] = field(default_factory=list)
    partitions: list[PartitionSummary] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)  # those that are asked for


def summary_of(reader: SpoolReader, show: Callable[[int, int], None], *, with_batches: bool) -> Summary:
    """Reads the whole file. `show` gets the bytes and records so far."""
    summary = Summary(
        printable(str(reader.path)),
        VERSION,
        *reader.layout,
        reader.layout.size,
        reader.holder,
        reader.owner or None,
        reader.of_this_boot,
        printable(reader.cluster_id),
        reader.commit,
        topics=[Topic(held.topic, held.partitions, held.topic_id) for held in reader.topics()],
    )
    partitions = {
        (held.topic, held.partition): PartitionSummary(
            held.topic,
            held.partition,
            producer_id=held.producer_id,
            producer_epoch=held.producer_epoch,
            last_acknowledged_sequence=held.last_acknowledged_sequence,
            last_acknowledged_offset=held.last_acknowledged_offset,
        )
        for held in reader.partitions()
    }
    transactions: dict[tuple[str, int, int, int], Transaction] = {}
    read = 0
    for batch in reader.batches():
        if isinstance(batch, DamagedBatch):
            summary.damaged.append(Damage(batch.place, batch.reason))
            continue
        read += batch.nbytes
        if with_batches:
            summary.batches.append(_batch(batch))
        if batch.transactional:
            key = batch.topic, batch.partition, batch.producer_id, batch.producer_epoch
            transaction = transactions.setdefault(key, Transaction(*key))
            transaction.records += batch.records
            transaction.bytes += batch.nbytes
        else:
            place = batch.topic, batch.partition
            partitions.setdefault(place, PartitionSummary(*place)).add(batch)
            summary.records += batch.records
            summary.bytes += batch.nbytes
        show(read, summary.records)
    summary.partitions = [partitions[place] for place in sorted(partitions)]
    summary.transactions = [transactions[key] for key in sorted(transactions)]
    summary.oldest_ms = min((p.oldest_ms for p in summary.partitions if p.oldest_ms is not None), default=None)
    return summary


def _batch(batch: HeldBatch) -> Batch:
    return Batch(
        batch.place,
        batch.topic,
        batch.partition,
        batch.records,
        batch.nbytes,
        batch.opened_ms,
        batch.magic,
        batch.compression,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.transactional,
    )
