"""Placement: which nodes get the replicas of new partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.errors import InvalidPartitionsError, InvalidReplicaAssignmentError, InvalidReplicationFactorError

NO_NODE = -1
# In place of a number, this stands for the cluster's default.
DEFAULT = -1


class Node(Protocol):
    """What placement needs of a node."""

    @property
    def alive(self) -> bool: ...


class Placement:
    """A placement lists the nodes of each partition's replicas, the preferred leader first."""

    def __init__(self, config: ClusterConfig, nodes: Mapping[int, Node]) -> None:
        self._config = config
        self._nodes = nodes

    def alive(self) -> list[int]:
        """The nodes that are alive, as far as the controller knows."""
        return [node_id for node_id, node in self._nodes.items() if node.alive]

    def count(self, partitions: int) -> int:
        """The number of a new topic's partitions. DEFAULT stands for the cluster's number."""
        return self._config.default_partitions if partitions == DEFAULT else partitions

    def place(self, name: str, partitions: int, replication_factor: int, shift: int) -> list[tuple[int, ...]]:
        """Places the partitions of a topic round the nodes that are alive. The leader of partition 0 is `shift` nodes
        behind the first of these nodes. DEFAULT stands for the cluster's number."""
        alive = self.alive()
        count = self.count(partitions)
        default = min(self._config.replication_factor, max(len(alive), 1))
        factor = default if replication_factor == DEFAULT else replication_factor
        if count < 1:
            raise InvalidPartitionsError(f"topic {name} with {count} partitions: at least 1 is needed")
        if not 1 <= factor <= len(alive):
            raise InvalidReplicationFactorError(f"replication factor {factor}: {len(alive)} nodes are alive")
        return [tuple(alive[(index + shift + step) % len(alive)] for step in range(factor)) for index in range(count)]

    def place_assigned(self, assignment: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Places the partitions of a topic as `assignment` says."""
        return self._check([tuple(assignment.get(index, ())) for index in range(len(assignment))])

    def place_more(
        self, topic: Topic, count: int, assignment: Sequence[tuple[int, ...]] | None
    ) -> list[tuple[int, ...]]:
        """Places the new partitions of a topic that is to have `count` partitions: as `assignment` says, or round the
        nodes."""
        present = len(topic.partitions)
        if count <= present:
            raise InvalidPartitionsError(f"topic {topic.name} has {present} partitions, {count} is no increase")
        if assignment is None:
            alive, first = self.alive(), topic.partitions[0].replica_nodes
            shift = alive.index(first[0]) if first[0] in alive else 0
            return self.place(topic.name, count, min(len(first), len(alive)), shift)[present:]
        if len(assignment) != count - present:
            raise InvalidReplicaAssignmentError(f"{len(assignment)} assignments for {count - present} new partitions")
        return self._check(list(assignment))

    def _check(self, placed: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        alive = set(self.alive())
        if not all(nodes and len(set(nodes)) == len(nodes) and alive.issuperset(nodes) for nodes in placed):
            raise InvalidReplicaAssignmentError(
                f"{placed[:10]}: number the partitions 0, 1, 2..., and give each at least one of the nodes "
                f"{sorted(alive)}, no node twice"
            )
        return placed
