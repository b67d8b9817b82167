"""WriteTxnMarkers (key 27), version 1, on the leader: ends a producer's transaction in partitions.

The node does not ask the transaction's coordinator. Administrators end hanging transactions with it.

Deviation: the cluster's own coordinator does not send this request. It writes its control records directly.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.log.control import Marker
from kafkabuf.errors import KafkaError
from kafkabuf.protocol.messages import WRITE_TXN_MARKERS, RequestHeader


@api(WRITE_TXN_MARKERS, 1, 1, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    code, rights = node.cluster.faults.take_error(WRITE_TXN_MARKERS), rights_of(header)
    if not code and not rights.allows(Operation.ALTER, ResourceType.CLUSTER):
        code = rights.code(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    return {"markers": [_write_all(node, requested, code) for requested in request.markers]}


def _write_all(node: Node, requested: Any, code: int) -> dict[str, Any]:
    marker = Marker(
        requested.producer_id, requested.producer_epoch, requested.coordinator_epoch, requested.transaction_result
    )
    return {
        "producer_id": requested.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": code or _write(node, topic.name, index, marker)}
                    for index in topic.partition_indexes
                ],
            }
            for topic in requested.topics
        ],
    }


def _write(node: Node, topic: str, index: int, marker: Marker) -> int:
    try:
        partition = node.cluster.catalogue.topic(topic).partition(index)
        partition.led_by(node.node_id).write_marker(marker, node.cluster.clock.time_ms())
    except KafkaError as error:
        return error.code
    return 0
