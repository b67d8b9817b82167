"""DescribeLogDirs (key 35), versions 1 to 4: the size of each partition's log on this node.

Deviation: the only log dir is called "memory", whether or not the logs lie in memory.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.rights import DESCRIBE_CLUSTER
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.protocol.messages import DESCRIBE_LOG_DIRS, RequestHeader

IN_MEMORY = "memory"


@api(DESCRIBE_LOG_DIRS, 1, 4, own_errors=True, needs=(DESCRIBE_CLUSTER,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    if code := node.cluster.faults.take_error(DESCRIBE_LOG_DIRS):
        return {"error_code": code, "results": [{"error_code": code, "log_dir": IN_MEMORY}]}
    topics = node.cluster.catalogue.topics
    if request.topics is None:
        requested = {name: set(range(len(topic.partitions))) for name, topic in topics.items()}
    else:
        requested = {topic.topic: set(topic.partitions) for topic in request.topics if topic.topic in topics}
    described = [_describe(node, topics[name], indexes) for name, indexes in requested.items()]
    return {"results": [{"log_dir": IN_MEMORY, "topics": [topic for topic in described if topic["partitions"]]}]}


def _describe(node: Node, topic: Topic, indexes: set[int]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": partition.index,
                "partition_size": partition.copies[node.node_id].log.size,
                "offset_lag": 0,
                "is_future_key": False,
            }
            for partition in topic.partitions
            if partition.index in indexes and node.node_id in partition.copies
        ],
    }
