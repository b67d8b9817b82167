"""ApiVersions (key 18), versions 0 to 4: what is served here. Other versions are refused in version 0 with error 35,
which dispatch.py does (KIP-511). The one feature told of is transaction.version (KIP-890), finalized at the level that
the cluster was given; as in Kafka, version 3 leaves supported features that begin at 0 out."""

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
