"""JoinGroup (key 11), versions 0 to 9: waits until all members have joined. From version 4 on a new member is first
given its id (KIP-394)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.broker.groups import Joining
from kafkabuf.errors import NotCoordinatorError
from kafkabuf.protocol.messages import JOIN_GROUP, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node


@api(JOIN_GROUP, 0, 9)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    if not node.coordinates(request.group_id):
        return {"error_code": NotCoordinatorError.code}
    session = request.session_timeout.total_seconds()
    rebalance = request.rebalance_timeout.total_seconds() if header.version >= 1 else session
    return node.cluster.groups.get(request.group_id).join(
        Joining(
            request.member_id,
            header.client_id or "",
            getattr(request, "group_instance_id", None),
            session,
            rebalance if rebalance >= 0 else session,
            request.protocol_type,
            [(one.name, one.metadata) for one in request.protocols],
            needs_member_id=header.version >= 4,
        )
    )
