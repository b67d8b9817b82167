"""ApiVersions (key 18), versions 0 to 4, on any node: the APIs and features that the node serves.

dispatch.py refuses other versions of the request with error 35 in a response of version 0 (KIP-511). The feature
transaction.version (KIP-890) is finalized at the cluster's `transaction_version`. As in Kafka, version 3 leaves out
supported features that begin at level 0.

Deviation: the node serves fewer APIs than Kafka, and no other feature.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api, version_ranges
from kafkabuf.broker.cluster.node import Node
from kafkabuf.protocol.messages import API_VERSIONS, RequestHeader

_FEATURE = "transaction.version"


@api(API_VERSIONS, 0, 4)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    level = node.cluster.config.transaction_version
    supported = {"name": _FEATURE, "min_version": 0, "max_version": 2}
    finalized = {"name": _FEATURE, "min_version_level": level, "max_version_level": level}
    return {
        "api_keys": version_ranges(),
        "supported_features": [supported] if header.version >= 4 else [],
        "finalized_features_epoch": 0,
        "finalized_features": [finalized] if level else [],
    }
