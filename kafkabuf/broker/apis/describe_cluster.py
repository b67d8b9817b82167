"""DescribeCluster (key 60), versions 0 and 1: the nodes that are alive, and one that plays the controller.

Deviations: there are no controllers to describe, and authorized operations are never told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.protocol.messages import DESCRIBE_CLUSTER, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

_BROKERS = 1
_MISMATCHED_ENDPOINT_TYPE = 114


@api(DESCRIBE_CLUSTER, 0, 1)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    cluster = node.cluster
    wrong = getattr(request, "endpoint_type", _BROKERS) != _BROKERS
    return {
        "error_code": _MISMATCHED_ENDPOINT_TYPE if wrong else 0,
        "error_message": "this is a broker, not a controller" if wrong else None,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller.node_id,
        "brokers": [
            {"broker_id": one.node_id, "host": one.host, "port": one.port} for one in node.brokers() if not wrong
        ],
    }
