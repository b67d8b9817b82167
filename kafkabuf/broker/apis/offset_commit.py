"""OffsetCommit (key 8), versions 2 to 9: a member commits for its generation, anybody for a group without members.

Deviation: offsets are kept as long as the cluster; the retention time of old versions is passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkabuf.broker.dispatch import api
from kafkabuf.broker.group_offsets import Committed
from kafkabuf.broker.groups import Group
from kafkabuf.errors import NotCoordinatorError
from kafkabuf.protocol.messages import OFFSET_COMMIT, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node


@api(OFFSET_COMMIT, 2, 9, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    group = node.cluster.groups.get(request.group_id)
    code = node.cluster.faults.take_error(OFFSET_COMMIT)
    if not code and not node.coordinates(request.group_id):
        code = NotCoordinatorError.code
    if not code and (error := group.check_commit(request.member_id, request.generation_id_or_member_epoch)) is not None:
        code = error.code
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": code or _commit(node, group, topic.name, one),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _commit(node: Node, group: Group, topic: str, one: Any) -> int:
    if code := node.cluster.partition_code(topic, one.partition_index):
        return code
    epoch = getattr(one, "committed_leader_epoch", -1)
    committed = Committed(one.committed_offset, epoch, one.committed_metadata)
    group.offsets.commit((topic, one.partition_index), committed)
    return 0
