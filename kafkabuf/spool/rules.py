"""The rules of the proof: what the leader's memory and the log say of a batch. Pure functions over values.

| outcome   | the log         | what the Sender does                                                   |
|-----------|-----------------|------------------------------------------------------------------------|
| THERE     | has the batch   | frees it                                                               |
| ABSENT    | lacks the batch | sends it under its own numbers: id, epoch and first sequence           |
| FORGOTTEN | lacks the batch | sends it; the leader's memory does not lead up to it: `own_numbers`    |
| UNPROVEN  | cannot be known | what the user has chosen; `reason` says what to grant, or what is gone |

**Two witnesses.** The leader's memory of a producer id (DescribeProducers) is cheap, and is right as long as it fits to
what the file knows. The log is right as long as it is whole. The rules, the first that fits:

| what the leader says of the batch's producer id                        | verdict                                    |
|------------------------------------------------------------------------|--------------------------------------------|
| the batch has no numbers, and idempotence was off (or magic 1)         | UNPROVEN                                   |
| the batch has no numbers, the cluster knows no more than the file      | ABSENT: only a numbered batch is ever sent |
| the batch has no numbers, and the cluster knows more than the file     | the log: `_follow`                         |
| the batch has no numbers, and the leader has forgotten the file's id   | the log, from the last acknowledged offset |
| another cluster leads the topic than the file was for                  | UNPROVEN: its ids belong to other producers |
| the topic was made again: its id is not the file's                     | the log, from its start                    |
| nothing: no right to ask, or a broker older than Kafka 2.8             | the log; ABSENT if it lacks the batch      |
| it does not know the id                                                | the log; FORGOTTEN if it lacks the batch   |
| an epoch older than the batch's                                        | ABSENT: no batch of a newer epoch came     |
| an epoch newer than the batch's                                        | the log; FORGOTTEN, not with own numbers   |
| the batch's epoch, and a last sequence that the file cannot have left  | the log; FORGOTTEN, not with own numbers   |
| the batch's epoch, and a last sequence before the batch                | ABSENT                                     |
| the batch's epoch, and a last sequence at or behind the batch's end    | THERE, once that is committed              |

Why these hold:

- A leader appends the batches of an id and epoch in the order of their sequences and without a gap, from the first
  that it takes. The Sender lets one batch alone go to a leader that may not know the id (batches/_sequences.pxd). So a
  last sequence divides the batches into those that came and those that did not.
- A last sequence that the file cannot have left is one before `last_acked`, behind the last that was given, within a
  batch, or at the end of a batch whose largest timestamp is another. The leader then speaks of another life of this
  producer, or the topic has message.timestamp.type=LogAppendTime: its largest timestamps are the broker's.
- A request of the dead process may still wait in a broker's socket, or in the queue of a broker that pauses. ABSENT is
  safe against it, because the leader refuses a second batch with the same numbers. So is FORGOTTEN with own numbers: a
  leader (Kafka 2.5 on) takes any first sequence of an id that it does not know. **New numbers are not**: they are for
  the cases in which the own numbers are refused. There a late request is refused too.
- A leader forgets an id producer.id.expiration.ms after the newest timestamp of its records, and not after its last
  request: it may forget an id at any time that sends what has waited for a day. Then the log decides.
- A batch of the leader's memory, or of its log behind the high watermark, is lost if the leader dies now. A broker
  that is no leader any more answers DescribeProducers too. So `ends` asks the leader, in the epoch that metadata names,
  for an offset `bound` below which its whole log lies, and `prove` waits until the high watermark has reached it.
  THERE says by that what acks=all says. The log is read up to the same bound, because a batch behind the high
  watermark is not absent.
- The log is read from the offset behind the last acknowledged. Batches that are in doubt came after it, unless a later
  batch was acknowledged before them, or the log is shorter: then the whole log is read. Topic ids (Kafka 2.8 on) tell
  a topic that was made again; without them a longer log passes for the old. An offset in no batch is a hole: retention,
  DeleteRecords and compaction leave one. Where there is none, what was not found is not there, so `cleanup.policy` does
  not matter and nobody needs the right to ask for it. A compacted batch keeps its header while it has a record.
- A file that was restored from a copy is older than the cluster: the leader has a newer epoch or sequence than the file
  ever gave, or the log has. `Proof.restored` says so. Such numbers may stand for other records, so each match must have
  the same count and timestamps.
- What was not numbered in the copy has known numbers all the same, if it is in line: each process sends the line in its
  order, and with nothing in between (batches/_sequences.pxd). That is behind the file's last number, if
  the process that made the file has gone on, or from 0 on in the next epoch, if another process has opened the file.
  The log is followed from there. Where it has more of the id than these batches, another process has sent something
  else, perhaps the same records in other batches: what was not found is UNPROVEN. Else it is ABSENT, and goes on behind
  what was found.
- A copy is not recognised where the leader has forgotten the id and the file knows no acknowledged offset: nobody reads
  a whole log for the sake of a file that is most likely no copy. Nor is one whose process never had an id.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from kafkabuf.admin.admin import ActiveProducer
from kafkabuf.errors import KafkaError
from kafkabuf.spool.evidence import (
    LARGEST_SEQUENCE,
    NONE,
    Answer,
    Outcome,
    Proof,
    SpooledBatch,
    SpooledPartition,
    Stretch,
    Verdict,
)
from kafkabuf.spool.headers import BatchHeader


def is_later(sequence: int, reference: int) -> bool:
    """Whether a sequence comes after another. 0 follows the largest; -1 (none) comes before all."""
    if reference < 0:
        return sequence >= 0
    return sequence != reference and ((sequence - reference) & LARGEST_SEQUENCE) <= LARGEST_SEQUENCE // 2


def was_made_again(partition: SpooledPartition, answer: Answer) -> bool:
    return None not in (partition.topic_id, answer.topic_id) and partition.topic_id != answer.topic_id


def of_another_cluster(partition: SpooledPartition, answer: Answer) -> Proof | None:
    """Nothing goes under the file's numbers there: they are those of a producer of that cluster."""
    if partition.cluster_id in ("", answer.cluster_id) or not answer.cluster_id:
        return None
    reason = f"the file is for cluster {partition.cluster_id!r}, and this is cluster {answer.cluster_id!r}"
    verdict = Verdict(Outcome.UNPROVEN, own_numbers=False, reason=reason)
    return Proof(partition, [verdict for _ in partition.batches], other_cluster=reason)


def newer_than_file(partition: SpooledPartition, epoch: int, last_sequence: int) -> str:
    """Why numbers of the file's producer id cannot be the file's: a newer epoch or sequence. "" if they can."""
    if epoch > partition.epoch:
        return f"{partition} has epoch {epoch} of this producer, and the file has epoch {partition.epoch}"
    if epoch == partition.epoch and is_later(last_sequence, partition.last_given):
        given = f"the file has given no sequence after {partition.last_given}"
        return f"{partition} has sequence {last_sequence} of this producer, and {given}"
    return ""


def by_memory(partition: SpooledPartition, answer: Answer) -> tuple[list[Verdict | None], str]:
    """The verdicts that the leader's memory gives, None where the log must be read, and why the file is a copy."""
    restored, producers = "", answer.producers
    made_again = was_made_again(partition, answer)
    if not isinstance(producers, KafkaError) and partition.producer_id in producers:
        known = producers[partition.producer_id]
        restored = newer_than_file(partition, known.producer_epoch, known.last_sequence)
    verdicts: list[Verdict | None] = []
    for batch in partition.batches:
        if not batch.numbered:
            forgotten = not isinstance(producers, KafkaError) and partition.producer_id not in producers
            reads = partition.idempotent and (
                restored or (forgotten and batch.in_line and partition.last_acked_offset >= 0)
            )
            verdicts.append(None if reads else unnumbered(partition))
        elif made_again or isinstance(producers, KafkaError):
            verdicts.append(None)
        else:
            verdicts.append(_numbered(partition, batch, producers.get(batch.producer_id)))
    return verdicts, restored


def unnumbered(partition: SpooledPartition) -> Verdict:
    if not partition.idempotent:
        reason = "it was sent without producer id and sequence (enable.idempotence=false, or magic 1)"
        return Verdict(Outcome.UNPROVEN, reason=f"the log cannot tell whether it has the batch: {reason}")
    return Verdict(Outcome.ABSENT)


def _numbered(partition: SpooledPartition, batch: SpooledBatch, known: ActiveProducer | None) -> Verdict | None:
    if known is None or known.producer_epoch > batch.epoch:
        return None
    if known.producer_epoch < batch.epoch:
        return Verdict(Outcome.ABSENT)
    if not _can_be_left_by(partition, batch, known):
        return None
    came = not is_later(batch.base_sequence, known.last_sequence)
    return Verdict(Outcome.THERE if came else Outcome.ABSENT)


def _can_be_left_by(partition: SpooledPartition, batch: SpooledBatch, known: ActiveProducer) -> bool:
    """Whether the process that wrote the file can have left this last sequence at the leader, under the batch's
    numbers."""
    last = known.last_sequence
    numbers = batch.producer_id, batch.epoch
    group = [each for each in partition.batches if each.numbered and (each.producer_id, each.epoch) == numbers]
    if partition.has_current_numbers(batch):
        lowest, highest = partition.last_acked, partition.last_given
    else:  # the file has forgotten what else it gave under these numbers
        lowest = (group[0].base_sequence - 1) & LARGEST_SEQUENCE if group[0].base_sequence else NONE
        highest = group[-1].last_sequence
    if last < 0:
        return lowest < 0
    if is_later(last, highest) or (lowest >= 0 and is_later(lowest, last)):
        return False
    for each in group:
        if (last - each.base_sequence) & LARGEST_SEQUENCE < each.count:
            return last == each.last_sequence and known.last_timestamp in (NONE, each.largest_timestamp)
    return True


@dataclass
class Tail:
    """What was read of a log up to the offset `position`: the headers under the file's ids, and the first hole."""

    topic_id: UUID | None
    position: int
    hole: tuple[int, int] | None = None
    headers: list[BatchHeader] = field(default_factory=list)
    reads: int = 0
    empty_at: int = NONE  # the last read of this position has brought no batch

    def add(self, stretch: Stretch, producer_ids: Collection[int]) -> bool:
        """Returns whether the reading got on.

        A read below the high watermark that brings nothing counts at the second time only: the watermark may have
        risen between the reading of the log and the response.
        """
        before = self.position
        for header in stretch.headers:
            self._move(header.base_offset)
            self.position = max(self.position, header.last_offset + 1)
            if header.producer_id in producer_ids:
                self.headers.append(header)
        if not stretch.headers and stretch.log_start > before:
            self._move(stretch.log_start)
        elif not stretch.headers and self.empty_at == before:  # the end of the log was compacted
            self._move(stretch.high_watermark)
        elif not stretch.headers:
            self.empty_at = before
        self.reads += 1
        return self.position > before

    def _move(self, offset: int) -> None:
        if offset > self.position:
            self.hole = self.hole or (self.position, offset - 1)
            self.position = offset


def first_offset(partition: SpooledPartition, answer: Answer) -> int:
    """Where the reading begins: every numbered batch without a verdict lies there or behind, if the log has it."""
    if was_made_again(partition, answer):
        return 0
    for batch in partition.batches:
        acked = partition.last_acked >= 0 and not is_later(batch.base_sequence, partition.last_acked)
        if batch.numbered and (acked or not partition.has_current_numbers(batch)):
            return 0
    return partition.last_acked_offset + 1


def find(batch: SpooledBatch, headers: Sequence[BatchHeader]) -> tuple[BatchHeader | None, BatchHeader | None]:
    """The batch's own header, and a header that has some of its numbers and belongs to other records."""
    other = None
    for header in headers:
        if (header.producer_id, header.producer_epoch) != (batch.producer_id, batch.epoch):
            continue
        behind = (header.base_sequence - batch.base_sequence) & LARGEST_SEQUENCE
        before = (batch.base_sequence - header.base_sequence) & LARGEST_SEQUENCE
        if behind == 0 and header.count == batch.count and header.largest_timestamp in (NONE, batch.largest_timestamp):
            return header, None
        if behind < batch.count or before < header.count:
            other = header
    return None, other


def by_log(
    partition: SpooledPartition, answer: Answer, verdicts: Sequence[Verdict | None], restored: str, tail: Tail
) -> Proof:
    """Completes the verdicts by what was read of the log."""
    made_again = was_made_again(partition, answer)
    completed: list[Verdict] = []
    for header in tail.headers:
        if not restored and header.producer_id == partition.producer_id:
            last = (header.base_sequence + header.count - 1) & LARGEST_SEQUENCE
            restored = newer_than_file(partition, header.producer_epoch, last)
    for batch, verdict in zip(partition.batches, verdicts, strict=True):
        if verdict is None and batch.numbered:
            verdict = _read(partition, batch, answer, tail)
            _, other = find(batch, tail.headers)
            restored = restored or ("" if other is None else verdict.reason)
        completed.append(verdict or unnumbered(partition))
    line = None
    if restored and partition.idempotent:  # the reading may have shown it after the leader's memory gave the verdict
        followed, line = _follow(partition, tail, restored)
        rest = iter(followed)
        completed = [
            old if batch.numbered else next(rest) for batch, old in zip(partition.batches, completed, strict=True)
        ]
    return Proof(partition, completed, restored, made_again, line=line)


def _follow(partition: SpooledPartition, tail: Tail, restored: str) -> tuple[list[Verdict], tuple[int, int]]:
    """What another process has sent of the batches without numbers, and where their numbers go on."""
    batches = [batch for batch in partition.batches if not batch.numbered]
    headers = [header for header in tail.headers if header.producer_id == partition.producer_id]
    at = partition.epoch, partition.next_sequence
    verdicts: list[Verdict] = []
    for batch in batches:
        header = _at(at, batch, headers) if batch.in_line else None
        if header is None and batch.in_line and at[0] == partition.epoch:
            header = _at((partition.epoch + 1, 0), batch, headers)
        if header is None:
            break
        at = header.producer_epoch, (header.base_sequence + header.count) & LARGEST_SEQUENCE
        verdicts.append(Verdict(Outcome.THERE, header.base_offset, found_under=(at[0], header.base_sequence)))
    ends = [(each.producer_epoch, (each.base_sequence + each.count) & LARGEST_SEQUENCE) for each in headers]
    nothing_else = tail.hole is None and ends[-1:] == [at]
    reason = f"another process may have sent the batch: {restored}"
    unproven = Verdict(Outcome.UNPROVEN, own_numbers=False, reason=reason)
    rest = batches[len(verdicts) :]
    return verdicts + [Verdict(Outcome.ABSENT) if nothing_else and batch.in_line else unproven for batch in rest], at


def _at(at: tuple[int, int], batch: SpooledBatch, headers: Sequence[BatchHeader]) -> BatchHeader | None:
    """The header with these numbers, if the batch's records are the first of that batch.

    The process that made the file may have appended further records to the batch after the copy was taken.
    """
    for header in headers:
        if (header.producer_epoch, header.base_sequence) != at or header.base_timestamp != batch.base_timestamp:
            continue
        same_end = header.largest_timestamp in (NONE, batch.largest_timestamp)
        if header.count > batch.count or (header.count == batch.count and same_end):
            return header
    return None


def _read(partition: SpooledPartition, batch: SpooledBatch, answer: Answer, tail: Tail) -> Verdict:
    header, other = find(batch, tail.headers)
    own_numbers = isinstance(answer.producers, KafkaError) or batch.producer_id not in answer.producers
    if header is not None:
        return Verdict(Outcome.THERE, header.base_offset, own_numbers)
    if other is not None:
        reason = f"offset {other.base_offset} of {partition} has other records under numbers of the batch"
        return Verdict(Outcome.UNPROVEN, own_numbers=False, reason=reason)
    if tail.hole is not None:
        first, last = tail.hole
        offsets = f"offsets {first} to {last} of {partition}"
        reason = f"{offsets} are gone (retention, DeleteRecords or compaction): the batch may have been there"
        return Verdict(Outcome.UNPROVEN, own_numbers=own_numbers, reason=reason)
    if isinstance(answer.producers, KafkaError):
        return Verdict(Outcome.ABSENT)
    return Verdict(Outcome.FORGOTTEN, own_numbers=own_numbers)


def refused(partition: SpooledPartition, verdicts: Sequence[Verdict | None], restored: str, why: KafkaError) -> Proof:
    """The log may not be read."""
    if isinstance(why, PermissionError):
        wanted = f"grant this user Read on topic {partition.topic!r}"
    else:
        wanted = "the broker cannot be asked"
    unproven = Verdict(Outcome.UNPROVEN, reason=f"the log of {partition} cannot be read: {wanted} ({why})")
    completed = [unproven if verdict is None or verdict.outcome is Outcome.THERE else verdict for verdict in verdicts]
    return Proof(partition, completed, restored)
