"""Replication: one node's copy of a partition, and what its leader knows of the other copies (Kafka's Partition and
Replica).

The controller says who leads, in which epoch, and who is in sync (`PartitionState`); a node knows what it was last
told, which for one that is cut off is not what holds. The leader appends, followers fetch from it (fetcher.py), and by
the offset they fetch from it knows how far they are. What every copy in sync has is below the high watermark: only that
do consumers see, and only that is acknowledged to producers with acks=all.

Belongs to the event loop. An append, a fetch or news from the controller takes effect at once, also on what is parked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from kafkabuf.broker.waiting.timer import Timeout
from kafkabuf.errors import (
    FencedLeaderEpochError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)

if TYPE_CHECKING:
    from kafkabuf.broker.cluster.cluster import Node
    from kafkabuf.broker.log.control import Marker
    from kafkabuf.broker.log.log import PartitionLog
    from kafkabuf.broker.replica.topics import Partition

log = logging.getLogger("kafkabuf.broker")

NO_LEADER = -1
NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the controller decides. Every change of the leader raises the epoch; `isr` are the copies in sync, the
    leader's among them; when nobody leads it is who may without loss."""

    leader: int
    epoch: int
    isr: tuple[int, ...]


UNTOLD = PartitionState(NO_LEADER, -1, ())


@dataclass(slots=True)
class Follower:
    """Another copy, as its leader knows it. Times are of the injected clock, in seconds. `caught_up_at`: when it last
    had all that there was."""

    caught_up_at: float
    end_offset: int = NO_OFFSET
    _fetched_at: float = -inf
    _leader_end_then: int = NO_OFFSET

    def fetched(self, offset: int, leader_end: int, now: float) -> None:
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self._leader_end_then:
            self.caught_up_at = max(self.caught_up_at, self._fetched_at)
        self.end_offset, self._fetched_at, self._leader_end_then = offset, now, leader_end

    def lags(self, leader_end: int, now: float, allowed: float) -> bool:
        return self.end_offset != leader_end and now - self.caught_up_at > allowed


class Replica:
    """One node's copy of one partition. `known` is what the node was last told; `followers` has all other copies while
    this one leads, else none; `epoch_start` is where the log ended when it began to lead."""

    def __init__(self, node: Node, partition: Partition, log: PartitionLog) -> None:
        self.node = node
        self.partition = partition
        self.log = log
        self.known = UNTOLD
        self.followers: dict[int, Follower] = {}
        self.epoch_start = 0
        # The only copy has a high watermark without anybody's help: its end.
        if len(partition.replicas) > 1:
            log.high_watermark = min(log.high_watermark, log.log_start_offset)

    def __repr__(self) -> str:
        where = f"{self.partition.topic.name}-{self.partition.index} on node {self.node.node_id}"
        return f"<{where}: {self.known}, {self.log.high_watermark} of {self.log.end_offset}>"

    @property
    def leads(self) -> bool:
        return self.known.leader == self.node.node_id

    def check_leads(self, client_epoch: int = -1) -> None:
        """Raises what to answer a client with that takes this copy for the leader's, in `client_epoch` (-1: it did not
        say)."""
        known = self.known
        if known.leader != self.node.node_id:
            raise NotLeaderOrFollowerError(
                f"partition {self.partition.index} is led by node {known.leader}, not {self.node.node_id}"
            )
        if -1 < client_epoch < known.epoch:
            raise FencedLeaderEpochError(f"leader epoch {client_epoch} is over, it is {known.epoch} now")
        if client_epoch > known.epoch:
            raise UnknownLeaderEpochError(f"leader epoch {client_epoch} has not come, it is {known.epoch}")

    @property
    def enough_in_sync(self) -> bool:
        """Whether acks=all may be promised (min.insync.replicas, of no more copies than there are)."""
        in_sync, partition = len(self.known.isr), self.partition
        return in_sync == len(partition.replicas) or in_sync >= partition.min_isr

    # ---- the leader

    def appended(self) -> None:
        """To be called after each append of the leader's."""
        if self.followers:
            self.node.lag_watch.watch(self)
        self.advance()
        self.node.fetches.check_and_complete(self.partition)

    def write_marker(self, marker: Marker, timestamp: int) -> None:
        """Ends a transaction, for good as soon as it is in this log: a later leader without the marker writes it
        too."""
        self.log.append_marker(marker, timestamp, self.known.epoch)
        self.partition.marker_written(self.log.end_offset - 1, marker)
        self.appended()

    def fetched_by(self, node_id: int, offset: int) -> None:
        """A follower asks for what comes at `offset`: what lies before, it has."""
        follower = self.followers.get(node_id)
        if follower is None:
            raise NotLeaderOrFollowerError(f"node {node_id} has no copy of partition {self.partition.index}")
        log, before = self.log, follower.end_offset
        follower.fetched(offset, log.end_offset, self.node.now())
        if node_id not in self.known.isr and offset >= max(log.high_watermark, self.epoch_start):
            self.node.cluster.controller.alter_isr(self, (*self.known.isr, node_id))
        if offset != before:
            self.advance()

    def advance(self) -> None:
        """Raises the high watermark to what all in sync have, and those about to be: else these might never get there.
        As Kafka since 3.7, not while too few are in sync."""
        if not self.enough_in_sync:
            return
        log, isr = self.log, self.known.isr
        leader_end = reached = log.end_offset
        for node_id, follower in self.followers.items():
            if follower.end_offset < reached and (node_id in isr or self._joins(node_id, follower, leader_end)):
                reached = follower.end_offset
        if reached > log.high_watermark:
            log.high_watermark = reached
            self.partition.markers_reached(reached)
            self.wake()

    def _joins(self, node_id: int, follower: Follower, leader_end: int) -> bool:
        node = self.node
        return node.sees(node_id) and not follower.lags(leader_end, node.now(), node.cluster.max_lag)

    def shrink(self) -> bool:
        """Drops those from the ISR that have lagged for too long. Whether anybody in it is behind still."""
        now, end, own = self.node.now(), self.log.end_offset, self.node.node_id
        isr = self.known.isr
        others = [(one, self.followers[one]) for one in isr if one != own]
        late = {one for one, follower in others if follower.lags(end, now, self.node.cluster.max_lag)}
        if late:
            self.node.cluster.controller.alter_isr(self, tuple(one for one in isr if one not in late))
        return any(follower.end_offset != end for one, follower in others if one in self.known.isr)

    def wake(self) -> None:
        """Has all that is parked for the partition look again."""
        self.node.produces.check_and_complete(self.partition)
        self.node.fetches.check_and_complete(self.partition)

    # ---- news from the controller

    def learn(self, state: PartitionState) -> None:
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
            # Nor will it take the records of this epoch, as long as the disk is so.
            log.error("%r cannot note its epoch: %s", self, error)
        self.followers = {
            one: Follower(now if one in self.known.isr else -inf) for one in self.partition.replicas if one != own
        }
        if self.followers:
            self.node.lag_watch.watch(self)

    def forget(self) -> None:
        """The partition is no more, or the process that knew."""
        self.node.fetchers.leave(self)
        self.known, self.followers = UNTOLD, {}
        self.wake()


class LagWatch:
    """Looks after the followers of what one node leads, twice in replica.lag.time.max.ms as Kafka does; no timer runs
    while all of them have everything."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._behind: dict[Replica, None] = {}
        self._timeout: Timeout | None = None

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._behind)

    def watch(self, replica: Replica) -> None:
        self._behind[replica] = None
        if self._timeout is None:
            self._timeout = self._node.cluster.timer.after(self._node.cluster.max_lag / 2, self._look)

    def _look(self) -> None:
        self._timeout = None
        behind, self._behind = self._behind, {}
        for replica in behind:
            # Time stands still for a node that is paused.
            if replica.leads and (self._node.paused or replica.shrink()):
                self.watch(replica)
