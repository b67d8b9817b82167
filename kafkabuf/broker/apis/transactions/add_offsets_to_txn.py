"""AddOffsetsToTxn (key 25), versions 0 to 4, on the transaction coordinator: adds a group to a transaction.

The transaction can then commit offsets of the group.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.groups import OFFSETS_TOPIC, offsets_partition
from kafkabuf.broker.guards.rights import READ_GROUP, WRITE_TRANSACTIONAL_ID
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.transactions.coordinator import code_for
from kafkabuf.errors import KafkaError, NotCoordinatorError
from kafkabuf.protocol.messages import ADD_OFFSETS_TO_TXN, RequestHeader


@api(
    ADD_OFFSETS_TO_TXN,
    0,
    4,
    needs=(
        WRITE_TRANSACTIONAL_ID,
        READ_GROUP,
    ),
)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    if not node.coordinates_transactions(request.transactional_id):
        return {"error_code": NotCoordinatorError.code}
    producer = request.producer_id, request.producer_epoch
    where = OFFSETS_TOPIC, offsets_partition(request.group_id)
    try:
        node.cluster.transactions.add(request.transactional_id, producer, [where])
    except KafkaError as error:
        return {"error_code": code_for(error, header.version >= 2)}
    return {"error_code": 0}
