"""ApiVersions (key 18), versions 0 to 5, on any node: the APIs and features that the node serves.

dispatch.py refuses other versions of the request with error 35 in a response of version 0 (KIP-511). The feature
transaction.version (KIP-890) is finalized at the cluster's `transaction_version`. As in Kafka, version 3 leaves out
supported features that begin at level 0. GetTelemetrySubscriptions and PushTelemetry are listed if the cluster has
`client_metrics`: Kafka lists them if it has a receiver of metrics.

Deviation: the node serves fewer APIs than Kafka, and no other feature.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api, version_ranges
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.nodes.placement import NO_NODE
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.protocol.messages import API_VERSIONS, GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY, RequestHeader

_FEATURE = "transaction.version"
_WITH_SOFTWARE = 3  # the first version in which a client names itself
_WITH_CLUSTER = 5  # the first version in which a client names the cluster and the node that it means (KIP-1242)
_INVALID_REQUEST, _REBOOTSTRAP_REQUIRED = 42, 129


@api(API_VERSIONS, 0, 5, of_peer=True)
def handle(node: Node, header: RequestHeader, request: Any, peer: Peer) -> dict[str, Any]:
    if header.version >= _WITH_CLUSTER and (code := _code_of(node, request)):
        return {"error_code": code}
    if header.version >= _WITH_SOFTWARE:
        peer.introduce(request.client_software_name, request.client_software_version)
    listed = [versions for versions in version_ranges() if _lists(node, versions["api_key"])]
    level = node.cluster.config.transaction_version
    supported = {"name": _FEATURE, "min_version": 0, "max_version": 2}
    finalized = {"name": _FEATURE, "min_version_level": level, "max_version_level": level}
    return {
        "api_keys": listed,
        "supported_features": [supported] if header.version >= 4 else [],
        "finalized_features_epoch": 0,
        "finalized_features": [finalized] if level else [],
    }


def _code_of(node: Node, request: Any) -> int:
    """Of the cluster and the node that the client means: it names both, or none."""
    if (request.cluster_id is None) != (request.node_id == NO_NODE):
        return _INVALID_REQUEST
    own = node.cluster.cluster_id, node.node_id
    return 0 if (request.cluster_id, request.node_id) in ((None, NO_NODE), own) else _REBOOTSTRAP_REQUIRED


def _lists(node: Node, api_key: int) -> bool:
    return node.cluster.config.client_metrics or api_key not in (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)
