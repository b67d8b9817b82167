"""ListGroups (key 16), versions 0 to 5: the groups coordinated here; by state from version 4 on (KIP-518), by type from
version 5 on (KIP-848). All groups here are classic ones."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.protocol.messages import LIST_GROUPS, RequestHeader

CLASSIC = "classic"


@api(LIST_GROUPS, 0, 5)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    if types and CLASSIC not in types:
        return {"groups": []}
    return {
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state.value,
                "group_type": CLASSIC,
            }
            for group in node.cluster.groups
            if node.coordinates(group.group_id) and (not states or group.state.value.lower() in states)
        ]
    }
