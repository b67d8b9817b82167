"""Topics and partitions: who leads what. Belongs to the cluster's event loop."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from kafkabuf.broker.batch import Limits
from kafkabuf.broker.log import PartitionLog
from kafkabuf.errors import (
    FencedLeaderEpochError,
    InvalidTopicError,
    KafkaError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)

NO_LEADER = -1
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(slots=True)
class Partition:
    """`replicas` lists the nodes that may lead it. There is one log, whoever leads: no replication yet."""

    index: int
    replicas: tuple[int, ...]
    log: PartitionLog
    leader: int = NO_LEADER
    leader_epoch: int = 0

    def elect(self, alive: list[int]) -> None:
        """Gives the partition a leader among `alive`, the first replica that is; a change raises the epoch.

        Deviation from Kafka: when no replica is alive another node takes over, log and all.
        """
        candidates = [node for node in self.replicas if node in alive]
        if not candidates and alive:
            candidates = [alive[self.index % len(alive)]]
            self.replicas = (candidates[0], *self.replicas[1:])
        self.lead_by(candidates[0] if candidates else NO_LEADER)

    def move_to(self, node: int) -> None:
        """Makes `node` the first replica and the leader."""
        self.replicas = (node, *(other for other in self.replicas if other != node))
        self.lead_by(node)

    def lead_by(self, node: int) -> None:
        if node != self.leader:
            self.leader = node
            self.leader_epoch += 1
            self.log.wake()

    def check_leader(self, node: int, client_epoch: int = -1) -> KafkaError | None:
        """The error to give a client that asked `node`, believing in `client_epoch` (-1: it did not say)."""
        if self.leader != node:
            return NotLeaderOrFollowerError(f"partition {self.index} is led by node {self.leader}, not {node}")
        if -1 < client_epoch < self.leader_epoch:
            return FencedLeaderEpochError(f"leader epoch {client_epoch} is over, it is {self.leader_epoch} now")
        if client_epoch > self.leader_epoch:
            return UnknownLeaderEpochError(f"leader epoch {client_epoch} has not come, it is {self.leader_epoch}")
        return None


@dataclass(slots=True)
class Topic:
    name: str
    partitions: list[Partition]
    limits: Limits
    # Makes or opens the log of a replica, by its node and partition.
    new_log: Callable[[int, int], PartitionLog]
    configs: dict[str, str] = field(default_factory=dict)
    topic_id: UUID = field(default_factory=uuid4)

    def add(self, placed: list[tuple[int, ...]]) -> None:
        """Further partitions, by their replicas; the first of these leads."""
        for nodes in placed:
            index = len(self.partitions)
            self.partitions.append(Partition(index, nodes, self.new_log(nodes[0], index), nodes[0]))

    def partition(self, index: int) -> Partition:
        if not 0 <= index < len(self.partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {self.name} has partitions 0 to {len(self.partitions) - 1}, asked for {index}"
            )
        return self.partitions[index]


def check_name(name: str) -> None:
    """InvalidTopicError unless `name` is 1 to 249 of letters, digits, '.', '_', '-', and not '.' or '..'."""
    if not _LEGAL.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicError(f"{name!r} is no topic name: 1 to 249 of letters, digits, '.', '_', '-' are allowed")


def partition_error(partition: Partition) -> KafkaError | None:
    """What Metadata says of a partition."""
    if partition.leader == NO_LEADER:
        return LeaderNotAvailableError(f"no node that could lead partition {partition.index} is alive")
    return None
