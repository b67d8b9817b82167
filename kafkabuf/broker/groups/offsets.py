"""The offsets of one consumer group: committed offsets, and offsets of open transactions (OffsetMetadataManager).

A transaction's offset becomes visible with the control record that commits the transaction, unless a newer offset was
committed meanwhile. All offsets of the transaction in a group become visible at once, also where the cluster dies in
between: one entry stores the end of the transaction in this group. Only to move the offsets to their places takes
steps.
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


# The number of a commit, and what it committed.
Numbered = tuple[int, Committed]


@dataclass(slots=True)
class _Ended:
    """A transaction that has ended in this group: its offsets that are still stored as pending."""

    committed: bool
    offsets: dict[TopicPartition, Numbered] = field(default_factory=dict)


@dataclass(slots=True)
class GroupOffsets:
    """Each offset is stored with the number of its commit; the greater number is newer. GroupOffsets gives every change
    to `remember`, with None for a deleted offset, and `restore` takes the same keys and values; `restored` ends it. A
    change does not take place if `remember` refuses it with KafkaStorageError.

    The end of a transaction is stored with the number before which its offsets have theirs."""

    remember: Callable[[tuple[str | int, ...], Any], None] = lambda key, value: None
    _committed: dict[TopicPartition, Numbered] = field(default_factory=dict)
    # By producer id.
    _pending: dict[int, dict[TopicPartition, Numbered]] = field(default_factory=dict)
    _ended: dict[int, _Ended] = field(default_factory=dict)
    # What `restore` found of ended transactions, by producer id: whether committed, and the number.
    _ends: dict[int, tuple[bool, int]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending or self._ended)

    def partitions(self) -> list[TopicPartition]:
        return list(self._committed)

    def get(self, partition: TopicPartition) -> Committed | None:
        numbered = self._committed.get(partition)
        return None if numbered is None else numbered[1]

    def copy(self) -> GroupOffsets:
        """What clients see of the offsets now."""
        pending = {producer_id: dict(offsets) for producer_id, offsets in self._pending.items()}
        return GroupOffsets(_committed=dict(self._committed), _pending=pending)

    def commit(self, partition: TopicPartition, offset: Committed) -> None:
        self._commit(partition, next(self._numbers), offset)

    def _commit(self, partition: TopicPartition, number: int, offset: Committed) -> None:
        self.remember(("committed", *partition), _state(number, offset))
        self._committed[partition] = number, offset

    def delete(self, partition: TopicPartition, successor: GroupOffsets | None = None) -> None:
        """What `successor` has stored since in the same place stays stored."""
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

    def _stored_as_pending(self) -> Iterator[tuple[int, dict[TopicPartition, Numbered]]]:
        yield from self._pending.items()
        yield from ((producer_id, ended.offsets) for producer_id, ended in self._ended.items())

    def clear(self, successor: Callable[[], GroupOffsets | None] = lambda: None) -> Work[None]:
        """Deletes every offset, in steps. `successor` returns the offsets of a new group with the name of this
        group."""
        for partition in {*self._committed, *(named for _, offsets in self._stored_as_pending() for named in offsets)}:
            self.delete(partition, successor())
            yield
        for producer_id, ended in tuple(self._ended.items()):
            if (new := successor()) is None or producer_id not in new._ended:
                self._forget_end(producer_id, ended)

    def forget_topic(self, name: str) -> Work[None]:
        """Deletes the offsets of a topic, in steps."""
        for offsets in (self._committed, *(offsets for _, offsets in tuple(self._stored_as_pending()))):
            for partition in [named for named in offsets if named[0] == name]:
                self.delete(partition)
                yield

    def commit_in_transaction(self, producer_id: int, partition: TopicPartition, offset: Committed) -> None:
        if (ended := self._ended.get(producer_id)) is not None and partition in ended.offsets:
            self._move(producer_id, ended, partition)
        number = next(self._numbers)
        self.remember(("pending", producer_id, *partition), _state(number, offset))
        self._pending.setdefault(producer_id, {})[partition] = number, offset

    def unstable(self, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset of this partition."""
        return any(partition in offsets for offsets in self._pending.values())

    def end_transaction(self, producer_id: int, committed: bool) -> Work[None]:
        """Ends the transaction: at once for every client and for a restart, and in steps on the disk. If the disk
        refuses a part of it, the next call does the rest. Another call for the same transaction may overtake this
        one."""
        # A transaction of this producer may have ended before a restart.
        yield from self._move_ended(producer_id)
        if producer_id in self._pending:
            self.remember(("ended", producer_id), [committed, next(self._numbers)])
            self._show_end(producer_id, committed, self._pending.pop(producer_id))
            yield
            yield from self._move_ended(producer_id)

    def _move_ended(self, producer_id: int) -> Work[None]:
        """Moves the offsets of an ended transaction to their places on the disk, in steps."""
        if (ended := self._ended.get(producer_id)) is None:
            return
        while ended.offsets:
            self._move(producer_id, ended, next(iter(ended.offsets)))
            yield
        self._forget_end(producer_id, ended)

    def _move(self, producer_id: int, ended: _Ended, partition: TopicPartition) -> None:
        number, offset = ended.offsets[partition]
        if ended.committed and self._committed.get(partition, (-1,))[0] == number:
            self.remember(("committed", *partition), _state(number, offset))
        if partition not in self._pending.get(producer_id, {}):
            self.remember(("pending", producer_id, *partition), None)
        del ended.offsets[partition]

    def _forget_end(self, producer_id: int, ended: _Ended) -> None:
        """Another work may have done so, and a later transaction may have ended."""
        if self._ended.get(producer_id) is ended:
            self.remember(("ended", producer_id), None)
            del self._ended[producer_id]

    def _show_end(self, producer_id: int, committed: bool, offsets: dict[TopicPartition, Numbered]) -> None:
        """No step ends in here: a client sees all offsets of the transaction, or none."""
        self._ended[producer_id] = _Ended(committed, offsets)
        if committed:
            self._committed |= {
                named: numbered for named, numbered in offsets.items() if self._is_newest(named, numbered[0])
            }

    def _is_newest(self, partition: TopicPartition, number: int) -> bool:
        return number > self._committed.get(partition, (-1,))[0]

    def restore(self, key: tuple[Any, ...], value: Any) -> None:
        if key[0] == "ended":
            committed, number = value
            self._ends[key[1]] = bool(committed), number
        elif key[0] == "committed":
            number = value[0]
            self._committed[key[1], key[2]] = number, Committed(*value[1:])
        else:
            number = value[0]
            self._pending.setdefault(key[1], {})[key[2], key[3]] = number, Committed(*value[1:])
        self._numbers = count(max(number + 1, next(self._numbers)))

    def restored(self) -> None:
        """Call this after everything was restored: shows the ends of transactions that were stored."""
        for producer_id, (committed, end) in self._ends.items():
            pending = self._pending.pop(producer_id, {})
            later = {named: numbered for named, numbered in pending.items() if numbered[0] > end}
            if later:
                self._pending[producer_id] = later
            ended = {named: numbered for named, numbered in pending.items() if named not in later}
            self._show_end(producer_id, committed, ended)
        self._ends.clear()


def _state(number: int, offset: Committed) -> list[Any]:
    return [number, offset.offset, offset.leader_epoch, offset.metadata]
