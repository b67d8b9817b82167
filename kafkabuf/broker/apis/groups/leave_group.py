"""LeaveGroup (key 13), versions 0 to 5, on the group's coordinator: members leave.

A request names one member up to version 2, and a list of members from version 3 on. An administrator removes the
members of a consumer group (KIP-848) with this request, too.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.consumer_group import ConsumerGroup
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.guards.rights import READ_GROUP
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import UnknownMemberIdError
from kafkabuf.protocol.messages import LEAVE_GROUP, RequestHeader


@api(LEAVE_GROUP, 0, 5, needs=(READ_GROUP,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_leave_all(node, header, request), goes_on=True)


def _leave_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    if (error := check_coordinator(node, request.group_id)) is not None:
        return {"error_code": error.code}
    if header.version < 3:
        return {"error_code": _leave(node, request.group_id, request.member_id, None)}
    members = []
    for member in request.members:
        code = _leave(node, request.group_id, member.member_id, member.group_instance_id)
        named = {"member_id": member.member_id, "group_instance_id": member.group_instance_id}
        members.append({**named, "error_code": code})
        yield
    return {"members": members}


def _leave(node: Node, group_id: str, member_id: str, group_instance_id: str | None) -> int:
    group = node.cluster.groups.find(group_id)
    if isinstance(group, ConsumerGroup):
        return group.remove_by_admin(member_id, group_instance_id)
    return UnknownMemberIdError.code if group is None else group.leave(member_id, group_instance_id)
