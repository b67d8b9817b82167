"""ListGroups (key 16), versions 0 to 5: the groups that this node coordinates.

Filters: state (version 4 and later, KIP-518) and type (version 5 and later, KIP-848).
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.protocol.messages import LIST_GROUPS, RequestHeader


@api(LIST_GROUPS, 0, 5)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    rights = rights_of(header)
    sees_all = rights.allows(Operation.DESCRIBE, ResourceType.CLUSTER)
    return {
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state.value,
                "group_type": group.kind,
            }
            for group in node.cluster.groups
            if node.coordinates(group.group_id)
            and (not states or group.state.value.lower() in states)
            and (not types or group.kind in types)
            and (sees_all or rights.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id))
        ]
    }
