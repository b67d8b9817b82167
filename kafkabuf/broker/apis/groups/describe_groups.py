"""DescribeGroups (key 15), versions 0 to 6, on the group's coordinator: state and members of groups.

A group that does not exist, or that is a consumer group of KIP-848, has the state "Dead"; from version 6 on it has an
error too (KIP-1043). The response has the protocol and the metadata of the members only if the group is stable.

Deviation: a response has at most 16 MiB of metadata and assignments, unless it has one group. The other groups get
COORDINATOR_LOAD_IN_PROGRESS: clients ask for them again.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.operations import NOT_ASKED
from kafkabuf.broker.groups.group import Group, State
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.groups.members import Member
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import CoordinatorLoadInProgressError, GroupIdNotFoundError, KafkaError, error_for_code
from kafkabuf.protocol.messages import DESCRIBE_GROUPS, RequestHeader

_FIRST_TO_KNOW_NOT_FOUND = 6
# The most bytes of metadata and assignments in a response.
MOST_BYTES = 16 << 20


@api(DESCRIBE_GROUPS, 0, 6, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_describe_all(node, header, request))


def _describe_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    injected = node.cluster.faults.take_error(DESCRIBE_GROUPS)
    include, rights = getattr(request, "include_authorized_operations", False), rights_of(header)
    # A small request must not fill the memory: a group that it repeats comes once.
    groups: list[dict[str, Any]] = []
    room = MOST_BYTES
    for group_id in dict.fromkeys(request.groups):
        group = _describe(node, header, group_id, injected, rights)
        room -= sum(len(member["member_metadata"]) + len(member["member_assignment"]) for member in group["members"])
        if groups and room < 0:
            group = {"group_id": group_id, "error_code": CoordinatorLoadInProgressError.code}
        elif include and not group.get("error_code"):
            group["authorized_operations"] = rights.operations(ResourceType.GROUP, group_id)
        groups.append(group)
        yield
    return {"groups": groups}


def _describe(node: Node, header: RequestHeader, group_id: str, injected: int, rights: Rights) -> dict[str, Any]:
    error = error_for_code(injected) if injected else rights.refusal(Operation.DESCRIBE, ResourceType.GROUP, group_id)
    error = error or check_coordinator(node, group_id, named=False)
    if error is not None:
        return {"group_id": group_id, "error_code": error.code, "members": []}
    try:
        group = node.cluster.groups.existing(group_id)
        if not isinstance(group, Group):
            raise GroupIdNotFoundError(f"Group {group_id} is not a classic group.")
    except GroupIdNotFoundError as missing:
        return {"group_id": group_id, "group_state": "Dead", "members": [], **_not_found(header, missing)}
    stable = group.state is State.STABLE
    return {
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol if stable else "",
        "members": [_member(group, member, stable) for member in group.members],
        "authorized_operations": NOT_ASKED,
    }


def _not_found(header: RequestHeader, error: KafkaError) -> dict[str, Any]:
    if header.version < _FIRST_TO_KNOW_NOT_FOUND:
        return {}
    return {"error_code": error.code, "error_message": str(error)}


def _member(group: Group, member: Member, stable: bool) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.joining.group_instance_id,
        "client_id": member.joining.client_id,
        "client_host": member.joining.client_host,
        "member_metadata": member.metadata(group.protocol) if stable else b"",
        "member_assignment": member.assignment,
    }
