"""Replication: a partition and its replicas, one on each of its nodes (Kafka's Partition and Replica).

The controller decides which node leads, in which epoch, and which replicas are in sync (`PartitionState`). A node knows
the state that the controller told it last; a node that is cut off knows an old state. The leader appends, and followers
fetch from it (fetcher.py). The offset that a follower asks for tells the leader how far the follower is. Records below
the high watermark are in every replica that is in sync. Consumers see only these records, and with acks=all the leader
acknowledges only these records.

Belongs to the event loop. An append, a fetch and a decision of the controller take effect at once, also on parked
requests.
"""

from __future__ import annotations

import logging
from math import inf
from typing import Protocol

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records.config import Limits, int_config
from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.replica.followers import Follower, LagWatch
from kafkabuf.broker.replica.state import NO_LEADER, UNKNOWN_STATE, PartitionState
from kafkabuf.broker.waiting._purgatory import RequestPurgatory
from kafkabuf.errors import (
    FencedLeaderEpochError,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)

log = logging.getLogger("kafkabuf.broker")


class Topic(Protocol):
    """What a partition and its replicas need of their topic."""

    name: str
    limits: Limits
    configs: dict[str, str]
    deleted: bool
    internal: bool

    @property
    def min_isr(self) -> int: ...
    @property
    def unclean_election(self) -> bool: ...


class Controller(Protocol):
    """What a leader needs of the controller."""

    def alter_isr(self, leader: Replica, isr: tuple[int, ...]) -> None: ...


class Fetchers(Protocol):
    """What a replica needs of its node's fetchers."""

    def follow(self, replica: Replica) -> None: ...
    def leave(self, replica: Replica) -> None: ...


class Cluster(Protocol):
    """What a replica needs of its cluster."""

    @property
    def controller(self) -> Controller: ...


class Node(Protocol):
    """What a replica needs of its node."""

    node_id: int
    max_lag: float
    produces: RequestPurgatory
    fetches: RequestPurgatory
    lag_watch: LagWatch

    @property
    def cluster(self) -> Cluster: ...
    @property
    def fetchers(self) -> Fetchers: ...
    @property
    def connected(self) -> bool: ...
    def now(self) -> float: ...
    def sees(self, node_id: int) -> bool: ...


class Partition:
    """`replica_nodes` lists the nodes that have a replica, the preferred leader first.

    `replicas` has the replica of each node. Only the controller changes `state`.
    """

    __slots__ = ("_markers", "index", "replica_nodes", "replicas", "state", "topic")

    def __init__(self, topic: Topic, index: int, replica_nodes: tuple[int, ...]) -> None:
        self.topic = topic
        self.index = index
        self.replica_nodes = replica_nodes
        self.replicas: dict[int, Replica] = {}
        self.state: PartitionState = UNKNOWN_STATE
        # Control records that some replica in sync does not have yet, with their offsets. A new leader that lacks a
        # control record writes the control record again.
        self._markers: list[tuple[int, Marker]] = []

    @property
    def leader(self) -> int:
        return self.state.leader

    @property
    def leader_epoch(self) -> int:
        return self.state.epoch

    @property
    def isr(self) -> tuple[int, ...]:
        return self.state.isr

    @property
    def log(self) -> PartitionLog:
        """The leader's log. While the partition has no leader: the log of the first node that may lead it without
        loss."""
        state = self.state
        return self.replicas[state.leader if state.leader != NO_LEADER else (state.isr or self.replica_nodes)[0]].log

    @property
    def min_isr(self) -> int:
        return min(int_config(self.topic.configs, "min.insync.replicas", self.topic.min_isr), len(self.replica_nodes))

    def led_by(self, node: int, client_epoch: int = -1) -> Replica:
        """The replica on `node`, if it leads the partition as far as the node knows. `client_epoch` is the leader epoch
        that the client knows (-1: the client did not say). Raises NotLeaderOrFollowerError, FencedLeaderEpochError or
        UnknownLeaderEpochError."""
        replica = self.replica(node)
        replica.check_leads(client_epoch)
        return replica

    def replica(self, node: int) -> Replica:
        """The replica on `node`. Raises NotLeaderOrFollowerError if the node has no replica."""
        if node not in self.replicas:
            raise NotLeaderOrFollowerError(f"node {node} has no replica of partition {self.index}")
        return self.replicas[node]

    def seen_by(self, node: int) -> PartitionState:
        """The state that a node tells its clients. A node with a replica tells the state that it got from the
        controller last, even while the node is cut off."""
        replica = self.replicas.get(node)
        return self.state if replica is None else replica.known

    # ---- transactions

    def marker_written(self, offset: int, marker: Marker) -> None:
        self._markers.append((offset, marker))

    def markers_reached(self, high_watermark: int) -> None:
        while self._markers and self._markers[0][0] < high_watermark:
            del self._markers[0]

    def rewrite_markers(self, timestamp: int) -> None:
        """The new leader writes the control records that it lacks. Its log is a prefix of the previous leader's log."""
        markers, end = tuple(self._markers), self.log.end_offset
        self._markers.clear()
        for offset, marker in markers:
            if offset >= end:
                try:
                    self.replicas[self.leader].write_marker(marker, timestamp)
                except KafkaError as error:
                    log.error("cannot write %s to %s-%d again: %s", marker, self.topic.name, self.index, error)
            else:
                self._markers.append((offset, marker))


class Replica:
    """One node's replica of one partition.

    `known` is the state that the controller told the node last. `followers` has all other replicas while this replica
    leads, and is empty otherwise. `epoch_start` is the end offset of the log when this replica began to lead.
    """

    def __init__(self, node: Node, partition: Partition, log: PartitionLog) -> None:
        self.node = node
        self.partition = partition
        self.log = log
        self.known = UNKNOWN_STATE
        self.followers: dict[int, Follower] = {}
        self.epoch_start = 0
        self._begin()

    def _begin(self) -> None:
        # The high watermark of an only replica is the end of its log, since there are no followers. Other replicas
        # begin with the high watermark of an earlier run: nobody knows yet which replicas have the records behind it.
        log = self.log
        if len(self.partition.replica_nodes) > 1:
            log.high_watermark = min(log.high_watermark, max(log.replicated_offset, log.log_start_offset))

    def __repr__(self) -> str:
        where = f"{self.partition.topic.name}-{self.partition.index} on node {self.node.node_id}"
        return f"<{where}: {self.known}, {self.log.high_watermark} of {self.log.end_offset}>"

    @property
    def leads(self) -> bool:
        return self.known.leader == self.node.node_id

    def check_leads(self, client_epoch: int = -1) -> None:
        """Raises an error unless this replica leads, in the leader epoch that the client knows (`client_epoch`; -1: the
        client did not say)."""
        known = self.known
        if known.leader != self.node.node_id:
            raise NotLeaderOrFollowerError(
                f"partition {self.partition.index} is led by node {known.leader}, not {self.node.node_id}"
            )
        if -1 < client_epoch < known.epoch:
            raise FencedLeaderEpochError(f"leader epoch {client_epoch} is over, the leader epoch is {known.epoch}")
        if client_epoch > known.epoch:
            raise UnknownLeaderEpochError(f"leader epoch {client_epoch} is unknown, the leader epoch is {known.epoch}")

    @property
    def enough_in_sync(self) -> bool:
        """Whether the leader takes records with acks=all: min.insync.replicas are in sync, or all are."""
        in_sync, partition = len(self.known.isr), self.partition
        return in_sync == len(partition.replica_nodes) or in_sync >= partition.min_isr

    # ---- the leader

    def appended(self) -> None:
        """The leader calls this after each append."""
        if self.followers:
            self.node.lag_watch.watch(self)
        if not self.advance():
            self.node.fetches.check_and_complete(self.partition)

    def write_marker(self, marker: Marker, timestamp: int) -> None:
        """Ends a transaction in this partition. The end is final once the control record is in this log: a later
        leader that lacks the control record writes it again."""
        self.log.append_marker(marker, timestamp, self.known.epoch)
        self.partition.marker_written(self.log.end_offset - 1, marker)
        self.appended()

    def fetched_by(self, node_id: int, offset: int) -> None:
        """A follower asks for the records from `offset` on: it has every record before `offset`."""
        follower = self.followers.get(node_id)
        if follower is None:
            raise NotLeaderOrFollowerError(f"node {node_id} has no replica of partition {self.partition.index}")
        log, before = self.log, follower.end_offset
        follower.fetched(offset, log.end_offset, self.node.now())
        if node_id not in self.known.isr and offset >= max(log.high_watermark, self.epoch_start):
            self.node.cluster.controller.alter_isr(self, (*self.known.isr, node_id))
        if offset != before:
            self.advance()

    def advance(self) -> bool:
        """Raises the high watermark to the offset that every replica in sync has reached, and every replica that is
        about to join the ISR. (A high watermark that rises without such a replica could keep it out of the ISR for
        ever.) As in Kafka since 3.7, the high watermark does not rise while too few replicas are in sync. Returns
        whether it rose, and so woke the requests that wait for the partition."""
        if not self.enough_in_sync:
            return False
        log, isr = self.log, self.known.isr
        leader_end = reached = log.end_offset
        for node_id, follower in self.followers.items():
            if follower.end_offset < reached and (node_id in isr or self._joins(node_id, follower, leader_end)):
                reached = follower.end_offset
        if reached <= log.high_watermark:
            return False
        log.high_watermark = reached
        self.partition.markers_reached(reached)
        self.wake()
        return True

    def _joins(self, node_id: int, follower: Follower, leader_end: int) -> bool:
        node = self.node
        return node.sees(node_id) and not follower.lags(leader_end, node.now(), node.max_lag)

    def shrink(self) -> bool:
        """Removes the followers that have lagged for too long from the ISR. Returns whether a follower in the ISR still
        lacks records."""
        now, end, own = self.node.now(), self.log.end_offset, self.node.node_id
        isr = self.known.isr
        followers = [(node_id, self.followers[node_id]) for node_id in isr if node_id != own]
        late = {node_id for node_id, follower in followers if follower.lags(end, now, self.node.max_lag)}
        if late:
            self.node.cluster.controller.alter_isr(self, tuple(node_id for node_id in isr if node_id not in late))
        return any(follower.end_offset != end for node_id, follower in followers if node_id in self.known.isr)

    def wake(self) -> None:
        """Completes the requests parked for the partition that need not wait any more."""
        self.node.produces.check_and_complete(self.partition)
        self.node.fetches.check_and_complete(self.partition)

    # ---- calls of the controller

    def learn(self, state: PartitionState) -> None:
        """The controller tells the node the partition's new state."""
        before, self.known = self.known, state
        if state.epoch != before.epoch:
            self.node.fetchers.leave(self)
            if self.leads:
                self._lead()
            else:
                self.followers = {}
                if state.leader != NO_LEADER:
                    self.node.fetchers.follow(self)
        self.advance_if_leading()
        self.wake()

    def advance_if_leading(self) -> None:
        if self.leads:
            self.advance()

    def _lead(self) -> None:
        now, own = self.node.now(), self.node.node_id
        self.epoch_start = self.log.end_offset
        try:
            self.log.leader_epochs.assign(self.known.epoch, self.epoch_start)
        except KafkaStorageError as error:
            # While the disk refuses the epoch, it refuses the records of this epoch, too.
            log.error("%r cannot store its leader epoch: %s", self, error)
        self.followers = {
            node_id: Follower(now if node_id in self.known.isr else -inf)
            for node_id in self.partition.replica_nodes
            if node_id != own
        }
        if self.followers:
            self.node.lag_watch.watch(self)

    def forget(self) -> None:
        """Forgets the state: the partition was deleted, or the node's process ended."""
        self.node.fetchers.leave(self)
        self.known, self.followers = UNKNOWN_STATE, {}
        self.wake()
