"""ListPartitionReassignments (key 46), version 0: an empty list. Kafka's tool kafka-topics sends this request.

Deviation: replicas never move from node to node.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.rights import DESCRIBE_CLUSTER
from kafkabuf.broker.nodes.node import Node
from kafkabuf.protocol.messages import LIST_PARTITION_REASSIGNMENTS, RequestHeader


@api(LIST_PARTITION_REASSIGNMENTS, 0, 0, needs=(DESCRIBE_CLUSTER,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    return {"topics": []}
