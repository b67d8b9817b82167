"""ListTransactions (key 66), versions 0 to 2: the transactional ids that this node coordinates.

Filters: state, producer id, age in milliseconds (version 1 and later), and a regular expression for the whole
transactional id (version 2), in RE2's syntax.

Deviation: The node refuses a regular expression that may take long to match.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.expressions import Pattern
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.transactions.coordinator import State, Transaction
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRegularExpressionError
from kafkabuf.protocol.messages import LIST_TRANSACTIONS, RequestHeader


@api(LIST_TRANSACTIONS, 0, 2)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_list(node, header, request))


def _list(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    known = {state.value for state in State}
    unknown = [name for name in request.state_filters if name not in known]
    matching = yield from _filtered(node, header, request)
    if expression := getattr(request, "transactional_id_pattern", None):
        try:
            matching = yield from _matching(expression, matching)
        except InvalidRegularExpressionError as error:
            return {"error_code": error.code}
    return {
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.value,
            }
            for transaction in matching
        ],
    }


def _filtered(node: Node, header: RequestHeader, request: Any) -> Work[list[Transaction]]:
    rights, now_ms = rights_of(header), node.cluster.clock.time_ms()
    producer_ids, states = set(request.producer_id_filters), set(request.state_filters)
    filtered = []
    for transaction in tuple(node.cluster.transactions):
        if (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not states or transaction.state.value in states)
            and _is_old(transaction, getattr(request, "duration_filter", -1), now_ms)
            and node.coordinates_transactions(transaction.transactional_id)
            and rights.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
        ):
            filtered.append(transaction)
        yield
    return filtered


def _matching(expression: str, transactions: Sequence[Transaction]) -> Work[list[Transaction]]:
    ids = [transaction.transactional_id for transaction in transactions]
    matching = yield from Pattern(expression).matching_in_steps(ids)
    return [transaction for transaction in transactions if transaction.transactional_id in matching]


def _is_old(transaction: Transaction, age: int, now_ms: int) -> bool:
    return age < 0 or (transaction.started_ms >= 0 and now_ms - transaction.started_ms > age)
