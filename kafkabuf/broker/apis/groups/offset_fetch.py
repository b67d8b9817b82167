"""OffsetFetch (key 9), versions 1 to 9, on the group's coordinator: the offsets that groups have committed.

A request names one group up to version 7, and a list of groups from version 8 on. A null list of topics (version 2 and
later) asks for all topics. An offset that was never committed is -1. A request for stable offsets (version 7 and later)
gets UNSTABLE_OFFSET_COMMIT where a transaction that has not ended would commit an offset (KIP-447). From version 9 on a
member of a consumer group names itself and its epoch (KIP-848). Version 10, with topic ids, is unstable in Kafka 4.1:
neither Kafka nor the node offers it.

Deviation: a response has at most 20,000 partitions, unless it has one group. The other groups get
COORDINATOR_LOAD_IN_PROGRESS: clients ask for them again.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.groups.consumer_group import ConsumerGroup
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.groups.offsets import Committed, GroupOffsets
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import CoordinatorLoadInProgressError, KafkaError, UnstableOffsetCommitError
from kafkabuf.protocol.messages import OFFSET_FETCH, RequestHeader

_FIRST_GROUPS = 8
# The first version whose response has an error for the whole group.
_FIRST_GROUP_ERROR = 2
_NEVER = Committed(-1, -1, "")
# The most partitions of all groups in a response.
MOST_PARTITIONS = 20_000
# The offsets of more partitions are looked up in several steps: in a copy, which no commit changes meanwhile.
_MANY = 100


@api(OFFSET_FETCH, 1, 9, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_fetch_all(node, header, request))


def _fetch_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    code = node.cluster.faults.take_error(OFFSET_FETCH)
    stable, rights = getattr(request, "require_stable", False), rights_of(header)
    requests = [request] if header.version < _FIRST_GROUPS else request.groups
    groups, room = [], MOST_PARTITIONS
    # A small request must not fill the memory: a group that it repeats comes once.
    for group in {group.group_id: group for group in requests}.values():
        refused = rights.code(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
        if refused and header.version >= _FIRST_GROUP_ERROR:
            groups.append({"group_id": group.group_id, "error_code": refused, "topics": []})
        elif groups and room <= 0:
            busy = CoordinatorLoadInProgressError.code
            groups.append({"group_id": group.group_id, "error_code": busy, "topics": []})
        else:
            groups.append((yield from _fetch(node, group, stable, code or refused, rights)))
            room -= sum(len(topic["partitions"]) for topic in groups[-1]["topics"])
        yield
    return groups[0] if header.version < _FIRST_GROUPS else {"groups": groups}


def _fetch(node: Node, group_request: Any, stable: bool, code: int, rights: Rights) -> Work[dict[str, Any]]:
    if not code and (error := check_coordinator(node, group_request.group_id, named=False)) is not None:
        code = error.code
    group = node.cluster.groups.find(group_request.group_id)
    if not code and isinstance(group, ConsumerGroup) and (error := _check_member(group, group_request)) is not None:
        return {"group_id": group_request.group_id, "error_code": error.code, "topics": []}
    offsets = GroupOffsets() if group is None else group.offsets
    requested: dict[str, list[int]] = {}
    if group_request.topics is None:
        for topic, index in offsets.partitions():
            if topic in requested or rights.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic):
                requested.setdefault(topic, []).append(index)
    else:
        requested = {topic.name: list(topic.partition_indexes) for topic in group_request.topics}
    many = sum(map(len, requested.values())) > _MANY
    if many:
        offsets = offsets.copy()
        yield
    topics = []
    for topic, indexes in requested.items():
        topic_code = code or rights.code(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        partitions = []
        for index in indexes:
            partitions.append(_partition(offsets, (topic, index), stable, topic_code))
            if many:
                yield
        topics.append({"name": topic, "partitions": partitions})
    return {"group_id": group_request.group_id, "error_code": code, "topics": topics}


def _check_member(group: ConsumerGroup, group_request: Any) -> KafkaError | None:
    return group.check_fetch(getattr(group_request, "member_id", None), getattr(group_request, "member_epoch", -1))


def _partition(offsets: GroupOffsets, topic_partition: tuple[str, int], stable: bool, code: int) -> dict[str, Any]:
    if not code and stable and offsets.unstable(topic_partition):
        code = UnstableOffsetCommitError.code
    committed = _NEVER if code else offsets.get(topic_partition) or _NEVER
    return {
        "partition_index": topic_partition[1],
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }
