"""OffsetCommit (key 8), versions 2 to 9, on the group's coordinator: stores the offsets that a group has read up to.

A member commits for its generation, or with its epoch (version 9, KIP-848). Any client may commit for a group without
members. Version 10, with topic ids, is unstable in Kafka 4.1: neither Kafka nor the node offers it.

Deviation: offsets never expire. The node ignores the retention time in old versions of the request.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.groups import AnyGroup, check_coordinator
from kafkabuf.broker.groups.offsets import MAX_METADATA, Committed
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import READ_GROUP, Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    KafkaError,
    OffsetMetadataTooLargeError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.protocol.messages import OFFSET_COMMIT, RequestHeader

_FIRST_TO_KNOW_NOT_FOUND = 9
_FIRST_MEMBER_EPOCHS = 9


@api(OFFSET_COMMIT, 2, 9, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_commit_all(node, header, request), goes_on=True)


def _commit_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    refused = _refusals(node, rights_of(header), request)
    group: AnyGroup | None = None
    missing = node.cluster.catalogue.partition_code
    # As in Kafka, the group does not hear of partitions that do not exist: no such request makes a group.
    code = UnknownTopicOrPartitionError.code
    if (yield from _names_any(node, request, refused)):
        try:
            group, code = _group(node, header, request), 0
        except KafkaError as error:
            code = error.code
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            error_code = refused[topic.name] or missing(topic.name, partition.partition_index) or code
            error_code = error_code or _commit(node, group, topic.name, partition)
            partitions.append({"partition_index": partition.partition_index, "error_code": error_code})
            yield
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _names_any(node: Node, request: Any, refused: dict[str, int]) -> Work[bool]:
    """Whether the request names a partition that exists, and that the client may commit to."""
    for topic in request.topics:
        for partition in () if refused[topic.name] else topic.partitions:
            if not node.cluster.catalogue.partition_code(topic.name, partition.partition_index):
                return True
            yield
    return False


def _refusals(node: Node, rights: Rights, request: Any) -> dict[str, int]:
    """The error code of each topic before the group has a say; 0 if there is no error."""
    refusal = READ_GROUP.refusal(rights, request)
    code = node.cluster.faults.take_error(OFFSET_COMMIT) or (0 if refusal is None else refusal.code)
    return {topic.name: code or rights.code(Operation.READ, ResourceType.TOPIC, topic.name) for topic in request.topics}


def _group(node: Node, header: RequestHeader, request: Any) -> AnyGroup:
    """The group to commit to. Raises the error for all partitions."""
    if (error := check_coordinator(node, request.group_id, named=False)) is not None:
        raise error
    generation = request.generation_id_or_member_epoch
    missing = GroupIdNotFoundError if header.version >= _FIRST_TO_KNOW_NOT_FOUND else IllegalGenerationError
    group = node.cluster.groups.committing(request.group_id, generation, missing)
    instance = getattr(request, "group_instance_id", None)
    knows_epochs = header.version >= _FIRST_MEMBER_EPOCHS
    refusal = group.check_commit(request.member_id, instance, generation, knows_epochs=knows_epochs)
    if refusal is not None:
        raise refusal
    return group


def _commit(node: Node, group: AnyGroup | None, name: str, partition: Any) -> int:
    assert group is not None, "a request without an error has a group"
    try:
        # The group may have been deleted between two slices: then this commit makes a new group.
        offsets = node.cluster.groups.get(group.group_id).offsets
        offsets.commit((name, partition.partition_index), committed_of(partition))
    except KafkaError as error:
        return error.code
    return 0


def committed_of(partition: Any) -> Committed:
    """The offset that a request commits. Raises OffsetMetadataTooLargeError."""
    if len(partition.committed_metadata or "") > MAX_METADATA:
        raise OffsetMetadataTooLargeError(f"metadata is longer than {MAX_METADATA}")
    epoch = getattr(partition, "committed_leader_epoch", -1)
    return Committed(partition.committed_offset, epoch, partition.committed_metadata)
