"""ListGroups (key 16), versions 0 to 5: the groups that this node coordinates.

Filters: state (version 4 and later, KIP-518) and type (version 5 and later, KIP-848).
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.protocol.messages import LIST_GROUPS, RequestHeader


@api(LIST_GROUPS, 0, 5)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_list(node, header, request))


def _list(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    rights = rights_of(header)
    sees_all = rights.allows(Operation.DESCRIBE, ResourceType.CLUSTER)
    groups = []
    for group in tuple(node.cluster.groups):
        state = group.state.value
        if (
            (not states or state.lower() in states)
            and (not types or group.kind in types)
            and node.coordinates(group.group_id)
            and (sees_all or rights.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id))
        ):
            named = {"group_id": group.group_id, "protocol_type": group.protocol_type}
            groups.append({**named, "group_state": state, "group_type": group.kind})
        yield
    return {"groups": groups}
