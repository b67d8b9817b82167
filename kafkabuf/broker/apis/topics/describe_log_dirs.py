"""DescribeLogDirs (key 35), versions 1 to 4: the size of each partition's log on this node.

Deviation: the only log dir is called "memory", whether or not the logs lie in memory.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.rights import DESCRIBE_CLUSTER
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.protocol.messages import DESCRIBE_LOG_DIRS, RequestHeader

IN_MEMORY = "memory"


@api(DESCRIBE_LOG_DIRS, 1, 4, own_errors=True, needs=(DESCRIBE_CLUSTER,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    if code := node.cluster.faults.take_error(DESCRIBE_LOG_DIRS):
        return {"error_code": code, "results": [{"error_code": code, "log_dir": IN_MEMORY}]}
    return node.cluster.slices.run(_describe_all(node, request))


def _describe_all(node: Node, request: Any) -> Work[dict[str, Any]]:
    existing = node.cluster.catalogue.topics
    if request.topics is None:
        requested: dict[str, set[int] | None] = dict.fromkeys(existing)
    else:
        requested = {topic.topic: set(topic.partitions) for topic in request.topics}
    topics = []
    for name, indexes in requested.items():
        partitions = []
        for partition in tuple(existing[name].partitions) if name in existing else ():
            if (indexes is None or partition.index in indexes) and node.node_id in partition.replicas:
                partitions.append(_describe(node, partition))
            yield
        if partitions:
            topics.append({"name": name, "partitions": partitions})
    return {"results": [{"log_dir": IN_MEMORY, "topics": topics}]}


def _describe(node: Node, partition: Partition) -> dict[str, Any]:
    return {
        "partition_index": partition.index,
        "partition_size": partition.replicas[node.node_id].log.size,
        "offset_lag": 0,
        "is_future_key": False,
    }
