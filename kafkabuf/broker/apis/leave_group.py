"""LeaveGroup (key 13), versions 0 to 5: one member until version 2, a list of them from version 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.errors import NotCoordinatorError
from kafkabuf.protocol.messages import LEAVE_GROUP, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node


@api(LEAVE_GROUP, 0, 5)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    if not node.coordinates(request.group_id):
        return {"error_code": NotCoordinatorError.code}
    group = node.cluster.groups.get(request.group_id)
    if header.version < 3:
        return {"error_code": group.leave(request.member_id, None)}
    return {
        "members": [
            {
                "member_id": one.member_id,
                "group_instance_id": one.group_instance_id,
                "error_code": group.leave(one.member_id, one.group_instance_id),
            }
            for one in request.members
        ]
    }
