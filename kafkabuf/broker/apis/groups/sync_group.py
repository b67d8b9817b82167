"""SyncGroup (key 14), versions 0 to 5, on the group's coordinator: the group's leader brings the assignment.

The other members wait for the assignment. From version 5 on a member names the protocol that it expects (KIP-559).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.guards.rights import READ_GROUP
from kafkabuf.broker.nodes.node import Node
from kafkabuf.errors import InconsistentGroupProtocolError, UnknownMemberIdError
from kafkabuf.protocol.messages import SYNC_GROUP, RequestHeader

_FIRST_PROTOCOL = 5


@api(SYNC_GROUP, 0, 5, needs=(READ_GROUP,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    if (error := check_coordinator(node, request.group_id)) is not None:
        return {"error_code": error.code}
    protocol = getattr(request, "protocol_type", None), getattr(request, "protocol_name", None)
    if header.version >= _FIRST_PROTOCOL and None in protocol:
        return {"error_code": InconsistentGroupProtocolError.code}
    if (group := node.cluster.groups.classic(request.group_id)) is None:
        return {"error_code": UnknownMemberIdError.code}
    return group.sync(
        request.member_id,
        request.generation_id,
        {member.member_id: member.assignment for member in request.assignments},
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol=protocol,
    )
