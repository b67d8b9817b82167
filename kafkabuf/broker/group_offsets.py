"""The offsets of one consumer group: committed ones, and those of transactions that have not ended yet.

What a transaction commits becomes visible with its marker, unless something newer was committed meanwhile (Kafka's
OffsetMetadataManager).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

# Topic and partition.
TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Committed:
    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(slots=True)
class GroupOffsets:
    """Each offset beside the number of its commit: the greater number is the newer one."""

    _committed: dict[TopicPartition, tuple[int, Committed]] = field(default_factory=dict)
    # By producer id.
    _pending: dict[int, dict[TopicPartition, tuple[int, Committed]]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending)

    def partitions(self) -> list[TopicPartition]:
        return list(self._committed)

    def get(self, partition: TopicPartition) -> Committed | None:
        found = self._committed.get(partition)
        return None if found is None else found[1]

    def commit(self, partition: TopicPartition, offset: Committed) -> None:
        self._committed[partition] = next(self._numbers), offset

    def commit_in_transaction(self, producer_id: int, partition: TopicPartition, offset: Committed) -> None:
        self._pending.setdefault(producer_id, {})[partition] = next(self._numbers), offset

    def unstable(self, partition: TopicPartition) -> bool:
        """Whether a transaction that has not ended would commit an offset here."""
        return any(partition in offsets for offsets in self._pending.values())

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        for partition, (number, offset) in self._pending.pop(producer_id, {}).items():
            if committed and number > self._committed.get(partition, (-1,))[0]:
                self._committed[partition] = number, offset
