"""OffsetCommit (key 8), versions 2 to 9, on the group's coordinator: stores the offsets that a group has read up to.

A member commits for its generation. Any client may commit for a group without members.

Deviation: offsets never expire. The node ignores the retention time in old versions of the request.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.groups.group import Group
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.groups.offsets import MAX_METADATA, Committed
from kafkabuf.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    KafkaError,
    OffsetMetadataTooLargeError,
    error_for_code,
)
from kafkabuf.protocol.messages import OFFSET_COMMIT, RequestHeader

_FIRST_TO_KNOW_NOT_FOUND = 9


@api(OFFSET_COMMIT, 2, 9, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    group: Group | None = None
    code = 0
    try:
        group = _group(node, header, request)
    except KafkaError as error:
        code = error.code
    topics = []
    for topic in request.topics:
        codes = [
            (partition.partition_index, code or _commit(node, group, topic.name, partition))
            for partition in topic.partitions
        ]
        partitions = [{"partition_index": index, "error_code": error_code} for index, error_code in codes]
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _group(node: Node, header: RequestHeader, request: Any) -> Group:
    """The group to commit to. Raises the error for all partitions."""
    if code := node.cluster.faults.take_error(OFFSET_COMMIT):
        raise error_for_code(code)
    if (error := check_coordinator(node, request.group_id, named=False)) is not None:
        raise error
    generation = request.generation_id_or_member_epoch
    missing = GroupIdNotFoundError if header.version >= _FIRST_TO_KNOW_NOT_FOUND else IllegalGenerationError
    group = node.cluster.groups.committing(request.group_id, generation, missing)
    instance = getattr(request, "group_instance_id", None)
    if (refusal := group.check_commit(request.member_id, instance, generation)) is not None:
        raise refusal
    return group


def _commit(node: Node, group: Group | None, name: str, partition: Any) -> int:
    assert group is not None, "a request without an error has a group"
    try:
        node.cluster.catalogue.topic(name).partition(partition.partition_index)
        if len(partition.committed_metadata or "") > MAX_METADATA:
            raise OffsetMetadataTooLargeError(f"metadata is longer than {MAX_METADATA}")
        epoch = getattr(partition, "committed_leader_epoch", -1)
        committed = Committed(partition.committed_offset, epoch, partition.committed_metadata)
        group.offsets.commit((name, partition.partition_index), committed)
    except KafkaError as error:
        return error.code
    return 0
