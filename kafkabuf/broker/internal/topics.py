"""The internal topics __consumer_offsets and __transaction_state, as clients see them.

The cluster makes each with the first lookup of a coordinator. A group or a transactional id belongs to the partition
that Kafka's hash of its name gives, and the leader of this partition is the coordinator. Every change of a group's
offsets, of a classic group's generation, and of a transactional id is a record there, in Kafka's format. Clients read
these topics as any other. Only the cluster writes to them.

Deviations: the state itself is the cluster's, and outlives a restart in its journal; the records are made from it, so a
restarted cluster rewrites its state, and the topics never lie on disk. All nodes with a replica of a partition share
its one log. Offsets of a transaction are written when it is committed, without control records. There are no records of
consumer groups of KIP-848 but their offsets. Clients cannot delete or change the topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kafkabuf.broker.groups.group import Group
from kafkabuf.broker.groups.groups import OFFSETS_PARTITIONS, OFFSETS_TOPIC, Groups, offsets_partition
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.upkeep.cleaner import LogCleaner
from kafkabuf.broker.records.config import Limits, LogConfig
from kafkabuf.broker.replica.replication import Node
from kafkabuf.broker.replica.shared import SharedReplica
from kafkabuf.broker.replica.state import NO_LEADER
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.transactions.coordinator import Transaction, Transactions
from kafkabuf.clock import Clock

if TYPE_CHECKING:
    from kafkabuf.broker.internal.writing import StateWriter

TRANSACTIONS_TOPIC = "__transaction_state"
# The topics with Kafka's names, and the configs that Kafka gives them.
INTERNAL_TOPICS: Mapping[str, dict[str, str]] = {
    OFFSETS_TOPIC: {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
    TRANSACTIONS_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
}
# Small segments, so that the cleaner keeps a log in memory short.
_LOG_CONFIG = LogConfig(segment_bytes=1 << 20, delete=False, compact=True)
_REPLICATION_FACTOR = 3
# The key of these logs for the cleaner has no node: all nodes share them.
_NO_NODE = 0


class Catalogue(Protocol):
    """What the internal topics need of the catalogue."""

    topics: dict[str, Topic]

    def add_internal(self, topic: Topic) -> None: ...


class Placement(Protocol):
    """What the internal topics need of the placement."""

    def alive(self) -> list[int]: ...


class InternalTopics:
    def __init__(
        self,
        clock: Clock,
        nodes: Mapping[int, Node],
        placement: Placement,
        catalogue: Catalogue,
        cleaner: LogCleaner,
        groups: Groups,
        transactions: Transactions,
        transaction_version: int,
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._placement = placement
        self._catalogue = catalogue
        self._cleaner = cleaner
        self._groups = groups
        self._transactions = transactions
        self._flexible = transaction_version >= 1
        self._writers: dict[str, StateWriter] = {}

    # ---- coordinators

    def coordinator(self, topic: str, key: str) -> int:
        """The node that coordinates a group (OFFSETS_TOPIC) or a transactional id (TRANSACTIONS_TOPIC); NO_LEADER if
        none does."""
        if topic not in self._catalogue.topics and not self._placement.alive():
            return NO_LEADER
        return self.topic(topic).partitions[offsets_partition(key)].leader

    def topic(self, name: str) -> Topic:
        """The topic. The first call makes it, and writes the present state to it. A node must be alive then."""
        if name not in self._catalogue.topics:
            self._make(name)
            # Loaded with the first use, so that an import of the package stays short.
            from kafkabuf.broker.internal.writing import StateWriter

            writer = self._writers[name] = StateWriter(self._catalogue.topics[name], self._clock, self._flexible)
            if name == OFFSETS_TOPIC:
                writer.write_groups(self._groups)
            else:
                for transaction in self._transactions:
                    writer.transaction_changed(transaction)
        return self._catalogue.topics[name]

    def _make(self, name: str) -> None:
        alive = self._placement.alive()

        def no_log(node: int, index: int, *, new: bool = False) -> PartitionLog:
            raise AssertionError("an internal topic gets no further replicas")

        topic = Topic(name, [], Limits(), no_log, dict(INTERNAL_TOPICS[name]), internal=True)
        factor = min(_REPLICATION_FACTOR, len(alive))
        placed = [
            tuple(alive[(index + step) % len(alive)] for step in range(factor)) for index in range(OFFSETS_PARTITIONS)
        ]
        for partition in topic.add(placed):
            shared = PartitionLog(_LOG_CONFIG, clock=self._clock)
            self._cleaner.watch((_NO_NODE, name, partition.index), shared)
            for node_id in partition.replica_nodes:
                partition.replicas[node_id] = SharedReplica(self._nodes[node_id], partition, shared)
        self._catalogue.add_internal(topic)

    # ---- changes of the state. The first use of a topic writes the whole state: nothing is written before.

    def offset_changed(self, key: tuple[Any, ...], value: Any) -> None:
        """A group's state has changed, as GroupOffsets remembers it."""
        if OFFSETS_TOPIC in self._writers:
            self._writers[OFFSETS_TOPIC].offset_changed(key, value)

    def group_changed(self, group: Group) -> None:
        """A classic group has a new generation."""
        if OFFSETS_TOPIC in self._writers:
            self._writers[OFFSETS_TOPIC].group_changed(group)

    def group_deleted(self, group_id: str) -> None:
        if OFFSETS_TOPIC in self._writers:
            self._writers[OFFSETS_TOPIC].group_deleted(group_id)

    def transaction_changed(self, transaction: Transaction) -> None:
        if TRANSACTIONS_TOPIC in self._writers:
            self._writers[TRANSACTIONS_TOPIC].transaction_changed(transaction)
