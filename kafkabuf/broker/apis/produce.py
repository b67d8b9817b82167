"""Produce (key 0), versions 2 to 13.

Version 2 stores message sets of magic 0 and 1, later ones a single magic 2 batch per partition; checked, stamped with
offset and leader epoch, otherwise kept as sent. Batches of idempotent producers are checked against what the partition
knows of them (producer_state.py); a transaction's first batch in a partition needs the coordinator's word for it, which
from version 12 on makes the partition part of the transaction (KIP-890). acks 1 and all are answered at once, each
partition having one replica; acks 0 is not answered, and an error then closes the connection, as in Kafka. From version
10 on a client that asked the wrong node is told the right one (KIP-951).

Deviations: message sets are not converted to magic 2; time stamps are always the producer's (CreateTime); every error
has a message.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from kafkabuf.broker import batch, message_set, records
from kafkabuf.broker.batch import BatchInfo
from kafkabuf.broker.dispatch import Frame, api
from kafkabuf.broker.topics import Partition, Topic
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    KafkaError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    TransactionalIdAuthorizationError,
    error_for_code,
)
from kafkabuf.protocol import produce
from kafkabuf.protocol.messages import PRODUCE, RequestHeader
from kafkabuf.protocol.produce import PartitionResult, ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

log = logging.getLogger("kafkabuf.broker")

_FIRST_TO_KNOW_ABORTABLE = 11
_FIRST_OF_VERSION_2 = 12
_HINTED = (NotLeaderOrFollowerError.code, FencedLeaderEpochError.code)


def _encode(header: RequestHeader, answer: ProduceResponse, throttle_ms: int) -> Frame:
    return (produce.encode_response(header, answer, throttle_ms),)


@api(
    PRODUCE,
    produce.MIN_VERSION,
    produce.MAX_VERSION,
    decode=produce.decode_request,
    encode=_encode,
    own_errors=True,
    fails_after=True,
)
def handle(node: Node, header: RequestHeader, request: ProduceRequest) -> ProduceResponse | None:
    names = {topic: _name(node, topic) for topic, _ in request.topics}
    faults = node.cluster.faults
    before = faults.take_errors(PRODUCE, list(names.values()))
    after = {} if before else faults.take_errors(PRODUCE, list(names.values()), after=True)
    topics: list[tuple[str | UUID, list[PartitionResult]]] = []
    for topic, partitions in request.topics:
        code = before.get(names[topic], before.get(None, 0))
        results = [_append(node, header, request, topic, code, *one) for one in partitions]
        if late := after.get(names[topic], after.get(None, 0)):
            results = [PartitionResult(one.partition, one.error_code or late) for one in results]
        topics.append((topic, [_hint(node, topic, one) for one in results]))
    if request.acks != 0:
        return ProduceResponse(topics, _endpoints(node, topics))
    failed = [result for _, results in topics for result in results if result.error_code]
    if failed:
        raise InvalidRequestError(f"acks=0 leaves no other way to tell of an error: {failed[0]}")
    return None


def _name(node: Node, topic: str | UUID) -> str:
    try:
        return node.cluster.topic(topic).name
    except KafkaError:
        return str(topic)


def _append(
    node: Node,
    header: RequestHeader,
    request: ProduceRequest,
    name: str | UUID,
    injected: int,
    index: int,
    data: memoryview | None,
) -> PartitionResult:
    start = -1
    try:
        if injected:
            raise error_for_code(injected)
        if request.acks not in (-1, 0, 1):
            raise InvalidRequiredAcksError(f"acks={request.acks}: -1, 0 and 1 are allowed")
        topic, partition = _find(node, name, index)
        data = memoryview(b"") if data is None else data
        if header.version < 3:
            base = _store_message_set(node, topic, partition, data)
            return PartitionResult(index, 0, base, -1, partition.log.log_start_offset)
        info = batch.check_batch(data, header.version, topic.limits, node.cluster.clock.time_ms())
        if info.producer_id >= 0 and info.transactional:
            _join_transaction(node, header, request, (topic.name, index), partition, info)
        start = partition.log.log_start_offset
        return _store(node, partition, info, data, index)
    except KafkaError as error:
        log.info("node %d: produce to %s-%d refused: %s", node.node_id, name, index, error)
        return PartitionResult(index, error.code, log_start_offset=start, error_message=str(error))


def _find(node: Node, name: str | UUID, index: int) -> tuple[Topic, Partition]:
    topic = node.cluster.topic(name)
    partition = topic.partition(index)
    if (error := partition.check_leader(node.node_id)) is not None:
        raise error
    return topic, partition


def _join_transaction(
    node: Node,
    header: RequestHeader,
    request: ProduceRequest,
    where: tuple[str, int],
    partition: Partition,
    info: BatchInfo,
) -> None:
    """Nothing to ask while the transaction is open here: then its marker has not been written."""
    if request.transactional_id is None:
        raise TransactionalIdAuthorizationError("transactional records need a transactional id")
    producers = partition.log.producers
    if producers.in_transaction(info.producer_id, info.producer_epoch):
        return
    version_2 = header.version >= _FIRST_OF_VERSION_2
    producers.start_verification(info, version_2)
    try:
        node.cluster.transactions.join(
            request.transactional_id,
            (info.producer_id, info.producer_epoch),
            where,
            add=version_2,
            knows_abortable=header.version >= _FIRST_TO_KNOW_ABORTABLE,
        )
    except ConcurrentTransactionsError as error:
        # As Kafka, which means by it: send again, and do not look for another leader.
        raise NotEnoughReplicasError(f"cannot tell whether {where} is part of the transaction: {error}") from error


def _store_message_set(node: Node, topic: Topic, partition: Partition, data: memoryview) -> int:
    info, offsets = message_set.check_message_set(data, topic.limits, node.cluster.clock.time_ms())
    stored = bytearray(data)
    message_set.stamp(stored, offsets, partition.log.end_offset)
    return partition.log.append(stored, info, partition.leader_epoch)


def _store(node: Node, partition: Partition, info: BatchInfo, data: memoryview, index: int) -> PartitionResult:
    kept, now = partition.log, node.cluster.clock.time_ms()
    if info.producer_id >= 0:
        if (found := kept.producers.duplicate(info)) is not None:
            return PartitionResult(index, 0, found.base_offset, found.max_timestamp, kept.log_start_offset)
        kept.producers.check(info, now)
    if node.cluster.config.verify_records:
        records.verify(data)
    stored = bytearray(data)
    batch.stamp(stored, kept.end_offset, partition.leader_epoch)
    base = kept.append(stored, info, partition.leader_epoch, now)
    return PartitionResult(index, 0, base, -1, kept.log_start_offset)


def _hint(node: Node, name: str | UUID, result: PartitionResult) -> PartitionResult:
    if result.error_code not in _HINTED:
        return result
    try:
        partition = node.cluster.topic(name).partition(result.partition)
    except KafkaError:
        return result
    return replace(result, leader=(partition.leader, partition.leader_epoch))


def _endpoints(node: Node, topics: list[tuple[str | UUID, list[PartitionResult]]]) -> list[tuple[int, str, int]]:
    leaders = {result.leader[0] for _, results in topics for result in results if result.leader is not None}
    found = [node.cluster.nodes[one] for one in sorted(leaders) if one in node.cluster.nodes]
    return [(one.node_id, one.host, one.port) for one in found]
