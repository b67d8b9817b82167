"""DeleteGroups (key 42), versions 0 to 2, on the group's coordinator: deletes groups without members.

The offsets of a group are deleted with the group.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.errors import KafkaError, error_for_code
from kafkabuf.protocol.messages import DELETE_GROUPS, RequestHeader


@api(DELETE_GROUPS, 0, 2, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected, rights = node.cluster.faults.take_error(DELETE_GROUPS), rights_of(header)
    return {
        "results": [
            {"group_id": group_id, "error_code": _delete(node, group_id, injected, rights)}
            for group_id in dict.fromkeys(request.groups_names)
        ]
    }


def _delete(node: Node, group_id: str, injected: int, rights: Rights) -> int:
    try:
        if injected:
            raise error_for_code(injected)
        rights.check(Operation.DELETE, ResourceType.GROUP, group_id)
        if (error := check_coordinator(node, group_id, named=False)) is not None:
            raise error
        node.cluster.groups.delete(group_id)
    except KafkaError as error:
        return error.code
    return 0
