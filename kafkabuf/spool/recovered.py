"""What came of the records that the producer found in its file: `KafkaProducer.recovered`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kafkabuf.batches._accumulator import PartitionQueue
from kafkabuf.batches._batch import Batch
from kafkabuf.spool.commits import Commit
from kafkabuf.spool.evidence import Outcome, SpooledPartition, Verdict
from kafkabuf.transactions.groups import TopicPartition


class RecoveredPartition:
    """The batches of one partition, in order, and the proof of each once the cluster has been asked."""

    evidence: SpooledPartition

    def __init__(self, queue: PartitionQueue) -> None:
        self.queue = queue
        self.batches: list[Batch] = []
        self.places: list[int] = []  # of their entries in the file
        self.counts: list[int] = []  # of records
        self.bytes = 0
        self.verdicts: Sequence[Verdict] = ()  # empty until the proof

    def add(self, batch: Batch, place: int, size: int) -> None:
        self.batches.append(batch)
        self.places.append(place)
        self.counts.append(batch.count)
        self.bytes += size

    @property
    def records(self) -> int:
        return sum(self.counts)

    def proven(self, outcome: Outcome) -> int:
        """Records of the batches with this outcome."""
        return sum(
            count for count, verdict in zip(self.counts, self.verdicts, strict=False) if verdict.outcome is outcome
        )

    @property
    def ended(self) -> bool:
        """Whether each batch has its outcome, as behind a purge: then it does not matter what the cluster has."""
        return all(part.done for part in self._sent())

    def delivered(self) -> int:
        """Records that this process has delivered."""
        return sum(part.count for part in self._sent() if part.succeeded)

    def failed(self) -> int:
        return sum(part.count for part in self._sent() if part.done and not part.succeeded and not part.left)

    def left(self) -> int:
        """Records that stay in the file, although the producer has ended or may not send them."""
        return sum(part.count for batch in self.batches for part in self._parts(batch) if part.left)

    def _sent(self) -> Iterator[Batch]:
        for place, batch in enumerate(self.batches):
            if place >= len(self.verdicts) or self.verdicts[place].outcome is not Outcome.THERE:
                yield from self._parts(batch)

    def _parts(self, batch: Batch) -> list[Batch]:
        """The parts into which the batch fell since it was recovered. It may be a part of a whole itself."""
        own: list[Batch] = []
        for part in (batch.whole or batch).parts or [batch]:
            if own and own[-1] in self.batches:
                own.clear()
            own.append(part)
            if part is batch:
                break
        return own


@dataclass
class Recovered:
    """The records that the file held when the producer opened it, and what has come of them up to now.

    Counts of records are by (topic, partition), if nothing else is said. `uncommitted` records belonged to a
    transaction that was not committed, and were dropped. `commit` is the commit that the process before had begun last
    and not followed by another transaction; None: there is none. `damaged` has a line for each batch that is put aside.
    `restored` says, for each partition of which the cluster knows more than the file, what it knows: the file is an old
    copy, and another process has delivered from the same file. `other_cluster` names both clusters if the file is for
    another one than the producer's.
    """

    path: str
    partitions: dict[TopicPartition, RecoveredPartition] = field(default_factory=dict)
    uncommitted: Counter[TopicPartition] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)
    commit: Commit | None = None
    restored: dict[TopicPartition, str] = field(default_factory=dict)
    other_cluster: str = ""

    def __bool__(self) -> bool:
        return bool(self.partitions or self.uncommitted or self.damaged)

    @property
    def records(self) -> Counter[TopicPartition]:
        """All records of the file that can be read, except the uncommitted."""
        return Counter({place: partition.records for place, partition in self.partitions.items()})

    @property
    def bytes(self) -> int:
        """Bytes of these records, with the headers of their batches."""
        return sum(partition.bytes for partition in self.partitions.values())

    @property
    def acknowledged(self) -> Counter[TopicPartition]:
        """Records that the cluster had already: they are not sent again."""
        return self._count({place: each.proven(Outcome.THERE) for place, each in self.partitions.items()})

    @property
    def delivered(self) -> Counter[TopicPartition]:
        """Records that this producer has delivered."""
        return self._count({place: each.delivered() for place, each in self.partitions.items()})

    @property
    def unproven(self) -> Counter[TopicPartition]:
        """Records of which nobody can know whether the cluster had them: delivered once more, or kept."""
        return self._count({place: each.proven(Outcome.UNPROVEN) for place, each in self.partitions.items()})

    @property
    def kept(self) -> Counter[TopicPartition]:
        """Records that stay in the file: they are unproven, or the cluster refuses them for good, or the producer was
        closed too early for them."""
        return self._count({place: each.left() for place, each in self.partitions.items()})

    @property
    def failed(self) -> Counter[TopicPartition]:
        """Records that the user has purged, or that were dropped for newer records."""
        return self._count({place: each.failed() for place, each in self.partitions.items()})

    @property
    def unsettled(self) -> int:
        """The number of partitions whose records wait until the cluster has said which of them it has."""
        return sum(not (partition.verdicts or partition.ended) for partition in self.partitions.values())

    @property
    def pending(self) -> int:
        """The number of records that have no outcome yet."""
        ended = self.acknowledged + self.delivered + self.kept + self.failed
        return self.records.total() - ended.total()

    def held(self) -> str:
        """What the file held, in words."""
        return (
            f"{self.records.total()} records of {len(self.partitions)} partitions ({self.bytes} bytes), "
            f"{self.uncommitted.total()} of an uncommitted transaction (dropped), and {len(self.damaged)} damaged "
            "batches"
        )

    def __str__(self) -> str:
        came = ", ".join(
            f"{count} {name}"
            for name, count in (
                ("acknowledged before", self.acknowledged.total()),
                ("delivered now", self.delivered.total()),
                ("unproven", self.unproven.total()),
                ("kept", self.kept.total()),
                ("failed", self.failed.total()),
                ("pending", self.pending),
            )
            if count
        )
        copy = ", an old copy," if self.restored else ""
        return f"{self.path}{copy} held {self.held()}: {came or 'nothing to deliver'}"

    @staticmethod
    def _count(counts: dict[TopicPartition, int]) -> Counter[TopicPartition]:
        return Counter({place: count for place, count in counts.items() if count})
