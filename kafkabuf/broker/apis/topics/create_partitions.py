"""CreatePartitions (key 37), versions 0 to 3, on any node: adds partitions to topics, in slices.

A request adds at most 10,000 partitions, as in Kafka.

Deviation: a request for too many partitions gets POLICY_VIOLATION, as in CreateTopics, where Kafka answers
UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights, rights_of
from kafkabuf.broker.nodes.catalogue import check_batch
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, KafkaError, error_for_code
from kafkabuf.protocol.messages import CREATE_PARTITIONS, RequestHeader


@api(CREATE_PARTITIONS, 0, 3, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_add_all(node, request, rights_of(header)), exclusive=True)


def _add_all(node: Node, request: Any, rights: Rights) -> Work[dict[str, Any]]:
    requested = {topic.name: topic for topic in request.topics}
    times = Counter(topic.name for topic in request.topics)
    injected = node.cluster.faults.take_errors(CREATE_PARTITIONS, list(requested))
    results, added = [], 0
    for name, topic in requested.items():
        try:
            if code := injected.code_for(name):
                raise error_for_code(code)
            if times[name] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            rights.check(Operation.ALTER, ResourceType.TOPIC, name)
            known = node.cluster.catalogue.topic(name)
            more = topic.count - len(known.partitions)
            check_batch(added + more, 0)
            yield from _add(node, topic, request.validate_only)
            added += more
            results.append({"name": name, "error_code": 0})
        except KafkaError as error:
            results.append({"name": name, "error_code": error.code, "error_message": str(error)})
        yield
    return {"results": results}


def _add(node: Node, topic: Any, dry_run: bool) -> Work[None]:
    nodes = None if topic.assignments is None else [tuple(placed.broker_ids) for placed in topic.assignments]
    yield from node.cluster.catalogue.adding_partitions(topic.name, topic.count, nodes, dry_run=dry_run)
