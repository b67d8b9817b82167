"""The offsets of one consumer group: committed offsets, and offsets of open transactions (OffsetMetadataManager).

A transaction's offset becomes visible with the control record that commits the transaction, unless a newer offset was
committed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kafkabuf.broker.waiting.slices import Work

# Kafka's offset.metadata.max.bytes.
MAX_METADATA = 4096

# Topic and partition.
TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Committed:
    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(slots=True)
class GroupOffsets:
    """Each offset is stored with the number of its commit; the greater number is newer. GroupOffsets gives every change
    to `remember`, with None for a deleted offset, and `restore` takes the same keys and values. A change does not take
    place if `remember` refuses it with KafkaStorageError."""

    remember: Callable[[tuple[str | int, ...], Any], None] = lambda key, value: None
    _committed: dict[TopicPartition, tuple[int, Committed]] = field(default_factory=dict)
    # By producer id.
    _pending: dict[int, dict[TopicPartition, tuple[int, Committed]]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending)

    def partitions(self) -> list[TopicPartition]:
        return list(self._committed)

    def get(self, partition: TopicPartition) -> Committed | None:
        numbered = self._committed.get(partition)
        return None if numbered is None else numbered[1]

    def commit(self, partition: TopicPartition, offset: Committed) -> None:
        self._commit(partition, next(self._numbers), offset)

    def _commit(self, partition: TopicPartition, number: int, offset: Committed) -> None:
        self.remember(("committed", *partition), _state(number, offset))
        self._committed[partition] = number, offset

    def delete(self, partition: TopicPartition) -> None:
        if partition in self._committed:
            self.remember(("committed", *partition), None)
            del self._committed[partition]
        for producer_id, offsets in self._pending.items():
            if partition in offsets:
                self.remember(("pending", producer_id, *partition), None)
                del offsets[partition]

    def clear(self) -> None:
        for partition in {*self._committed, *(pending for offsets in self._pending.values() for pending in offsets)}:
            self.delete(partition)

    def forget_topic(self, name: str) -> Work[None]:
        """Deletes the offsets of a topic, in steps."""
        for offsets in (self._committed, *self._pending.values()):
            for partition in [named for named in offsets if named[0] == name]:
                self.delete(partition)
                yield

    def commit_in_transaction(self, producer_id: int, partition: TopicPartition, offset: Committed) -> None:
        number = next(self._numbers)
        self.remember(("pending", producer_id, *partition), _state(number, offset))
        self._pending.setdefault(producer_id, {})[partition] = number, offset

    def unstable(self, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset of this partition."""
        return any(partition in offsets for offsets in self._pending.values())

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """If the disk refuses a part of it, the next call does the rest."""
        offsets = self._pending.get(producer_id, {})
        for partition, (number, offset) in list(offsets.items()):
            if committed and number > self._committed.get(partition, (-1,))[0]:
                self._commit(partition, number, offset)
            self.remember(("pending", producer_id, *partition), None)
            del offsets[partition]
        self._pending.pop(producer_id, None)

    def restore(self, key: tuple[Any, ...], value: Any) -> None:
        number, offset = value[0], Committed(*value[1:])
        self._numbers = count(max(number + 1, next(self._numbers)))
        if key[0] == "committed":
            self._committed[key[1], key[2]] = number, offset
        else:
            self._pending.setdefault(key[1], {})[key[2], key[3]] = number, offset


def _state(number: int, offset: Committed) -> list[Any]:
    return [number, offset.offset, offset.leader_epoch, offset.metadata]
