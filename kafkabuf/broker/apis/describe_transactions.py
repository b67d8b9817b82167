"""DescribeTransactions (key 65), version 0, on the transaction coordinator: the states of transactional ids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.transactions import Transaction
from kafkabuf.errors import InvalidRequestError, NotCoordinatorError, TransactionalIdNotFoundError
from kafkabuf.protocol.messages import DESCRIBE_TRANSACTIONS, RequestHeader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@api(DESCRIBE_TRANSACTIONS, 0, 0, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    code, rights = node.cluster.faults.take_error(DESCRIBE_TRANSACTIONS), rights_of(header)
    return {
        "transaction_states": [
            _describe(node, transactional_id, code, rights)
            for transactional_id in dict.fromkeys(request.transactional_ids)
        ]
    }


def _describe(node: Node, transactional_id: str, code: int, rights: Rights) -> dict[str, Any]:
    transaction = node.cluster.transactions.get(transactional_id)
    code = code or rights.code(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if not code and not node.coordinates_transactions(transactional_id):
        code = NotCoordinatorError.code
    if not code and not transactional_id:
        code = InvalidRequestError.code
    if code or transaction is None:
        error_code = code or TransactionalIdNotFoundError.code
        return {"transactional_id": transactional_id, "error_code": error_code, "transaction_start_time": _EPOCH}
    return {
        "transactional_id": transactional_id,
        "transaction_state": transaction.state.value,
        "transaction_timeout": transaction.timeout_ms,
        # A transaction that has not begun has the time -1, one millisecond before the epoch.
        "transaction_start_time": _EPOCH + timedelta(milliseconds=transaction.started_ms),
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "topics": _topics(transaction, rights),
    }


def _topics(transaction: Transaction, rights: Rights) -> list[dict[str, Any]]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        if topic in by_topic or rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic):
            by_topic.setdefault(topic, []).append(index)
    return [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
