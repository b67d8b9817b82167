"""FindCoordinator (key 10), versions 0 to 5: the coordinator of a group or of a transactional id is one of the nodes
alive, picked by its name. Other keys are refused with INVALID_REQUEST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.controller import NO_NODE
from kafkabuf.broker.dispatch import api
from kafkabuf.errors import CoordinatorNotAvailableError, InvalidRequestError
from kafkabuf.protocol.messages import FIND_COORDINATOR, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

GROUP, TRANSACTION = 0, 1


@api(FIND_COORDINATOR, 0, 5, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    code = node.cluster.faults.take_error(FIND_COORDINATOR)
    if getattr(request, "key_type", GROUP) not in (GROUP, TRANSACTION):
        code = InvalidRequestError.code
    # One key until version 3, a list of them from version 4.
    if header.version < 4:
        return _coordinator(node, request.key, code)
    return {"coordinators": [_coordinator(node, key, code) for key in request.coordinator_keys]}


def _coordinator(node: Node, key: str, code: int) -> dict[str, Any]:
    chosen = node.cluster.coordinator(key)
    if not code and chosen == NO_NODE:
        code = CoordinatorNotAvailableError.code
    if code:
        return {"key": key, "error_code": code, "node_id": NO_NODE, "host": "", "port": -1}
    found = node.cluster.nodes[chosen]
    return {"key": key, "error_code": 0, "node_id": chosen, "host": found.host, "port": found.port}
