"""Topics and partitions, as the controller keeps them. Belongs to the cluster's event loop."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from kafkabuf.broker.log.batch import Limits
from kafkabuf.broker.log.config import int_config
from kafkabuf.broker.log.control import Marker
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.replica.replication import NO_LEADER, UNTOLD, PartitionState, Replica
from kafkabuf.errors import (
    InvalidTopicError,
    KafkaError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)

log = logging.getLogger("kafkabuf.broker")

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Partition:
    """`replicas` lists the nodes that have a copy, the one preferred as leader first; `copies` are these. `state` is
    the controller's and changes by its hand alone."""

    __slots__ = ("_markers", "copies", "index", "replicas", "state", "topic")

    def __init__(self, topic: Topic, index: int, replicas: tuple[int, ...]) -> None:
        self.topic = topic
        self.index = index
        self.replicas = replicas
        self.copies: dict[int, Replica] = {}
        self.state: PartitionState = UNTOLD
        # Transaction markers that not all in sync have, with their offsets: who leads next has to write them again.
        self._markers: deque[tuple[int, Marker]] = deque()

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
        """The leader's log; while nobody leads, that of the first who may without loss."""
        return self.copies[self.state.leader if self.state.leader != NO_LEADER else self.state.isr[0]].log

    @property
    def min_isr(self) -> int:
        return min(int_config(self.topic.configs, "min.insync.replicas", self.topic.min_isr), len(self.replicas))

    def led_by(self, node: int, client_epoch: int = -1) -> Replica:
        """The copy on `node`, which believes to lead the partition, for a client that does so too and believes in
        `client_epoch` (-1: it did not say). NotLeaderOrFollowerError, FencedLeaderEpochError, UnknownLeaderEpochError.
        """
        copy = self.copy(node)
        copy.check_leads(client_epoch)
        return copy

    def copy(self, node: int) -> Replica:
        """NotLeaderOrFollowerError if the node has none."""
        if node not in self.copies:
            raise NotLeaderOrFollowerError(f"node {node} has no copy of partition {self.index}")
        return self.copies[node]

    def seen_by(self, node: int) -> PartitionState:
        """What a node tells its clients: one with a copy what it was told, also while it is cut off."""
        copy = self.copies.get(node)
        return self.state if copy is None else copy.known

    # ---- transactions

    def marker_written(self, offset: int, marker: Marker) -> None:
        self._markers.append((offset, marker))

    def markers_reached(self, high_watermark: int) -> None:
        while self._markers and self._markers[0][0] < high_watermark:
            self._markers.popleft()

    def rewrite_markers(self, timestamp: int) -> None:
        """On a new leader: what it never got. Its log is the beginning of the one that led before."""
        markers, end = tuple(self._markers), self.log.end_offset
        self._markers.clear()
        for offset, marker in markers:
            if offset >= end:
                try:
                    self.copies[self.leader].write_marker(marker, timestamp)
                except KafkaError as error:
                    log.error("%s-%d does not take %s again: %s", self.topic.name, self.index, marker, error)
            else:
                self._markers.append((offset, marker))


@dataclass(slots=True, eq=False)
class Topic:
    """`min_isr` is the cluster's, for topics without a min.insync.replicas of their own."""

    name: str
    partitions: list[Partition]
    limits: Limits
    # Makes or opens the log of a replica, by its node and partition.
    new_log: Callable[[int, int], PartitionLog]
    configs: dict[str, str] = field(default_factory=dict)
    min_isr: int = 1
    topic_id: UUID = field(default_factory=uuid4)
    deleted: bool = False

    @property
    def unclean_election(self) -> bool:
        """Whether a copy that is not in sync may lead when none is left that is, and records be lost by it."""
        return self.configs.get("unclean.leader.election.enable", "false").lower() == "true"

    def add(self, placed: list[tuple[int, ...]]) -> list[Partition]:
        """Further partitions, by their replicas; without copies and a leader yet."""
        have = len(self.partitions)
        new = [Partition(self, have + index, nodes) for index, nodes in enumerate(placed)]
        self.partitions += new
        return new

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


def leader_error(state: PartitionState, index: int) -> KafkaError | None:
    """What Metadata says of a partition."""
    if state.leader == NO_LEADER:
        return LeaderNotAvailableError(f"no node that could lead partition {index} is alive")
    return None
