"""AddPartitionsToTxn (key 24), versions 0 to 5, on the transaction coordinator: adds partitions to transactions.

Clients use versions up to 3, for one transaction. Brokers use the batched form of version 4 and later among themselves,
which can also ask only whether partitions were added. If a partition does not exist, no partition of its transaction is
added: the other partitions get OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import UNLIMITED, Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.transactions.coordinator import Producer, TopicPartition, code_for
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import KafkaError, NotCoordinatorError, OperationNotAttemptedError
from kafkabuf.protocol.messages import ADD_PARTITIONS_TO_TXN, RequestHeader


@api(ADD_PARTITIONS_TO_TXN, 0, 5, own_errors=True, fails_after=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_add_all(node, header, request), goes_on=True)


def _add_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    faults = node.cluster.faults
    injected = faults.take_error(ADD_PARTITIONS_TO_TXN)
    injected_after = 0 if injected else faults.take_error(ADD_PARTITIONS_TO_TXN, after=True)
    rights = rights_of(header)
    if header.version < 4:
        producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        partitions = _partitions(request.v3_and_below_topics)
        transactional_id = request.v3_and_below_transactional_id
        refused = injected or rights.code(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        if refused:
            codes = dict.fromkeys(partitions, refused)
        else:
            codes = yield from _add(node, header, transactional_id, producer, partitions, rights)
        return {
            "results_by_topic_v3_and_below": _results(
                dict.fromkeys(partitions, injected_after) if injected_after else codes
            )
        }
    if refused := injected or rights.code(Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return {"error_code": refused}
    results = []
    for transaction in request.transactions:
        producer = transaction.producer_id, transaction.producer_epoch
        partitions = _partitions(transaction.topics)
        if transaction.verify_only:
            codes = yield from _verify(node, transaction.transactional_id, producer, partitions)
        else:
            codes = yield from _add(node, header, transaction.transactional_id, producer, partitions, UNLIMITED)
        results.append({"transactional_id": transaction.transactional_id, "topic_results": _results(codes)})
        yield
    return {"error_code": injected_after} if injected_after else {"results_by_transaction": results}


def _partitions(topics: Any) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _add(
    node: Node,
    header: RequestHeader,
    transactional_id: str,
    producer: Producer,
    partitions: list[TopicPartition],
    rights: Rights,
) -> Work[dict[TopicPartition, int]]:
    codes = {}
    for topic, index in partitions:
        refused = rights.code(Operation.WRITE, ResourceType.TOPIC, topic)
        codes[topic, index] = refused or node.cluster.catalogue.partition_code(topic, index)
        yield
    if any(codes.values()):
        return {partition: code or OperationNotAttemptedError.code for partition, code in codes.items()}
    try:
        if not node.coordinates_transactions(transactional_id):
            raise NotCoordinatorError(f"node {node.node_id} does not coordinate {transactional_id!r}")
        node.cluster.transactions.add(transactional_id, producer, partitions)
    except KafkaError as error:
        return dict.fromkeys(partitions, code_for(error, header.version >= 2))
    return codes


def _verify(
    node: Node, transactional_id: str, producer: Producer, partitions: list[TopicPartition]
) -> Work[dict[TopicPartition, int]]:
    codes = {}
    for partition in partitions:
        try:
            node.cluster.transactions.verify(transactional_id, producer, partition)
            codes[partition] = 0
        except KafkaError as error:
            codes[partition] = error.code
        yield
    return codes


def _results(codes: dict[TopicPartition, int]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, int]]] = {}
    for (topic, index), code in codes.items():
        by_topic.setdefault(topic, []).append({"partition_index": index, "partition_error_code": code})
    return [{"name": topic, "results_by_partition": results} for topic, results in by_topic.items()]
