"""AddPartitionsToTxn (key 24), versions 0 to 5. Until version 3 from clients: partitions of one transaction; from
version 4 the batched form that brokers use among themselves, which may also only ask whether partitions were added.

One partition that does not exist fails them all: the others are OPERATION_NOT_ATTEMPTED."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.transactions import Producer, TopicPartition, code_for
from kafkabuf.errors import KafkaError, NotCoordinatorError, OperationNotAttemptedError
from kafkabuf.protocol.messages import ADD_PARTITIONS_TO_TXN, RequestHeader


@api(ADD_PARTITIONS_TO_TXN, 0, 5, own_errors=True, fails_after=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    faults = node.cluster.faults
    injected = faults.take_error(ADD_PARTITIONS_TO_TXN)
    late = 0 if injected else faults.take_error(ADD_PARTITIONS_TO_TXN, after=True)
    if header.version < 4:
        producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        wanted = _partitions(request.v3_and_below_topics)
        transactional_id = request.v3_and_below_transactional_id
        codes = dict.fromkeys(wanted, injected) if injected else _add(node, header, transactional_id, producer, wanted)
        return {"results_by_topic_v3_and_below": _results(dict.fromkeys(wanted, late) if late else codes)}
    if injected:
        return {"error_code": injected}
    results = []
    for one in request.transactions:
        producer, wanted = (one.producer_id, one.producer_epoch), _partitions(one.topics)
        look = _verify if one.verify_only else _add
        codes = look(node, header, one.transactional_id, producer, wanted)
        results.append({"transactional_id": one.transactional_id, "topic_results": _results(codes)})
    return {"error_code": late} if late else {"results_by_transaction": results}


def _partitions(topics: Any) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _add(
    node: Node, header: RequestHeader, transactional_id: str, producer: Producer, wanted: list[TopicPartition]
) -> dict[TopicPartition, int]:
    codes = {one: node.cluster.catalogue.partition_code(*one) for one in wanted}
    if any(codes.values()):
        return {one: code or OperationNotAttemptedError.code for one, code in codes.items()}
    try:
        if not node.coordinates(transactional_id):
            raise NotCoordinatorError(f"node {node.node_id} does not coordinate {transactional_id!r}")
        node.cluster.transactions.add(transactional_id, producer, wanted)
    except KafkaError as error:
        return dict.fromkeys(wanted, code_for(error, header.version >= 2))
    return codes


def _verify(
    node: Node, header: RequestHeader, transactional_id: str, producer: Producer, wanted: list[TopicPartition]
) -> dict[TopicPartition, int]:
    codes = {}
    for one in wanted:
        try:
            node.cluster.transactions.verify(transactional_id, producer, one)
            codes[one] = 0
        except KafkaError as error:
            codes[one] = error.code
    return codes


def _results(codes: dict[TopicPartition, int]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, int]]] = {}
    for (topic, index), code in codes.items():
        by_topic.setdefault(topic, []).append({"partition_index": index, "partition_error_code": code})
    return [{"name": topic, "results_by_partition": results} for topic, results in by_topic.items()]
