"""CreateTopics (key 19), versions 2 to 7, on any node; from version 5 on the answer tells all settings (KIP-525). See
configs.py for which of them act."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.configs import topic_settings
from kafkabuf.broker.cluster.node import Node
from kafkabuf.errors import InvalidConfigError, InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import CREATE_TOPICS, RequestHeader

_DEFAULT = -1


@api(CREATE_TOPICS, 2, 7, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    wanted = {topic.name: topic for topic in request.topics}
    times = Counter(topic.name for topic in request.topics)
    injected = node.cluster.faults.take_errors(CREATE_TOPICS, list(wanted))
    answers = []
    for name, topic in wanted.items():
        try:
            if code := injected.get(name, injected.get(None, 0)):
                raise error_for_code(code)
            if times[name] > 1:
                raise InvalidRequestError(f"topic {name!r} is asked for {times[name]} times")
            answers.append(_create(node, topic, request.validate_only))
        except KafkaError as error:
            answers.append({"name": name, "error_code": error.code, "error_message": str(error), "configs": []})
    return {"topics": answers}


def _create(node: Node, wanted: Any, dry_run: bool) -> dict[str, Any]:
    if wanted.assignments and (wanted.num_partitions, wanted.replication_factor) != (_DEFAULT, _DEFAULT):
        raise InvalidRequestError("replicas are either named or counted: with assignments the numbers have to be -1")
    if unset := [config.name for config in wanted.configs if config.value is None]:
        raise InvalidConfigError(f"Null value not supported for topic configs: {', '.join(unset)}")
    topic = node.cluster.catalogue.create_topic(
        wanted.name,
        wanted.num_partitions,
        wanted.replication_factor,
        {config.name: config.value for config in wanted.configs},
        assignment={one.partition_index: one.broker_ids for one in wanted.assignments},
        dry_run=dry_run,
    )
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": [
            {
                "name": one.name,
                "value": one.value,
                "read_only": one.read_only,
                "config_source": one.source,
                "is_sensitive": False,
            }
            for one in topic_settings(node.cluster.config, topic.configs)
        ],
    }
