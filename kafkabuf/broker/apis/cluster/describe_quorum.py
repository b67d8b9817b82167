"""DescribeQuorum (key 55), versions 0 to 2, on any node: the replicas of Kafka's log of metadata (KIP-595, KIP-836).

The embedded cluster has no such log. The response describes the log that the changes of the cluster's state would
make: every node is a voter, the node that clients take for the controller leads, and each change is a record.

Deviation: the nodes have no listeners for controllers: the response names their listeners for clients.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.rights import DESCRIBE_CLUSTER
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.nodes.placement import NO_NODE
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import UnknownTopicOrPartitionError
from kafkabuf.protocol.messages import DESCRIBE_QUORUM, RequestHeader

METADATA_TOPIC = "__cluster_metadata"
_UNKNOWN = -1


@api(DESCRIBE_QUORUM, 0, 2, needs=(DESCRIBE_CLUSTER,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_describe_all(node, request))


def _describe_all(node: Node, request: Any) -> Work[dict[str, Any]]:
    wanted = [(topic.topic_name, [part.partition_index for part in topic.partitions]) for topic in request.topics]
    yield
    known = wanted == [(METADATA_TOPIC, [0])]
    topics = []
    for name, indexes in wanted:
        partitions = []
        for index in indexes:
            partitions.append(_describe(node) if known else _refuse(index))
            yield
        topics.append({"topic_name": name, "partitions": partitions})
    return {
        "error_code": 0,
        "error_message": "",
        "topics": topics,
        "nodes": [_address(voter) for voter in node.cluster.nodes.values()] if known else [],
    }


def _refuse(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": UnknownTopicOrPartitionError.code,
        "error_message": "This server does not host this topic-partition.",
        "current_voters": [],
        "observers": [],
    }


def _describe(node: Node) -> dict[str, Any]:
    cluster = node.cluster
    end, now = cluster.memory.changes, cluster.clock.time_ms()
    voters = []
    for voter in cluster.nodes.values():
        in_sync = node.sees(voter.node_id)
        voters.append(
            {
                "replica_id": voter.node_id,
                "replica_directory_id": None,
                "log_end_offset": end if in_sync else _UNKNOWN,
                "last_fetch_timestamp": now if in_sync else _UNKNOWN,
                "last_caught_up_timestamp": now if in_sync else _UNKNOWN,
            }
        )
    return {
        "partition_index": 0,
        "error_code": 0,
        "error_message": "",
        "leader_id": cluster.controller.node_id,
        "leader_epoch": cluster.controller.epoch,
        "high_watermark": end if cluster.controller.node_id != NO_NODE else _UNKNOWN,
        "current_voters": voters,
        "observers": [],
    }


def _address(node: Node) -> dict[str, Any]:
    protocol = node.cluster.config.security.protocol
    return {"node_id": node.node_id, "listeners": [{"name": protocol, "host": node.host, "port": node.port}]}
