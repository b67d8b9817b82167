"""Applies a proof to the queues: what becomes of each recovered batch of a partition. Thread: Sender.

| proof                          | the batch                                                                        |
|--------------------------------|----------------------------------------------------------------------------------|
| THERE                          | ends as acknowledged                                                             |
| ABSENT                         | goes under its own numbers; without any, in the next epoch of the file's id      |
| FORGOTTEN, with own numbers    | goes under its own numbers, alone: the leader takes any first number             |
| FORGOTTEN, without             | goes under new numbers, as do all behind it                                      |
| UNPROVEN, unproven=deliver     | goes, perhaps a second time; a warning says why                                  |
| UNPROVEN, unproven=keep        | stays in the file for the next producer; those behind it go                      |

The queue was muted from its adoption on, so that nothing of the partition went before. New records stand behind.

`settle_doubt` does the same for batches that became doubtful in this process (sending/recovery.py): of those the
cluster has refused, none goes under its own numbers again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from kafkabuf.batches._accumulator import PartitionQueue
from kafkabuf.batches._batch import Batch
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.errors import KafkaError
from kafkabuf.process.producer_log import producer_log
from kafkabuf.spool.evidence import Outcome, Proof, SpooledPartition, Verdict
from kafkabuf.spool.recovered import Recovered
from kafkabuf.spool.recovery import Doubt
from kafkabuf.transactions.idempotence import ProducerState

log = producer_log("kafkabuf.producer")


def settle(accumulator: RecordAccumulator, recovered: Recovered, proof: Proof, *, keep: bool) -> None:
    """Settle a partition. `keep` is kafkabuf.buffer.unproven=keep. A call that found no memory may be made again."""
    held = recovered.partitions[proof.partition.place]
    held.verdicts = proof.verdicts
    if proof.restored:
        level = logging.INFO if recovered.restored else logging.WARNING
        recovered.restored[proof.partition.place] = proof.restored
        log.log(
            level, "%s is an old copy, another process has delivered from the same file: %s. %d records of this "
            "partition are in the cluster already, and do not go again; of %d records nobody can tell", recovered.path,
            proof.restored, held.proven(Outcome.THERE), held.proven(Outcome.UNPROVEN),
        )  # fmt: skip
    if proof.other_cluster and not recovered.other_cluster:
        recovered.other_cluster = proof.other_cluster
        what = "stay in the file (kafkabuf.buffer.unproven=keep)" if keep else "are delivered here"
        log.warning("%s: %s: its records %s", recovered.path, proof.other_cluster, what)
    for batch, verdict in zip(held.batches, proof.verdicts, strict=True):
        if not batch.done:  # else the user has purged it, or an earlier call has settled it
            _settle_batch(accumulator, held.queue, proof.partition, batch, verdict, keep=keep)
    _go_on(accumulator, held.queue, proof)
    _tell(proof, held.counts, keep=keep)
    held.queue.muted = False


def settle_doubt(
    accumulator: RecordAccumulator, recovered: Recovered, doubt: Doubt, proof: Proof, *, keep: bool
) -> None:
    """Settle what became doubtful in this process. `recovered` keeps the verdicts of the opening."""
    if proof.restored and proof.partition.place not in recovered.restored:
        recovered.restored[proof.partition.place] = proof.restored
        log.warning("another process has delivered from a copy of %s: %s", recovered.path, proof.restored)
    if doubt.refused:
        proof = replace(proof, verdicts=[_refused(verdict) for verdict in proof.verdicts])
    for batch, verdict in zip(doubt.batches, proof.verdicts, strict=True):
        if not batch.done:
            _settle_batch(accumulator, doubt.queue, proof.partition, batch, verdict, keep=keep and batch.recovered)
    if doubt.queue.goes_on:
        _go_on(accumulator, doubt.queue, proof)
    _tell(proof, [batch.count for batch in doubt.batches], keep=keep)
    doubt.queue.doubted = doubt.queue.muted = False


def _refused(verdict: Verdict) -> Verdict:
    """The cluster lacks the batch, and has refused its numbers: it would refuse them again."""
    return verdict if verdict.outcome is Outcome.THERE else replace(verdict, own_numbers=False)


def _go_on(accumulator: RecordAccumulator, queue: PartitionQueue, proof: Proof) -> None:
    """Where all is proven, the batches in line get the numbers that any process with this file would give them."""
    state, partition = accumulator.producer_state, proof.partition
    proven = all(
        verdict.outcome is not Outcome.UNPROVEN and verdict.own_numbers
        for batch, verdict in zip(partition.batches, proof.verdicts, strict=True)
        if batch.numbered or batch.in_line
    )
    if isinstance(state, ProducerState) and partition.idempotent and partition.producer_id >= 0 and proven:
        line = proof.line or (partition.epoch, partition.next_sequence)
        last_offset = -1 if proof.made_again else partition.last_acked_offset
        state.go_on(queue, partition.producer_id, *line, last_offset)


def _settle_batch(
    accumulator: RecordAccumulator,
    queue: PartitionQueue,
    partition: SpooledPartition,
    batch: Batch,
    verdict: Verdict,
    *,
    keep: bool,
) -> None:
    state = accumulator.producer_state
    if verdict.outcome is Outcome.THERE:
        accumulator.discard(batch)
        if isinstance(state, ProducerState):
            if verdict.found_under is not None:
                state.note_numbers(queue, batch, partition.producer_id, *verdict.found_under)
            state.is_there(queue, batch, verdict.base_offset)
        batch.complete(verdict.base_offset, -1)
    elif verdict.outcome is Outcome.UNPROVEN and keep:
        for staying in accumulator.leave_behind(batch):
            if isinstance(state, ProducerState):
                state.drop_numbers(queue, staying)
            accumulator.discard(staying)
            staying.fail(KafkaError(f"the record stays in the file: {verdict.reason}"))
    elif not verdict.own_numbers and isinstance(state, ProducerState):
        state.forget_numbers(queue, batch)


def _tell(proof: Proof, counts: Sequence[int], *, keep: bool) -> None:
    """Warn of the records whose delivery could not be proven, once for each reason."""
    reasons: dict[str, int] = {}
    for count, verdict in zip(counts, proof.verdicts, strict=True):
        if verdict.outcome is Outcome.UNPROVEN:
            reasons[verdict.reason] = reasons.get(verdict.reason, 0) + count
    for reason, count in reasons.items():
        what = "stay in the file" if keep else "are sent, and may come a second time"
        log.warning("%s: %d recovered records %s: %s", proof.partition, count, what, reason)
