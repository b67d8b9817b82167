"""DeleteAcls (key 31), versions 1 to 3, on any node: deletes the ACLs that filters select, and returns them.

An ACL that two filters select is in both results. As in Kafka, the code 0 (UNKNOWN) in a field ends the connection, and
any other unknown code is refused with INVALID_REQUEST. A request deletes at most 10,000 ACLs, or none.

Deviation: an ACL counts once for each filter that selects it.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.apis.security.create_acls import MAX_CHANGES, check_change
from kafkabuf.broker.apis.security.describe_acls import acl_filter
from kafkabuf.broker.guards.acls import Acl, AclFilter
from kafkabuf.broker.guards.authorizer import Authorizer
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidRequestError, KafkaError, PolicyViolationError
from kafkabuf.protocol.messages import DELETE_ACLS, RequestHeader


@api(DELETE_ACLS, 1, 3, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_delete_all(node, header, request), goes_on=True)


def _delete_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    filters = []
    for fields in request.filters:
        filters.append(acl_filter(fields))
        yield
    try:
        authorizer = check_change(node, header, DELETE_ACLS)
        selected = yield from _select(authorizer, filters)
    except KafkaError as error:
        return {"filter_results": [_failed(error)] * len(filters)}
    results = []
    for acls in selected:
        results.append((yield from _delete(authorizer, acls)))
    return {"filter_results": results}


def _select(authorizer: Authorizer, filters: list[AclFilter]) -> Work[list[list[Acl] | None]]:
    """The ACLs that each filter selects; None for a filter that is not valid. Raises PolicyViolationError for too many
    ACLs."""
    selected: list[list[Acl] | None] = []
    number = 0
    for wanted in filters:
        acls = (yield from authorizer.finding(wanted)) if wanted.known else None
        number += len(acls or ())
        if number > MAX_CHANGES:
            raise PolicyViolationError(f"the filters select more than {MAX_CHANGES} ACLs")
        selected.append(acls)
    return selected


def _delete(authorizer: Authorizer, acls: list[Acl] | None) -> Work[dict[str, Any]]:
    """Deletes the ACLs that a filter has selected. None stands for a filter that is not valid."""
    if acls is None:
        return _failed(InvalidRequestError("a field of the filter is UNKNOWN"))
    matching = []
    for acl in acls:
        matching.append(_delete_acl(authorizer, acl))
        yield
    return {"error_code": 0, "matching_acls": matching}


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
