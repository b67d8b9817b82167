"""FindCoordinator (key 10), versions 0 to 6, on any node: the node that coordinates a group or a transactional id.

The name chooses the node among the nodes that are alive.

Deviations: other types of keys are refused with INVALID_REQUEST. A response without an error has no error message;
Kafka's says NONE.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.cluster.placement import NO_NODE
from kafkabuf.errors import CoordinatorNotAvailableError, InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import FIND_COORDINATOR, RequestHeader

GROUP, TRANSACTION = 0, 1


@api(FIND_COORDINATOR, 0, 6, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    code = node.cluster.faults.take_error(FIND_COORDINATOR)
    error = error_for_code(code) if code else None
    if (kind := getattr(request, "key_type", GROUP)) not in (GROUP, TRANSACTION):
        error = InvalidRequestError(f"key type {kind}: groups ({GROUP}) and transactions ({TRANSACTION}) are known")
    # A request has one key up to version 3, and a list of keys from version 4 on.
    if header.version < 4:
        return _coordinator(node, request.key, error)
    return {"coordinators": [_coordinator(node, key, error) for key in request.coordinator_keys]}


def _coordinator(node: Node, key: str, error: KafkaError | None) -> dict[str, Any]:
    node_id = node.cluster.placement.coordinator(key)
    if error is None and node_id == NO_NODE:
        error = CoordinatorNotAvailableError("no node is alive")
    if error is not None:
        no_address = {"node_id": NO_NODE, "host": "", "port": -1}
        return {"key": key, "error_code": error.code, "error_message": str(error), **no_address}
    coordinator = node.cluster.nodes[node_id]
    return {"key": key, "error_code": 0, "node_id": node_id, "host": coordinator.host, "port": coordinator.port}
