"""OffsetDelete (key 47), version 0: what a group has committed for partitions of topics that it does not read. Only a
group of consumers may have members meanwhile (KIP-496)."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.groups.group import Group, State
from kafkabuf.broker.groups.groups import CONSUMER, check_coordinator, subscribed_topics
from kafkabuf.errors import GroupSubscribedToTopicError, KafkaError, NonEmptyGroupError
from kafkabuf.protocol.messages import OFFSET_DELETE, RequestHeader


@api(OFFSET_DELETE, 0, 0)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    try:
        if (error := check_coordinator(node, request.group_id)) is not None:
            raise error
        group = node.cluster.groups.existing(request.group_id)
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
            raise NonEmptyGroupError(f"group {group.group_id!r} has members, and they may be reading any topic")
    except KafkaError as error:
        return {"error_code": error.code}
    read = subscribed_topics(group)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": _delete(node, group, (topic.name, one.partition_index), read),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _delete(node: Node, group: Group, where: tuple[str, int], read: set[str]) -> int:
    if code := node.cluster.catalogue.partition_code(*where):
        return code
    if where[0] in read:
        return GroupSubscribedToTopicError.code
    group.offsets.delete(where)
    return 0
