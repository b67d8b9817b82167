"""All classic consumer groups of a cluster (Kafka's GroupCoordinator).

The groups belong to the cluster, not to a node, and outlive the coordinating node. Deviations: the cluster keeps groups
and offsets for ever; a member's host is that of the node that it talks to, which is loopback.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafkabuf.broker.groups.group import Group, State
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidGroupIdError,
    KafkaError,
    NonEmptyGroupError,
    NotCoordinatorError,
)
from kafkabuf.protocol.cursor import MALFORMED, Cursor

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 50
CONSUMER = "consumer"


class Node(Protocol):
    """What a check of the coordinator needs of the node that was asked."""

    node_id: int

    def coordinates(self, key: str) -> bool: ...


def offsets_partition(group_id: str) -> int:
    """The partition of Kafka's __consumer_offsets that a group belongs to, by Java's hash of its name."""
    code = 0
    for unit in memoryview(group_id.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % OFFSETS_PARTITIONS


@dataclass(slots=True)
class Groups:
    """The cluster stores every change of a group's offsets by `remember`, under the group's name."""

    timer: Timer
    remember: Callable[[tuple[str | int, ...], Any], None] = lambda key, value: None
    _by_id: dict[str, Group] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_id.values())

    def find(self, group_id: str) -> Group | None:
        return self._by_id.get(group_id)

    def get(self, group_id: str) -> Group:
        """The group of this name. The first call makes it."""
        if group_id not in self._by_id:
            group = self._by_id[group_id] = Group(group_id, self.timer)
            group.offsets.remember = lambda key, value: self.remember((group_id, *key), value)
        return self._by_id[group_id]

    def existing(self, group_id: str) -> Group:
        """The group of this name. Raises GroupIdNotFoundError if there is no such group."""
        if (group := self._by_id.get(group_id)) is None:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        return group

    def committing(self, group_id: str, generation: int, missing: type[KafkaError] = IllegalGenerationError) -> Group:
        """The group for a commit of offsets. A commit without generation makes the group if it does not exist; a commit
        with a generation then raises `missing`."""
        if group_id not in self._by_id and generation >= 0:
            raise missing(f"there is no group {group_id!r}, but the request has generation {generation}")
        return self.get(group_id)

    def delete(self, group_id: str) -> None:
        """Deletes the group and its offsets. Raises NonEmptyGroupError while the group has members."""
        if self.existing(group_id).state is not State.EMPTY:
            raise NonEmptyGroupError(f"group {group_id!r} has members")
        self._by_id.pop(group_id).offsets.clear()

    def forget_topic(self, name: str) -> None:
        """Drops every group's offsets of a deleted topic."""
        for group in self._by_id.values():
            group.offsets.forget_topic(name)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Handles a control record for the offsets topic: ends the transaction in every group that is part of it."""
        for group in self._by_id.values():
            group.offsets.end_transaction(producer_id, committed)


def check_coordinator(node: Node, group_id: str, *, named: bool = True) -> KafkaError | None:
    """The error for a request about a group that another node coordinates, or that has no name although `named`."""
    if named and not group_id:
        return InvalidGroupIdError("a group's id must not be empty")
    if not node.coordinates(group_id):
        return NotCoordinatorError(f"node {node.node_id} does not coordinate group {group_id!r}")
    return None


def subscribed_topics(group: Group) -> set[str]:
    """The topics in the metadata of a consumer group's members; empty for groups of another kind. Malformed metadata
    counts as no topics (Kafka's ClassicGroup.computeSubscribedTopics)."""
    if group.protocol_type != CONSUMER or not group.protocol:
        return set()
    return {topic for member in group.members for topic in _topics(member.metadata(group.protocol))}


def _topics(metadata: bytes) -> list[str]:
    """The topics of a ConsumerProtocolSubscription: version i16, array of topics, further fields."""
    cursor = Cursor(metadata, struct.calcsize(">h"), flexible=False)
    try:
        return [cursor.string() for _ in range(cursor.count())]
    except MALFORMED:
        return []
