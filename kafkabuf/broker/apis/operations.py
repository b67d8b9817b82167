"""What a client may do, as responses say it: the operations on a resource as bits, the error codes of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

from kafkabuf.broker.guards.acls import Operation, ResourceType
from kafkabuf.broker.guards.rights import Rights
from kafkabuf.broker.nodes.node import Node
from kafkabuf.errors import UnknownTopicIdError

# The value in the response to a request that does not ask for operations.
NOT_ASKED = -(2**31)


def cluster_operations(rights: Rights, asked: bool) -> int:
    """The operations that a client may perform on the cluster; none without DESCRIBE."""
    if not asked:
        return NOT_ASKED
    if not rights.allows(Operation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return rights.operations(ResourceType.CLUSTER)


def sight(rights: Rights) -> Callable[[str], bool] | None:
    """Whether a client may describe a topic; None if it may describe all topics."""
    return partial(rights.allows, Operation.DESCRIBE, ResourceType.TOPIC) if rights.limited else None


def topic_codes(
    node: Node, rights: Rights, operation: Operation, topics: Iterable[str | UUID]
) -> dict[str | UUID, int]:
    """The error code of each topic on which the client may not perform an operation. 0 for the other topics, and for an
    id that no topic has."""
    codes: dict[str | UUID, int] = {}
    for topic in topics:
        try:
            name = node.cluster.catalogue.topic(topic).name if isinstance(topic, UUID) else topic
        except UnknownTopicIdError:
            codes[topic] = 0
        else:
            codes[topic] = rights.code(operation, ResourceType.TOPIC, name)
    return codes
