"""Heartbeat (key 12), versions 0 to 4, on the group's coordinator: keeps a member's session alive.

The response tells the member of a rebalance.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.guards.rights import READ_GROUP
from kafkabuf.broker.nodes.node import Node
from kafkabuf.errors import UnknownMemberIdError
from kafkabuf.protocol.messages import HEARTBEAT, RequestHeader


@api(HEARTBEAT, 0, 4, needs=(READ_GROUP,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    if (error := check_coordinator(node, request.group_id)) is not None:
        return {"error_code": error.code}
    if (group := node.cluster.groups.classic(request.group_id)) is None:
        return {"error_code": UnknownMemberIdError.code}
    instance = getattr(request, "group_instance_id", None)
    return group.heartbeat(request.member_id, request.generation_id, instance)
