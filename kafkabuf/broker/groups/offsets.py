"""The offsets of one consumer group: committed offsets, and offsets of open transactions (OffsetMetadataManager).

A transaction's offset becomes visible with the control record that commits the transaction, unless a newer offset was
committed meanwhile. All offsets of the transaction in a group become visible at once: only their storing takes steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    # Offsets of transactions that have ended in this group, and that are still stored as pending.
    _ended: dict[int, dict[TopicPartition, tuple[int, Committed]]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending or self._ended)

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

    def delete(self, partition: TopicPartition, successor: GroupOffsets | None = None) -> None:
        """What `successor` has stored anew in the same place stays stored."""
        if self._may_have_stored(partition):
            if successor is None or not successor._may_have_stored(partition):
                self.remember(("committed", *partition), None)
            self._committed.pop(partition, None)
        for producer_id, offsets in self._stored_as_pending():
            if partition in offsets:
                if successor is None or partition not in successor._pending.get(producer_id, {}):
                    self.remember(("pending", producer_id, *partition), None)
                del offsets[partition]

    def _may_have_stored(self, partition: TopicPartition) -> bool:
        """A pending offset may be stored as committed already, while its transaction ends."""
        return partition in self._committed or any(partition in offsets for _, offsets in self._stored_as_pending())

    def _stored_as_pending(self) -> Iterator[tuple[int, dict[TopicPartition, tuple[int, Committed]]]]:
        yield from self._pending.items()
        yield from self._ended.items()

    def clear(self, successor: Callable[[], GroupOffsets | None] = lambda: None) -> Work[None]:
        """Deletes every offset, in steps. `successor` returns the offsets of a new group with the name of this
        group."""
        for partition in {*self._committed, *(named for _, offsets in self._stored_as_pending() for named in offsets)}:
            self.delete(partition, successor())
            yield

    def forget_topic(self, name: str) -> Work[None]:
        """Deletes the offsets of a topic, in steps."""
        for offsets in (self._committed, *(offsets for _, offsets in tuple(self._stored_as_pending()))):
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

    def end_transaction(self, producer_id: int, committed: bool) -> Work[None]:
        """Ends the transaction in steps. If the disk refuses a part of it, the next call does the rest. Another call
        for the same transaction may overtake this one."""
        if (offsets := self._pending.get(producer_id)) is not None:
            if committed:
                yield from self._store_committed(offsets)
            if self._pending.get(producer_id) is offsets:
                self._show_end(producer_id, committed)
        ended = self._ended.get(producer_id, {})
        while ended:
            partition = next(iter(ended))
            self.remember(("pending", producer_id, *partition), None)
            del ended[partition]
            yield
        self._ended.pop(producer_id, None)

    def _store_committed(self, offsets: dict[TopicPartition, tuple[int, Committed]]) -> Work[None]:
        for partition, (number, offset) in tuple(offsets.items()):
            if partition in offsets and self._is_newest(partition, number):
                self.remember(("committed", *partition), _state(number, offset))
            yield

    def _show_end(self, producer_id: int, committed: bool) -> None:
        """No step ends in here: a client sees all offsets of the transaction, or none."""
        offsets = self._ended[producer_id] = self._pending.pop(producer_id)
        if committed:
            self._committed |= {
                named: numbered for named, numbered in offsets.items() if self._is_newest(named, numbered[0])
            }

    def _is_newest(self, partition: TopicPartition, number: int) -> bool:
        return number > self._committed.get(partition, (-1,))[0]

    def restore(self, key: tuple[Any, ...], value: Any) -> None:
        number, offset = value[0], Committed(*value[1:])
        self._numbers = count(max(number + 1, next(self._numbers)))
        if key[0] == "committed":
            self._committed[key[1], key[2]] = number, offset
        else:
            self._pending.setdefault(key[1], {})[key[2], key[3]] = number, offset


def _state(number: int, offset: Committed) -> list[Any]:
    return [number, offset.offset, offset.leader_epoch, offset.metadata]
