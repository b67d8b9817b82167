"""CreateTopics (key 19), versions 2 to 7, on any node: creates topics.

From version 5 on the response has all settings of a topic (KIP-525). configs/topics.py says which settings have an
effect.

A request creates at most 10,000 partitions, settings and topics together, as in Kafka. The work goes on in slices.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from collections.abc import Collection
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.configs.topics import topic_settings
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.catalogue import check_batch
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import (
    InvalidConfigError,
    InvalidRequestError,
    KafkaError,
    PolicyViolationError,
    error_for_code,
)
from kafkabuf.protocol.messages import CREATE_TOPICS, RequestHeader

_DEFAULT = -1


@api(CREATE_TOPICS, 2, 7, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_create_all(node, request, rights_of(header)), exclusive=True)


def _create_all(node: Node, request: Any, rights: Rights) -> Work[dict[str, Any]]:
    requested = {topic.name: topic for topic in request.topics}
    times = Counter(topic.name for topic in request.topics)
    injected = node.cluster.faults.take_errors(CREATE_TOPICS, list(requested))
    allowed = yield from _allowed(rights, requested)
    too_large = _too_large(node, [topic for name, topic in requested.items() if times[name] == 1 and name in allowed])
    described: dict[Any, list[dict[str, Any]]] = {}
    results = []
    for name, topic in requested.items():
        try:
            if code := injected.code_for(name):
                raise error_for_code(code)
            if times[name] > 1:
                raise InvalidRequestError(f"the request names topic {name!r} {times[name]} times")
            if name not in allowed:
                rights.check(Operation.CREATE, ResourceType.TOPIC, name)
            if too_large is not None:
                raise too_large
            results.append((yield from _create(node, topic, request.validate_only, described, rights)))
        except KafkaError as error:
            results.append({"name": name, "error_code": error.code, "error_message": str(error), "configs": []})
        yield
    return {"topics": results}


def _allowed(rights: Rights, names: Collection[str]) -> Work[Collection[str]]:
    """The names of the topics that the client may create."""
    if rights.allows(Operation.CREATE, ResourceType.CLUSTER):
        return names
    allowed = set()
    for name in names:
        if rights.allows(Operation.CREATE, ResourceType.TOPIC, name):
            allowed.add(name)
        yield
    return allowed


def _too_large(node: Node, topics: list[Any]) -> PolicyViolationError | None:
    """The error for all topics of a request that would create too much. Nothing has been created then."""
    count = node.cluster.placement.count
    partitions = sum(len(topic.assignments) or max(count(topic.num_partitions), 0) for topic in topics)
    try:
        check_batch(partitions, len(topics) + sum(len(topic.configs) for topic in topics))
    except PolicyViolationError as error:
        return error
    return None


def _create(
    node: Node, requested: Any, dry_run: bool, described: dict[Any, list[dict[str, Any]]], rights: Rights
) -> Work[dict[str, Any]]:
    """`described` has the settings of the topics of this request: most topics have the same settings."""
    if requested.assignments and (requested.num_partitions, requested.replication_factor) != (_DEFAULT, _DEFAULT):
        raise InvalidRequestError("with assignments, num_partitions and replication_factor must be -1")
    if unset := [config.name for config in requested.configs if config.value is None]:
        raise InvalidConfigError(f"Null value not supported for topic configs: {', '.join(unset)}")
    written = {config.name: config.value for config in requested.configs}
    topic = yield from node.cluster.catalogue.creating_topic(
        requested.name,
        requested.num_partitions,
        requested.replication_factor,
        written,
        assignment={placed.partition_index: placed.broker_ids for placed in requested.assignments},
        dry_run=dry_run,
    )
    if code := rights.code(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        hidden = {"topic_config_error_code": code, "num_partitions": -1, "replication_factor": -1, "configs": []}
        return {"name": topic.name, "topic_id": topic.topic_id, **hidden}
    key = tuple(sorted(written.items()))
    if key not in described:
        described[key] = _describe(node, topic, written)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replica_nodes),
        "configs": described[key],
    }


def _describe(node: Node, topic: Topic, written: dict[str, str]) -> list[dict[str, Any]]:
    """The response has a value as the request wrote it. DescribeConfigs has it as Kafka reads it."""
    return [
        {
            "name": setting.name,
            "value": written.get(setting.name, setting.value),
            "read_only": setting.read_only,
            "config_source": setting.source,
            "is_sensitive": False,
        }
        for setting in topic_settings(node.cluster.node_configs, node.node_id, topic.configs)
    ]
