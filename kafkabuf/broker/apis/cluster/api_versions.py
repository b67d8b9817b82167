"""ApiVersions (key 18), versions 0 to 4, on any node: the APIs and features that the node serves.

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
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.protocol.messages import API_VERSIONS, GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY, RequestHeader

_FEATURE = "transaction.version"
_WITH_SOFTWARE = 3  # the first version in which a client names itself


@api(API_VERSIONS, 0, 4, of_peer=True)
def handle(node: Node, header: RequestHeader, request: Any, peer: Peer) -> dict[str, Any]:
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


def _lists(node: Node, api_key: int) -> bool:
    return node.cluster.config.client_metrics or api_key not in (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)
