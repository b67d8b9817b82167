"""Access control lists: their words, with the codes of the protocol, and the filters that select ACLs.

An ACL allows or denies a principal an operation on a resource, from a host. `ALL` stands for every operation, the host
"*" for every host, and the principal "User:*" for every principal. A LITERAL pattern is the resource of that name, and
the name "*" every resource of the type. A PREFIXED pattern is every resource whose name begins so.

authorizer.py decides by ACLs. rights.py has what the handlers of the APIs need of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from kafkabuf.errors import InvalidRequestError

ANY_HOST = "*"
ANY_NAME = "*"
ANY_PRINCIPAL = "User:*"
# The only resource of the type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class ResourceType(IntEnum):
    UNKNOWN, ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(8)

    @classmethod
    def _missing_(cls, value: object) -> ResourceType:
        return cls.UNKNOWN


class PatternType(IntEnum):
    """A filter of the type MATCH selects every pattern that a resource of the filter's name matches."""

    UNKNOWN, ANY, MATCH, LITERAL, PREFIXED = range(5)

    @classmethod
    def _missing_(cls, value: object) -> PatternType:
        return cls.UNKNOWN


class Operation(IntEnum):
    UNKNOWN, ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(10)
    DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS, DESCRIBE_TOKENS, TWO_PHASE_COMMIT = range(10, 16)

    @classmethod
    def _missing_(cls, value: object) -> Operation:
        return cls.UNKNOWN


class Permission(IntEnum):
    UNKNOWN, ANY, DENY, ALLOW = range(4)

    @classmethod
    def _missing_(cls, value: object) -> Permission:
        return cls.UNKNOWN


_O = Operation
# The operations of each type of resource, which "authorized operations" in a response name.
OPERATIONS = {
    ResourceType.TOPIC: (
        *(_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE),
        *(_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        *(_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION),
        *(_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE),
    ),
}


def bits(operations: Iterable[Operation]) -> int:
    """Operations as a response has them: one bit for each."""
    return sum(1 << operation for operation in operations)


@dataclass(frozen=True, slots=True)
class Acl:
    """One ACL (Kafka's AclBinding). A `principal` has the form Type:name, as in User:alice."""

    principal: str
    operation: Operation
    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType = PatternType.LITERAL
    host: str = ANY_HOST
    permission: Permission = Permission.ALLOW


def check_acl(acl: Acl) -> None:
    """Raises InvalidRequestError for an ACL that cannot exist."""
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise InvalidRequestError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise InvalidRequestError("Invalid empty resource name")
    if not (acl.resource_type and acl.pattern_type and acl.operation and acl.permission):
        raise InvalidRequestError(f"a field of the ACL is UNKNOWN: {acl}")
    if ":" not in acl.principal:
        raise InvalidRequestError(f"principal {acl.principal!r} is not of the form Type:name, such as User:alice")


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs (Kafka's AclBindingFilter). ANY and None select everything; MATCH is described in PatternType."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    @property
    def known(self) -> bool:
        """Whether no field is UNKNOWN. A filter with such a field selects nothing."""
        return bool(self.resource_type and self.pattern_type and self.operation and self.permission)

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type is PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, ANY_NAME)
