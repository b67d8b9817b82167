"""ApiVersions (key 18), versions 0 to 4: what is served here. Other versions are refused in version 0 with error 35,
which dispatch.py does (KIP-511). No features are told of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api, version_ranges
from kafkabuf.protocol.messages import API_VERSIONS, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node


@api(API_VERSIONS, 0, 4)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    return {"api_keys": version_ranges()}
