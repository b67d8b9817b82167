"""CreateAcls (key 30), versions 1 to 3, on any node: creates ACLs. Without an authorizer the node refuses all.

As in Kafka, a request may create 10,000 ACLs; the code 0 (UNKNOWN) of a field ends the connection; ANY and MATCH, which
only filters may have, fail the whole request with UNKNOWN_SERVER_ERROR.

Deviation: a request that an administrator may not make tells which right is missing, and nothing of the server.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.guards.acls import Acl, Operation, PatternType, Permission, ResourceType
from kafkabuf.broker.guards.authorizer import Authorizer
from kafkabuf.broker.guards.rights import rights_of
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import (
    InvalidRequestError,
    KafkaError,
    PolicyViolationError,
    SecurityDisabledError,
    UnknownServerError,
    error_for_code,
)
from kafkabuf.protocol.messages import CREATE_ACLS, RequestHeader

# Kafka's MAX_RECORDS_PER_USER_OP.
MAX_CHANGES = 10_000


@api(CREATE_ACLS, 1, 3, own_errors=True)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any] | Future[dict[str, Any]]:
    return node.cluster.slices.run(_create_all(node, header, request), goes_on=True)


def _create_all(node: Node, header: RequestHeader, request: Any) -> Work[dict[str, Any]]:
    creations, for_filters = [], False
    for creation in request.creations:
        creations.append(_acl(creation))
        for_filters |= _is_for_filters(creations[-1])
        yield
    try:
        authorizer = check_change(node, header, CREATE_ACLS)
        if for_filters:
            raise UnknownServerError("ANY and MATCH are for filters: an ACL has one type, one pattern, one operation")
        if len(creations) > MAX_CHANGES:
            raise PolicyViolationError(f"{len(creations)} ACLs in one request: {MAX_CHANGES} are allowed")
    except KafkaError as error:
        return {"results": [_result(error)] * len(creations)}
    results = []
    for acl in creations:
        results.append(_create(authorizer, acl))
        yield
    return {"results": results}


def check_change(node: Node, header: RequestHeader, api_key: int) -> Authorizer:
    """The authorizer, for a request that changes the ACLs. Raises the error for the whole request."""
    if code := node.cluster.faults.take_error(api_key):
        raise error_for_code(code)
    rights_of(header).check(Operation.ALTER, ResourceType.CLUSTER)
    if node.cluster.authorizer is None:
        raise SecurityDisabledError("No Authorizer is configured.")
    return node.cluster.authorizer


def _acl(creation: Any) -> Acl:
    """The ACL of a request. Raises InvalidRequestError for the code 0 in a field."""
    codes = creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type
    if 0 in codes:
        raise InvalidRequestError("an ACL to create has a field with the code 0 (UNKNOWN)")
    return Acl(
        creation.principal,
        Operation(creation.operation),
        ResourceType(creation.resource_type),
        creation.resource_name,
        PatternType(creation.resource_pattern_type),
        creation.host,
        Permission(creation.permission_type),
    )


def _is_for_filters(acl: Acl) -> bool:
    return (
        acl.resource_type is ResourceType.ANY
        or acl.pattern_type in (PatternType.ANY, PatternType.MATCH)
        or acl.operation is Operation.ANY
        or acl.permission is Permission.ANY
    )


def _create(authorizer: Authorizer, acl: Acl) -> dict[str, Any]:
    try:
        authorizer.add(acl)
    except KafkaError as error:
        return _result(error)
    return {"error_code": 0, "error_message": ""}


def _result(error: KafkaError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": str(error)}
