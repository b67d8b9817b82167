"""OffsetDelete (key 47), version 0, on the group's coordinator: deletes committed offsets (KIP-496).

The group must be empty, or a group of consumers. A group's offsets of a topic that the group reads are not deleted.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.groups import CONSUMER, AnyGroup, check_coordinator, subscribed_topics
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import DELETE_GROUP, Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import GroupSubscribedToTopicError, KafkaError, NonEmptyGroupError
from kafkabuf.protocol.messages import OFFSET_DELETE, RequestHeader


@api(OFFSET_DELETE, 0, 0, needs=(DELETE_GROUP,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_delete_all(node, header, request), goes_on=True)


def _delete_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    try:
        if (error := check_coordinator(node, request.group_id)) is not None:
            raise error
        group = node.cluster.groups.existing(request.group_id)
        if not group.is_empty and group.protocol_type != CONSUMER:
            raise NonEmptyGroupError(f"group {group.group_id!r} has members, and they may read any topic")
    except KafkaError as error:
        return {"error_code": error.code}
    rights = rights_of(header)
    subscribed = yield from subscribed_topics(group, [topic.name for topic in request.topics])
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            code = _delete(node, group, (topic.name, index), subscribed, rights)
            partitions.append({"partition_index": index, "error_code": code})
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _delete(node: Node, group: AnyGroup, topic_partition: tuple[str, int], subscribed: set[str], rights: Rights) -> int:
    if code := rights.code(Operation.READ, ResourceType.TOPIC, topic_partition[0]):
        return code
    if code := node.cluster.catalogue.partition_code(*topic_partition):
        return code
    if topic_partition[0] in subscribed:
        return GroupSubscribedToTopicError.code
    try:
        # Between two slices the group may have been deleted, and made again.
        if (present := node.cluster.groups.find(group.group_id)) is not None:
            present.offsets.delete(topic_partition)
    except KafkaError as error:
        return error.code
    return 0
