"""OffsetForLeaderEpoch (key 23), versions 2 to 4, on the leader: the end offset of a leader epoch.

It tells a client whether records that the client has read were lost with a former leader (KIP-320).
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import KafkaError, error_for_code
from kafkabuf.protocol.messages import OFFSET_FOR_LEADER_EPOCH, RequestHeader


@api(OFFSET_FOR_LEADER_EPOCH, 2, 4, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_look_up_all(node, header, request))


def _look_up_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    injected = node.cluster.faults.take_errors(OFFSET_FOR_LEADER_EPOCH, [topic.topic for topic in request.topics])
    rights = rights_of(header)
    follower = rights.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    topics = []
    for topic in request.topics:
        code = injected.code_for(topic.topic)
        if not code and not follower:
            code = rights.code(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
        partitions = []
        for requested in topic.partitions:
            partitions.append(_look_up(node, topic.topic, requested, code))
            yield
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


def _look_up(node: Node, topic: str, requested: Any, code: int) -> dict[str, int]:
    try:
        if code:
            raise error_for_code(code)
        leader = (
            node.cluster.catalogue.topic(topic)
            .partition(requested.partition)
            .led_by(node.node_id, requested.current_leader_epoch)
        )
    except KafkaError as error:
        return {"partition": requested.partition, "error_code": error.code}
    epoch, end_offset = leader.log.leader_epochs.end_offset_for(requested.leader_epoch)
    return {"partition": requested.partition, "leader_epoch": epoch, "end_offset": end_offset}
