"""Appending to the leader's copy what a producer has sent (Kafka's ReplicaManager.appendToLocalLog).

Version 2 of Produce stores message sets of magic 0 and 1, later versions a single batch of magic 2. The leader checks
the batch, stamps it with its offset and leader epoch, and keeps it otherwise as sent. The leader checks the batches of
idempotent producers against what the partition knows of them (producer_state.py). A transaction's first batch in a
partition needs the consent of the coordinator, which from version 12 on adds the partition to the transaction
(KIP-890).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from kafkabuf.broker.log import batch, message_set, records
from kafkabuf.broker.log.batch import BatchInfo
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.replica.topics import Catalogue
from kafkabuf.broker.transactions import Transactions
from kafkabuf.clock import Clock
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    InvalidRequiredAcksError,
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
    """What a Produce request says of all its batches. `version` is the version of the request."""

    version: int
    acks: int
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a batch (Kafka's LogAppendResult). `end` is the offset behind its last record. A batch that came
    twice has the offsets of its first arrival, and only such a batch a `max_timestamp`. A refused batch has an `error`;
    its `log_start_offset` is known if the batch itself was sound."""

    leader: Replica | None = None
    base_offset: int = -1
    end: int = -1
    max_timestamp: int = -1
    log_start_offset: int = -1
    error: KafkaError | None = None


def append_as_leader(node: Node, topic: str | UUID, index: int, data: memoryview, terms: Terms) -> Appended:
    """Appends a batch to the log of a partition that the node leads. The followers have not heard of it yet:
    `Replica.appended` tells them."""
    start = -1
    try:
        leader = _find_leader(node, topic, index, terms.acks)
        if terms.version < _FIRST_OF_BATCHES:
            return _append_message_set(node, leader, data)
        limits, now = leader.partition.topic.limits, node.cluster.clock.time_ms()
        info = batch.check_batch(data, terms.version, limits, now)
        if info.producer_id >= 0 and info.transactional:
            _join_transaction(node, leader, info, terms)
        start = leader.log.log_start_offset
        return _append_batch(node, leader, info, data)
    except KafkaError as error:
        return Appended(log_start_offset=start, error=error)


def _find_leader(node: Node, topic: str | UUID, index: int, acks: int) -> Replica:
    """The copy to append to. For acks=all enough copies must be in sync."""
    if acks not in (ALL, 0, 1):
        raise InvalidRequiredAcksError(f"acks={acks}: -1, 0 and 1 are allowed")
    leader = node.cluster.catalogue.topic(topic).partition(index).led_by(node.node_id)
    if acks == ALL and not leader.enough_in_sync:
        raise NotEnoughReplicasError(
            f"{len(leader.known.isr)} copies are in sync, min.insync.replicas is {leader.partition.min_isr}"
        )
    return leader


def _join_transaction(node: Node, leader: Replica, info: BatchInfo, terms: Terms) -> None:
    """Asks the coordinator for its consent. While the transaction is open in this partition, its marker has not been
    written, and the coordinator need not be asked."""
    if terms.transactional_id is None:
        raise TransactionalIdAuthorizationError("transactional records need a transactional id")
    producers, where = leader.log.producers, (leader.partition.topic.name, leader.partition.index)
    if producers.in_transaction(info.producer_id, info.producer_epoch):
        return
    version_2 = terms.version >= _FIRST_OF_VERSION_2
    producers.start_verification(info, version_2)
    try:
        node.cluster.transactions.join(
            terms.transactional_id,
            (info.producer_id, info.producer_epoch),
            where,
            add=version_2,
            knows_abortable=terms.version >= _FIRST_TO_KNOW_ABORTABLE,
        )
    except ConcurrentTransactionsError as error:
        # As Kafka, which has the client send again by this error, without looking for another leader.
        raise NotEnoughReplicasError(f"cannot tell whether {where} is part of the transaction: {error}") from error


def _append_message_set(node: Node, leader: Replica, data: memoryview) -> Appended:
    log = leader.log
    info, offsets = message_set.check_message_set(data, leader.partition.topic.limits, node.cluster.clock.time_ms())
    stored = bytearray(data)
    message_set.stamp(stored, offsets, log.end_offset)
    base = log.append(stored, info, leader.known.epoch)
    return Appended(leader, base, base + info.count, log_start_offset=log.log_start_offset)


def _append_batch(node: Node, leader: Replica, info: BatchInfo, data: memoryview) -> Appended:
    log, now = leader.log, node.cluster.clock.time_ms()
    if info.producer_id >= 0:
        if (found := log.producers.duplicate(info)) is not None:
            end = found.base_offset + info.count
            return Appended(leader, found.base_offset, end, found.max_timestamp, log.log_start_offset)
        log.producers.check(info, now)
    if node.cluster.config.verify_records:
        records.verify(data)
    stored = bytearray(data)
    batch.stamp(stored, log.end_offset, leader.known.epoch)
    base = log.append(stored, info, leader.known.epoch, now)
    return Appended(leader, base, base + info.count, log_start_offset=log.log_start_offset)
