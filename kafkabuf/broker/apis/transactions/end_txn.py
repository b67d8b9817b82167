"""EndTxn (key 26), versions 0 to 5, on the transaction coordinator: commits or aborts a transaction.

From version 5 on the end raises the producer's epoch, and the response has the new epoch (KIP-890).
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.rights import WRITE_TRANSACTIONAL_ID
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.transactions.coordinator import code_for
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import KafkaError, NotCoordinatorError
from kafkabuf.protocol.messages import END_TXN, RequestHeader

_FIRST_OF_VERSION_2 = 5


@api(END_TXN, 0, 5, needs=(WRITE_TRANSACTIONAL_ID,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_end(node, header, request), goes_on=True)


def _end(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    if not node.coordinates_transactions(request.transactional_id):
        return {"error_code": NotCoordinatorError.code}
    producer = request.producer_id, request.producer_epoch
    version_2 = header.version >= _FIRST_OF_VERSION_2
    try:
        producer_id, epoch = yield from node.cluster.transactions.end(
            request.transactional_id, producer, request.committed, version_2
        )
    except KafkaError as error:
        return {"error_code": code_for(error, header.version >= 2)}
    return {"producer_id": producer_id, "producer_epoch": epoch}
