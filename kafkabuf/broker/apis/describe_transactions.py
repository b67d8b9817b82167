"""DescribeTransactions (key 65), version 0, on the transaction coordinator: the states of transactional ids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.transactions import Transaction
from kafkabuf.errors import InvalidRequestError, NotCoordinatorError, TransactionalIdNotFoundError
from kafkabuf.protocol.messages import DESCRIBE_TRANSACTIONS, RequestHeader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@api(DESCRIBE_TRANSACTIONS, 0, 0, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    code = node.cluster.faults.take_error(DESCRIBE_TRANSACTIONS)
    return {
        "transaction_states": [
            _describe(node, transactional_id, code) for transactional_id in request.transactional_ids
        ]
    }


def _describe(node: Node, transactional_id: str, code: int) -> dict[str, Any]:
    transaction = node.cluster.transactions.get(transactional_id)
    if not code and not node.coordinates(transactional_id):
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
        "topics": _topics(transaction),
    }


def _topics(transaction: Transaction) -> list[dict[str, Any]]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(index)
    return [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
