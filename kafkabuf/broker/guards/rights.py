"""What the client of a connection may do, for the handlers of the APIs.

A handler asks `rights_of(header)`. Without an authorizer these are `UNLIMITED`, and cost nothing. A right that a client
needs for a whole request is a `Need`, which the handler's `@api` declares.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from kafkabuf.broker.guards.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType, bits
from kafkabuf.broker.guards.authorizer import Authorizer
from kafkabuf.errors import (
    ClusterAuthorizationError,
    GroupAuthorizationError,
    KafkaError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from kafkabuf.protocol.messages import RequestHeader

log = logging.getLogger("kafkabuf.broker.authorizer")

_ERRORS: dict[ResourceType, type[KafkaError]] = {
    ResourceType.TOPIC: TopicAuthorizationError,
    ResourceType.GROUP: GroupAuthorizationError,
    ResourceType.CLUSTER: ClusterAuthorizationError,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationError,
}
_ALL_OPERATIONS = {kind: bits(operations) for kind, operations in OPERATIONS.items()}
# The types TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS and GROUP of settings.
_CONFIG_TYPES = {
    2: ResourceType.TOPIC,
    **dict.fromkeys((4, 8, 16), ResourceType.CLUSTER),
    32: ResourceType.GROUP,
}


class Rights:
    """The rights of a client that may do everything."""

    limited = False

    def allows(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may perform an operation on a resource."""
        return True

    def allows_some(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether the client may perform an operation on at least one resource of a type."""
        return True

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The operations that the client may perform on a resource, as a response has them: a bit for each."""
        return _ALL_OPERATIONS[kind]

    def refusal(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> KafkaError | None:
        """The error for a request that asks for an operation; None if the client may perform it."""
        return None

    def code(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """As `refusal`, the error's code; 0 if the client may perform the operation."""
        return 0

    def check(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> None:
        """As `refusal`, but raises the error."""
        error = self.refusal(operation, kind, name)
        if error is not None:
            raise error

    def check_configs(self, operation: Operation, config_type: int, name: str) -> None:
        """As `check`, for the settings of a resource (Kafka's ConfigResource.Type). Those of a node and of client
        metrics belong to the cluster."""
        if (kind := _CONFIG_TYPES.get(config_type)) is not None:
            self.check(operation, kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else name)


UNLIMITED = Rights()


class LimitedRights(Rights):
    """The rights of a principal on a host, as the authorizer has them at the time of each call."""

    limited = True

    def __init__(self, authorizer: Authorizer, principal: str, host: str) -> None:
        self._authorizer = authorizer
        self._principal = principal
        self._host = host

    def allows(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        return self._authorizer.allows(self._principal, self._host, operation, kind, name)

    def allows_some(self, operation: Operation, kind: ResourceType) -> bool:
        return self._authorizer.allows_some(self._principal, self._host, operation, kind)

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        return bits(operation for operation in OPERATIONS[kind] if self.allows(operation, kind, name))

    def refusal(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> KafkaError | None:
        if not self.code(operation, kind, name):
            return None
        return _ERRORS[kind](f"{operation.name} is not allowed on {kind.name} {name!r}")

    def code(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        if self.allows(operation, kind, name):
            return 0
        log.info("%r is denied %s on %s %r, host %s", self._principal, operation.name, kind.name, name, self._host)
        return _ERRORS[kind].code


@dataclass(frozen=True, slots=True)
class LimitedHeader(RequestHeader):
    """The header of a request from a client with limited rights."""

    rights: Rights

    @classmethod
    def of(cls, header: RequestHeader, rights: Rights) -> LimitedHeader:
        return cls(header.api_key, header.version, header.correlation_id, header.client_id, header.size, rights)


def rights_of(header: RequestHeader) -> Rights:
    """The rights of the client that sent a request."""
    return header.rights if isinstance(header, LimitedHeader) else UNLIMITED


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a client needs for a whole request. `field` is the field of the request that names the resource; for
    a need that concerns the cluster there is no field."""

    operation: Operation
    kind: ResourceType
    field: str = ""

    def refusal(self, rights: Rights, request: Any) -> KafkaError | None:
        """The error for a client that does not have the right."""
        name = getattr(request, self.field) if self.field else CLUSTER_NAME
        return rights.refusal(self.operation, self.kind, name)


READ_GROUP = Need(Operation.READ, ResourceType.GROUP, "group_id")
DELETE_GROUP = Need(Operation.DELETE, ResourceType.GROUP, "group_id")
WRITE_TRANSACTIONAL_ID = Need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id")
DESCRIBE_CLUSTER = Need(Operation.DESCRIBE, ResourceType.CLUSTER)
DESCRIBE_CLUSTER_CONFIGS = Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
