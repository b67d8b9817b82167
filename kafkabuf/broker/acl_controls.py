"""Methods of `EmbeddedCluster` for ACLs. Any thread may call them."""

from __future__ import annotations

from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.arguments import require_text
from kafkabuf.broker.controls import Caller
from kafkabuf.broker.guards.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kafkabuf.broker.guards.authorizer import Authorizer
from kafkabuf.errors import ConfigError, SecurityDisabledError

_OPERATIONS = {operation.name.replace("_", ""): operation for operation in Operation if operation > Operation.ANY}


class AclControls(Caller):
    """Every method raises SecurityDisabledError unless the cluster has `Security(authorizer=True)`."""

    def add_acl(
        self,
        principal: str,
        operation: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        cluster: bool = False,
        prefixed: bool = False,
        host: str = ANY_HOST,
    ) -> Acl:
        """Allows a principal an operation on a topic, a group, a transactional id or the cluster. Returns the ACL.

        A principal is User: and a name, "User:*" for everybody, or User:ANONYMOUS for a client that does not
        authenticate. An operation is Kafka's: ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION,
        DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE. The name "*" stands for every topic (group, transactional
        id), and with `prefixed` a name stands for every name that begins so. `host` is an address of clients.

        Raises ConfigError unless exactly one resource is named, for an unknown operation and for an argument that is no
        str; InvalidRequestError for a principal without a type, and for an empty name.
        """
        resource = _resource(topic, group, transactional_id, cluster, prefixed)
        return self._add(Acl(principal, _operation(operation), *resource, host, Permission.ALLOW))

    def deny(
        self,
        principal: str,
        operation: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        cluster: bool = False,
        prefixed: bool = False,
        host: str = ANY_HOST,
    ) -> Acl:
        """Denies a principal an operation, whatever other ACLs allow. The arguments are those of `add_acl`."""
        resource = _resource(topic, group, transactional_id, cluster, prefixed)
        return self._add(Acl(principal, _operation(operation), *resource, host, Permission.DENY))

    def acls(self) -> list[Acl]:
        """All ACLs, in the order of their creation."""
        return self._call(lambda c: _authorizer(c).find(AclFilter()))

    def remove_acl(self, acl: Acl) -> None:
        """Removes an ACL. Does nothing if it does not exist."""
        self._call(lambda c: _authorizer(c).remove(acl))

    def _add(self, acl: Acl) -> Acl:
        for name, value in (("principal", acl.principal), ("resource", acl.resource_name), ("host", acl.host)):
            require_text(name, value)
        self._call(lambda c: _authorizer(c).add(acl))
        return acl


def _authorizer(cluster: Cluster) -> Authorizer:
    if cluster.authorizer is None:
        raise SecurityDisabledError(
            "the cluster has no ACLs: make it with EmbeddedCluster(security=Security(authorizer=True))"
        )
    return cluster.authorizer


def _operation(name: str) -> Operation:
    """The operation of a name, in any case and with or without underscores: DESCRIBE_CONFIGS or DescribeConfigs."""
    require_text("operation", name)
    operation = _OPERATIONS.get(name.replace("_", "").upper())
    if operation is None:
        known = ", ".join(operation.name for operation in _OPERATIONS.values())
        raise ConfigError(f"operation {name!r} is unknown, choose from {known}")
    return operation


def _resource(
    topic: str | None, group: str | None, transactional_id: str | None, cluster: bool, prefixed: bool
) -> tuple[ResourceType, str, PatternType]:
    named = [
        (kind, name)
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.GROUP, group),
            (ResourceType.TRANSACTIONAL_ID, transactional_id),
            (ResourceType.CLUSTER, CLUSTER_NAME if cluster else None),
        )
        if name is not None
    ]
    if len(named) != 1:
        raise ConfigError("an ACL concerns one resource: give a topic, a group, a transactional_id or cluster=True")
    return (*named[0], PatternType.PREFIXED if prefixed else PatternType.LITERAL)
