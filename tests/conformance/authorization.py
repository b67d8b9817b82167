"""A script of requests by users with different rights, for any broker with SASL PLAIN and an authorizer.

Every user in GRANTS sends the same requests (`REQUESTS`). `ask` returns the outcome of each: its error codes, the
names that the response shows, and the operations that it says the user may perform.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafkabuf.protocol import messages as m
from tests.broker.raw_client import RawClient, batch
from tests.conformance.consumer_groups import consumer
from tests.conformance.groups import joining, subscription
from tests.conformance.script import Conversation
from tests.conformance.topics import PATIENCE, WAIT, make_topic, produce

_NO_TOPIC = UUID(int=77)
# Labels of requests whose outcome is only the names that the response shows, or whether the user may create a topic.
_ALL, _NEW = "all", "a new topic"
PASSWORD = "secret"
ADMIN = "admin"
_OPERATIONS = (
    "unknown any ALL READ WRITE CREATE DELETE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS "
    "IDEMPOTENT_WRITE"
).split()
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
_CLUSTER = (CLUSTER, "kafka-cluster", LITERAL)
# The resources of the script: its own topics, groups and transactional ids begin with the name of the run.
_TOPICS, _GROUPS, _TRANSACTIONS = (TOPIC, "{}", PREFIXED), (GROUP, "{}", PREFIXED), (TRANSACTIONAL_ID, "{}", PREFIXED)
_OPEN = (TOPIC, "{}-open", LITERAL)
_EVERY = (TOPIC, "*", LITERAL), (GROUP, "*", LITERAL), (TRANSACTIONAL_ID, "*", LITERAL), _CLUSTER
Grant = tuple[tuple[int, str, int], str, int, str]


def _allow(resource: tuple[int, str, int], *operations: str, host: str = "*") -> list[Grant]:
    return [(resource, operation, ALLOW, host) for operation in operations]


def _deny(resource: tuple[int, str, int], *operations: str) -> list[Grant]:
    return [(resource, operation, DENY, "*") for operation in operations]


# What each user may do.
GRANTS: dict[str, list[Grant]] = {
    "nobody": [],
    "describer": [grant for kind in (_OPEN, _GROUPS, _TRANSACTIONS, _CLUSTER) for grant in _allow(kind, "DESCRIBE")],
    "reader": [*_allow(_OPEN, "READ"), *_allow(_GROUPS, "READ")],
    "writer": [*_allow(_TOPICS, "WRITE"), *_allow(_TRANSACTIONS, "WRITE")],
    "poor-writer": _allow(_OPEN, "WRITE"),
    "transactional": [*_allow(_TRANSACTIONS, "WRITE"), *_allow(_GROUPS, "READ")],
    "idempotent": _allow(_CLUSTER, "IDEMPOTENT_WRITE"),
    "creator": _allow(_TOPICS, "CREATE", "DESCRIBE"),
    "deleter": [*_allow(_TOPICS, "DELETE"), *_allow(_GROUPS, "DELETE")],
    "alterer": [*_allow(_TOPICS, "ALTER"), *_allow(_CLUSTER, "ALTER")],
    "configurer": [*_allow(_TOPICS, "ALTER_CONFIGS"), *_allow(_CLUSTER, "ALTER_CONFIGS")],
    "config-reader": [*_allow(_TOPICS, "CREATE", "DESCRIBE_CONFIGS"), *_allow(_CLUSTER, "DESCRIBE_CONFIGS")],
    "cluster-creator": _allow(_CLUSTER, "CREATE", "CLUSTER_ACTION"),
    "owner": [grant for kind in (_TOPICS, _GROUPS, _TRANSACTIONS) for grant in _allow(kind, "ALL")],
    "half-denied": [
        *(grant for kind in _EVERY for grant in _allow(kind, "ALL")),
        *(*_deny(_OPEN, "WRITE", "DESCRIBE"), *_deny((TOPIC, "*", LITERAL), "DELETE"), *_deny(_CLUSTER, "CREATE")),
        *(*_deny(_GROUPS, "READ"), *_deny(_TRANSACTIONS, "DESCRIBE")),
    ],
    "elsewhere": [grant for kind in _EVERY for grant in _allow(kind, "ALL", host="10.9.8.7")],
    "here": [grant for kind in _EVERY for grant in _allow(kind, "ALL", host="127.0.0.1")],
}
# Everybody may read this topic.
_PUBLIC = (TOPIC, "{}-public", LITERAL)
USERS = (ADMIN, *GRANTS)


class UserClient(RawClient):
    """A client that has authenticated by PLAIN."""

    def __init__(self, address: str, user: str) -> None:
        super().__init__(address)
        assert self.ask(m.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
        token = f"\0{user}\0{PASSWORD}".encode()
        assert self.ask(m.SASL_AUTHENTICATE, 2, auth_bytes=token).error_code == 0


def acl(principal: str, grant: Grant, name: str) -> dict[str, Any]:
    """A creation of a CreateAcls request."""
    (kind, resource, pattern), operation, permission, host = grant
    return {
        "resource_type": kind,
        "resource_name": resource.format(name),
        "resource_pattern_type": pattern,
        "principal": f"User:{principal}",
        "host": host,
        "operation": _OPERATIONS.index(operation),
        "permission_type": permission,
    }


ALL_ACLS = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def create_acls(client: RawClient, creations: list[dict[str, Any]], principal: str | None = None) -> None:
    """Creates ACLs, and waits until the node acts by them: Kafka's nodes learn of changes late but in order."""
    created = client.ask(m.CREATE_ACLS, 3, creations=creations)
    assert {int(result.error_code) for result in created.results} == {0}, created
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        described = client.ask(m.DESCRIBE_ACLS, 3, **{**ALL_ACLS, "principal_filter": principal})
        if sum(len(resource.acls) for resource in described.resources) >= len(creations):
            return
        time.sleep(0.01)
    raise AssertionError("the node does not learn of the ACLs")


@dataclass(frozen=True)
class World:
    """What the requests are about: names that begin with `name`, the ids of topics."""

    name: str
    user: str
    open_id: UUID
    secret_id: UUID
    public_id: UUID
    own_ids: tuple[UUID, UUID]

    def __getattr__(self, word: str) -> str:
        """The name of a thing that all users share, such as `open`, `secret` or `group`."""
        return f"{self.name}-{word}"

    def own(self, word: str) -> str:
        """The name of a thing of this user alone."""
        return f"{self.name}-{word}-{self.user}"


def ask_all(address: str, name: str) -> dict[tuple[str, str], Any]:
    """Prepares the topics, groups and ACLs; returns {(user, label of a request): outcome}."""
    admin = Conversation(address, name, UserClient(address, ADMIN))
    ids = {word: make_topic(admin, f"{name}-{word}", 2) for word in ("open", "secret", "public")}
    foreign = make_topic(admin, f"foreign-{name}")
    own = {
        user: (make_topic(admin, f"{name}-gone-{user}"), make_topic(admin, f"{name}-lost-{user}")) for user in GRANTS
    }
    produce(admin, f"{name}-open", batch([b"a", b"b"]))
    for key_type in (0, 1):
        admin.do(m.FIND_COORDINATOR, 3, key=name, key_type=key_type)
    admin.do(m.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1, producer_id=-1, producer_epoch=-1)
    started = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    admin.do(m.INIT_PRODUCER_ID, 4, transactional_id=f"{name}-known", **started)
    for group in (f"{name}-group", *(f"{name}-leaving-{user}" for user in GRANTS)):
        _commit(admin, group, name)
    for group, words in ((f"{name}-consuming", ["open"]), (f"{name}-both", ["open", "secret"])):
        consumer(admin, group, subscribed_topic_names=[f"{name}-{word}" for word in words])
    creations = [acl(user, grant, name) for user, grants in GRANTS.items() for grant in grants]
    create_acls(admin.client, [*creations, acl("*", (_PUBLIC, "READ", ALLOW, "*"), name)])
    outcomes = {}
    for user in GRANTS:
        talk = Conversation(address, name, UserClient(address, user))
        for topic_id in (*ids.values(), foreign, *own[user], _NO_TOPIC):
            talk.plain(topic_id)  # gives each id its name, in the same order for every broker
        world = World(name, user, ids["open"], ids["secret"], ids["public"], own[user])
        for label, api_key, version, values in requests(world):
            answer = talk.do(api_key, version, **values)
            outcomes[user, label] = _outcome_of(world, label, talk.plain(answer))
        talk.client.socket.close()
    admin.client.socket.close()
    return outcomes


def _outcome_of(world: World, label: str, plain: Any) -> Any:
    if label.endswith(_ALL):
        # The broker may have other things. Kafka's nodes have those of other tests.
        return sorted(set(_names(plain)) & {world.open, world.secret, world.public, world.group, world.known})
    if label.endswith(_NEW):
        # Kafka creates the topic in the background, and answers that it does not exist yet.
        return "topic_authorization_failed" in str(plain)
    return outcome(plain)


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (item for field, item in value.items() if field in _NAMES and isinstance(item, str))
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _names(item)


def stranger(name: str) -> World:
    """The world of a user without rights, with ids that no topic has."""
    ids = [UUID(int=number) for number in range(100, 105)]
    return World(name, "nobody", ids[0], ids[1], ids[2], (ids[3], ids[4]))


def ask_in_every_version(address: str, name: str, versions: dict[int, range]) -> dict[tuple[int, int], Any]:
    """As a user without rights, sends a request of each API in each version; returns {(API key, version): outcome}."""
    outcomes = {}
    samples: dict[int, dict[str, Any]] = {}
    # Requests for everything come last: a real Kafka has topics of other tests.
    for _, api_key, _, values in sorted(requests(stranger(name)), key=lambda request: request[0].endswith(_ALL)):
        samples[api_key] = {**values, **samples.get(api_key, {})}
    for api_key, values in samples.items():
        for version in versions[api_key]:
            with UserClient(address, "nobody") as client:
                talk = Conversation(address, name, client)
                outcomes[api_key, version] = outcome(talk.plain(talk.do(api_key, version, **values)))
    return outcomes


def _commit(talk: Conversation, group: str, name: str) -> None:
    values = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1}
    topics = [{"name": f"{name}-{word}", "partitions": [_committed(0)]} for word in ("open", "secret")]
    talk.do(m.OFFSET_COMMIT, 8, group_id=group, topics=topics, **values)


def _committed(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }


# ---- what of a response counts

_NAMES = {"name", "topic", "topic_id", "group_id", "transactional_id", "resource_name", "resource_type", "key"}
_WHETHER = {"configs", "brokers", "records"}
_COUNTS = {"num_partitions", "replication_factor", "committed_offset", "low_watermark"}


def outcome(value: Any) -> Any:
    """The part of a plain response (`Conversation.plain`) that depends on rights. Of records, settings and nodes it is
    whether there are any."""
    if isinstance(value, list):
        return [outcome(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for field, item in value.items():
        if isinstance(item, list):
            if field in _WHETHER or (field == "results" and item and "log_dir" in item[0]):
                kept[field] = bool(item)
            elif field != "aborted_transactions":
                kept[field] = outcome(item)
        elif "error_code" in field or "operations" in field or field in _NAMES | _COUNTS:
            kept[field] = item
    return kept


# ---- the requests

Request = tuple[str, int, int, dict[str, Any]]
REQUESTS: list[Callable[[World], Iterator[Request]]] = []


def _requests(function: Callable[[World], Iterator[Request]]) -> Callable[[World], Iterator[Request]]:
    REQUESTS.append(function)
    return function


def requests(world: World) -> Iterator[Request]:
    """(label, API key, version, values) of each request of a user."""
    for function in REQUESTS:
        for label, api_key, version, values in function(world):
            yield f"{m.api_name(api_key)} v{version}: {label}", api_key, version, values


@_requests
def _records(w: World) -> Iterator[Request]:
    named = [(w.open, w.open_id), (w.secret, w.secret_id), (w.public, w.public_id), (w.missing, _NO_TOPIC)]

    def data(records: bytes, *topics: tuple[str, UUID]) -> dict[str, Any]:
        partitions = [{"index": 0, "records": records}]
        values = {"acks": -1, "timeout": WAIT, "transactional_id": None}
        entries = [{"name": name, "topic_id": id_, "partition_data": partitions} for name, id_ in topics]
        return {**values, "topic_data": entries}

    plain = batch([b"x"])
    yield "some topics", m.PRODUCE, 9, data(plain, *named)
    yield "some ids", m.PRODUCE, 13, data(plain, *named)
    transactional = batch([b"x"], attributes=0x10, producer=(10**12, 0, 0))
    yield "in no transaction", m.PRODUCE, 9, data(transactional, named[0])
    asked = {"fetch_offset": 0, "partition": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 10_000, "session_epoch": -1}
    fetched = [{"topic": name, "topic_id": id_, "partitions": [asked]} for name, id_ in named]
    yield "some topics", m.FETCH, 12, {**limits, "topics": fetched}
    yield "some ids", m.FETCH, 13, {**limits, "topics": fetched}
    latest = [{"partition_index": 0, "timestamp": -1}]
    topics = [{"name": topic, "partitions": latest} for topic in (w.open, w.secret, w.public, w.missing)]
    yield "some topics", m.LIST_OFFSETS, 7, {"replica_id": -1, "topics": topics}
    before = [{"partition_index": 0, "offset": 0}]
    topics = [{"name": topic, "partitions": before} for topic in (w.open, w.secret, w.missing)]
    yield "some topics", m.DELETE_RECORDS, 2, {"topics": topics, "timeout": WAIT}
    epochs = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    topics = [{"topic": topic, "partitions": epochs} for topic in (w.open, w.secret, w.missing)]
    yield "some topics", m.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": topics}
    indexed = [{"name": topic, "partition_indexes": [0]} for topic in (w.open, w.secret, w.missing)]
    yield "some topics", m.DESCRIBE_PRODUCERS, 0, {"topics": indexed}


@_requests
def _metadata(w: World) -> Iterator[Request]:
    everything = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
        "allow_auto_topic_creation": False,
    }
    some = [{"name": topic} for topic in (w.open, w.secret, w.public, w.missing)]
    yield _NEW, m.METADATA, 9, {"topics": [{"name": w.own("new")}], "allow_auto_topic_creation": True}
    yield (
        f"other, {_NEW}",
        m.METADATA,
        9,
        {
            "topics": [{"name": f"other-{w.own('new')}"}],
            "allow_auto_topic_creation": True,
        },
    )
    yield _ALL, m.METADATA, 0, {"topics": []}
    yield _ALL, m.METADATA, 9, {"topics": None}
    yield _ALL, m.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": []}
    yield "some", m.METADATA, 8, {**everything, "topics": some}
    yield "some", m.METADATA, 1, {"topics": some[:3]}
    yield "some", m.METADATA, 12, {**everything, "topics": [{**topic, "topic_id": UUID(int=0)} for topic in some]}
    ids = [{"name": None, "topic_id": topic} for topic in (w.open_id, w.secret_id, _NO_TOPIC)]
    yield "some ids", m.METADATA, 12, {**everything, "topics": ids}
    yield "nodes", m.METADATA, 12, {"topics": []}
    yield "some", m.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": some}
    yield "nodes", m.DESCRIBE_QUORUM, 0, {"topics": []}
    yield "subscriptions", m.LIST_CONFIG_RESOURCES, 0, {}
    yield "it", m.DESCRIBE_CLUSTER, 1, {"include_cluster_authorized_operations": True}


@_requests
def _groups(w: World) -> Iterator[Request]:
    for group in (w.group, "foreign"):
        for key_type in (0, 1):
            yield f"{group} {key_type}", m.FIND_COORDINATOR, 3, {"key": group, "key_type": key_type}
            keys = {"coordinator_keys": [group], "key_type": key_type}
            yield f"{group} {key_type}", m.FIND_COORDINATOR, 4, keys
        member = {"group_id": group, "member_id": "x", "generation_id": 1, "assignments": []}
        protocols = [("range", subscription("none"))]
        yield group, m.JOIN_GROUP, 3, joining(group, "x", version=3, protocols=protocols)
        yield group, m.JOIN_GROUP, 9, joining(group, "x", version=9, protocols=protocols)
        yield group, m.SYNC_GROUP, 5, {**member, "protocol_type": "consumer", "protocol_name": "range"}
        yield group, m.HEARTBEAT, 4, member
        yield group, m.LEAVE_GROUP, 2, member
        yield group, m.LEAVE_GROUP, 5, {**member, "members": [{"member_id": "x"}]}
        yield group, m.DESCRIBE_GROUPS, 6, {"groups": [group], "include_authorized_operations": True}
        offsets = [{"name": topic, "partitions": [_committed(0)]} for topic in (w.open, w.secret, w.missing)]
        values = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1, "topics": offsets}
        yield group, m.OFFSET_COMMIT, 8, {"group_id": group, **values}
        wanted = [{"name": topic, "partition_indexes": [0]} for topic in (w.open, w.secret, w.missing)]
        yield group, m.OFFSET_FETCH, 1, {"group_id": group, "topics": wanted}
        yield group, m.OFFSET_FETCH, 5, {"group_id": group, "topics": wanted}
        yield group, m.OFFSET_FETCH, 8, {"groups": [{"group_id": group, "topics": wanted}]}
        yield f"{group}, every topic", m.OFFSET_FETCH, 8, {"groups": [{"group_id": group, "topics": None}]}
        removed = [{"name": topic, "partitions": [{"partition_index": 1}]} for topic in (w.open, w.secret, w.missing)]
        yield group, m.OFFSET_DELETE, 0, {"group_id": group, "topics": removed}
        for label, topics in (("open", [w.open]), ("two", [w.open, w.secret]), ("missing", [w.missing])):
            # There is no such member: the heartbeat of a client with all rights changes nothing.
            staying = {"group_id": group, "member_id": "x", "member_epoch": 5, "subscribed_topic_names": topics}
            yield f"{group} {label}", m.CONSUMER_GROUP_HEARTBEAT, 1, staying
    named = [w.group, w.both, "foreign", w.consuming]
    for asked in (True, False):
        values = {"group_ids": named, "include_authorized_operations": asked}
        yield f"operations {asked}", m.CONSUMER_GROUP_DESCRIBE, 1, values
    yield _ALL, m.LIST_GROUPS, 5, {}
    yield "two", m.DELETE_GROUPS, 2, {"groups_names": [w.own("leaving"), "foreign-2"]}


@_requests
def _transactions(w: World) -> Iterator[Request]:
    values = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    yield "idempotent", m.INIT_PRODUCER_ID, 4, {"transactional_id": None, **values}
    for name in (w.own("tx"), "foreign"):
        label = "own" if name != "foreign" else name
        yield label, m.INIT_PRODUCER_ID, 4, {"transactional_id": name, **values}
        producer = {"transactional_id": name, "producer_id": 10**12, "producer_epoch": 0}
        for added in ([w.open], [w.open, w.secret], [w.missing]):
            adding = [{"name": topic, "partitions": [0]} for topic in added]
            older = {f"v3_and_below_{field}": value for field, value in producer.items()}
            yield (
                f"{label} {len(added)} {added[0]}",
                m.ADD_PARTITIONS_TO_TXN,
                3,
                {
                    **older,
                    "v3_and_below_topics": adding,
                },
            )
        newer = {**producer, "verify_only": True, "topics": [{"name": w.open, "partitions": [0]}]}
        yield label, m.ADD_PARTITIONS_TO_TXN, 5, {"transactions": [newer]}
        for group in (w.group, "foreign"):
            yield f"{label} {group}", m.ADD_OFFSETS_TO_TXN, 3, {**producer, "group_id": group}
            offsets = [{"name": topic, "partitions": [_committed(0)]} for topic in (w.secret, w.missing)]
            values_3 = {"generation_id": -1, "member_id": "", "group_id": group, "topics": offsets}
            yield f"{label} {group}", m.TXN_OFFSET_COMMIT, 3, {**producer, **values_3}
        yield label, m.END_TXN, 3, {**producer, "committed": True}
    yield _ALL, m.LIST_TRANSACTIONS, 1, {}
    yield "known", m.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [w.known, "foreign-2"]}
    marker = {
        "producer_id": 10**12,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": w.missing, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    yield "a missing topic", m.WRITE_TXN_MARKERS, 1, {"markers": [marker]}


@_requests
def _administration(w: World) -> Iterator[Request]:
    def new(name: str) -> dict[str, Any]:
        return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}

    creating = {"topics": [new(w.own("try")), new(f"other-{w.user}")], "timeout": WAIT, "validate_only": True}
    yield "two", m.CREATE_TOPICS, 6, creating
    yield "two", m.CREATE_TOPICS, 4, creating
    growing = [{"name": topic, "count": 3, "assignments": None} for topic in (w.open, w.secret, w.missing)]
    yield "some", m.CREATE_PARTITIONS, 3, {"topics": growing, "timeout": WAIT, "validate_only": True}
    resources = [(2, w.open), (2, w.missing), (4, "1")]
    describing = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in resources
    ]
    yield "some", m.DESCRIBE_CONFIGS, 4, {"resources": describing}
    for api_key, version in ((m.ALTER_CONFIGS, 2), (m.INCREMENTAL_ALTER_CONFIGS, 1)):
        setting = {"name": "retention.ms", "value": "7777", "config_operation": 0}
        altering = [{"resource_type": 2, "resource_name": name, "configs": [setting]} for name in (w.open, w.missing)]
        yield "some", api_key, version, {"resources": altering, "validate_only": True}
    yield "one", m.DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": w.open, "partitions": [0]}]}
    yield "one", m.DESCRIBE_LOG_DIRS, 2, {"topics": [{"topic": w.open, "partitions": [0]}]}
    electing = {"election_type": 0, "topic_partitions": [{"topic": w.open, "partitions": [0, 9]}], "timeout": WAIT}
    yield "two", m.ELECT_LEADERS, 2, electing
    yield "every topic", m.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None}
    named = [w.own("gone"), f"foreign-{w.name}", w.missing]
    topics = [{"name": name, "topic_id": UUID(int=0)} for name in named]
    yield "by name", m.DELETE_TOPICS, 6, {"topics": topics, "topic_names": named, "timeout": WAIT}
    topics = [{"name": None, "topic_id": topic_id} for topic_id in (w.own_ids[1], _NO_TOPIC)]
    yield "by id", m.DELETE_TOPICS, 6, {"topics": topics, "timeout": WAIT}


@_requests
def _acls(w: World) -> Iterator[Request]:
    yield "all of the user", m.DESCRIBE_ACLS, 3, {**ALL_ACLS, "principal_filter": "User:nobody"}
    creation = acl("nobody", ((TOPIC, "unused", LITERAL), "READ", ALLOW, "*"), w.name)
    yield "one", m.CREATE_ACLS, 3, {"creations": [creation]}
    yield "those", m.DELETE_ACLS, 3, {"filters": [{**ALL_ACLS, "principal_filter": "User:nobody"}]}
