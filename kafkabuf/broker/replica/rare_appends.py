"""The steps of an append that few batches need: message sets, and transactions. _appending.pyx has the other steps.

Before a transaction's first batch in a partition, the leader asks the coordinator whether the partition is part of the
transaction. From version 12 on the coordinator then adds the partition to the transaction (KIP-890).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.records import message_set
from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records.validator import check_records
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.replica.topics import Catalogue
from kafkabuf.broker.transactions.coordinator import Transactions
from kafkabuf.clock import Clock
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    NotEnoughReplicasError,
    TransactionalIdAuthorizationError,
)

ALL = -1
_FIRST_TO_KNOW_ABORTABLE = 11
_FIRST_OF_VERSION_2 = 12


class Cluster(Protocol):
    """What an append needs of the cluster."""

    clock: Clock
    transactions: Transactions

    @property
    def config(self) -> ClusterConfig: ...
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

    @property
    def adds_partitions(self) -> bool:
        """Whether the request adds its partitions to the transaction (KIP-890)."""
        return self.version >= _FIRST_OF_VERSION_2


def join_transaction(node: Node, leader: Replica, info: BatchInfo, terms: Terms) -> None:
    """Asks the coordinator whether the partition is part of the transaction. Skips the question while the transaction
    is open in this partition: its end has not been written, so the partition is part of it.

    The request has added its partitions at once, if it could: this call raises the error for those that it could not.
    """
    if terms.transactional_id is None:
        raise TransactionalIdAuthorizationError("transactional records need a transactional id")
    producers, topic_partition = leader.log.producers, (leader.partition.topic.name, leader.partition.index)
    if producers.in_transaction(info.producer_id, info.producer_epoch):
        return
    producers.start_verification(info, terms.adds_partitions)
    try:
        node.cluster.transactions.join(
            terms.transactional_id,
            (info.producer_id, info.producer_epoch),
            topic_partition,
            add=terms.adds_partitions,
            knows_abortable=terms.version >= _FIRST_TO_KNOW_ABORTABLE,
        )
    except ConcurrentTransactionsError as error:
        # As in Kafka: with this error the client retries, and does not look for another leader.
        raise NotEnoughReplicasError(
            f"it is not known yet whether {topic_partition} is part of the transaction: {error}"
        ) from error


def append_message_set(node: Node, leader: Replica, data: bytearray, most_named: int) -> tuple[int, int]:
    """Appends a message set of magic 0 and 1. Returns its base offset, and the offset behind its last record."""
    log, limits = leader.log, leader.partition.topic.limits
    view = memoryview(data)
    info, offsets = message_set.check_message_set(view, limits)
    check_records(view, info, limits, node.cluster.clock.time_ms(), most_named)
    message_set.stamp(data, offsets, log.end_offset)
    base = log.append(data, info, leader.known.epoch)
    return base, base + info.count
