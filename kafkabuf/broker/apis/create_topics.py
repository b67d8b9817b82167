"""CreateTopics (key 19), versions 2 to 7, on any node.

Configs are kept; retention.bytes and max.message.bytes act. Deviations: other names are not checked, and the answer
does not list configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.errors import KafkaError
from kafkabuf.protocol.messages import CREATE_TOPICS, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node


@api(CREATE_TOPICS, 2, 7, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    injected = node.cluster.faults.take_errors(CREATE_TOPICS, [topic.name for topic in request.topics])
    answers = []
    for wanted in request.topics:
        code = injected.get(wanted.name, injected.get(None, 0))
        answers.append({"name": wanted.name, "error_code": code} if code else _create(node, wanted, request))
    return {"topics": answers}


def _create(node: Node, wanted: Any, request: Any) -> dict[str, Any]:
    configs = {config.name: config.value for config in wanted.configs if config.value is not None}
    assignment = {one.partition_index: one.broker_ids for one in wanted.assignments}
    try:
        topic = node.cluster.create_topic(
            wanted.name,
            wanted.num_partitions,
            wanted.replication_factor,
            configs,
            assignment=assignment,
            dry_run=request.validate_only,
        )
    except KafkaError as error:
        return {"name": wanted.name, "error_code": error.code, "error_message": str(error)}
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
    }
