"""The result of Producer.list_topics(), with the names of confluent_kafka.admin.ClusterMetadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafkabuf.compat.confluent.errors import call_error
from kafkabuf.errors import error_for_code


@dataclass
class BrokerMetadata:
    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.id}"


@dataclass
class PartitionMetadata:
    """`error` is a KafkaError, or None; so in TopicMetadata."""

    id: int
    leader: int
    replicas: list[int]
    isrs: list[int]
    error: Any = None

    def __str__(self) -> str:
        return str(self.id)


@dataclass
class TopicMetadata:
    topic: str
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)
    error: Any = None

    def __str__(self) -> str:
        return self.topic


@dataclass
class ClusterMetadata:
    """`orig_broker_id` is the broker that has answered; -1: a bootstrap server whose address is no broker's."""

    cluster_id: str | None
    controller_id: int
    brokers: dict[int, BrokerMetadata]
    topics: dict[str, TopicMetadata]
    orig_broker_id: int = -1
    orig_broker_name: str | None = None

    def __str__(self) -> str:
        return str(self.cluster_id)


def cluster_metadata(response: Any, answered_by: tuple[int, str, int]) -> ClusterMetadata:
    """From the response to a Metadata request. `answered_by`: `Admin.answered_by`."""
    cluster_id = getattr(response, "cluster_id", None)
    brokers = {int(b.node_id): BrokerMetadata(int(b.node_id), str(b.host), int(b.port)) for b in response.brokers}
    return ClusterMetadata(
        None if cluster_id is None else str(cluster_id),
        int(response.controller_id),
        brokers,
        {str(topic.name): _topic(topic) for topic in response.topics},
        *_answered_by(brokers, *answered_by),
    )


def _answered_by(brokers: dict[int, BrokerMetadata], node_id: int, host: str, port: int) -> tuple[int, str]:
    """Id and name of the broker that has answered, which the client may know as a bootstrap server alone."""
    if node_id < 0:
        at_address = [broker.id for broker in brokers.values() if (broker.host, broker.port) == (host, port)]
        node_id = at_address[0] if at_address else -1
    return node_id, f"{host}:{port}/{'bootstrap' if node_id < 0 else node_id}"


def _topic(topic: Any) -> TopicMetadata:
    partitions = [
        PartitionMetadata(
            int(partition.partition_index),
            int(partition.leader_id),
            [int(node) for node in partition.replica_nodes],
            [int(node) for node in partition.isr_nodes],
            _error(partition.error_code),
        )
        for partition in topic.partitions
    ]
    return TopicMetadata(str(topic.name), {p.id: p for p in partitions}, _error(topic.error_code))


def _error(code: Any) -> Any:
    return call_error(error_for_code(int(code)), of_broker=True) if int(code) else None
