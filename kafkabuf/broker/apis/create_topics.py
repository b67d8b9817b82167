"""CreateTopics (key 19), versions 2 to 7, on any node: creates topics.

From version 5 on the response has all settings of a topic (KIP-525). cluster/configs.py says which settings have an
effect.

Deviation: there are no eligible leader replicas (KIP-966), and so no min.insync.replicas that is set for the whole
cluster.
"""

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
    requested = {topic.name: topic for topic in request.topics}
    times = Counter(topic.name for topic in request.topics)
    injected = node.cluster.faults.take_errors(CREATE_TOPICS, list(requested))
    results = []
    for name, topic in requested.items():
        try:
            if code := injected.code_for(name):
                raise error_for_code(code)
            if times[name] > 1:
                raise InvalidRequestError(f"the request names topic {name!r} {times[name]} times")
            results.append(_create(node, topic, request.validate_only))
        except KafkaError as error:
            results.append({"name": name, "error_code": error.code, "error_message": str(error), "configs": []})
    return {"topics": results}


def _create(node: Node, requested: Any, dry_run: bool) -> dict[str, Any]:
    if requested.assignments and (requested.num_partitions, requested.replication_factor) != (_DEFAULT, _DEFAULT):
        raise InvalidRequestError("with assignments, num_partitions and replication_factor must be -1")
    if unset := [config.name for config in requested.configs if config.value is None]:
        raise InvalidConfigError(f"Null value not supported for topic configs: {', '.join(unset)}")
    topic = node.cluster.catalogue.create_topic(
        requested.name,
        requested.num_partitions,
        requested.replication_factor,
        {config.name: config.value for config in requested.configs},
        assignment={placed.partition_index: placed.broker_ids for placed in requested.assignments},
        dry_run=dry_run,
    )
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": [
            {
                "name": setting.name,
                "value": setting.value,
                "read_only": setting.read_only,
                "config_source": setting.source,
                "is_sensitive": False,
            }
            for setting in topic_settings(node.cluster.config, topic.configs)
        ],
    }
