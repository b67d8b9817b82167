"""Steps of script.py, and a script of its own: the APIs that create, describe and delete ACLs."""

from __future__ import annotations

from typing import Any

from kafkabuf.protocol import messages as m
from tests.conformance.authorization import ADMIN, ALL_ACLS, UserClient, create_acls
from tests.conformance.script import CLOSED, Conversation, step

_ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


@step(m.CREATE_ACLS)
def creates_without_an_authorizer(talk: Conversation, version: int) -> None:
    talk.ask("two", creations=[_ACL, {**_ACL, "operation": 99}])
    talk.ask("none", creations=[])


@step(m.DESCRIBE_ACLS)
def describes_without_an_authorizer(talk: Conversation, version: int) -> None:
    talk.ask("all", **ALL_ACLS)


@step(m.DELETE_ACLS)
def deletes_without_an_authorizer(talk: Conversation, version: int) -> None:
    talk.ask("all", filters=[ALL_ACLS, {**ALL_ACLS, "operation": 99}])


def administer(address: str, version: int) -> dict[str, Any]:
    """Creates, describes and deletes ACLs of each kind, as a super user of a broker without ACLs; returns the responses
    by the labels of the requests."""
    responses: dict[str, Any] = {}
    client = UserClient(address, ADMIN)

    def ask(label: str, api_key: int, **values: Any) -> None:
        nonlocal client
        client.send(api_key, version, **values)
        frame = client.receive_frame()
        if frame is None:
            responses[label] = CLOSED
            client.socket.close()
            client = UserClient(address, ADMIN)
            return
        _, answer = m.decode_response(api_key, version, frame)
        responses[label] = Conversation(address, "", client).plain(answer)

    for field, values in {
        "resource_type": (0, 1, 4, 5, 6, 7, 8),
        "resource_name": ("", "*", "kafka-cluster", "not a topic's name"),
        "resource_pattern_type": (0, 1, 2, 4, 5),
        "principal": ("alice", "", "User:", "Group:alice", "User:a:b", "User:*"),
        "host": ("", "nowhere", "::1"),
        "operation": (0, 1, 2, 12, 15, 16),
        "permission_type": (0, 1, 2, 4),
    }.items():
        for value in values:
            ask(f"create with {field} {value!r}", m.CREATE_ACLS, creations=[{**_ACL, field: value}])
    cluster = {**_ACL, "resource_type": 4, "resource_name": "kafka-cluster"}
    several = [_ACL, _ACL, cluster, {**cluster, "resource_pattern_type": 4}, {**_ACL, "resource_name": ""}]
    ask("create several", m.CREATE_ACLS, creations=several)
    ask("create one with ANY among several", m.CREATE_ACLS, creations=[{**_ACL, "host": "h"}, {**_ACL, "operation": 1}])
    create_acls(client, [{**_ACL, "principal": "User:last"}], "User:last")
    _select(ask)
    many = [{**_ACL, "resource_name": f"t{number}"} for number in range(10_001)]
    ask("create too many", m.CREATE_ACLS, creations=many)
    ask("delete all", m.DELETE_ACLS, filters=[ALL_ACLS])
    client.socket.close()
    return responses


def _select(ask: Any) -> None:
    """Filters of each kind: to describe, then to delete what none of them selects."""
    for field, values in {
        "resource_type_filter": (0, 1, 2, 4, 7, 99),
        "resource_name_filter": (None, "", "t", "*", "kafka-cluster"),
        "pattern_type_filter": (0, 1, 2, 3, 4, 99),
        "principal_filter": ("User:alice", "User:*", "alice", ""),
        "host_filter": ("*", "nowhere", ""),
        "operation": (0, 2, 3, 99),
        "permission_type": (0, 2, 3, 99),
    }.items():
        for value in values:
            ask(f"describe with {field} {value!r}", m.DESCRIBE_ACLS, **{**ALL_ACLS, field: value})
    for name in ("t", "kafka-cluster", "kafka-cluster-2", "*"):
        for pattern in (1, 2, 3, 4):
            selected = {**ALL_ACLS, "resource_name_filter": name, "pattern_type_filter": pattern}
            ask(f"describe {name} {pattern}", m.DESCRIBE_ACLS, **selected)
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        for value in (0, 99):
            ask(f"delete with {field} {value}", m.DELETE_ACLS, filters=[{**ALL_ACLS, field: value}])
    named, hosted = {**ALL_ACLS, "resource_name_filter": "t"}, {**ALL_ACLS, "host_filter": "nowhere"}
    ask("delete by two filters", m.DELETE_ACLS, filters=[named, hosted, {**ALL_ACLS, "host_filter": "none"}])
