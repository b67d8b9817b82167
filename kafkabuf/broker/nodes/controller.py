"""The controller decides which node leads which partition, and which replicas are in sync.

Kafka's ReplicationControlManager and ClusterControlManager. The controller knows which nodes it can reach. It fences a
node that is stopped or killed at once, and a node that is paused or cut off once it has not heard from the node for
broker.session.timeout.ms. A fenced node leads nothing and leaves every ISR, except an ISR that has no other node: then
the partition has no leader until the node is back, or a replica out of sync leads where the topic allows that (unclean
leader election). A node that is back first learns from the controller the states that it has missed, before it does
anything else.

The state belongs to the cluster, as if a separate quorum of controllers kept it. `node_id` is the node that clients
take for the controller: it stays the same while that node is alive.

Deviations: the controller notices the death of a node at once, not when the node's session ends; a decision reaches
every node that can be reached at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from kafkabuf.broker.nodes.memory import ClusterMemory
from kafkabuf.broker.nodes.placement import NO_NODE, Placement
from kafkabuf.broker.replica.replication import Partition, Replica
from kafkabuf.broker.replica.state import NO_LEADER, PartitionState
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.transactions.coordinator import Transactions
from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaStorageError

log = logging.getLogger("kafkabuf.broker")


class Node(Protocol):
    """What the controller needs of a node."""

    node_id: int
    fenced: bool

    @property
    def alive(self) -> bool: ...


class Catalogue(Protocol):
    """What the controller needs of the catalogue."""

    topics: dict[str, Topic]


class Cluster(Protocol):
    """What the controller needs of its cluster."""

    clock: Clock
    memory: ClusterMemory
    placement: Placement
    transactions: Transactions

    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def nodes(self) -> Mapping[int, Node]: ...


class Controller:
    """`node_id` is the node that clients take for the controller. `epoch` counts the nodes that it was on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.node_id = NO_NODE
        self.epoch = 0

    # ---- nodes

    def fence(self, node: Node) -> None:
        """Takes a node out of the cluster: it is dead, about to stop, or has been silent for too long."""
        node.fenced = True
        for partition in self._partitions():
            if node.node_id in partition.replicas:
                self._remove_node(partition, node.node_id)
        self._choose_controller_node()
        self._cluster.transactions.write_held_markers()

    def admit(self, *nodes: Node) -> None:
        """Takes nodes into the cluster: new nodes, or nodes that are back. The nodes learn the states of their
        partitions. Partitions without a leader get a leader if they now can."""
        for node in nodes:
            node.fenced = False
        for partition in self._partitions():
            for node in nodes:
                replica = partition.replicas.get(node.node_id)
                if replica is not None and replica.known is not partition.state:
                    replica.learn(partition.state)
            if partition.leader == NO_LEADER:
                self.elect(partition)
            elif partition.topic.internal and (isr := tuple(self._alive(partition))) != partition.isr:
                # The replicas share their log: those of the nodes that are back need not catch up.
                self._publish(partition, replace(partition.state, isr=isr))
        self._choose_controller_node()
        self._cluster.transactions.write_held_markers()

    def _choose_controller_node(self) -> None:
        alive = self._cluster.placement.alive()
        if self.node_id not in alive:
            self.node_id = min(alive, default=NO_NODE)
            self.epoch += 1

    def _remove_node(self, partition: Partition, node_id: int) -> None:
        state = partition.state
        isr = tuple(other for other in state.isr if other != node_id) or state.isr
        if state.leader == node_id:
            self.elect(partition, isr)
        elif isr != state.isr:
            self._publish(partition, replace(state, isr=isr))

    # ---- leaders

    def introduce(self, partitions: Iterable[Partition]) -> None:
        """Elects the leaders of new partitions, which have their replicas already. The replicas on nodes that are alive
        are in sync, and the first of these replicas leads."""
        for partition in partitions:
            self.elect(partition, tuple(self._alive(partition)))

    def first_state(self, partition: Partition) -> PartitionState:
        """The state that `introduce` is about to give a new partition."""
        isr = tuple(self._alive(partition))
        return PartitionState(isr[0] if isr else NO_LEADER, partition.leader_epoch + 1, isr)

    def elect(self, partition: Partition, isr: tuple[int, ...] | None = None) -> None:
        """Gives the partition a leader: the first of its replicas that is alive and in `isr`, NO_LEADER if there is no
        such replica."""
        isr = partition.isr if isr is None else isr
        alive = self._alive(partition)
        leader = next((node_id for node_id in alive if node_id in isr), NO_LEADER)
        if leader == NO_LEADER and alive and partition.topic.unclean_election:
            leader, isr = alive[0], (alive[0],)
        self.lead(partition, leader, isr)

    def lead(self, partition: Partition, leader: int, isr: tuple[int, ...]) -> None:
        """Begins a new leader epoch, unless the leader and the ISR stay as they are."""
        if (leader, isr) == (partition.leader, partition.isr):
            return
        self._publish(partition, PartitionState(leader, partition.leader_epoch + 1, isr))
        if leader != NO_LEADER:
            partition.rewrite_markers(self._cluster.clock.time_ms())

    def prefer(self, partition: Partition) -> bool:
        """Makes the preferred replica, which is the first, the leader. Returns whether it leads: it must be in sync,
        and its node alive."""
        return self.move(partition, partition.replica_nodes[0])

    def move(self, partition: Partition, node_id: int) -> bool:
        """Makes the replica on a node the leader. Returns whether it leads: it must be in sync, and its node alive."""
        if node_id != partition.leader and node_id in partition.isr and self._cluster.nodes[node_id].alive:
            self.lead(partition, node_id, partition.isr)
            self._cluster.transactions.write_held_markers()
        return partition.leader == node_id

    def reconsider(self, topic: Topic) -> None:
        """The settings of a topic have changed: other replicas may lead, or more or fewer must be in sync."""
        for partition in topic.partitions:
            if partition.leader == NO_LEADER:
                self.elect(partition)
            for replica in partition.replicas.values():
                replica.advance_if_leading()
                replica.wake()
        self._cluster.transactions.write_held_markers()

    def alter_isr(self, leader: Replica, isr: tuple[int, ...]) -> None:
        """A leader asks for another ISR (Kafka's AlterPartition). The controller ignores a leader that it cannot reach,
        or that does not know the partition's state."""
        partition = leader.partition
        if leader.node.connected and leader.known is partition.state:
            ordered = tuple(node_id for node_id in self._alive(partition) if node_id in isr)
            self._publish(partition, replace(partition.state, isr=ordered))

    def _publish(self, partition: Partition, state: PartitionState) -> None:
        """Tells the leader first, so that it leads when its followers come to fetch. The state stays as it was if the
        disk refuses the change."""
        try:
            if not partition.topic.internal:
                self._cluster.memory.keep_partition(partition, state)
        except KafkaStorageError as error:
            log.error("the state of %s-%d does not change: %s", partition.topic.name, partition.index, error)
            return
        partition.state = state
        for replica in sorted(partition.replicas.values(), key=lambda replica: replica.node.node_id != state.leader):
            if replica.node.connected:
                replica.learn(state)

    def _partitions(self) -> Iterator[Partition]:
        for topic in tuple(self._cluster.catalogue.topics.values()):
            yield from topic.partitions

    def _alive(self, partition: Partition) -> list[int]:
        """The nodes of the partition's replicas that are alive."""
        return [node_id for node_id in partition.replica_nodes if self._cluster.nodes[node_id].alive]
