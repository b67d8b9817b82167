"""DescribeTopicPartitions (key 75), version 0, on any node: topics by name, or all topics, in the order of their names.
A response has at most as many partitions as the request says, and a cursor with which the next request goes on
(KIP-966).

Deviation: there are no eligible leader replicas.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.operations import NOT_ASKED
from kafkabuf.broker.apis.topics.metadata import describe_partition
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.log.names import check_name
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, KafkaError, TopicAuthorizationError, error_for_code
from kafkabuf.protocol.messages import DESCRIBE_TOPIC_PARTITIONS, RequestHeader

# Kafka's max.request.partition.size.limit.
MAX_PARTITIONS = 2000


@api(DESCRIBE_TOPIC_PARTITIONS, 0, 0, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_describe_all(node, header, request))


def _describe_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    cursor = request.cursor
    requested = {topic.name for topic in request.topics}
    names = sorted(requested or node.cluster.catalogue.topics)
    first = 0
    if cursor is not None:
        if cursor.partition_index < 0 or (requested and cursor.topic_name not in requested):
            return {"topics": [{"name": name, "error_code": InvalidRequestError.code} for name in names]}
        names = [name for name in names if name >= cursor.topic_name]
        first = cursor.partition_index if names[:1] == [cursor.topic_name] else 0
    rights = rights_of(header)
    hidden = []
    if rights.limited:
        visible = []
        for name in names:
            if rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
                visible.append(name)
            elif requested:
                hidden.append(_hide(name))
            yield
        names = visible
    yield
    room = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    injected = node.cluster.faults.take_errors(DESCRIBE_TOPIC_PARTITIONS, names)
    topics: list[dict[str, Any]] = []
    for name in names:
        if room == 0:
            return {"topics": topics + hidden, "next_cursor": {"topic_name": name, "partition_index": 0}}
        topic = _describe(node, name, first, room, injected.code_for(name), rights)
        topics.append(topic)
        yield
        next_index = first + len(topic["partitions"])
        if next_index < topic.pop("count"):
            return {"topics": topics + hidden, "next_cursor": {"topic_name": name, "partition_index": next_index}}
        room -= next_index - first
        first = 0
    return {"topics": topics + hidden}


def _hide(name: str) -> dict[str, Any]:
    """A topic that the client may not describe."""
    return {
        "error_code": TopicAuthorizationError.code,
        "name": name,
        "partitions": [],
        "topic_authorized_operations": NOT_ASKED,
    }


def _describe(node: Node, name: str, first: int, room: int, injected: int, rights: Rights) -> dict[str, Any]:
    operations = rights.operations(ResourceType.TOPIC, name)
    try:
        if injected:
            raise error_for_code(injected)
        check_name(name)
        topic = node.cluster.catalogue.topic(name)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "name": name,
            "partitions": [],
            "count": 0,
            "topic_authorized_operations": operations,
        }
    return {
        "name": name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "count": len(topic.partitions),
        "partitions": [
            {**describe_partition(partition, node), "eligible_leader_replicas": [], "last_known_elr": []}
            for partition in topic.partitions[first : first + room]
        ],
        "topic_authorized_operations": operations,
    }
