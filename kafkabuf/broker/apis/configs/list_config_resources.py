"""ListConfigResources (key 74), versions 0 and 1, on any node: the names of all things that have settings.

Version 0 lists subscriptions to the metrics of clients. Version 1 lists things of the types that the request names, or
of all types: topics, nodes, loggers of nodes, subscriptions, and groups that ever had settings (KIP-1142).
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.configs.alter_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.rights import DESCRIBE_CLUSTER_CONFIGS
from kafkabuf.broker.nodes.node import Node
from kafkabuf.errors import UnsupportedVersionError
from kafkabuf.protocol.messages import LIST_CONFIG_RESOURCES, RequestHeader


@api(LIST_CONFIG_RESOURCES, 0, 1, needs=(DESCRIBE_CLUSTER_CONFIGS,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    nodes = [str(other.node_id) for other in node.brokers()]
    cluster = node.cluster
    names = {
        GROUP: cluster.group_configs.names,
        CLIENT_METRICS: cluster.metrics_configs.names,
        BROKER_LOGGER: nodes,
        BROKER: nodes,
        TOPIC: list(cluster.catalogue.topics),
    }
    wanted = [CLIENT_METRICS] if header.version == 0 else request.resource_types or list(names)
    if not names.keys() >= set(wanted):
        return {"error_code": UnsupportedVersionError.code, "config_resources": []}
    return {
        "error_code": 0,
        "config_resources": [
            {"resource_name": name, "resource_type": kind} for kind in names if kind in wanted for name in names[kind]
        ],
    }
