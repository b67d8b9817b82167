"""Metadata (key 3), versions 0 to 13, on any node: the nodes that are alive, and topics.

A request asks for topics by name, by id (version 12 and later), or for all topics. A topic that it repeats comes once.
The node creates a topic that does not exist, where the cluster's and the request's settings allow it, but no topic if
the request names too many for one CreateTopics.

Deviation: a new topic has its leaders in the same response (Kafka first answers LEADER_NOT_AVAILABLE).
"""

from __future__ import annotations

from asyncio import Future
from typing import Any
from uuid import UUID

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.operations import cluster_operations
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.faults import InjectedError
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.internal.topics import INTERNAL_TOPICS
from kafkabuf.broker.log.names import check_name
from kafkabuf.broker.nodes.catalogue import check_batch
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.nodes.placement import DEFAULT
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.replica.state import leader_error
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import (
    InvalidRequestError,
    KafkaError,
    PolicyViolationError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    error_for_code,
)
from kafkabuf.protocol.messages import METADATA, RequestHeader

NO_TOPIC_ID = UUID(int=0)
_FIRST_BY_ID = 12
_BY_ID_TOO_EARLY = InvalidRequestError(f"a request may name topics by id from version {_FIRST_BY_ID} on")


@api(METADATA, 0, 13, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    cluster = node.cluster
    # Version 0 has no null: there an empty list asks for all topics.
    requested = None if header.version == 0 and not request.topics else request.topics
    if requested is not None and header.version < _FIRST_BY_ID and any(topic.name is None for topic in requested):
        return {"cluster_id": None, "topics": [_refuse("", topic.topic_id, _BY_ID_TOO_EARLY) for topic in requested]}
    names = [] if requested is None else [topic.name for topic in requested if topic.name is not None]
    injected = cluster.faults.take_errors(METADATA, names)
    create = cluster.config.auto_create_topics and getattr(request, "allow_auto_topic_creation", True)
    create = create and not injected and any(name not in cluster.catalogue.topics for name in names)
    answer = _answer(node, request, requested, create, injected, rights_of(header))
    return cluster.slices.run(answer, exclusive=create)


def _answer(
    node: Node, request: Any, requested: Any, create: bool, injected: InjectedError, rights: Rights
) -> Work[dict[str, Any]]:
    cluster = node.cluster
    topics = []
    if requested is None:
        for topic in tuple(cluster.catalogue.topics.values()):
            if rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
                topics.append((yield from _describe(topic, node, injected.code)))
            yield
    else:
        create = create and _may_create(node, requested, rights)
        for wanted in {(topic.name, getattr(topic, "topic_id", None)): topic for topic in requested}.values():
            topics.append((yield from _find(node, wanted, create, injected, rights)))
            yield
    asks_for_operations = getattr(request, "include_cluster_authorized_operations", False)
    if getattr(request, "include_topic_authorized_operations", False):
        for index, described in enumerate(topics):
            topics[index] = _with_operations(described, rights)
            yield
    return {
        "cluster_authorized_operations": cluster_operations(rights, asks_for_operations),
        "brokers": [
            {"node_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
            for broker in node.brokers()
        ],
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller.node_id,
        "topics": topics,
    }


def _may_create(node: Node, requested: Any, rights: Rights) -> bool:
    """Whether the node may create the missing topics. As in Kafka it creates none of them if they are too many for one
    request of CreateTopics. Topics that the client has no right to create do not count."""
    names = {topic.name for topic in requested} - {None}
    missing = {name for name in names if name not in node.cluster.catalogue.topics}
    if not rights.allows(Operation.CREATE, ResourceType.CLUSTER):
        missing = {name for name in missing if rights.allows(Operation.CREATE, ResourceType.TOPIC, name)}
    created = len(missing)
    try:
        check_batch(created * node.cluster.placement.count(DEFAULT), created)
    except PolicyViolationError:
        return False
    return True


def _find(node: Node, requested: Any, create: bool, injected: InjectedError, rights: Rights) -> Work[dict[str, Any]]:
    name, topic_id = requested.name, getattr(requested, "topic_id", None) or NO_TOPIC_ID
    try:
        if code := injected.code_for(name):
            raise error_for_code(code)
        if name is not None:
            rights.check(Operation.DESCRIBE, ResourceType.TOPIC, name)
            check_name(name)
        topic = node.cluster.catalogue.topic(topic_id if name is None else name)
        if name is None:
            rights.check(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
    except UnknownTopicOrPartitionError as error:
        if not create:
            return _refuse(name, topic_id, error)
        return (yield from _create(node, name, rights))
    except KafkaError as error:
        return _refuse(name, topic_id, error)
    return (yield from _describe(topic, node))


def _create(node: Node, name: str, rights: Rights) -> Work[dict[str, Any]]:
    try:
        if not rights.allows(Operation.CREATE, ResourceType.CLUSTER):
            rights.check(Operation.CREATE, ResourceType.TOPIC, name)
        if name in INTERNAL_TOPICS:
            topic = node.cluster.internal_topics.topic(name)
        else:
            topic = yield from node.cluster.catalogue.creating_topic(name)
        return (yield from _describe(topic, node))
    except KafkaError as error:
        return _refuse(name, None, error)


def _with_operations(topic: dict[str, Any], rights: Rights) -> dict[str, Any]:
    """Adds the operations that the client may perform on a topic, unless the topic is hidden from the client."""
    if topic["name"] is None or topic["error_code"] == TopicAuthorizationError.code:
        return topic
    return {**topic, "topic_authorized_operations": rights.operations(ResourceType.TOPIC, topic["name"])}


def _refuse(name: str | None, topic_id: Any, error: KafkaError) -> dict[str, Any]:
    return {"error_code": error.code, "name": name, "topic_id": topic_id}


def _describe(topic: Topic, node: Node, injected: int = 0) -> Work[dict[str, Any]]:
    partitions = []
    for partition in () if injected else tuple(topic.partitions):
        partitions.append(describe_partition(partition, node))
        yield
    return {
        "error_code": injected,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": partitions,
    }


def describe_partition(partition: Partition, node: Node) -> dict[str, Any]:
    """A partition as Metadata and DescribeTopicPartitions describe it."""
    state = partition.seen_by(node.node_id)
    alive = {broker.node_id for broker in node.brokers()}
    error = leader_error(state, partition.index)
    return {
        "error_code": 0 if error is None else error.code,
        "partition_index": partition.index,
        "leader_id": state.leader,
        "leader_epoch": state.epoch,
        "replica_nodes": partition.replica_nodes,
        "isr_nodes": state.isr,
        "offline_replicas": [node_id for node_id in partition.replica_nodes if node_id not in alive],
    }
