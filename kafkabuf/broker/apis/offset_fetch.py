"""OffsetFetch (key 9), versions 1 to 9, on the group's coordinator: the offsets that groups have committed.

A request names one group up to version 7, and a list of groups from version 8 on. A null list of topics (version 2 and
later) asks for all topics. An offset that was never committed is -1. A request for stable offsets (version 7 and later)
gets UNSTABLE_OFFSET_COMMIT where a transaction that has not ended would commit an offset (KIP-447).
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.groups.groups import check_coordinator
from kafkabuf.broker.groups.offsets import Committed, GroupOffsets
from kafkabuf.errors import UnstableOffsetCommitError
from kafkabuf.protocol.messages import OFFSET_FETCH, RequestHeader

_FIRST_GROUPS = 8
_NEVER = Committed(-1, -1, "")


@api(OFFSET_FETCH, 1, 9, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    code = node.cluster.faults.take_error(OFFSET_FETCH)
    stable = getattr(request, "require_stable", False)
    if header.version < _FIRST_GROUPS:
        return _fetch(node, request, stable, code)
    return {"groups": [_fetch(node, group, stable, code) for group in request.groups]}


def _fetch(node: Node, group_request: Any, stable: bool, code: int) -> dict[str, Any]:
    if not code and (error := check_coordinator(node, group_request.group_id, named=False)) is not None:
        code = error.code
    group = node.cluster.groups.find(group_request.group_id)
    offsets = GroupOffsets() if group is None else group.offsets
    requested: dict[str, list[int]] = {}
    if group_request.topics is None:
        for topic, index in offsets.partitions():
            requested.setdefault(topic, []).append(index)
    else:
        requested = {topic.name: list(topic.partition_indexes) for topic in group_request.topics}
    return {
        "group_id": group_request.group_id,
        "error_code": code,
        "topics": [
            {"name": topic, "partitions": [_partition(offsets, (topic, index), stable, code) for index in indexes]}
            for topic, indexes in requested.items()
        ],
    }


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
