"""Metadata (key 3), versions 0 to 13, on any node: the nodes that are alive, and topics.

A request asks for topics by name, by id (version 12 and later), or for all topics. The node creates a topic that does
not exist, where the cluster's and the request's settings allow it.

Deviation: a new topic has its leaders in the same response (Kafka first answers LEADER_NOT_AVAILABLE).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.faults import InjectedError
from kafkabuf.broker.log.names import check_name
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.replica.state import leader_error
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.errors import InvalidRequestError, KafkaError, UnknownTopicOrPartitionError, error_for_code
from kafkabuf.protocol.messages import METADATA, RequestHeader

NO_TOPIC_ID = UUID(int=0)
_FIRST_BY_ID = 12
_BY_ID_TOO_EARLY = InvalidRequestError(f"a request may name topics by id from version {_FIRST_BY_ID} on")


@api(METADATA, 0, 13, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    cluster = node.cluster
    # Version 0 has no null: there an empty list asks for all topics.
    requested = None if header.version == 0 and not request.topics else request.topics
    if requested is not None and header.version < _FIRST_BY_ID and any(topic.name is None for topic in requested):
        return {"cluster_id": None, "topics": [_refuse("", topic.topic_id, _BY_ID_TOO_EARLY) for topic in requested]}
    names = [] if requested is None else [topic.name for topic in requested if topic.name is not None]
    injected = cluster.faults.take_errors(METADATA, names)
    create = cluster.config.auto_create_topics and getattr(request, "allow_auto_topic_creation", True)
    if requested is None:
        topics = [_describe(cluster.catalogue.topics[name], node, injected.code) for name in cluster.catalogue.topics]
    else:
        topics = [_find(node, topic, create, injected) for topic in requested]
    operations = getattr(request, "include_cluster_authorized_operations", False)
    if getattr(request, "include_topic_authorized_operations", False):
        topics = [{**topic, "topic_authorized_operations": TOPIC_OPERATIONS} for topic in topics]
    return {
        "cluster_authorized_operations": CLUSTER_OPERATIONS if operations else NOT_ASKED,
        "brokers": [{"node_id": broker.node_id, "host": broker.host, "port": broker.port} for broker in node.brokers()],
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller.node_id,
        "topics": topics,
    }


def _find(node: Node, requested: Any, create: bool, injected: InjectedError) -> dict[str, Any]:
    name, topic_id = requested.name, getattr(requested, "topic_id", None) or NO_TOPIC_ID
    try:
        if code := injected.code_for(name):
            raise error_for_code(code)
        if name is not None:
            check_name(name)
        topic = node.cluster.catalogue.topic(topic_id if name is None else name)
    except UnknownTopicOrPartitionError as error:
        return _create(node, name) if create and not injected else _refuse(name, topic_id, error)
    except KafkaError as error:
        return _refuse(name, topic_id, error)
    return _describe(topic, node)


def _create(node: Node, name: str) -> dict[str, Any]:
    try:
        return _describe(node.cluster.catalogue.create_topic(name), node)
    except KafkaError as error:
        return _refuse(name, None, error)


def _refuse(name: str | None, topic_id: Any, error: KafkaError) -> dict[str, Any]:
    return {"error_code": error.code, "name": name, "topic_id": topic_id}


def _describe(topic: Topic, node: Node, injected: int = 0) -> dict[str, Any]:
    return {
        "error_code": injected,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [] if injected else [describe_partition(partition, node) for partition in topic.partitions],
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
        "replica_nodes": partition.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": [node_id for node_id in partition.replicas if node_id not in alive],
    }
