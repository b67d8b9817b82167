"""ListTransactions (key 66), versions 0 to 2: the transactional ids coordinated here, by state, producer id, age
(version 1 and later, ms) and a pattern of their names (version 2, a regular expression: Python's, where Kafka takes
Java's)."""

from __future__ import annotations

import re
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.transactions import State, Transaction
from kafkabuf.protocol.messages import LIST_TRANSACTIONS, RequestHeader

_INVALID_REGULAR_EXPRESSION = 128


@api(LIST_TRANSACTIONS, 0, 2)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    known = {state.value for state in State}
    unknown = [name for name in request.state_filters if name not in known]
    try:
        pattern = re.compile(getattr(request, "transactional_id_pattern", None) or ".*")
    except re.error:
        return {"error_code": _INVALID_REGULAR_EXPRESSION}
    found = [
        one
        for one in node.cluster.transactions
        if node.coordinates(one.transactional_id)
        and _wanted(one, request, node.cluster.clock.time_ms())
        and pattern.fullmatch(one.transactional_id)
    ]
    return {
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": one.transactional_id,
                "producer_id": one.producer_id,
                "transaction_state": one.state.value,
            }
            for one in found
        ],
    }


def _wanted(one: Transaction, request: Any, now_ms: int) -> bool:
    if request.producer_id_filters and one.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and one.state.value not in request.state_filters:
        return False
    age = getattr(request, "duration_filter", -1)
    return age < 0 or (one.started_ms >= 0 and now_ms - one.started_ms > age)
