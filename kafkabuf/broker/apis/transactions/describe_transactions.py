"""DescribeTransactions (key 65), version 0, on the transaction coordinator: the states of transactional ids."""

from __future__ import annotations

from asyncio import Future
from datetime import UTC, datetime, timedelta
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.transactions.coordinator import Transaction
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, NotCoordinatorError, TransactionalIdNotFoundError
from kafkabuf.protocol.messages import DESCRIBE_TRANSACTIONS, RequestHeader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@api(DESCRIBE_TRANSACTIONS, 0, 0, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_describe_all(node, header, request))


def _describe_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    code, rights, states = node.cluster.faults.take_error(DESCRIBE_TRANSACTIONS), rights_of(header), []
    for transactional_id in dict.fromkeys(request.transactional_ids):
        states.append(_describe(node, transactional_id, code, rights))
        yield
    return {"transaction_states": states}


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
    return [
        {"topic": topic, "partitions": indexes}
        for topic, indexes in transaction.by_topic().items()
        if rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    ]
