"""The controller: who leads which partition, and who is in sync (Kafka's ReplicationControlManager and
ClusterControlManager).

It knows which nodes it can reach. One that is stopped or killed is out at once; one that is paused or cut off is when
its session has been silent for broker.session.timeout.ms. Who is out leads nothing and leaves the ISRs, except where it
is the last one: then nobody leads until it is back, or a copy out of sync does where the topic allows for that (unclean
leader election). A node that is back is told what it has missed before it does anything else.

The state belongs to the cluster, as if a quorum of its own kept it. `node_id` says which node plays the controller's
part for clients: it stays the same while that node is alive.

Deviations: a node that dies is noticed at once, not when its session ends; what is decided is known at once to all
nodes that can be reached.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkabuf.broker.replica.replication import NO_LEADER, PartitionState, Replica
from kafkabuf.broker.replica.topics import Partition, Topic
from kafkabuf.errors import KafkaStorageError

if TYPE_CHECKING:
    from kafkabuf.broker.cluster.cluster import Cluster, Node

log = logging.getLogger("kafkabuf.broker")

NO_NODE = -1


class Controller:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.node_id = NO_NODE

    # ---- nodes

    def fence(self, node: Node) -> None:
        """The node is out: dead, about to stop, or silent for too long."""
        node.fenced = True
        for partition in self._partitions():
            if node.node_id in partition.copies:
                self._leave(partition, node.node_id)
        self._appoint()

    def admit(self, *nodes: Node) -> None:
        """These are back, or new. They learn what holds, and lead what nobody leads if they may."""
        for node in nodes:
            node.fenced = False
        for partition in self._partitions():
            for node in nodes:
                copy = partition.copies.get(node.node_id)
                if copy is not None and copy.known is not partition.state:
                    copy.learn(partition.state)
            if partition.leader == NO_LEADER:
                self.elect(partition)
        self._appoint()
        self._cluster.transactions.write_held_markers()

    def _appoint(self) -> None:
        alive = self._cluster.alive()
        if self.node_id not in alive:
            self.node_id = min(alive, default=NO_NODE)

    def _leave(self, partition: Partition, node_id: int) -> None:
        state = partition.state
        isr = tuple(one for one in state.isr if one != node_id) or state.isr
        if state.leader == node_id:
            self.elect(partition, isr)
        elif isr != state.isr:
            self._publish(partition, replace(state, isr=isr))

    # ---- leaders

    def introduce(self, partitions: Iterable[Partition]) -> None:
        """They are new, their copies in place: all that are alive are in sync, the first of them leads."""
        for partition in partitions:
            self.elect(partition, tuple(one for one in partition.replicas if self._cluster.nodes[one].alive))

    def elect(self, partition: Partition, isr: tuple[int, ...] | None = None) -> None:
        """Gives the partition a leader among `isr`, in the order of its replicas; without, nobody leads it."""
        isr = partition.isr if isr is None else isr
        alive = [one for one in partition.replicas if self._cluster.nodes[one].alive]
        leader = next((one for one in alive if one in isr), NO_LEADER)
        if leader == NO_LEADER and alive and partition.topic.unclean_election:
            leader, isr = alive[0], (alive[0],)
        self.lead(partition, leader, isr)

    def lead(self, partition: Partition, leader: int, isr: tuple[int, ...]) -> None:
        """A new epoch, unless nothing changes."""
        if (leader, isr) == (partition.leader, partition.isr):
            return
        self._publish(partition, PartitionState(leader, partition.leader_epoch + 1, isr))
        if leader != NO_LEADER:
            partition.rewrite_markers(self._cluster.clock.time_ms())

    def prefer(self, partition: Partition) -> bool:
        """Has the preferred replica lead, the first. Whether it does: it has to be alive and in sync."""
        return self.move(partition, partition.replicas[0])

    def move(self, partition: Partition, node_id: int) -> bool:
        """Has this copy lead. Whether it does: it has to be alive and in sync."""
        if node_id != partition.leader and node_id in partition.isr and self._cluster.nodes[node_id].alive:
            self.lead(partition, node_id, partition.isr)
        return partition.leader == node_id

    def reconsider(self, topic: Topic) -> None:
        """Its settings have changed: who may lead, and how many must be in sync."""
        for partition in topic.partitions:
            if partition.leader == NO_LEADER:
                self.elect(partition)
            for copy in partition.copies.values():
                copy.advance_if_leading()
                copy.wake()

    def alter_isr(self, leader: Replica, isr: tuple[int, ...]) -> None:
        """Asked by a leader (Kafka's AlterPartition); heard from one that can be reached and is up to date."""
        partition = leader.partition
        if leader.node.connected and leader.known is partition.state:
            ordered = tuple(one for one in partition.replicas if one in isr and self._cluster.nodes[one].alive)
            self._publish(partition, replace(partition.state, isr=ordered))

    def _publish(self, partition: Partition, state: PartitionState) -> None:
        """The leader first, so that it is one when its followers come to fetch. What cannot be kept does not happen."""
        try:
            self._cluster.memory.keep_partition(partition, state)
        except KafkaStorageError as error:
            log.error("%s-%d stays as it was: %s", partition.topic.name, partition.index, error)
            return
        partition.state = state
        for copy in sorted(partition.copies.values(), key=lambda one: one.node.node_id != state.leader):
            if copy.node.connected:
                copy.learn(state)

    def _partitions(self) -> Iterator[Partition]:
        for topic in tuple(self._cluster.topics.values()):
            yield from topic.partitions
