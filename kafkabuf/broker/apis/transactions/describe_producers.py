"""DescribeProducers (key 61), version 0: the producers in the partitions that have a replica on this node.

A follower answers without an error too, with the producers that it knows from the leader's batches.

Deviations: a partition that the request names twice is described once. The producers come in the order in which the log
met them, in Kafka in that of a hash table.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.records._producer_entry import ProducerEntry
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import KafkaError, error_for_code
from kafkabuf.protocol.messages import DESCRIBE_PRODUCERS, RequestHeader


@api(DESCRIBE_PRODUCERS, 0, 0, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_describe_all(node, header, request))


def _describe_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    injected = node.cluster.faults.take_errors(DESCRIBE_PRODUCERS, [topic.name for topic in request.topics])
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    rights, topics = rights_of(header), []
    for name, indexes in asked.items():
        partitions = []
        for index in indexes:
            described = yield from _describe(node, name, index, injected.code_for(name), rights)
            partitions.append(described)
            yield
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _describe(node: Node, topic: str, index: int, injected: int, rights: Rights) -> Work[dict[str, Any]]:
    try:
        if injected:
            raise error_for_code(injected)
        rights.check(Operation.READ, ResourceType.TOPIC, topic)
        log = node.cluster.catalogue.topic(topic).partition(index).replica(node.node_id).log
    except KafkaError as error:
        return {"partition_index": index, "error_code": error.code, "error_message": str(error)}
    producers = []
    for producer_id, entry in tuple(log.producers):
        producers.append(_producer(producer_id, entry))
        yield
    return {"partition_index": index, "active_producers": producers}


def _producer(producer_id: int, entry: ProducerEntry) -> dict[str, int]:
    return {
        "producer_id": producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.last_timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": -1 if entry.transaction_start is None else entry.transaction_start,
    }
