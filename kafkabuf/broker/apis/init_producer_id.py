"""InitProducerId (key 22), versions 0 to 5: hands out a fresh id with epoch 0, or raises the epoch of the one named
(KIP-360). Transactions are not served: a transactional id is refused with INVALID_REQUEST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.errors import InvalidRequestError
from kafkabuf.protocol.messages import INIT_PRODUCER_ID, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

_LAST_EPOCH = 32767 - 1


@api(INIT_PRODUCER_ID, 0, 5)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    if request.transactional_id is not None:
        return {"error_code": InvalidRequestError.code, "producer_id": -1, "producer_epoch": -1}
    known, epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    if known >= 0 and 0 <= epoch < _LAST_EPOCH:
        return {"producer_id": known, "producer_epoch": epoch + 1}
    return {"producer_id": node.cluster.next_producer_id(), "producer_epoch": 0}
