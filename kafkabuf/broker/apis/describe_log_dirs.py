"""DescribeLogDirs (key 35), versions 1 to 4: the bytes that this node keeps of each of its partitions. Deviation: what
is kept in memory has no folder, and lies under one called "memory"."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.protocol.messages import DESCRIBE_LOG_DIRS, RequestHeader

IN_MEMORY = "memory"


@api(DESCRIBE_LOG_DIRS, 1, 4, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    if code := node.cluster.faults.take_error(DESCRIBE_LOG_DIRS):
        return {"error_code": code, "results": [{"error_code": code, "log_dir": IN_MEMORY}]}
    kept = node.cluster.catalogue.topics
    if request.topics is None:
        wanted = {name: set(range(len(topic.partitions))) for name, topic in kept.items()}
    else:
        wanted = {one.topic: set(one.partitions) for one in request.topics if one.topic in kept}
    found = [_describe(node, kept[name], indexes) for name, indexes in wanted.items()]
    return {"results": [{"log_dir": IN_MEMORY, "topics": [one for one in found if one["partitions"]]}]}


def _describe(node: Node, topic: Topic, indexes: set[int]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": one.index,
                "partition_size": one.copies[node.node_id].log.size,
                "offset_lag": 0,
                "is_future_key": False,
            }
            for one in topic.partitions
            if one.index in indexes and node.node_id in one.copies
        ],
    }
