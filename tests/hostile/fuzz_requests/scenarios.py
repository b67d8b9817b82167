"""Requests that need others before them: a transaction with thousands of offsets, members of a group that read
thousands of topics and not the same, members of the classic protocol with thousands of protocols or of topics,
thousands of ACLs, batches that must be read, and requests for everything that there is.

A scenario yields its requests one after the other. Each of them must be answered as any other request of the fuzzer.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kafkabuf.protocol import messages
from tests.broker.raw_client import batch, varint
from tests.hostile.fuzz_requests.target import Case

# A transactional id's present producer id and epoch. (-1, -1) before the first InitProducerId.
Producer = Callable[[str], tuple[int, int]]
Scenario = Callable[[random.Random, int, Producer], Iterator[Case]]

_GROUP, _TOPIC, _TRANSACTION = "f-scenario", "f-many", "f-many-offsets"
_MEMBERS = 100
_EXPRESSIONS = 50
_LONGEST_NAME = 40
# Of a protocol's string.
_LONGEST_STRING = 0x7FFF
_LONG_NAMES = 20
# Some 400 KiB of batches that become a hundred times as much.
_BOMBS = 100
_BOMB = 4 * 1024 * 1024
_REFUSED = 10_000
_IN_FUTURE = 2**62
# As many as the limit of items in a request allows.
_ACLS = 19_990
_ACLS_TO_CREATE = (10_000, _ACLS)


def transaction(generator: random.Random, count: int, producer: Producer) -> Iterator[Case]:
    """A transaction commits offsets of a topic with `count` partitions. Then the group is asked, and deleted."""
    yield _create([(_TOPIC, count)])
    yield _case(messages.INIT_PRODUCER_ID, 4, transactional_id=_TRANSACTION, transaction_timeout=60_000)
    for version, committed in ((5, generator.random() < 0.5), (5, True)):
        yield _case(messages.TXN_OFFSET_COMMIT, version, **_owner(producer), group_id=_GROUP, topics=_offsets(count))
        yield _case(messages.END_TXN, version, **_owner(producer), committed=committed)
    yield _case(messages.OFFSET_COMMIT, 8, group_id=_GROUP, topics=_offsets(count))
    indexes: dict[str, Any] = {"name": _TOPIC, "partition_indexes": list(range(count))}
    for topics in ([indexes], None):
        yield _case(messages.OFFSET_FETCH, 7, group_id=_GROUP, topics=topics, require_stable=True)
    if generator.random() < 0.5:
        some = [{"partition_index": index} for index in range(0, count, 2)]
        yield _case(messages.OFFSET_DELETE, 0, group_id=_GROUP, topics=[{"name": _TOPIC, "partitions": some}])
    yield _case(messages.DELETE_GROUPS, 2, groups_names=[_GROUP])
    yield _case(messages.DELETE_TOPICS, 5, topic_names=[_TOPIC], timeout=1000)


def members(generator: random.Random, count: int, producer: Producer) -> Iterator[Case]:
    """Members with different topics join while the topics do not exist yet. So only the last heartbeats cost much."""
    group, assignor = f"{_GROUP}-{generator.randrange(1000)}", generator.choice(("uniform", "range"))
    names = [f"s-{number:08d}" for number in range(count)]
    chosen: list[list[str]] = []
    for number in range(_MEMBERS):
        chosen.append(sorted(generator.sample(names, count * 4 // 5)))
        yield _join(group, f"m{number}", chosen[-1], assignor)
    yield _create([(name, 1) for name in names])
    for number in (0, 1):
        yield _join(group, f"m{_MEMBERS + number}", chosen[number][::2], assignor)
    read = [{"name": name, "partitions": [{"partition_index": 0}]} for name in names]
    yield _case(messages.OFFSET_DELETE, 0, group_id=group, topics=read)
    yield _case(messages.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group], include_authorized_operations=True)
    yield _case(messages.DELETE_TOPICS, 5, topic_names=names, timeout=1000)


def _join(group: str, member: str, topics: Sequence[str], assignor: str, **more: Any) -> Case:
    return _case(
        messages.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group, member_id=member, member_epoch=0,
        rebalance_timeout=60_000, subscribed_topic_names=topics, server_assignor=assignor, topic_partitions=[], **more,
    )  # fmt: skip


def protocols(generator: random.Random, count: int, producer: Producer) -> Iterator[Case]:
    """Members of a classic group with thousands of protocols, or with as much metadata as a request holds."""
    group, small = f"{_GROUP}-{generator.randrange(1000)}", generator.random() < 0.5
    for number in range(_MEMBERS // 10):
        names = [f"p{index}" for index in range(_ACLS if generator.random() < 0.5 else 100)]
        metadata = b"" if small or len(names) > 100 else bytes(10_000)
        yield _join_classic(group, number, [(name, metadata) for name in reversed(names)])
    yield _case(messages.DESCRIBE_GROUPS, 5, groups=[group])
    yield _leave(group, [f"m{number}" for number in range(_ACLS)])


def upgrade(generator: random.Random, count: int, producer: Producer) -> Iterator[Case]:
    """Members of a classic group read different topics, and then a member with group.protocol=consumer joins. Members
    of the classic protocol join the group again, and meet a new topic and the expressions of others."""
    group, names = f"{_GROUP}-{generator.randrange(1000)}", [f"s-{number:08d}" for number in range(count)]
    yield _create([(name, 1) for name in names])
    for number in range(_MEMBERS):
        yield _join_classic(group, number, [("range", _subscription(generator.sample(names, count * 4 // 5)))])
    others = [f"x{number}" for number in range(_EXPRESSIONS)]
    for number, other in enumerate(others):
        yield _join(group, other, [], "uniform", subscribed_topic_regex=f"[a-z0-9-]{{{number},}}")
    for number in (0, 1):
        yield _join(group, f"m{number}", names[number::2], "uniform")
        yield _create([(f"s-new-{number}", 1)])
        yield _join_classic(group, number, [("range", _subscription(names[number::3]))])
    yield _case(messages.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group], include_authorized_operations=True)
    yield _leave(group, ["m0", "m1", *others])
    yield _case(messages.DELETE_TOPICS, 5, topic_names=[*names, "s-new-0", "s-new-1"], timeout=1000)


def _join_classic(group: str, number: int, offered: Sequence[tuple[str, bytes]]) -> Case:
    """A static member joins for the first time."""
    return _case(
        messages.JOIN_GROUP, 5, group_id=group, session_timeout=60_000, rebalance_timeout=60_000, member_id="",
        group_instance_id=f"i{number}", protocol_type="consumer",
        protocols=[{"name": name, "metadata": metadata} for name, metadata in offered],
    )  # fmt: skip


def _subscription(topics: Sequence[str]) -> bytes:
    """What a consumer has in JoinGroup: version 0, topics, no data."""
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


def _leave(group: str, members: Sequence[str]) -> Case:
    named = [{"member_id": member, "group_instance_id": None} for member in members]
    return _case(messages.LEAVE_GROUP, 4, group_id=group, members=named)


def bombs(generator: random.Random, count: int, producer: Producer) -> Iterator[Case]:
    """The broker must read each batch of a request: its records come from the future. One batch has a large record, or
    thousands of small ones, which the response names."""
    yield _create([(_TOPIC, _BOMBS)])
    small = b"".join(_record(index, b"") for index in range(_REFUSED))
    for body, number, batches in ((_record(0, bytes(_BOMB)), 1, _BOMBS), (small, _REFUSED, _BOMBS // 4)):
        times, packed = [_IN_FUTURE] * 2, gzip.compress(body)
        data = batch([b""] * 2, timestamps=times, attributes=1, body=packed, count=number, last_delta=number - 1)
        topic = {"name": _TOPIC, "partition_data": [{"index": index, "records": data} for index in range(batches)]}
        yield _case(messages.PRODUCE, 9, acks=1, timeout=1000, topic_data=[topic])
    yield _case(messages.DELETE_TOPICS, 5, topic_names=[_TOPIC], timeout=1000)


def _record(index: int, value: bytes) -> bytes:
    fields = b"\0\0" + varint(index) + b"\x01" + varint(len(value)) + value + b"\0"
    return varint(len(fields)) + fields


def everything(generator: random.Random, count: int, producer: Producer) -> Iterator[Case]:
    """Thousands of partitions, groups with long names, and a transaction with all of the partitions. Requests without a
    list ask for everything, others name very many things."""
    yield _create([(_TOPIC, count)])
    indexes = list(range(count))
    for number in range(_LONG_NAMES):
        name = f"{number}{'g' * (_LONGEST_STRING - 8)}"
        yield _case(messages.OFFSET_COMMIT, 8, group_id=name, topics=_offsets(1))
        yield _case(messages.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=60_000)
    yield _case(messages.INIT_PRODUCER_ID, 4, transactional_id=_TRANSACTION, transaction_timeout=60_000)
    producer_id, epoch = producer(_TRANSACTION)
    added = {"transactional_id": _TRANSACTION, "producer_id": producer_id, "producer_epoch": epoch}
    added["topics"] = [{"name": _TOPIC, "partitions": indexes}]
    yield _case(messages.ADD_PARTITIONS_TO_TXN, 3, **{f"v3_and_below_{name}": value for name, value in added.items()})
    requests = [
        _case(messages.LIST_GROUPS, 4),
        _case(messages.LIST_TRANSACTIONS, 1),
        _case(messages.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[_TRANSACTION]),
        _case(messages.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=1000),
        _case(messages.DESCRIBE_LOG_DIRS, 4, topics=None),
        _case(messages.DESCRIBE_PRODUCERS, 0, topics=[{"name": _TOPIC, "partition_indexes": indexes}]),
        _case(messages.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=2000, cursor=None),
        _case(messages.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[f"k{index}" for index in indexes]),
        _case(messages.DESCRIBE_GROUPS, 5, groups=[f"k{index}" for index in indexes]),
        _case(messages.METADATA, 9, topics=None, allow_auto_topic_creation=False),
    ]
    generator.shuffle(requests)
    yield from requests
    yield _case(messages.END_TXN, 3, **_owner(producer), committed=generator.random() < 0.5)
    yield _case(messages.DELETE_TOPICS, 5, topic_names=[_TOPIC], timeout=1000)


def acls(generator: random.Random, count: int, producer: Producer) -> Iterator[Case]:
    """Thousands of ACLs in one request."""
    name = "a" * generator.choice((1, _LONGEST_NAME - 8))
    for number in _ACLS_TO_CREATE:
        creations = [
            {"resource_type": 2, "resource_name": f"{name}{index:08d}", "resource_pattern_type": 3 + index % 2,
             "principal": "User:u", "host": "*", "operation": 3, "permission_type": 3}
            for index in range(number)
        ]  # fmt: skip
        yield _case(messages.CREATE_ACLS, generator.choice((1, 3)), creations=creations)
    yield _case(messages.DESCRIBE_ACLS, 3, **_filter())
    yield _case(messages.DELETE_ACLS, 3, filters=[{**_filter(), "operation": 99}] * _ACLS)
    yield _case(messages.DELETE_ACLS, 3, filters=[{**_filter(), "principal_filter": "User:nobody"}] * 100)
    yield _case(messages.DELETE_ACLS, 3, filters=[_filter()])


def _filter() -> dict[str, Any]:
    codes = dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1)
    return {**codes, **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))}


# By kind of world. Only "three" has an authorizer; its nodes share the groups, and the fuzzer asks one node.
SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    "memory": (transaction, members, protocols, upgrade, bombs, everything),
    "folder": (transaction, members, upgrade, bombs, everything),
    "three": (acls,),
}


def _owner(producer: Producer) -> dict[str, Any]:
    producer_id, epoch = producer(_TRANSACTION)
    return {"transactional_id": _TRANSACTION, "producer_id": producer_id, "producer_epoch": epoch}


def _offsets(count: int) -> list[dict[str, Any]]:
    partitions = [
        {"partition_index": index, "committed_offset": index, "committed_metadata": "m"} for index in range(count)
    ]
    return [{"name": _TOPIC, "partitions": partitions}]


def _create(topics: Sequence[tuple[str, int]]) -> Case:
    created: list[Mapping[str, Any]] = [
        {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        for name, count in topics
    ]
    return _case(messages.CREATE_TOPICS, 7, topics=created, timeout=1000)


def _case(key: int, version: int, **values: Any) -> Case:
    return Case(messages.encode_request(key, version, 1, "fuzz", messages.build_request(key, version, **values)))
