"""Heartbeat (key 12), versions 0 to 4: keeps a member's session, tells it of a rebalance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.errors import NotCoordinatorError
from kafkabuf.protocol.messages import HEARTBEAT, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node


@api(HEARTBEAT, 0, 4)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    if not node.coordinates(request.group_id):
        return {"error_code": NotCoordinatorError.code}
    return node.cluster.groups.get(request.group_id).heartbeat(request.member_id, request.generation_id)
