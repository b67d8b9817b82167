"""JoinGroup (key 11), versions 0 to 9, on the group's coordinator: a member joins.

The member waits until all members have joined. From version 4 on a new member first gets its id (KIP-394). From version
9 on the coordinator may tell a static leader that comes back to skip the assignment (KIP-814).
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.operations import sight
from kafkabuf.broker.groups.classic_side import ClassicMembers
from kafkabuf.broker.groups.consumer_member import JOINING, ConsumerHeartbeat
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.groups.members import Joining, failed
from kafkabuf.broker.guards.rights import READ_GROUP, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import UnknownMemberIdError
from kafkabuf.protocol.messages import JOIN_GROUP, RequestHeader


@api(JOIN_GROUP, 0, 9, needs=(READ_GROUP,))
def handle(node: Node, header: RequestHeader, request: Any) -> Any:
    # The heartbeats of a consumer group have the same turn.
    return node.cluster.slices.run(_join(node, header, request), turn=("group", request.group_id))


def _join(node: Node, header: RequestHeader, request: Any) -> Work[Any]:
    groups, member_id = node.cluster.groups, request.member_id
    if (error := check_coordinator(node, request.group_id)) is not None:
        return failed(error, member_id=member_id)
    # A member of a consumer group meets the topics of today. To match them takes long, so it comes first.
    beat = ConsumerHeartbeat(member_id=member_id, member_epoch=JOINING, sees=sight(rights_of(header)))
    beat = yield from groups.matched(request.group_id, beat)
    if member_id and groups.find(request.group_id) is None:
        return {"error_code": UnknownMemberIdError.code, "member_id": member_id}
    group, joining = groups.joining(request.group_id), _joining(node, header, request)
    if isinstance(group, ClassicMembers):
        return (yield from group.join(joining, beat))
    return group.join(joining)


def _joining(node: Node, header: RequestHeader, request: Any) -> Joining:
    session = request.session_timeout.total_seconds()
    return Joining(
        request.member_id,
        header.client_id or "",
        getattr(request, "group_instance_id", None),
        session,
        request.rebalance_timeout.total_seconds() if header.version >= 1 else session,
        request.protocol_type,
        [(protocol.name, protocol.metadata) for protocol in request.protocols],
        needs_member_id=header.version >= 4,
        skips_assignment=header.version >= 9,
        client_host=f"/{node.host}",
    )
