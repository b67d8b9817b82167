"""What the process before has left in the file goes back into the queues of the next process.

Each batch returns to its partition's queue in the order in which the batches were opened, with the numbers under which
it may have been sent, and before anything new. A batch of a transaction that was not committed is dropped: its
coordinator aborts the transaction. What is damaged is put aside (aside.py), and the rest goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from kafkabuf.batches._accumulator import PartitionQueue
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._stored import SIZE_OF_BATCH
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.errors import ConfigError
from kafkabuf.process.producer_log import producer_log
from kafkabuf.spool._entries import (
    DamagedError,
    bytes_of,
    damaged_end,
    drop,
    facts_of,
    holds_batch,
    impostors,
    is_credible,
    is_idempotent,
    is_transactional,
    line_of,
    live_entries,
    magic_of,
    mend,
    occupy,
    partition_of,
    partition_place_of,
    put_in_line,
    size_of,
    timestamps_of,
)
from kafkabuf.spool.aside import put_aside
from kafkabuf.spool.evidence import NONE, SpooledBatch, SpooledPartition
from kafkabuf.spool.file import SpoolFile
from kafkabuf.spool.recovered import Recovered, RecoveredPartition

log = producer_log("kafkabuf.producer")

READ_AT_A_TIME = 16 << 20  # bytes of the records


def recover(file: SpoolFile, accumulator: RecordAccumulator) -> Recovered:
    """Queue the batches of a file. The accumulator is new, over a pool in the file's arena, and has the file's tables.

    Raises ConfigError, without a change, for a file whose records this producer cannot send.
    """
    recovered = Recovered(str(file.path))
    places = live_entries(file.tables)
    _require_sendable(file, accumulator, places)
    for name, partitions, topic_id in file.tables.noted_topics():
        accumulator.made_topic(name, [-1] * partitions, topic_id=topic_id)
    for place in impostors(file.tables, accumulator.pool, places):
        _give_up(file, accumulator, place, "its memory belongs to another batch", recovered)
    for place in _walk(file, [place for place in places if holds_batch(file.tables, place)]):
        try:
            _recover(file, accumulator, place, recovered)
        except DamagedError as error:
            _give_up(file, accumulator, place, str(error), recovered)
    for partition in recovered.partitions.values():
        partition.evidence = _evidence(file, partition)
    file.note_identity(-1, file.cluster_id)  # the line of the process before is complete
    if recovered:
        log.info("%s held %s", file.path, recovered.held())
    return recovered


def _walk(file: SpoolFile, places: list[int]) -> Iterator[int]:
    """The places in turn. The process never holds much more than READ_AT_A_TIME bytes of the file's pages."""
    read = 0
    for place in places:
        read += SIZE_OF_BATCH + size_of(file.tables, place)
        if read > READ_AT_A_TIME:
            file.forget_pages()
            read = 0
        yield place
    file.forget_pages()


def _require_sendable(file: SpoolFile, accumulator: RecordAccumulator, places: list[int]) -> None:
    for place in _walk(file, places):
        # A damaged entry says nothing of the others: it is put aside later.
        if is_credible(file.tables, place) and (reason := _unsendable(file, accumulator, place)):
            raise ConfigError(f"{file.path} holds {reason}: deliver them first, with the settings before")


def _unsendable(file: SpoolFile, accumulator: RecordAccumulator, place: int) -> str:
    """What an entry's records are if this producer cannot send them; else ""."""
    if (magic := magic_of(file.tables, place)) != accumulator.magic:
        return f"records of record.magic={magic}, and this producer has {accumulator.magic}"
    if accumulator.transactional and not is_transactional(file.tables, place):
        return "records that belong to no transaction, and this producer has a transactional.id"
    return ""


def _give_up(file: SpoolFile, accumulator: RecordAccumulator, place: int, reason: str, recovered: Recovered) -> None:
    data = bytes_of(file.tables, accumulator.pool, place)
    if _put_aside(file, place, reason, data, recovered):
        drop(file.tables, place)
    else:
        occupy(file.tables, accumulator.pool, place)


def _put_aside(file: SpoolFile, place: int, reason: str, data: bytes, recovered: Recovered) -> bool:
    """Whether the damaged bytes of a batch are safe elsewhere. If not they stay in the file, for the next process."""
    facts = facts_of(file.tables, place)
    name = f"batch {place} of {file.path} ({facts['topic']}-{facts['partition']})"
    safe = False
    try:
        where = f"its bytes are in {put_aside(file.path, {'reason': reason, **facts}, data)}"
        safe = True
    except OSError as error:
        where = f"they stay where they are, as no file beside could be written: {error.strerror}"
    recovered.damaged.append(f"{name}: {reason}: {where}")
    return safe


def _recover(file: SpoolFile, accumulator: RecordAccumulator, place: int, recovered: Recovered) -> None:
    position = size_of(file.tables, place)
    count = mend(file.tables, accumulator.pool, place)
    topic, partition = partition_of(file.tables, place)
    if end := damaged_end(file.tables, place, position):
        _put_aside(file, place, f"what follows its first {count} records is no record", end, recovered)
    if count == 0:
        drop(file.tables, place)
    elif is_transactional(file.tables, place):
        recovered.uncommitted[topic, partition] += count
        drop(file.tables, place)
    else:
        if reason := _unsendable(file, accumulator, place):
            raise DamagedError(f"it holds {reason}")
        queues = accumulator.made_topic(topic, [-1] * (partition + 1))
        queues.grow(partition + 1)
        size = size_of(file.tables, place)
        batch = accumulator.adopt(queues.queues[partition], place)
        if batch is None:
            raise DamagedError("its memory belongs to another batch, too")
        held = recovered.partitions.setdefault((topic, partition), RecoveredPartition(queues.queues[partition]))
        held.add(batch, place, size)


def _evidence_of(batch: Batch) -> SpooledBatch:
    base, largest = timestamps_of(batch)
    return SpooledBatch(
        batch.number, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count, largest, base,
        batch.in_line,
    )  # fmt: skip


@dataclass(frozen=True)
class Doubt:
    """Batches of a partition of which the running process does not know whether the cluster has them.

    `refused`: the cluster has refused their numbers.
    """

    queue: PartitionQueue
    batches: Sequence[Batch]
    evidence: SpooledPartition
    refused: bool


def doubt_of(queue: PartitionQueue, topic_id: UUID | None, *, refused: bool) -> Doubt:
    """The batches of a queue that have numbers, and those that would follow under the file's id. Thread: Sender.

    A batch whose header has other numbers than its entry goes under new ones in any case.
    """
    waiting = [batch for batch in queue.batches if queue.goes_on and batch.in_line and batch.base_sequence < 0]
    batches = [*(batch for batch in queue.in_sequence if not batch.renumbered), *waiting]
    evidence = SpooledPartition(
        queue.topic, topic_id, queue.partition, queue.producer_id, queue.producer_epoch, queue.last_acked,
        queue.last_acked_offset, queue.next_sequence, [_evidence_of(batch) for batch in batches],
    )  # fmt: skip
    return Doubt(queue, batches, evidence, refused)


def _form_line(file: SpoolFile, held: RecoveredPartition, entry: int) -> None:
    """What the process before has left without numbers forms the line of its id (batches/_sequences.pxd), once.

    It does not if the process had no id of its own, or if batches stand before it that belong to another id.
    """
    tables, own = file.tables, file.producer_id
    numbered = [batch for batch in held.batches if batch.base_sequence >= 0]
    new = [
        place
        for place, batch in zip(held.places, held.batches, strict=True)
        if batch.base_sequence < 0 and line_of(tables, place) is None
    ]
    alone = len(numbered) + len(new) == len(held.batches) and all(batch.producer_id == own for batch in numbered)
    forms = own >= 0 and alone
    if forms and new and not numbered and tables.remembered(entry)[0] != own:
        tables.begin_numbers(entry, own)
    for place in new:
        put_in_line(tables, place, forms)


def _is_newer(batch: SpooledBatch, producer_id: int, epoch: int, own: int) -> bool:
    """Whether the partition gave the batch's numbers after these. `own` is the id that the process before had last.

    A batch that stays in the file (unproven=keep) has numbers of long ago.
    """
    if batch.producer_id == producer_id:
        return batch.epoch > epoch
    return producer_id == NONE or batch.producer_id == own


def _evidence(file: SpoolFile, held: RecoveredPartition) -> SpooledPartition:
    """What the proof has to know of a partition."""
    tables = file.tables
    place = partition_place_of(tables, held.places[0])
    _form_line(file, held, place)
    producer_id, epoch, last_acked, last_acked_offset, next_sequence = tables.remembered(place)
    batches = [_evidence_of(batch) for batch in held.batches]
    numbered = [batch for batch in batches if batch.numbered]
    if numbered and _is_newer(numbered[-1], producer_id, epoch, file.producer_id):
        # The batch got its numbers before the partition's entry had them.
        producer_id, epoch, last_acked = numbered[-1].producer_id, numbered[-1].epoch, NONE
        next_sequence = held.queue.next_sequence
    return SpooledPartition(
        topic=held.queue.topic,
        topic_id=tables.topic_id_of(tables.topic_place(held.queue.topic)),
        partition=held.queue.partition,
        producer_id=producer_id,
        epoch=epoch,
        last_acked=last_acked,
        last_acked_offset=last_acked_offset,
        next_sequence=next_sequence,
        batches=batches,
        idempotent=all(is_idempotent(tables, place) for place in held.places),
        cluster_id=file.cluster_id,
    )
