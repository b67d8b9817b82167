"""DescribeAcls (key 29), versions 1 to 3, on any node: the ACLs that a filter selects, by resource.

As in Kafka, the code 0 (UNKNOWN) in a field ends the connection, and any other unknown code selects nothing.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from kafkabuf.broker.guards.rights import DESCRIBE_CLUSTER
from kafkabuf.errors import InvalidRequestError, SecurityDisabledError
from kafkabuf.protocol.messages import DESCRIBE_ACLS, RequestHeader


@api(DESCRIBE_ACLS, 1, 3, needs=(DESCRIBE_CLUSTER,))
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    wanted = acl_filter(request)
    if node.cluster.authorizer is None:
        return {"error_code": SecurityDisabledError.code, "error_message": "No Authorizer is configured on the broker"}
    by_resource: dict[tuple[ResourceType, str, PatternType], list[Acl]] = {}
    for acl in node.cluster.authorizer.find(wanted):
        by_resource.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
    return {
        "error_message": "",
        "resources": [
            {
                "resource_type": kind,
                "resource_name": name,
                "pattern_type": pattern,
                "acls": [
                    {
                        "principal": acl.principal,
                        "host": acl.host,
                        "operation": acl.operation,
                        "permission_type": acl.permission,
                    }
                    for acl in acls
                ],
            }
            for (kind, name, pattern), acls in by_resource.items()
        ],
    }


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
