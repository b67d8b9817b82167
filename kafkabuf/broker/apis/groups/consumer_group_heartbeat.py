"""ConsumerGroupHeartbeat (key 68), versions 0 and 1, on the group's coordinator: a member joins, stays or leaves.

The member is one of KIP-848. The epoch says what the member wants: 0 joins, -1 leaves, -2 leaves for a while (static
members), any other stays. From version 1 on the consumer chooses its member id, and may subscribe with a regular
expression. A name of a topic that the client may not describe is an error; an expression does not match such a topic.
"""

from __future__ import annotations

from asyncio import Future, isfuture
from typing import Any
from uuid import UUID, uuid4

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.operations import sight
from kafkabuf.broker.groups.consumer_member import LEAVING, LEAVING_FOR_A_WHILE, ConsumerHeartbeat
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.groups.reconciliation import Partitions, TopicId
from kafkabuf.broker.guards.rights import READ_GROUP, Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, KafkaError, TopicAuthorizationError, UnsupportedAssignorError
from kafkabuf.protocol.messages import CONSUMER_GROUP_HEARTBEAT, RequestHeader

_FIRST_OWN_MEMBER_ID = 1
# Topics that a step adds to a response.
_STEP = 500


@api(CONSUMER_GROUP_HEARTBEAT, 0, 1, needs=(READ_GROUP,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    answer = node.cluster.slices.run(_answer(node, header, request), turn=("group", request.group_id))
    if isfuture(answer):
        # The member is not silent, however long the heartbeat waits for others.
        node.cluster.groups.heard(request.group_id, request.member_id)
    return answer


def _answer(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    beat = _heartbeat(node, header, request)
    try:
        _check_topics(beat.topics or frozenset(), rights_of(header))
        _check_fields(header, request, beat)
        _check_assignor(node, beat)
        if (error := check_coordinator(node, request.group_id)) is not None:
            raise error
        if beat.leaves:
            return _leave(node, request.group_id, beat)
        beat = yield from node.cluster.groups.matched(request.group_id, beat)
        return (yield from _beat(node, request.group_id, beat))
    except KafkaError as error:
        return {"error_code": error.code, "error_message": str(error)}


def _check_topics(topics: frozenset[str], rights: Rights) -> None:
    """Raises TopicAuthorizationError. Like Kafka's, the error does not say which of the topics is meant."""
    sees = sight(rights)
    if sees is not None and not all(map(sees, topics)):
        raise TopicAuthorizationError("the client may not describe each topic of its subscription")


def _heartbeat(node: Node, header: RequestHeader, request: Any) -> ConsumerHeartbeat:
    seconds = request.rebalance_timeout.total_seconds()
    names = request.subscribed_topic_names
    new_id = str(uuid4()) if not request.member_id and header.version < _FIRST_OWN_MEMBER_ID else ""
    return ConsumerHeartbeat(
        member_id=request.member_id or new_id,
        member_epoch=request.member_epoch,
        client_id=header.client_id or "",
        client_host=f"/{node.host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout=seconds if seconds >= 0 else None,
        topics=None if names is None else frozenset(names),
        pattern=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        reported=_reported(request.topic_partitions),
        sees=sight(rights_of(header)),
    )


def _reported(topics: Any) -> Partitions | None:
    if topics is None:
        return None
    return frozenset((topic.topic_id.int, index) for topic in topics if topic.topic_id for index in topic.partitions)


def _check_fields(header: RequestHeader, request: Any, beat: ConsumerHeartbeat) -> None:
    """Raises InvalidRequestError."""
    named = header.version >= _FIRST_OWN_MEMBER_ID or not beat.joins
    for name, value in (
        ("MemberId", request.member_id if named else None),
        ("GroupId", request.group_id),
        ("InstanceId", beat.instance_id),
        ("RackId", beat.rack_id),
    ):
        if value is not None and not value.strip():
            raise InvalidRequestError(f"{name} can't be empty.")
    if beat.joins:
        _check_joining(beat)
    elif beat.member_epoch == LEAVING_FOR_A_WHILE and beat.instance_id is None:
        raise InvalidRequestError("InstanceId can't be null.")
    elif beat.member_epoch < LEAVING_FOR_A_WHILE:
        raise InvalidRequestError(f"MemberEpoch {beat.member_epoch} is invalid.")


def _check_joining(beat: ConsumerHeartbeat) -> None:
    if beat.rebalance_timeout is None:
        raise InvalidRequestError("A member that joins must have a RebalanceTimeoutMs.")
    if beat.reported is None or beat.reported:
        raise InvalidRequestError("A member that joins must have an empty list of TopicPartitions.")
    if beat.topics is None and beat.pattern is None:
        raise InvalidRequestError("A member that joins must have SubscribedTopicNames or a SubscribedTopicRegex.")


def _check_assignor(node: Node, beat: ConsumerHeartbeat) -> None:
    supported = node.cluster.config.groups.group_consumer_assignors
    if beat.assignor is not None and beat.assignor not in supported:
        raise UnsupportedAssignorError(
            f"ServerAssignor {beat.assignor} is not supported. Supported assignors: {', '.join(supported)}."
        )


def _beat(node: Node, group_id: str, beat: ConsumerHeartbeat) -> Work[dict[str, Any]]:
    answer = yield from node.cluster.groups.heartbeat(group_id, beat)
    yield
    if "assignment" in answer:
        answer["assignment"] = {"topic_partitions": (yield from _by_topic(answer["assignment"]))}
    return answer


def _by_topic(partitions: Partitions) -> Work[list[dict[str, Any]]]:
    topics: dict[TopicId, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    by_topic = []
    for topic_id, indexes in topics.items():
        by_topic.append({"topic_id": UUID(int=topic_id), "partitions": indexes})
        if not len(by_topic) % _STEP:
            yield
    return by_topic


def _leave(node: Node, group_id: str, beat: ConsumerHeartbeat) -> dict[str, Any]:
    for_a_while = beat.member_epoch != LEAVING
    node.cluster.groups.consumer(group_id).leave(beat.member_id, beat.instance_id, for_a_while=for_a_while)
    return {"member_id": beat.member_id, "member_epoch": beat.member_epoch}
