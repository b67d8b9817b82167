"""DeleteRecords (key 21), versions 0 to 2, on the leader: deletes the records before an offset.

The offset -1 stands for the high watermark. Only a topic whose cleanup.policy contains `delete` lets records go.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidTopicError, KafkaError, PolicyViolationError, error_for_code
from kafkabuf.protocol.messages import DELETE_RECORDS, RequestHeader

_ALL = -1


@api(DELETE_RECORDS, 0, 2, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_delete_all(node, header, request), goes_on=True)


def _delete_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    injected = node.cluster.faults.take_errors(DELETE_RECORDS, [topic.name for topic in request.topics])
    rights = rights_of(header)
    topics = []
    for topic in request.topics:
        code = injected.code_for(topic.name) or rights.code(Operation.DELETE, ResourceType.TOPIC, topic.name)
        partitions = []
        for partition in topic.partitions:
            partitions.append((yield from _delete(node, topic.name, partition, code)))
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _delete(node: Node, name: str, requested: Any, code: int) -> Work[dict[str, int]]:
    try:
        if code:
            raise error_for_code(code)
        topic = node.cluster.catalogue.topic(name)
        if topic.internal:
            raise InvalidTopicError(f"{name} is internal: only the cluster drops its records")
        leader = topic.partition(requested.partition_index).led_by(node.node_id)
        log = leader.log
        if not log.config.delete:
            raise PolicyViolationError(f"the cleanup.policy of topic {name} does not contain delete")
        log.delete_before(log.high_watermark if requested.offset == _ALL else requested.offset)
        leader.wake()
        while log.drop_deleted():
            yield
    except KafkaError as error:
        return {"partition_index": requested.partition_index, "low_watermark": -1, "error_code": error.code}
    return {"partition_index": requested.partition_index, "low_watermark": log.log_start_offset}
