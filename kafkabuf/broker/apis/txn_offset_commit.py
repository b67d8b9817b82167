"""TxnOffsetCommit (key 28), versions 0 to 5, on the group's coordinator: stores offsets of a transaction.

The offsets count once the transaction is committed. The group must be part of the transaction; from version 5 on this
request adds the group (KIP-890). Versions 3 and later name the member that has read the records (KIP-447).

Deviation: the node asks the transaction coordinator for every request, Kafka only before a producer's first offsets.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.offset_commit import committed_of
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.groups.group import NO_GENERATION
from kafkabuf.broker.groups.groups import OFFSETS_TOPIC, check_coordinator, offsets_partition
from kafkabuf.broker.groups.offsets import GroupOffsets
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import READ_GROUP, WRITE_TRANSACTIONAL_ID, rights_of
from kafkabuf.errors import KafkaError
from kafkabuf.protocol.messages import TXN_OFFSET_COMMIT, RequestHeader

_FIRST_TO_KNOW_ABORTABLE = 4
_FIRST_OF_VERSION_2 = 5


@api(TXN_OFFSET_COMMIT, 0, 5, own_errors=True, fails_after=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    rights = rights_of(header)
    codes = {
        (topic.name, partition.partition_index): rights.code(Operation.READ, ResourceType.TOPIC, topic.name)
        or node.cluster.catalogue.partition_code(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    }
    refusal = WRITE_TRANSACTIONAL_ID.refusal(rights, request) or READ_GROUP.refusal(rights, request)
    if refusal is not None:
        codes = dict.fromkeys(codes, refusal.code)
    faults = node.cluster.faults
    code = faults.take_error(TXN_OFFSET_COMMIT)
    code_after = 0 if code else faults.take_error(TXN_OFFSET_COMMIT, after=True)
    existing = {topic_partition for topic_partition, error_code in codes.items() if not error_code}
    if existing and not code:
        code = _check(node, header, request)
        if not code:
            codes |= _commit(node, request, existing)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": codes[topic.name, partition.partition_index] or code or code_after,
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _check(node: Node, header: RequestHeader, request: Any) -> int:
    """The error code for all partitions; 0 if the offsets may be committed."""
    group_id = request.group_id
    if (refusal := check_coordinator(node, group_id)) is not None:
        return refusal.code
    generation = getattr(request, "generation_id", NO_GENERATION)
    try:
        node.cluster.transactions.join(
            request.transactional_id,
            (request.producer_id, request.producer_epoch),
            (OFFSETS_TOPIC, offsets_partition(group_id)),
            add=header.version >= _FIRST_OF_VERSION_2,
            knows_abortable=header.version >= _FIRST_TO_KNOW_ABORTABLE,
        )
        group = node.cluster.groups.committing(group_id, generation)
    except KafkaError as error:
        return error.code
    refusal = group.check_commit(
        getattr(request, "member_id", ""), getattr(request, "group_instance_id", None), generation, transactional=True
    )
    return 0 if refusal is None else refusal.code


def _commit(node: Node, request: Any, existing: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The error codes."""
    offsets = node.cluster.groups.get(request.group_id).offsets
    codes = {}
    for topic in request.topics:
        for partition in topic.partitions:
            topic_partition = topic.name, partition.partition_index
            if topic_partition in existing:
                codes[topic_partition] = _commit_one(offsets, request.producer_id, topic_partition, partition)
    return codes


def _commit_one(offsets: GroupOffsets, producer_id: int, topic_partition: tuple[str, int], partition: Any) -> int:
    try:
        committed = committed_of(partition)
        offsets.commit_in_transaction(producer_id, topic_partition, committed)
    except KafkaError as error:
        return error.code
    return 0
