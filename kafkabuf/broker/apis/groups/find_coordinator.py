"""FindCoordinator (key 10), versions 0 to 6, on any node: the node that coordinates a group or a transactional id.

It is the leader of the partition of __consumer_offsets or __transaction_state that the hash of the name gives.

Deviations: other types of keys are refused with INVALID_REQUEST. A response without an error has no error message;
Kafka's says NONE.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.groups import OFFSETS_TOPIC
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.internal.topics import TRANSACTIONS_TOPIC
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.nodes.placement import NO_NODE
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import CoordinatorNotAvailableError, InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import FIND_COORDINATOR, RequestHeader

GROUP, TRANSACTION = 0, 1
_RESOURCES = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}


@api(FIND_COORDINATOR, 0, 6, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_find_all(node, header, request))


def _find_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    code = node.cluster.faults.take_error(FIND_COORDINATOR)
    error = error_for_code(code) if code else None
    if (kind := getattr(request, "key_type", GROUP)) not in _RESOURCES:
        error = InvalidRequestError(f"key type {kind}: groups ({GROUP}) and transactions ({TRANSACTION}) are known")
    # A request has one key up to version 3, and a list of keys from version 4 on.
    keys = [request.key] if header.version < 4 else request.coordinator_keys
    rights = rights_of(header)
    coordinators = []
    for key in keys:
        refusal = error or rights.refusal(Operation.DESCRIBE, _RESOURCES[kind], key)
        coordinators.append(_coordinator(node, kind, key, refusal))
        yield
    return coordinators[0] if header.version < 4 else {"coordinators": coordinators}


def _coordinator(node: Node, kind: int, key: str, error: KafkaError | None) -> dict[str, Any]:
    topic = TRANSACTIONS_TOPIC if kind == TRANSACTION else OFFSETS_TOPIC
    node_id = NO_NODE if error is not None else node.cluster.internal_topics.coordinator(topic, key)
    if error is None and node_id == NO_NODE:
        error = CoordinatorNotAvailableError("no node that could coordinate is alive")
    if error is not None:
        no_address = {"node_id": NO_NODE, "host": "", "port": -1}
        return {"key": key, "error_code": error.code, "error_message": str(error), **no_address}
    coordinator = node.cluster.nodes[node_id]
    return {"key": key, "error_code": 0, "node_id": node_id, "host": coordinator.host, "port": coordinator.port}
