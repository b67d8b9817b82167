"""InitProducerId (key 22), versions 0 to 5: gives a new producer id with epoch 0.

A transactional id keeps its producer id: its transaction coordinator raises the epoch.

Deviation: version 6 (two-phase commit, KIP-939) is not served.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.transactions.coordinator import code_for
from kafkabuf.errors import InvalidRequestError, KafkaError, NotCoordinatorError
from kafkabuf.protocol.messages import INIT_PRODUCER_ID, RequestHeader

_NOTHING = (-1, -1)


@api(INIT_PRODUCER_ID, 0, 5)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    known = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    try:
        _check_rights(rights_of(header), request.transactional_id)
        producer_id, epoch = _init(node, request, None if known == _NOTHING else known)
    except KafkaError as error:
        return {"error_code": code_for(error, header.version >= 4), "producer_id": -1, "producer_epoch": -1}
    return {"producer_id": producer_id, "producer_epoch": epoch}


def _check_rights(rights: Rights, transactional_id: str | None) -> None:
    """An idempotent producer needs IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)."""
    if transactional_id is not None:
        rights.check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not rights.allows_some(Operation.WRITE, ResourceType.TOPIC):
        rights.check(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)


def _init(node: Node, request: Any, known: tuple[int, int] | None) -> tuple[int, int]:
    if known is not None and -1 in known:
        raise InvalidRequestError(f"producer id {known[0]} with epoch {known[1]}: both must be -1, or neither")
    transactional_id = request.transactional_id
    if transactional_id is None:
        return node.cluster.memory.next_producer_id(), 0
    if not node.coordinates_transactions(transactional_id):
        raise NotCoordinatorError(f"node {node.node_id} does not coordinate {transactional_id!r}")
    timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
    return node.cluster.transactions.init(transactional_id, timeout_ms, known)
