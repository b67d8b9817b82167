"""TxnOffsetCommit (key 28), versions 0 to 5, on the group's coordinator: stores offsets of a transaction.

The offsets count once the transaction is committed. They are stored in slices; if the transaction ends meanwhile, the
other offsets are refused. The group must be part of the transaction; from version 5 on this request adds the group
(KIP-890). Versions 3 and later name the member that has read the records (KIP-447).

Deviation: the node asks the transaction coordinator for every request, Kafka only before a producer's first offsets.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.groups.offset_commit import committed_of
from kafkabuf.broker.groups.group import NO_GENERATION
from kafkabuf.broker.groups.groups import OFFSETS_TOPIC, check_coordinator, offsets_partition
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import READ_GROUP, WRITE_TRANSACTIONAL_ID, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import KafkaError
from kafkabuf.protocol.messages import TXN_OFFSET_COMMIT, RequestHeader

_FIRST_TO_KNOW_ABORTABLE = 4
_FIRST_OF_VERSION_2 = 5


@api(TXN_OFFSET_COMMIT, 0, 5, own_errors=True, fails_after=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_commit_all(node, header, request), goes_on=True)


def _commit_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    rights = rights_of(header)
    codes: dict[tuple[str, int], int] = {}
    for topic in request.topics:
        topic_code = rights.code(Operation.READ, ResourceType.TOPIC, topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            codes[topic.name, index] = topic_code or node.cluster.catalogue.partition_code(topic.name, index)
            yield
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
            yield from _commit(node, header, request, existing, codes)
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
        _join(node, header, request, add=header.version >= _FIRST_OF_VERSION_2)
        group = node.cluster.groups.committing(group_id, generation)
    except KafkaError as error:
        return error.code
    refusal = group.check_commit(
        getattr(request, "member_id", ""), getattr(request, "group_instance_id", None), generation, transactional=True
    )
    return 0 if refusal is None else refusal.code


def _join(node: Node, header: RequestHeader, request: Any, *, add: bool) -> None:
    """Raises the error for a group that is not part of the transaction."""
    node.cluster.transactions.join(
        request.transactional_id,
        (request.producer_id, request.producer_epoch),
        (OFFSETS_TOPIC, offsets_partition(request.group_id)),
        add=add,
        knows_abortable=header.version >= _FIRST_TO_KNOW_ABORTABLE,
    )


def _commit(
    node: Node,
    header: RequestHeader,
    request: Any,
    existing: set[tuple[str, int]],
    codes: dict[tuple[str, int], int],
) -> Work[None]:
    """Sets the error codes of the partitions that exist."""
    for topic in request.topics:
        for partition in topic.partitions:
            topic_partition = topic.name, partition.partition_index
            if topic_partition in existing:
                codes[topic_partition] = _commit_one(node, header, request, topic_partition, partition)
                yield


def _commit_one(
    node: Node, header: RequestHeader, request: Any, topic_partition: tuple[str, int], partition: Any
) -> int:
    try:
        committed = committed_of(partition)
        # Between two slices the transaction may end, by its time-out for instance, and the group may be deleted.
        _join(node, header, request, add=False)
        offsets = node.cluster.groups.get(request.group_id).offsets
        offsets.commit_in_transaction(request.producer_id, topic_partition, committed)
    except KafkaError as error:
        return error.code
    return 0
