"""Applies a proof to the queues: what becomes of each recovered batch of a partition. Thread: Sender.

| proof                          | the batch                                                                        |
|--------------------------------|----------------------------------------------------------------------------------|
| THERE                          | ends as acknowledged                                                             |
| ABSENT                         | goes under its own numbers                                                       |
| FORGOTTEN, with own numbers    | goes under its own numbers, alone: the leader takes any first number             |
| FORGOTTEN, without             | goes under new numbers, as do all behind it                                      |
| UNPROVEN, unproven=deliver     | goes, perhaps a second time; a warning says why                                  |
| UNPROVEN, unproven=keep        | stays in the file for the next producer; those behind it go                      |

The queue was muted from its adoption on, so that nothing of the partition went before. New records stand behind.
"""

from __future__ import annotations

from kafkabuf.batches._batch import Batch
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.errors import KafkaError
from kafkabuf.process.producer_log import producer_log
from kafkabuf.spool.evidence import Outcome, Proof, Verdict
from kafkabuf.spool.recovered import Recovered, RecoveredPartition
from kafkabuf.transactions.idempotence import ProducerState

log = producer_log("kafkabuf.producer")


def settle(accumulator: RecordAccumulator, recovered: Recovered, proof: Proof, *, keep: bool) -> None:
    """Settle a partition. `keep` is kafkabuf.buffer.unproven=keep. A call that found no memory may be made again."""
    held = recovered.partitions[proof.partition.place]
    held.verdicts = proof.verdicts
    if proof.restored:
        log.warning(
            "%s seems to be an old copy: %s. Records of it that another process has delivered since may come a second "
            "time", recovered.path, proof.restored,
        )  # fmt: skip
    for batch, verdict in zip(held.batches, proof.verdicts, strict=True):
        if not batch.done:  # else the user has purged it, or an earlier call has settled it
            _settle_batch(accumulator, held, batch, verdict, keep=keep)
    _tell(held, keep=keep)
    held.queue.muted = False


def _settle_batch(
    accumulator: RecordAccumulator, held: RecoveredPartition, batch: Batch, verdict: Verdict, *, keep: bool
) -> None:
    queue, state = held.queue, accumulator.producer_state
    if verdict.outcome is Outcome.THERE:
        accumulator.discard(batch)
        if isinstance(state, ProducerState):
            state.is_there(queue, batch, verdict.base_offset)
        batch.complete(verdict.base_offset, -1)
    elif verdict.outcome is Outcome.UNPROVEN and keep:
        if isinstance(state, ProducerState):
            state.drop_numbers(queue, batch)
        accumulator.leave_behind(batch)
        accumulator.discard(batch)
        batch.fail(KafkaError(f"the record stays in the file: {verdict.reason}"))
    elif not verdict.own_numbers and isinstance(state, ProducerState):
        state.forget_numbers(queue, batch)


def _tell(held: RecoveredPartition, *, keep: bool) -> None:
    """Warn of the records whose delivery could not be proven, once for each reason."""
    reasons: dict[str, int] = {}
    for count, verdict in zip(held.counts, held.verdicts, strict=True):
        if verdict.outcome is Outcome.UNPROVEN:
            reasons[verdict.reason] = reasons.get(verdict.reason, 0) + count
    for reason, count in reasons.items():
        what = "stay in the file" if keep else "are sent, and may come a second time"
        log.warning("%s: %d recovered records %s: %s", held.evidence, count, what, reason)
