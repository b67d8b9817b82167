"""ElectLeaders (key 43), versions 0 to 2, on any node: elects the leaders of partitions.

A preferred election makes the preferred replica, which is the first, the leader. An unclean election makes any replica
that is alive the leader of a partition without a leader. A request without partitions means all partitions, and its
response has the partitions that changed or failed.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Cluster, Node
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.replica.state import NO_LEADER
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidRequestError,
    KafkaError,
    PreferredLeaderNotAvailableError,
)
from kafkabuf.protocol.messages import ELECT_LEADERS, RequestHeader

_KINDS = PREFERRED, UNCLEAN = 0, 1


@api(ELECT_LEADERS, 0, 2)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    if (refusal := rights_of(header).refusal(Operation.ALTER, ResourceType.CLUSTER)) is not None:
        return _refuse(request, refusal)
    return node.cluster.slices.run(_elect_all(node, request), goes_on=True)


def _elect_all(node: Node, request: Any) -> Work[dict[str, Any]]:
    kind = getattr(request, "election_type", PREFERRED)
    every = request.topic_partitions is None
    results: dict[str, list[dict[str, Any]]] = {}
    for name, indexes in _existing(node) if every else _named(request):
        elected = results[name] = []
        for index in indexes:
            result = _elect(node, name, index, kind)
            if not every or result["error_code"] != ElectionNotNeededError.code:
                elected.append(result)
            yield
    return {
        "error_code": 0 if kind in _KINDS else InvalidRequestError.code,
        "replica_election_results": [{"topic": name, "partition_result": elected} for name, elected in results.items()],
    }


def _existing(node: Node) -> list[tuple[str, Sequence[int]]]:
    return [(topic.name, range(len(topic.partitions))) for topic in node.cluster.catalogue.topics.values()]


def _named(request: Any) -> list[tuple[str, Sequence[int]]]:
    """A topic that the request repeats counts once, with its last partitions."""
    return list({topic.topic: topic.partitions for topic in request.topic_partitions}.items())


def _refuse(request: Any, error: KafkaError) -> dict[str, Any]:
    values = {"error_code": error.code, "error_message": str(error)}
    results = [
        {"topic": topic.topic, "partition_result": [{"partition_id": index, **values} for index in topic.partitions]}
        for topic in request.topic_partitions or ()
    ]
    return {"error_code": error.code, "replica_election_results": results}


def _elect(node: Node, topic: str, index: int, kind: int) -> dict[str, Any]:
    try:
        if kind not in _KINDS:
            raise InvalidRequestError(
                f"election type {kind}: preferred ({PREFERRED}) and unclean ({UNCLEAN}) are known"
            )
        partition = node.cluster.catalogue.topic(topic).partition(index)
        (_elect_preferred if kind == PREFERRED else _elect_unclean)(node.cluster, partition)
    except KafkaError as error:
        return {"partition_id": index, "error_code": error.code, "error_message": str(error)}
    return {"partition_id": index, "error_code": 0}


def _elect_preferred(cluster: Cluster, partition: Partition) -> None:
    if partition.leader == partition.replica_nodes[0]:
        raise ElectionNotNeededError("the preferred replica leads already")
    if not cluster.controller.prefer(partition):
        raise PreferredLeaderNotAvailableError(f"node {partition.replica_nodes[0]} is dead, or not in sync")


def _elect_unclean(cluster: Cluster, partition: Partition) -> None:
    """Makes the first replica that is alive the leader, in sync or not: records may be lost."""
    if partition.leader != NO_LEADER:
        raise ElectionNotNeededError(f"node {partition.leader} leads already")
    alive = next((node_id for node_id in partition.replica_nodes if cluster.nodes[node_id].alive), None)
    if alive is None:
        raise EligibleLeadersNotAvailableError("no replica is alive")
    cluster.controller.lead(partition, alive, (alive,))
