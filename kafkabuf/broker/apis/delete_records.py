"""DeleteRecords (key 21), versions 0 to 2, on the leader: deletes the records before an offset.

The offset -1 stands for the high watermark.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.errors import KafkaError, error_for_code
from kafkabuf.protocol.messages import DELETE_RECORDS, RequestHeader

_ALL = -1


@api(DELETE_RECORDS, 0, 2, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_errors(DELETE_RECORDS, [topic.name for topic in request.topics])
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _delete(node, topic.name, partition, injected.code_for(topic.name))
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _delete(node: Node, name: str, requested: Any, injected: int) -> dict[str, int]:
    try:
        if injected:
            raise error_for_code(injected)
        leader = node.cluster.catalogue.topic(name).partition(requested.partition_index).led_by(node.node_id)
        log = leader.log
        log.delete_before(log.high_watermark if requested.offset == _ALL else requested.offset)
        leader.wake()
    except KafkaError as error:
        return {"partition_index": requested.partition_index, "low_watermark": -1, "error_code": error.code}
    return {"partition_index": requested.partition_index, "low_watermark": log.log_start_offset}
