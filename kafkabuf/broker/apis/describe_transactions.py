"""DescribeTransactions (key 65), version 0: the state of each transactional id that is coordinated here."""

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
    return {"transaction_states": [_describe(node, one, code) for one in request.transactional_ids]}


def _describe(node: Node, transactional_id: str, code: int) -> dict[str, Any]:
    found = node.cluster.transactions.get(transactional_id)
    if not code and not node.coordinates(transactional_id):
        code = NotCoordinatorError.code
    if not code and not transactional_id:
        code = InvalidRequestError.code
    if code or found is None:
        missing = code or TransactionalIdNotFoundError.code
        return {"transactional_id": transactional_id, "error_code": missing, "transaction_start_time": _EPOCH}
    return {
        "transactional_id": transactional_id,
        "transaction_state": found.state.value,
        "transaction_timeout": found.timeout_ms,
        # -1 for one that has not begun, which is a time as well.
        "transaction_start_time": _EPOCH + timedelta(milliseconds=found.started_ms),
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "topics": _topics(found),
    }


def _topics(found: Transaction) -> list[dict[str, Any]]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(found.partitions):
        by_topic.setdefault(topic, []).append(index)
    return [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
