"""DeleteTopics (key 20), versions 1 to 6, on any node: deletes topics by name, or from version 6 on by id."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.errors import InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import DELETE_TOPICS, RequestHeader


@api(DELETE_TOPICS, 1, 6, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    requested: list[tuple[str | None, UUID | None]]
    if header.version < 6:
        requested = [(name, None) for name in request.topic_names]
    else:
        requested = [(topic.name, topic.topic_id) for topic in request.topics]
    injected = node.cluster.faults.take_errors(DELETE_TOPICS, [name for name, _ in requested if name is not None])
    return {"responses": [_delete(node, name, topic_id, injected.code_for(name)) for name, topic_id in requested]}


def _delete(node: Node, name: str | None, topic_id: UUID | None, injected: int) -> dict[str, Any]:
    try:
        if injected:
            raise error_for_code(injected)
        if (name is None) == (topic_id is None):
            raise InvalidRequestError("a request names a topic either by its name or by its id")
        topic = node.cluster.catalogue.delete_topic(name or topic_id or "")
    except KafkaError as error:
        return {"name": name, "topic_id": topic_id, "error_code": error.code, "error_message": str(error)}
    return {"name": topic.name, "topic_id": topic.topic_id}
