"""CreatePartitions (key 37), versions 0 to 3, on any node: adds partitions to topics."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.errors import KafkaError, error_for_code
from kafkabuf.protocol.messages import CREATE_PARTITIONS, RequestHeader


@api(CREATE_PARTITIONS, 0, 3, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_errors(CREATE_PARTITIONS, [topic.name for topic in request.topics])
    dry_run = request.validate_only
    return {"results": [_create(node, topic, dry_run, injected.code_for(topic.name)) for topic in request.topics]}


def _create(node: Node, topic: Any, dry_run: bool, injected: int) -> dict[str, Any]:
    nodes = None if topic.assignments is None else [tuple(placed.broker_ids) for placed in topic.assignments]
    try:
        if injected:
            raise error_for_code(injected)
        node.cluster.catalogue.add_partitions(topic.name, topic.count, nodes, dry_run=dry_run)
    except KafkaError as error:
        return {"name": topic.name, "error_code": error.code, "error_message": str(error)}
    return {"name": topic.name, "error_code": 0}
