"""Handlers do their work in steps: as many as a request has items, or as the cluster has what the request asks for.

Between two steps the node may serve others (waiting/slices.py). A step for many items would make them wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kafkabuf.broker import apis
from kafkabuf.broker.apis.dispatch import APIS, PendingResponse, dispatch
from kafkabuf.broker.apis.groups import describe_groups, offset_fetch
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.groups.members import Joining
from kafkabuf.broker.groups.offsets import Committed
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.clock import ManualClock
from kafkabuf.protocol import messages as m
from tests.broker.raw_client import batch

# Items of each request, or of the cluster.
MANY = 300
NAMES = [f"n{number}" for number in range(MANY)]
INDEXES = list(range(MANY))


class CountedSlices:
    """In the place of the cluster's `Slices`: does every work at once, and counts the steps."""

    def __init__(self) -> None:
        self.steps = 0

    def run(self, work: Work[Any], **turns: Any) -> Any:
        results: list[Any] = []

        def ending() -> Work[None]:
            results.append((yield from work))

        for _ in ending():
            self.steps += 1
        return results[0]

    def close(self) -> None:
        pass


def steps(prepare: Callable[[Cluster], None], key: int, version: int, **values: Any) -> tuple[int, Any]:
    """The steps of a handler, and its response."""
    apis.load()

    async def body() -> tuple[int, Any]:
        cluster = Cluster(ClusterConfig(), ManualClock(), asyncio.get_running_loop())
        await cluster.start()
        cluster.catalogue.create_topic("t", MANY)
        prepare(cluster)
        counted: Any = CountedSlices()
        cluster.slices, kept = counted, cluster.slices
        frame = m.encode_request(key, version, 1, "c", m.build_request(key, version, **values))
        header, request = m.decode_request(frame)
        response = APIS[key].handler(cluster.nodes[1], header, request)
        cluster.slices = kept
        await cluster.stop()
        return counted.steps, response

    return asyncio.run(body())


def nothing(cluster: Cluster) -> None:
    pass


def with_groups(cluster: Cluster) -> None:
    for name in NAMES:
        cluster.groups.get(name)


def with_offsets(cluster: Cluster) -> None:
    for index in INDEXES:
        cluster.groups.get("g").offsets.commit(("t", index), Committed(index, -1, ""))


def with_transactions(cluster: Cluster) -> None:
    for name in NAMES:
        cluster.transactions.init(name, 60_000, None)


ASKED: dict[int, tuple[int, dict[str, Any]]] = {
    m.ELECT_LEADERS: (2, {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": INDEXES}]}),
    m.DESCRIBE_PRODUCERS: (0, {"topics": [{"name": "t", "partition_indexes": INDEXES}]}),
    m.OFFSET_FOR_LEADER_EPOCH: (
        4,
        {
            "topics": [
                {
                    "topic": "t",
                    "partitions": [{"partition": n, "current_leader_epoch": -1, "leader_epoch": 0} for n in INDEXES],
                }
            ]
        },
    ),
    m.DELETE_RECORDS: (
        2,
        {"topics": [{"name": "t", "partitions": [{"partition_index": n, "offset": 0} for n in INDEXES]}]},
    ),
    m.DESCRIBE_LOG_DIRS: (4, {"topics": [{"topic": "t", "partitions": INDEXES}]}),
    m.DESCRIBE_TOPIC_PARTITIONS: (
        0,
        {"topics": [{"name": name} for name in NAMES], "response_partition_limit": 10, "cursor": None},
    ),
    m.FIND_COORDINATOR: (4, {"key_type": 0, "coordinator_keys": NAMES}),
    m.DESCRIBE_GROUPS: (5, {"groups": NAMES}),
    m.CONSUMER_GROUP_DESCRIBE: (1, {"group_ids": NAMES}),
    m.DESCRIBE_TRANSACTIONS: (0, {"transactional_ids": NAMES}),
    m.DESCRIBE_QUORUM: (
        2,
        {"topics": [{"topic_name": name, "partitions": [{"partition_index": 0}]} for name in NAMES]},
    ),
    m.OFFSET_FETCH: (7, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": INDEXES}]}),
    m.ADD_PARTITIONS_TO_TXN: (
        3,
        {
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "t", "partitions": INDEXES}],
        },
    ),
    m.LEAVE_GROUP: (
        4,
        {"group_id": "g", "members": [{"member_id": name, "group_instance_id": None} for name in NAMES]},
    ),
}


@pytest.mark.parametrize("key", ASKED, ids=m.api_name)
def test_request_has_a_step_for_each_item(key: int) -> None:
    version, values = ASKED[key]
    assert steps(nothing, key, version, **values)[0] >= MANY


@pytest.mark.parametrize(
    ("key", "version", "prepare", "values"),
    [
        (m.ELECT_LEADERS, 2, nothing, {"election_type": 0, "topic_partitions": None}),
        (m.DESCRIBE_LOG_DIRS, 4, nothing, {"topics": None}),
        (m.LIST_GROUPS, 4, with_groups, {}),
        (m.LIST_TRANSACTIONS, 1, with_transactions, {}),
        (m.OFFSET_FETCH, 7, with_offsets, {"group_id": "g", "topics": None}),
    ],
    ids=lambda value: m.api_name(value) if isinstance(value, int) and value > 8 else "",
)
def test_request_for_everything_has_a_step_for_each_thing(
    key: int, version: int, prepare: Callable[[Cluster], None], values: dict[str, Any]
) -> None:
    assert steps(prepare, key, version, **values)[0] >= MANY


def test_batches_of_many_partitions_are_appended_in_a_later_turn_than_they_are_decoded() -> None:
    data = [{"index": index, "records": batch([b"x"])} for index in INDEXES]
    values = {"acks": 1, "timeout": 1, "topic_data": [{"name": "t", "partition_data": data}]}
    apis.load()

    async def body() -> None:
        cluster = Cluster(ClusterConfig(), ManualClock(), asyncio.get_running_loop())
        await cluster.start()
        topic = cluster.catalogue.create_topic("t", MANY)
        frame = m.encode_request(m.PRODUCE, 9, 1, "c", m.build_request(m.PRODUCE, 9, **values))
        _, pending = dispatch(cluster.nodes[1], frame)
        assert isinstance(pending, PendingResponse)
        assert [log_end(topic, index) for index in INDEXES] == [0] * MANY
        await pending.response
        assert [log_end(topic, index) for index in INDEXES] == [1] * MANY
        await cluster.stop()

    def log_end(topic: Topic, index: int) -> int:
        return topic.partition(index).replicas[1].log.end_offset

    asyncio.run(body())


# ---- what may be in a response


def members_with_metadata(size: int) -> Callable[[Cluster], None]:
    """Stable groups, each of one member with so many bytes."""

    def prepare(cluster: Cluster) -> None:
        for name in NAMES[:5]:
            joining = Joining("", "c", None, 60.0, 60.0, "consumer", [("range", bytes(size))], needs_member_id=False)
            group: Any = cluster.groups.joining(name)
            group.join(joining)
            group.sync(group.members.leader, group.generation, {})

    return prepare


def test_groups_that_do_not_fit_a_response_are_to_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_groups, "MOST_BYTES", 25_000)
    _, response = steps(members_with_metadata(10_000), m.DESCRIBE_GROUPS, 5, groups=NAMES[:5])
    sizes = [sum(len(member["member_metadata"]) for member in group.get("members", ())) for group in response["groups"]]
    assert sizes == [10_000, 10_000, 0, 0, 0]
    assert [group.get("error_code", 0) for group in response["groups"]] == [0, 0, 14, 14, 14]
    _, response = steps(members_with_metadata(30_000), m.DESCRIBE_GROUPS, 5, groups=NAMES[:1])
    assert len(response["groups"][0]["members"][0]["member_metadata"]) == 30_000, "a group alone always fits"


def test_offsets_that_do_not_fit_a_response_are_to_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_fetch, "MOST_PARTITIONS", MANY)
    asked = [{"group_id": name, "topics": None} for name in ("g", "h")]
    _, response = steps(with_offsets, m.OFFSET_FETCH, 8, groups=asked)
    assert [(group["error_code"], len(group["topics"])) for group in response["groups"]] == [(0, 1), (14, 0)]


def test_offsets_of_one_response_are_of_one_moment() -> None:
    """A transaction ends while a client reads thousands of offsets."""
    apis.load()

    async def body() -> None:
        cluster = Cluster(ClusterConfig(), ManualClock(), asyncio.get_running_loop())
        await cluster.start()
        cluster.catalogue.create_topic("t", MANY)
        offsets = cluster.groups.get("g").offsets
        for index in INDEXES:
            offsets.commit_in_transaction(1, ("t", index), Committed(index, -1, ""))
        asked = m.build_request(m.OFFSET_FETCH, 7, group_id="g", topics=[{"name": "t", "partition_indexes": INDEXES}])
        header, request = m.decode_request(m.encode_request(m.OFFSET_FETCH, 7, 1, "c", asked))
        work = offset_fetch._fetch_all(cluster.nodes[1], header, request)
        for _ in range(MANY // 2):
            next(work)
        finish(offsets.end_transaction(1, True))
        found = finish(work)["topics"][0]["partitions"]
        assert {partition["committed_offset"] for partition in found} == {-1}
        await cluster.stop()

    asyncio.run(body())
