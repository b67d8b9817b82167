"""Produce (key 0), versions 2 to 11.

Version 2 stores message sets of magic 0 and 1, later ones a single magic 2 batch per partition; checked, stamped with
offset and leader epoch, otherwise kept as sent. acks 1 and all are answered at once, each partition having one replica;
acks 0 is not answered, and an error then closes the connection, as in Kafka.

Deviations: producer ids are accepted without looking for duplicates or gaps; transactional batches count as plain ones;
message sets are not converted to magic 2; time stamps are always the producer's (CreateTime).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafkabuf.broker import batch, message_set, records
from kafkabuf.broker.dispatch import Frame, api
from kafkabuf.broker.topics import Partition, Topic
from kafkabuf.errors import (
    InvalidRequestError,
    InvalidRequiredAcksError,
    KafkaError,
    error_for_code,
)
from kafkabuf.protocol import produce
from kafkabuf.protocol.messages import PRODUCE, RequestHeader
from kafkabuf.protocol.produce import PartitionResult, ProduceRequest

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

log = logging.getLogger("kafkabuf.broker")

Answer = list[tuple[str, list[PartitionResult]]]


def _encode(header: RequestHeader, answer: Answer) -> Frame:
    return (produce.encode_response(header, answer),)


@api(
    PRODUCE,
    produce.MIN_VERSION,
    produce.MAX_VERSION,
    decode=produce.decode_request,
    encode=_encode,
    own_errors=True,
)
def handle(node: Node, header: RequestHeader, request: ProduceRequest) -> Answer | None:
    injected = node.cluster.faults.take_errors(PRODUCE, [name for name, _ in request.topics])
    answer: Answer = []
    for name, partitions in request.topics:
        code = injected.get(name, injected.get(None, 0))
        answer.append((name, [_append(node, header, request, name, code, *one) for one in partitions]))
    if request.acks != 0:
        return answer
    failed = [result for _, results in answer for result in results if result.error_code]
    if failed:
        raise InvalidRequestError(f"acks=0 leaves no other way to tell of an error: {failed[0]}")
    return None


def _append(
    node: Node,
    header: RequestHeader,
    request: ProduceRequest,
    name: str,
    injected: int,
    index: int,
    data: memoryview | None,
) -> PartitionResult:
    try:
        if injected:
            raise error_for_code(injected)
        if request.acks not in (-1, 0, 1):
            raise InvalidRequiredAcksError(f"acks={request.acks}: -1, 0 and 1 are allowed")
        topic, partition = _find(node, name, index)
        base = _store(node, header.version, topic, partition, memoryview(b"") if data is None else data)
    except KafkaError as error:
        log.info("node %d: produce to %s-%d refused: %s", node.node_id, name, index, error)
        return PartitionResult(index, error.code, error_message=str(error))
    return PartitionResult(index, 0, base, -1, partition.log.log_start_offset)


def _find(node: Node, name: str, index: int) -> tuple[Topic, Partition]:
    topic = node.cluster.topic(name)
    partition = topic.partition(index)
    if (error := partition.check_leader(node.node_id)) is not None:
        raise error
    return topic, partition


def _store(node: Node, version: int, topic: Topic, partition: Partition, data: memoryview) -> int:
    now = node.cluster.clock.time_ms()
    base = partition.log.end_offset
    if version < 3:
        info, offsets = message_set.check_message_set(data, topic.limits, now)
        stored = bytearray(data)
        message_set.stamp(stored, offsets, base)
    else:
        info = batch.check_batch(data, version, topic.limits, now)
        if node.cluster.config.verify_records:
            records.verify(data)
        stored = bytearray(data)
        batch.stamp(stored, base, partition.leader_epoch)
    return partition.log.append(stored, info, partition.leader_epoch)
