"""The leader appends a producer's batch to its log (Kafka's ReplicaManager.appendToLocalLog).

Version 2 of Produce brings message sets of magic 0 and 1, later versions a single batch of magic 2. The leader checks
the batch and its records, writes its base offset and leader epoch into the header, and stores all other bytes as they
came, except for timestamps that the topic's message.timestamp.type replaces. The leader checks the batches of
idempotent producers against the partition's producer state (log/producer_state.py). Before a transaction's first batch
in a partition, the leader asks the coordinator whether the partition is part of the transaction. From version 12 on the
coordinator then adds the partition to the transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from kafkabuf.broker.log import batch, message_set, records
from kafkabuf.broker.log.batch import BatchInfo
from kafkabuf.broker.log.validator import RefusedRecordsError, check_records
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.replica.topics import Catalogue
from kafkabuf.broker.transactions import Transactions
from kafkabuf.clock import Clock
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaError,
    NotEnoughReplicasError,
    TransactionalIdAuthorizationError,
)

ALL = -1
_FIRST_OF_BATCHES = 3
_FIRST_TO_KNOW_ABORTABLE = 11
_FIRST_OF_VERSION_2 = 12


class Config(Protocol):
    """What an append needs of the cluster's settings."""

    @property
    def verify_records(self) -> bool: ...


class Cluster(Protocol):
    """What an append needs of the cluster."""

    clock: Clock
    transactions: Transactions

    @property
    def config(self) -> Config: ...
    @property
    def catalogue(self) -> Catalogue: ...


class Node(Protocol):
    """What an append needs of the leader's node."""

    node_id: int

    @property
    def cluster(self) -> Cluster: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """The fields of a Produce request that concern all its batches. `version` is the version of the request."""

    version: int
    acks: int
    transactional_id: str | None


@dataclass(slots=True)
class Appended:
    """The result of an append (Kafka's LogAppendResult). `end` is the offset behind the batch's last record. A batch
    that came twice has the offsets of its first arrival. Only such a batch, and a batch that got its timestamps from
    the leader, have an `append_time`. A refused batch has an `error`, with the (index, text) of each bad record; it has
    a `log_start_offset` if its header was valid."""

    leader: Replica | None = None
    base_offset: int = -1
    end: int = -1
    append_time: int = -1
    log_start_offset: int = -1
    error: KafkaError | None = None
    record_errors: Sequence[tuple[int, str]] = ()


def append_as_leader(node: Node, topic: str | UUID, index: int, data: memoryview, terms: Terms) -> Appended:
    """Appends a batch to the log of a partition that the node leads.

    It does not tell the followers of the batch: the caller then calls `Replica.appended`, which tells them.
    """
    start = -1
    try:
        leader = _find_leader(node, topic, index, terms.acks)
        if terms.version < _FIRST_OF_BATCHES:
            return _append_message_set(node, leader, data)
        info = batch.check_batch(data, terms.version, leader.partition.topic.limits)
        if info.producer_id >= 0 and info.transactional:
            _join_transaction(node, leader, info, terms)
        start = leader.log.log_start_offset
        return _append_batch(node, leader, info, data)
    except RefusedRecordsError as refused:
        return Appended(log_start_offset=start, error=refused.error, record_errors=refused.records)
    except KafkaError as error:
        # The traceback would keep the frames of thousands of partitions.
        return Appended(log_start_offset=start, error=error.with_traceback(None))


def _find_leader(node: Node, topic: str | UUID, index: int, acks: int) -> Replica:
    """The copy to append to. For acks=all enough copies must be in sync."""
    if acks not in (ALL, 0, 1):
        raise InvalidRequiredAcksError(f"acks={acks}: -1, 0 and 1 are allowed")
    found = node.cluster.catalogue.topic(topic)
    if found.internal:
        raise InvalidTopicError(f"{found.name} is internal: only the cluster writes to it")
    leader = found.partition(index).led_by(node.node_id)
    if acks == ALL and not leader.enough_in_sync:
        raise NotEnoughReplicasError(
            f"{len(leader.known.isr)} copies are in sync, min.insync.replicas is {leader.partition.min_isr}"
        )
    return leader


def _join_transaction(node: Node, leader: Replica, info: BatchInfo, terms: Terms) -> None:
    """Asks the coordinator whether the partition is part of the transaction. Skips the question while the transaction
    is open in this partition: its end has not been written, so the partition is part of it."""
    if terms.transactional_id is None:
        raise TransactionalIdAuthorizationError("transactional records need a transactional id")
    producers, topic_partition = leader.log.producers, (leader.partition.topic.name, leader.partition.index)
    if producers.in_transaction(info.producer_id, info.producer_epoch):
        return
    version_2 = terms.version >= _FIRST_OF_VERSION_2
    producers.start_verification(info, version_2)
    try:
        node.cluster.transactions.join(
            terms.transactional_id,
            (info.producer_id, info.producer_epoch),
            topic_partition,
            add=version_2,
            knows_abortable=terms.version >= _FIRST_TO_KNOW_ABORTABLE,
        )
    except ConcurrentTransactionsError as error:
        # As in Kafka: with this error the client retries, and does not look for another leader.
        raise NotEnoughReplicasError(
            f"it is not known yet whether {topic_partition} is part of the transaction: {error}"
        ) from error


def _append_message_set(node: Node, leader: Replica, data: memoryview) -> Appended:
    log, limits = leader.log, leader.partition.topic.limits
    info, offsets = message_set.check_message_set(data, limits)
    check_records(data, info, limits, node.cluster.clock.time_ms())
    stored = bytearray(data)
    message_set.stamp(stored, offsets, log.end_offset)
    base = log.append(stored, info, leader.known.epoch)
    return Appended(leader, base, base + info.count, log_start_offset=log.log_start_offset)


def _append_batch(node: Node, leader: Replica, info: BatchInfo, data: memoryview) -> Appended:
    log, limits, now = leader.log, leader.partition.topic.limits, node.cluster.clock.time_ms()
    newest = check_records(data, info, limits, now)
    if info.producer_id >= 0 and not (producers := log.producers).is_next(info, now):
        if (first := producers.duplicate(info)) is not None:
            end = first.base_offset + info.count
            return Appended(leader, first.base_offset, end, first.max_timestamp, log.log_start_offset)
        producers.check(info, now)
    if node.cluster.config.verify_records:
        records.verify(data, limits.max_message_bytes)
    stored = bytearray(data)
    batch.stamp(stored, log.end_offset, leader.known.epoch)
    if newest != info.max_timestamp or batch.has_append_time(stored) != limits.log_append_time:
        batch.stamp_timestamps(stored, newest, limits.log_append_time)
        info = replace(info, max_timestamp=newest)
    base = log.append(stored, info, leader.known.epoch, now)
    append_time = newest if limits.log_append_time else -1
    return Appended(leader, base, base + info.count, append_time, log.log_start_offset)
