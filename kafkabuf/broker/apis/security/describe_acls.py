"""DescribeAcls (key 29), versions 1 to 3, on any node: the ACLs that a filter selects, by resource.

As in Kafka, the code 0 (UNKNOWN) in a field ends the connection, and any other unknown code selects nothing.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import AclFilter, Operation, PatternType, Permission, ResourceType
from kafkabuf.broker.guards.rights import DESCRIBE_CLUSTER
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, SecurityDisabledError
from kafkabuf.protocol.messages import DESCRIBE_ACLS, RequestHeader

# ACLs that a step describes.
_STEP = 200


@api(DESCRIBE_ACLS, 1, 3, needs=(DESCRIBE_CLUSTER,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_describe(node, acl_filter(request)))


def _describe(node: Node, wanted: AclFilter) -> Work[dict[str, Any]]:
    if node.cluster.authorizer is None:
        return {"error_code": SecurityDisabledError.code, "error_message": "No Authorizer is configured on the broker"}
    resources: dict[tuple[ResourceType, str, PatternType], dict[str, Any]] = {}
    for number, acl in enumerate((yield from node.cluster.authorizer.finding(wanted)), 1):
        resource = acl.resource_type, acl.resource_name, acl.pattern_type
        if resource not in resources:
            resources[resource] = {
                "resource_type": acl.resource_type,
                "resource_name": acl.resource_name,
                "pattern_type": acl.pattern_type,
                "acls": [],
            }
        resources[resource]["acls"].append(
            {
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
        )
        if not number % _STEP:
            yield
    return {"error_message": "", "resources": list(resources.values())}


def acl_filter(fields: Any) -> AclFilter:
    """The filter in a request to describe or delete ACLs. Raises InvalidRequestError for the code 0 in a field."""
    codes = fields.resource_type_filter, fields.pattern_type_filter, fields.operation, fields.permission_type
    if 0 in codes:
        raise InvalidRequestError("a filter of ACLs has a field with the code 0 (UNKNOWN)")
    return AclFilter(
        ResourceType(fields.resource_type_filter),
        fields.resource_name_filter,
        PatternType(fields.pattern_type_filter),
        fields.principal_filter,
        fields.host_filter,
        Operation(fields.operation),
        Permission(fields.permission_type),
    )
