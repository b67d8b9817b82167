"""DeleteTopics (key 20), versions 1 to 6, on any node: deletes topics by name or by id.

An id may name the topic from version 6 on. The work goes on in slices.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any
from uuid import UUID

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import UNLIMITED, Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, KafkaError, TopicAuthorizationError, error_for_code
from kafkabuf.protocol.messages import DELETE_TOPICS, RequestHeader


@api(DELETE_TOPICS, 1, 6, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_delete_all(node, header, request), exclusive=True)


def _delete_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    requested: list[tuple[str | None, UUID | None]]
    if header.version < 6:
        requested = [(name, None) for name in request.topic_names]
    else:
        requested = [(topic.name, topic.topic_id) for topic in request.topics]
    injected = node.cluster.faults.take_errors(DELETE_TOPICS, [name for name, _ in requested if name is not None])
    rights = rights_of(header)
    if rights.allows(Operation.DELETE, ResourceType.CLUSTER):
        rights = UNLIMITED
    responses = []
    for name, topic_id in requested:
        responses.append((yield from _delete(node, name, topic_id, injected.code_for(name), rights)))
        yield
    return {"responses": responses}


def _delete(node: Node, name: str | None, topic_id: UUID | None, injected: int, rights: Rights) -> Work[dict[str, Any]]:
    try:
        if injected:
            raise error_for_code(injected)
        if (name is None) == (topic_id is None):
            raise InvalidRequestError("a request names a topic either by its name or by its id")
        if name is not None:
            rights.check(Operation.DESCRIBE, ResourceType.TOPIC, name)
        topic = node.cluster.catalogue.topic(name or topic_id or "")
        if not rights.allows(Operation.DELETE, ResourceType.TOPIC, topic.name):
            # A request by id learns the name of a topic that it may describe.
            if name is None and rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
                name = topic.name
            raise TopicAuthorizationError("DELETE is not allowed on the topic")
        yield from node.cluster.catalogue.deleting_topic(topic.name)
    except KafkaError as error:
        return {"name": name, "topic_id": topic_id, "error_code": error.code, "error_message": str(error)}
    return {"name": topic.name, "topic_id": topic.topic_id}
