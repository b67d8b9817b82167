"""SyncGroup (key 14), versions 0 to 5: the leader brings the assignment, the others wait for it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.errors import NotCoordinatorError
from kafkabuf.protocol.messages import SYNC_GROUP, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node


@api(SYNC_GROUP, 0, 5)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    if not node.coordinates(request.group_id):
        return {"error_code": NotCoordinatorError.code}
    assignments = {one.member_id: one.assignment for one in request.assignments}
    return node.cluster.groups.get(request.group_id).sync(request.member_id, request.generation_id, assignments)
