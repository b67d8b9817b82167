"""All groups of a cluster, classic groups and consumer groups of KIP-848 (Kafka's GroupCoordinator).

The groups belong to the cluster, not to a node, and outlive the coordinating node. A group without members becomes a
group of the other kind when a member of the other protocol joins, and keeps its offsets. A group with members does so,
too, as group.consumer.migration.policy says (migration.py).

Deviations: the cluster keeps groups and offsets for ever; a member's host is that of the node that it talks to, which
is loopback.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kafkabuf.broker.groups.classic_side import ClassicMembers, classic_members
from kafkabuf.broker.groups.consumer_group import ConsumerGroup
from kafkabuf.broker.groups.consumer_member import ConsumerHeartbeat
from kafkabuf.broker.groups.group import Group
from kafkabuf.broker.groups.members import Answer
from kafkabuf.broker.groups.migration import may_downgrade, upgraded
from kafkabuf.broker.groups.offsets import GroupOffsets
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.groups.subscriptions import Topic, matches_in_steps
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.broker.wire._cursor import MALFORMED, Cursor
from kafkabuf.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidGroupIdError,
    KafkaError,
    KafkaStorageError,
    NonEmptyGroupError,
    NotCoordinatorError,
)

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 50
CONSUMER = "consumer"
AnyGroup = Group | ConsumerGroup
# The key of a consumer group's epoch among what the cluster remembers of the group.
_EPOCH = "epoch"

log = logging.getLogger("kafkabuf.broker")


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
    """The cluster stores every change of a group's offsets, and the epochs of a consumer group, by `remember`, under
    the group's name. `topics` returns the topics that exist, by name. `configs` returns the settings of a single group.
    Classic groups call `changed` with each generation; `deleted` gets the name of one that is gone."""

    timer: Timer
    settings: GroupSettings = field(default_factory=GroupSettings)
    topics: Callable[[], Mapping[str, Topic]] = dict
    remember: Callable[[tuple[str | int, ...], Any], None] = lambda key, value: None
    configs: Callable[[str], Mapping[str, str]] = lambda group_id: {}
    changed: Callable[[Group], None] = lambda group: None
    deleted: Callable[[str], None] = lambda group_id: None
    _by_id: dict[str, AnyGroup] = field(default_factory=dict)
    # Changes of topics.
    _changes: int = 0

    def __iter__(self) -> Iterator[AnyGroup]:
        return iter(self._by_id.values())

    def find(self, group_id: str) -> AnyGroup | None:
        return self._by_id.get(group_id)

    def get(self, group_id: str) -> AnyGroup:
        """The group of this name. The first call makes a classic group."""
        if group_id not in self._by_id:
            self._by_id[group_id] = self._new_classic_group(group_id, self._offsets(group_id))
        return self._by_id[group_id]

    def _offsets(self, group_id: str) -> GroupOffsets:
        """The offsets of the group, whatever its kind; new offsets for a group that does not exist."""
        if (offsets := self._offsets_of(group_id)) is not None:
            return offsets
        return GroupOffsets(lambda key, value: self.remember((group_id, *key), value))

    def existing(self, group_id: str) -> AnyGroup:
        """The group of this name. Raises GroupIdNotFoundError if there is no such group."""
        if (group := self._by_id.get(group_id)) is None:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        return group

    def restore(self, group_id: str, key: tuple[Any, ...], value: Any) -> None:
        """Takes over what the cluster has remembered."""
        if key == (_EPOCH,):
            group = self._by_id[group_id] = self._new_consumer_group(group_id)
            group.epoch = group.assignment_epoch = value
        else:
            self.get(group_id).offsets.restore(key, value)

    def restored(self) -> None:
        """Call this after everything was restored."""
        for group in self._by_id.values():
            group.offsets.restored()

    # ---- classic groups

    def joining(self, group_id: str) -> Group | ClassicMembers:
        """The group for a member of the classic protocol."""
        group = self.get(group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            return ClassicMembers(group, self.settings)
        if isinstance(group, ConsumerGroup):
            classic = self._by_id[group_id] = self._new_classic_group(group_id, group.offsets)
            self._remember_epoch(group_id, None)
            return classic
        return group

    def _new_classic_group(self, group_id: str, offsets: GroupOffsets) -> Group:
        group = Group(group_id, self.timer, self.settings, offsets)
        group.changed = lambda: self.changed(group)
        return group

    def classic(self, group_id: str) -> Group | ClassicMembers | None:
        """The group for a request of a member of the classic protocol. None if there is no group."""
        group = self._by_id.get(group_id)
        return ClassicMembers(group, self.settings) if isinstance(group, ConsumerGroup) else group

    # ---- consumer groups

    def consumer(self, group_id: str) -> ConsumerGroup:
        """Raises GroupIdNotFoundError if there is no consumer group of this name."""
        group = self.existing(group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFoundError(f"Group {group_id} is not a consumer group.")
        return group

    def heartbeat(self, group_id: str, beat: ConsumerHeartbeat) -> Work[Answer]:
        """Handles the heartbeat of a consumer. The first member makes the group, or takes over a classic group with its
        members."""
        group = self._by_id.get(group_id)
        if not beat.joins:
            return (yield from self.consumer(group_id).heartbeat(beat))
        if isinstance(group, ConsumerGroup):
            return (yield from group.heartbeat(beat))
        new = self._new_consumer_group(group_id)
        if group is not None and not group.is_empty:
            members, sizes = yield from upgraded(group, self.settings, new.subscriptions)
            if self._by_id.get(group_id) is not group:
                return (yield from self.heartbeat(group_id, beat))  # it was deleted meanwhile
            new.adopt(group.generation, members, sizes)
        answer = new.heartbeat(beat)
        if group is not None:
            group.close()
            self.deleted(group_id)
        self._by_id[group_id] = new
        for member in new.members:
            new.renew_session(member)
        return (yield from answer)

    def _downgrade(self, group: ConsumerGroup) -> bool:
        """Makes a classic group of a group whose members all use the classic protocol. Returns whether it has."""
        if self._by_id.get(group.group_id) is not group or not may_downgrade(group, self.settings):
            return False
        classic = self._new_classic_group(group.group_id, group.offsets)
        members = tuple(classic_members(group))
        for member in group.members:
            group.members.remove(member)
        self._by_id[group.group_id] = classic
        self._remember_epoch(group.group_id, None)
        classic.adopt(group.epoch, members)
        return True

    def heard(self, group_id: str, member_id: str) -> None:
        """Call this for a heartbeat that waits: the member's session restarts."""
        group = self._by_id.get(group_id)
        if isinstance(group, ConsumerGroup) and (member := group.members.get(member_id)) is not None:
            group.renew_session(member)

    def matched(self, group_id: str, beat: ConsumerHeartbeat) -> Work[ConsumerHeartbeat]:
        """The heartbeat with the matches of the expressions that it must match, which takes long, in steps."""
        group = self._by_id.get(group_id)
        patterns = group.unmatched(beat) if isinstance(group, ConsumerGroup) else {beat.pattern or ""} - {""}
        before = None
        while patterns and before != self._changes:
            before = self._changes
            beat = replace(beat, matches=(yield from matches_in_steps(patterns, self.topics(), beat.sees)))
        return beat

    def _new_consumer_group(self, group_id: str) -> ConsumerGroup:
        group = ConsumerGroup(
            group_id,
            self.timer,
            self.settings,
            self.topics,
            self._offsets(group_id),
            lambda epoch: self._remember_epoch(group_id, epoch),
            lambda: self.configs(group_id),
        )
        group.downgraded = lambda: self._downgrade(group)
        return group

    def _remember_epoch(self, group_id: str, epoch: int | None) -> None:
        try:
            self.remember((group_id, _EPOCH), epoch)
        except KafkaStorageError as error:
            log.warning("group %r may begin with an older epoch after a restart: %s", group_id, error)

    def topics_changed(self) -> None:
        """Call this when topics or partitions were created or deleted."""
        self._changes += 1
        for group in self._by_id.values():
            if isinstance(group, ConsumerGroup):
                group.topics_changed()

    # ---- both

    def committing(
        self, group_id: str, generation: int, missing: type[KafkaError] = IllegalGenerationError
    ) -> AnyGroup:
        """The group for a commit of offsets. A commit without generation makes the group if it does not exist; a commit
        with a generation then raises `missing`."""
        if group_id not in self._by_id and generation >= 0:
            raise missing(f"there is no group {group_id!r}, but the request has generation {generation}")
        return self.get(group_id)

    def delete(self, group_id: str) -> Work[None]:
        """Deletes the group at once, and what is stored of it in steps. Meanwhile a new group may take its name.

        Raises NonEmptyGroupError while the group has members. Raises KafkaStorageError if the disk refuses: then the
        group is back, unless there is a new one.
        """
        group = self.existing(group_id)
        if not group.is_empty:
            raise NonEmptyGroupError(f"group {group_id!r} has members")
        del self._by_id[group_id]
        try:
            yield from group.offsets.clear(lambda: self._offsets_of(group_id))
        except KafkaStorageError:
            if self._by_id.setdefault(group_id, group) is not group:
                log.error("what is stored of the deleted group %r mixes with the new group of this name", group_id)
            raise
        new = self._by_id.get(group_id)
        if isinstance(group, ConsumerGroup) and not isinstance(new, ConsumerGroup):
            self._remember_epoch(group_id, None)
        if isinstance(group, Group) and not isinstance(new, Group):
            self.deleted(group_id)

    def _offsets_of(self, group_id: str) -> GroupOffsets | None:
        group = self._by_id.get(group_id)
        return None if group is None else group.offsets

    def forget_topic(self, name: str) -> Work[None]:
        """Drops every group's offsets of a deleted topic, in steps."""
        for group in tuple(self._by_id.values()):
            try:
                yield from group.offsets.forget_topic(name)
            except KafkaStorageError as error:
                log.error("group %r keeps offsets of topic %s, which is gone: %s", group.group_id, name, error)

    def end_transaction(self, producer_id: int, committed: bool) -> Work[None]:
        """Handles a control record for the offsets topic: ends the transaction in every group that is part of it, in
        steps."""
        for group in tuple(self._by_id.values()):
            yield from group.offsets.end_transaction(producer_id, committed)


def check_coordinator(node: Node, group_id: str, *, named: bool = True) -> KafkaError | None:
    """The error for a request about a group that another node coordinates, or that has no name although `named`."""
    if named and not group_id:
        return InvalidGroupIdError("a group's id must not be empty")
    if not node.coordinates(group_id):
        return NotCoordinatorError(f"node {node.node_id} does not coordinate group {group_id!r}")
    return None


def subscribed_topics(group: AnyGroup, wanted: Collection[str]) -> Work[set[str]]:
    """Those of the topics that a group of consumers reads, in steps; none for groups of another kind. A classic group
    has its topics in the metadata of its members; malformed metadata counts as no topics (Kafka's
    ClassicGroup.computeSubscribedTopics)."""
    wanted = frozenset(wanted)
    subscribed: set[str] = set()
    if isinstance(group, ConsumerGroup):
        for subscription in {member.subscription for member in group.members}:
            subscribed |= wanted & group.subscriptions.names(subscription)
            yield
    elif group.protocol_type == CONSUMER and group.protocol:
        for metadata in {member.metadata(group.protocol) for member in group.members}:
            subscribed |= wanted.intersection(_topics(metadata))
            yield
    return subscribed


def _topics(metadata: bytes) -> list[str]:
    """The topics of a ConsumerProtocolSubscription: version i16, array of topics, further fields."""
    try:
        cursor = Cursor(metadata, struct.calcsize(">h"), flexible=False)
        return [cursor.string() for _ in range(cursor.count())]
    except MALFORMED:
        return []
