"""DescribeCluster (key 60), versions 0 to 2, on any node: the nodes that are alive, and the controller.

The response names the node that clients take for the controller. From version 2 on a request can ask for dead nodes too
(Kafka calls them fenced).

Deviation: there are no controller nodes to describe.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.operations import cluster_operations
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.nodes.placement import NO_NODE
from kafkabuf.protocol.messages import DESCRIBE_CLUSTER, RequestHeader

_BROKERS, _CONTROLLERS = 1, 2
_MISMATCHED_ENDPOINT_TYPE, _UNSUPPORTED_ENDPOINT_TYPE = 114, 115


@api(DESCRIBE_CLUSTER, 0, 2)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    cluster = node.cluster
    operations = cluster_operations(rights_of(header), request.include_cluster_authorized_operations)
    fenced_too = getattr(request, "include_fenced_brokers", False)
    if (kind := getattr(request, "endpoint_type", _BROKERS)) != _BROKERS:
        code = _MISMATCHED_ENDPOINT_TYPE if kind == _CONTROLLERS else _UNSUPPORTED_ENDPOINT_TYPE
        return {
            "error_code": code,
            "error_message": "this is a broker, not a controller",
            "cluster_id": "",
            "controller_id": NO_NODE,
        }
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller.node_id,
        "brokers": [
            {
                "broker_id": broker.node_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "is_fenced": not node.sees(broker.node_id),
            }
            for broker in (cluster.nodes.values() if fenced_too else node.brokers())
        ],
        "cluster_authorized_operations": operations,
    }
