"""ConsumerGroupDescribe (key 69), versions 0 and 1, on the group's coordinator: epochs and members of groups.

These are the consumer groups of KIP-848. A classic group is not found. A partition whose topic was deleted is left out.
A client that may not describe each topic of a group's assignments gets an error in place of the group.

Deviation: a response has at most 16 MiB of names of topics, unless it has one group. The other groups get
COORDINATOR_LOAD_IN_PROGRESS: clients ask for them again.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.operations import NOT_ASKED
from kafkabuf.broker.groups.consumer_member import ConsumerMember
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.groups.reconciliation import Partitions, TopicId
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import (
    CoordinatorLoadInProgressError,
    GroupAuthorizationError,
    KafkaError,
    TopicAuthorizationError,
    error_for_code,
)
from kafkabuf.protocol.messages import CONSUMER_GROUP_DESCRIBE, RequestHeader

# The protocol that a member uses.
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
# The most bytes of topics' names in a response.
MOST_BYTES = 16 << 20


@api(CONSUMER_GROUP_DESCRIBE, 0, 1, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_describe_all(node, header, request))


def _describe_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    injected = node.cluster.faults.take_error(CONSUMER_GROUP_DESCRIBE)
    rights, include = rights_of(header), request.include_authorized_operations
    names = {topic.topic_id.int: name for name, topic in node.cluster.catalogue.topics.items()}
    groups: list[dict[str, Any]] = []
    room = MOST_BYTES
    # A small request must not fill the memory: a group that it repeats comes once.
    for group_id in dict.fromkeys(request.group_ids):
        if room < 0:
            groups.append({"group_id": group_id, "error_code": CoordinatorLoadInProgressError.code})
        else:
            groups.append((yield from _describe(node, group_id, names, injected, rights, include)))
            room -= yield from _size(groups[-1])
        yield
    # As Kafka's response, this begins with the groups that the client may not see.
    return {"groups": sorted(groups, key=lambda group: group.get("error_code") != GroupAuthorizationError.code)}


def _describe(
    node: Node, group_id: str, names: Mapping[TopicId, str], injected: int, rights: Rights, include: bool
) -> Work[dict[str, Any]]:
    try:
        if injected:
            raise error_for_code(injected)
        rights.check(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        if (error := check_coordinator(node, group_id)) is not None:
            raise error
        group = node.cluster.groups.consumer(group_id)
        described = {
            "group_id": group_id,
            "group_state": group.state.value,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.assignor,
            "authorized_operations": rights.operations(ResourceType.GROUP, group_id) if include else NOT_ASKED,
        }
        # The group may change between two steps: the response has the state of its beginning.
        members = []
        for member in [(replace(member), group.target(member)) for member in group.members]:
            members.append(_member(names, *member))
            yield
        _check_topics(members, rights)
    except KafkaError as error:
        return {"group_id": group_id, "error_code": error.code, "error_message": str(error)}
    return {**described, "members": members}


def _size(group: dict[str, Any]) -> Work[int]:
    """The bytes of the topics' names in a described group."""
    size = 0
    for member in group.get("members", ()):
        size += sum(map(len, member["subscribed_topic_names"]))
        for assignment in (member["assignment"], member["target_assignment"]):
            size += sum(len(topic["topic_name"]) for topic in assignment["topic_partitions"])
        yield
    return size


def _check_topics(members: list[dict[str, Any]], rights: Rights) -> None:
    """Raises TopicAuthorizationError if the client may not describe each topic that the members have or will get."""
    if not rights.limited:
        return
    topics = {
        topic["topic_name"]
        for member in members
        for assignment in (member["assignment"], member["target_assignment"])
        for topic in assignment["topic_partitions"]
    }
    if not all(rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic) for topic in topics):
        raise TopicAuthorizationError("the group has topics that the client may not describe")


def _member(names: Mapping[TopicId, str], member: ConsumerMember, target: Partitions) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.current.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscription.topics),
        "subscribed_topic_regex": member.subscription.pattern,
        "assignment": {"topic_partitions": _by_topic(names, member.current.assigned)},
        "target_assignment": {"topic_partitions": _by_topic(names, target)},
        "member_type": _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    }


def _by_topic(names: Mapping[TopicId, str], partitions: Partitions) -> list[dict[str, Any]]:
    topics: dict[TopicId, list[int]] = {}
    for topic_id, index in sorted(partitions):
        if topic_id in names:
            topics.setdefault(topic_id, []).append(index)
    return [
        {"topic_id": UUID(int=topic_id), "topic_name": names[topic_id], "partitions": indexes}
        for topic_id, indexes in topics.items()
    ]
