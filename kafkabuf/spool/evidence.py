"""The values of the proof: what the file remembers, what the cluster says, and what is concluded of each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from kafkabuf.admin.admin import ActiveProducer
from kafkabuf.errors import KafkaError
from kafkabuf.spool.headers import BatchHeader
from kafkabuf.transactions.groups import TopicPartition

LARGEST_SEQUENCE = 0x7FFFFFFF  # the next sequence is 0
NONE = -1


# ---- what the file remembers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpooledBatch:
    """One batch of the file. `number` is the caller's own name for it.

    Id, epoch and first sequence are those of the batch's header as it was last sent, -1 each if it was never drained. A
    batch that got new numbers (`Batch.renumbered`) and has not gone under them keeps the old ones in its header.
    `in_line`: whether a batch without numbers goes under the file's id (batches/_sequences.pxd).
    """

    number: int
    producer_id: int
    epoch: int
    base_sequence: int
    count: int
    largest_timestamp: int
    base_timestamp: int = NONE
    in_line: bool = True

    @property
    def numbered(self) -> bool:
        return self.producer_id >= 0 and self.base_sequence >= 0

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.count - 1) & LARGEST_SEQUENCE


@dataclass(frozen=True)
class SpooledPartition:
    """A partition's batches in order, and what the file remembers of the partition.

    `producer_id` and `epoch` are those of the partition's newest numbers; the file's newest, if the partition has given
    none. `last_acked` is the last acknowledged sequence under them, and `next_sequence` follows the last sequence that
    was given. No batch of the file lies at or below `last_acked_offset`, unless a later batch was acknowledged before
    it. -1: unknown. `idempotent`: whether the batches get numbers (magic 2, enable.idempotence). `cluster_id`: of the
    cluster for which the file was; "": unknown.
    """

    topic: str
    topic_id: UUID | None
    partition: int
    producer_id: int
    epoch: int
    last_acked: int
    last_acked_offset: int
    next_sequence: int
    batches: Sequence[SpooledBatch]
    idempotent: bool = True
    cluster_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    def has_current_numbers(self, batch: SpooledBatch) -> bool:
        return (batch.producer_id, batch.epoch) == (self.producer_id, self.epoch)

    @property
    def last_given(self) -> int:
        """The last sequence that was given under the newest numbers; -1 for none."""
        given = self.last_acked >= 0 or self.next_sequence > 0
        given = given or any(batch.numbered and self.has_current_numbers(batch) for batch in self.batches)
        return (self.next_sequence - 1) & LARGEST_SEQUENCE if given else NONE


# ---- what the cluster says -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a partition's leader remembers of producers, by id; or the lasting error with which it told nothing.

    `topic_id`, `leader_epoch` and `cluster_id` are those of the metadata by which the leader was chosen.
    """

    topic_id: UUID | None
    leader_epoch: int
    producers: Mapping[int, ActiveProducer] | KafkaError
    cluster_id: str = ""


@dataclass(frozen=True)
class Stretch:
    """A part of a log: the headers of its batches in order. `log_start` and `high_watermark` are those of the log."""

    log_start: int
    high_watermark: int
    headers: Sequence[BatchHeader]


# ---- the result ------------------------------------------------------------------------------------------------------


class Outcome(Enum):
    """What is known of a batch: rules.py has the table."""

    THERE = "there"
    ABSENT = "absent"
    FORGOTTEN = "forgotten"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class Verdict:
    """What is known of one batch. `base_offset` is -1 unless the batch was found in the log.

    `own_numbers`: the leader takes the batch under the numbers that it has. They also keep a late request of the dead
    process out, so new numbers are for batches without it alone. `found_under`: epoch and first sequence under which
    the log has a batch that has no numbers in the file.
    """

    outcome: Outcome
    base_offset: int = NONE
    own_numbers: bool = True
    reason: str = ""
    found_under: tuple[int, int] | None = None


@dataclass(frozen=True)
class Proof:
    """A verdict for each batch of a partition, in their order.

    `restored` says why the file must be older than the cluster ("": it seems to be the newest). `made_again`: the topic
    has another id than the file knows. `other_cluster`: why the numbers of the file mean nothing here. `line`: epoch
    and next sequence of the file's id, where its batches without numbers go on; None: where the file says.
    """

    partition: SpooledPartition
    verdicts: Sequence[Verdict]
    restored: str = ""
    made_again: bool = False
    other_cluster: str = ""
    line: tuple[int, int] | None = None
