"""Groups with members that change their protocol (KIP-848's online migration, group.consumer.migration.policy).

The first consumer with group.protocol=consumer upgrades a classic group of consumers: its members stay, with the
partitions that they have, and go on with the classic protocol in the new group (classic_side.py). When the last
consumer with group.protocol=consumer leaves, the group becomes a classic group again, and its members join again.

As in Kafka, a group whose assignments carry data of their assignor stays classic. Those of librdkafka's
cooperative-sticky do from the second generation on.

Deviations: where a partition has two owners in a classic group, the first keeps it; a classic member that takes the
place of the last static member with group.protocol=consumer makes the group rebalance, in Kafka only if its topics
differ.
"""

from __future__ import annotations

from kafkabuf.broker.groups.consumer_group import ConsumerGroup
from kafkabuf.broker.groups.consumer_member import ClassicSide, ConsumerMember, Subscription, size_of_names
from kafkabuf.broker.groups.consumer_protocol import read_assignment, read_subscription
from kafkabuf.broker.groups.group import Group
from kafkabuf.broker.groups.members import Member
from kafkabuf.broker.groups.reconciliation import CurrentAssignment, MemberState, TopicIdPartition
from kafkabuf.broker.groups.settings import GroupSettings
from kafkabuf.broker.groups.subscriptions import Subscriptions, TopicSizes
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.broker.wire._cursor import MALFORMED
from kafkabuf.errors import GroupIdNotFoundError

_CONSUMER = "consumer"


def check_upgrade(group: Group, settings: GroupSettings) -> None:
    """Raises GroupIdNotFoundError for a group with members that stays classic."""
    if not settings.upgrades:
        raise _refusal(group, "online upgrade is disabled")
    if group.protocol_type != _CONSUMER:
        raise _refusal(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > settings.group_consumer_max_size:
        raise _refusal(group, "the group size exceeds the consumer group maximum size")


def _refusal(group: Group, reason: str) -> GroupIdNotFoundError:
    return GroupIdNotFoundError(f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}.")


def upgraded(
    group: Group, settings: GroupSettings, subscriptions: Subscriptions
) -> Work[tuple[list[ConsumerMember], TopicSizes]]:
    """The members of a classic group as members of a consumer group, with the partitions that they have, and the topics
    that they read, in steps. Raises GroupIdNotFoundError if the group cannot be upgraded."""
    while not group.is_empty:
        check_upgrade(group, settings)
        before = _state(group)
        members = yield from _consumer_members(group, subscriptions)
        sizes = yield from subscriptions.sizes(members)
        # Members may leave, sync or expire between two steps. They do not join: that has the turn of this work.
        if _state(group) == before:
            return members, sizes
    return [], {}


def _state(group: Group) -> tuple[object, ...]:
    return group.generation, group.protocol, [(member.member_id, member.assignment) for member in group.members]


def _consumer_members(group: Group, subscriptions: Subscriptions) -> Work[list[ConsumerMember]]:
    taken: set[TopicIdPartition] = set()
    protocol = group.protocol or group.members.elect_protocol()
    members = []
    for member in group.members:
        try:
            subscription = read_subscription(member.metadata(protocol))
            assigned, has_data = read_assignment(member.assignment) if member.assignment else (frozenset(), False)
        except MALFORMED:
            raise _refusal(group, "the embedded consumer protocol is malformed") from None
        if has_data:
            raise _refusal(
                group,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade",
            )
        partitions = subscriptions.partitions(assigned) - taken
        taken |= partitions
        yield
        current = CurrentAssignment(group.generation, group.generation, MemberState.STABLE, partitions)
        topics = subscriptions.shared(subscription.topics)
        members.append(_consumer_member(member, topics, subscription.rack_id, current))
        yield
    return members


def _consumer_member(
    member: Member, topics: frozenset[str], rack_id: str | None, current: CurrentAssignment
) -> ConsumerMember:
    joining = member.joining
    return ConsumerMember(
        member.member_id,
        joining.group_instance_id,
        rack_id,
        joining.client_id,
        joining.client_host,
        rebalance_timeout=joining.rebalance_timeout,
        subscription=Subscription(topics),
        names_size=size_of_names(topics),
        current=current,
        classic=ClassicSide(joining),
    )


def may_downgrade(group: ConsumerGroup, settings: GroupSettings) -> bool:
    """Whether the group has members, which all use the classic protocol and fit into a classic group."""
    return (
        bool(group.members)
        and settings.downgrades
        and len(group.members) <= settings.group_max_size
        and all(member.classic is not None for member in group.members)
    )
