"""DeleteAcls (key 31), versions 1 to 3, on any node: deletes the ACLs that filters select, and returns them.

An ACL that two filters select is in both results. As in Kafka, the code 0 (UNKNOWN) in a field ends the connection, and
any other unknown code is refused with INVALID_REQUEST.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.create_acls import check_change
from kafkabuf.broker.apis.describe_acls import acl_filter
from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.acls import Acl
from kafkabuf.broker.guards.authorizer import Authorizer
from kafkabuf.errors import InvalidRequestError, KafkaError
from kafkabuf.protocol.messages import DELETE_ACLS, RequestHeader


@api(DELETE_ACLS, 1, 3, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    filters = [acl_filter(fields) for fields in request.filters]
    try:
        authorizer = check_change(node, header, DELETE_ACLS)
    except KafkaError as error:
        return {"filter_results": [_failed(error)] * len(filters)}
    selected = [authorizer.find(wanted) if wanted.known else None for wanted in filters]
    return {"filter_results": [_delete(authorizer, acls) for acls in selected]}


def _delete(authorizer: Authorizer, acls: list[Acl] | None) -> dict[str, Any]:
    """Deletes the ACLs that a filter has selected. None stands for a filter that is not valid."""
    if acls is None:
        return _failed(InvalidRequestError("a field of the filter is UNKNOWN"))
    return {"error_code": 0, "matching_acls": [_delete_acl(authorizer, acl) for acl in acls]}


def _delete_acl(authorizer: Authorizer, acl: Acl) -> dict[str, Any]:
    code, message = 0, None
    try:
        authorizer.remove(acl)
    except KafkaError as error:
        code, message = error.code, str(error)
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _failed(error: KafkaError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": str(error), "matching_acls": []}
