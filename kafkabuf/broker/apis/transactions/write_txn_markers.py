"""WriteTxnMarkers (key 27), version 1, on the leader: ends a producer's transaction in partitions.

The node does not ask the transaction's coordinator. Administrators end hanging transactions with it.

Deviation: the cluster's own coordinator does not send this request. It writes its control records directly.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import KafkaError
from kafkabuf.protocol.messages import WRITE_TXN_MARKERS, RequestHeader


@api(WRITE_TXN_MARKERS, 1, 1, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_write_all(node, header, request), goes_on=True)


def _write_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    code, rights = node.cluster.faults.take_error(WRITE_TXN_MARKERS), rights_of(header)
    if not code and not rights.allows(Operation.ALTER, ResourceType.CLUSTER):
        code = rights.code(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    markers = []
    for requested in request.markers:
        markers.append((yield from _write_marker(node, requested, code)))
    return {"markers": markers}


def _write_marker(node: Node, requested: Any, code: int) -> Work[dict[str, Any]]:
    marker = Marker(
        requested.producer_id, requested.producer_epoch, requested.coordinator_epoch, requested.transaction_result
    )
    topics = []
    for topic in requested.topics:
        partitions = []
        for index in topic.partition_indexes:
            partitions.append({"partition_index": index, "error_code": code or _write(node, topic.name, index, marker)})
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return {"producer_id": requested.producer_id, "topics": topics}


def _write(node: Node, topic: str, index: int, marker: Marker) -> int:
    try:
        partition = node.cluster.catalogue.topic(topic).partition(index)
        partition.led_by(node.node_id).write_marker(marker, node.cluster.clock.time_ms())
    except KafkaError as error:
        return error.code
    return 0
