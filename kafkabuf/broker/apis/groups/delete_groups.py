"""DeleteGroups (key 42), versions 0 to 2, on the group's coordinator: deletes groups without members.

The offsets of a group are deleted with the group: at once for other clients, in slices on the disk and in
__consumer_offsets.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import KafkaError, error_for_code
from kafkabuf.protocol.messages import DELETE_GROUPS, RequestHeader


@api(DELETE_GROUPS, 0, 2, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_delete_all(node, header, request), goes_on=True)


def _delete_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    injected, rights = node.cluster.faults.take_error(DELETE_GROUPS), rights_of(header)
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        error_code = yield from _delete(node, group_id, injected, rights)
        results.append({"group_id": group_id, "error_code": error_code})
        yield
    return {"results": results}


def _delete(node: Node, group_id: str, injected: int, rights: Rights) -> Work[int]:
    try:
        if injected:
            raise error_for_code(injected)
        rights.check(Operation.DELETE, ResourceType.GROUP, group_id)
        if (error := check_coordinator(node, group_id, named=False)) is not None:
            raise error
        yield from node.cluster.groups.delete(group_id)
    except KafkaError as error:
        return error.code
    return 0
