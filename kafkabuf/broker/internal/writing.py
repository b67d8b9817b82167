"""Writes the state of groups and transactional ids to the internal topics, as records in Kafka's formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafkabuf.broker.groups.group import Group
from kafkabuf.broker.groups.groups import Groups, offsets_partition
from kafkabuf.broker.groups.offsets import Committed
from kafkabuf.broker.internal.formats import (
    Record,
    batch_of,
    group_key,
    group_value,
    offset_key,
    offset_value,
    transaction_key,
    transaction_value,
)
from kafkabuf.broker.records._batch import BatchInfo, stamp
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.transactions.coordinator import Transaction
from kafkabuf.clock import Clock


class StateWriter:
    """Writes to one topic, to the partition of the group or of the transactional id. `flexible` chooses version 1 of
    TransactionLogValue."""

    def __init__(self, topic: Topic, clock: Clock, flexible: bool) -> None:
        self._topic = topic
        self._clock = clock
        self._flexible = flexible

    def offset_changed(self, key: tuple[Any, ...], value: Any) -> None:
        """A group's state has changed, as GroupOffsets remembers it."""
        if len(key) == 4 and key[1] == "committed":
            group, _, topic, partition = key
            committed = None if value is None else offset_value(Committed(*value[1:]), self._clock.time_ms())
            self._write(group, [(offset_key(group, topic, partition), committed)])

    def group_changed(self, group: Group) -> None:
        """A classic group has a new generation."""
        self._write(group.group_id, [_group_record(group, self._clock.time_ms())])

    def group_deleted(self, group_id: str) -> None:
        self._write(group_id, [(group_key(group_id), None)])

    def transaction_changed(self, transaction: Transaction) -> None:
        value = transaction_value(transaction, self._flexible, self._clock.time_ms())
        name = transaction.transactional_id
        self._write(name, [(transaction_key(name), value)])

    def write_groups(self, groups: Groups) -> None:
        """Writes the present state of all groups."""
        now_ms = self._clock.time_ms()
        for group in groups:
            records: list[Record] = []
            for topic, partition in group.offsets.partitions():
                committed = group.offsets.get((topic, partition))
                assert committed is not None
                records.append((offset_key(group.group_id, topic, partition), offset_value(committed, now_ms)))
            if isinstance(group, Group) and group.generation:
                records.append(_group_record(group, now_ms))
            if records:
                self._write(group.group_id, records)

    def _write(self, key: str, records: Iterable[Record]) -> None:
        """Appends the records to the partition of `key`, whose replicas share their log."""
        partition = self._topic.partitions[offsets_partition(key)]
        data, count = batch_of(records, now_ms := self._clock.time_ms())
        log, epoch = next(iter(partition.replicas.values())).log, max(partition.leader_epoch, 0)
        stamp(data, log.end_offset, epoch)
        log.append(data, BatchInfo(count, now_ms, 2), epoch)
        for replica in partition.replicas.values():
            replica.wake()


def _group_record(group: Group, now_ms: int) -> Record:
    return group_key(group.group_id), group_value(group, now_ms)
