"""Administration of several nodes: elections, epochs, dead nodes, the nodes' replicas and coordinators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.conformance.groups import joining
from tests.waiting import wait_until

PREFERRED, UNCLEAN = 0, 1
ELECTION_NOT_NEEDED, PREFERRED_NOT_AVAILABLE, NONE_ELIGIBLE = 84, 80, 83


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, auto_create_topics=False) as one:
        one.create_topic("t", 3, 2)
        yield one


def address(cluster: EmbeddedCluster, node: int) -> str:
    host, port, _ = cluster.nodes()[node]
    return f"{host}:{port}"


def alive(cluster: EmbeddedCluster) -> str:
    return address(cluster, next(node for node, (_, _, up) in cluster.nodes().items() if up))


def ask(cluster: EmbeddedCluster, api_key: int, version: int, node: int | None = None, **values: Any) -> Any:
    with RawClient(alive(cluster) if node is None else address(cluster, node)) as client:
        return client.ask(api_key, version, **values)


def elect(cluster: EmbeddedCluster, kind: int, *partitions: int) -> dict[int, int]:
    """Elects leaders, of all partitions if no partition is named. Returns error codes by partition."""
    asked = [{"topic": "t", "partitions": list(partitions)}] if partitions else None
    answer = ask(cluster, messages.ELECT_LEADERS, 2, election_type=kind, topic_partitions=asked, timeout=1000)
    assert answer.error_code == 0
    results = [one for topic in answer.replica_election_results for one in topic.partition_result]
    return {one.partition_id: int(one.error_code) for one in results}


def test_preferred_leader_is_elected_on_request(cluster: EmbeddedCluster) -> None:
    assert [cluster.leader("t", index)[0] for index in range(3)] == [1, 2, 3]
    cluster.stop_node(1)
    assert cluster.leader("t", 0)[0] == 2
    assert elect(cluster, PREFERRED, 0, 1, 9) == {0: PREFERRED_NOT_AVAILABLE, 1: ELECTION_NOT_NEEDED, 9: 3}
    cluster.start_node(1)
    wait_until(lambda: set(cluster.in_sync("t", 0)) == {1, 2})
    assert cluster.leader("t", 0)[0] == 2
    epoch = cluster.leader("t", 0)[1]
    # A response about all partitions names only the partitions that changed.
    assert elect(cluster, PREFERRED) == {0: 0}
    assert cluster.leader("t", 0) == (1, epoch + 1)
    assert elect(cluster, PREFERRED) == {}


def test_unclean_election_elects_only_for_partitions_without_a_leader(cluster: EmbeddedCluster) -> None:
    assert elect(cluster, UNCLEAN, 0) == {0: ELECTION_NOT_NEEDED}
    cluster.stop_node(2)
    with RawClient(address(cluster, 1)) as client:
        assert client.produce("t", batch([b"only on node 1"]), acks=1).error_code == 0
    cluster.stop_node(1)
    assert elect(cluster, UNCLEAN, 0) == {0: NONE_ELIGIBLE}
    cluster.start_node(2)
    assert cluster.leader("t", 0)[0] == -1
    assert elect(cluster, UNCLEAN, 0) == {0: 0}
    assert cluster.leader("t", 0)[0] == 2
    assert cluster.end_offset("t", 0) == 0


def test_leader_epoch_ends_where_the_next_begins(cluster: EmbeddedCluster) -> None:
    def end(epoch: int, node: int, current: int = -1) -> tuple[int, int, int]:
        asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        values = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [asked]}]}
        (one,) = ask(cluster, messages.OFFSET_FOR_LEADER_EPOCH, 4, node, **values).topics[0].partitions
        return int(one.error_code), one.leader_epoch, one.end_offset

    with RawClient(address(cluster, 1)) as client:
        client.produce("t", batch([b"a", b"b"]))
    first = cluster.leader("t", 0)[1]
    cluster.stop_node(1)
    leader, second = cluster.leader("t", 0)
    with RawClient(address(cluster, leader)) as client:
        client.produce("t", batch([b"c"]))
    assert end(first, leader) == (0, first, 2)
    assert end(second, leader) == (0, second, 3)
    assert end(second + 1, leader) == (0, -1, -1)
    assert end(first, leader, first) == (74, -1, -1)
    assert end(first, leader, second + 1) == (75, -1, -1)
    assert end(first, 3)[0] == 6


def test_dead_node_is_described_only_on_request(cluster: EmbeddedCluster) -> None:
    cluster.stop_node(3)
    for fenced_too, expected in ((False, {1: False, 2: False}), (True, {1: False, 2: False, 3: True})):
        answer = ask(cluster, messages.DESCRIBE_CLUSTER, 2, include_fenced_brokers=fenced_too)
        assert {one.broker_id: one.is_fenced for one in answer.brokers} == expected


def test_log_dirs_show_the_nodes_own_copies(cluster: EmbeddedCluster) -> None:
    sent = batch([b"x" * 1000])
    with RawClient(address(cluster, 1)) as client:
        client.produce("t", sent)
    kept = {}
    for node in (1, 2, 3):
        (folder,) = ask(cluster, messages.DESCRIBE_LOG_DIRS, 4, node, topics=None).results
        kept[node] = {one.partition_index: one.partition_size for topic in folder.topics for one in topic.partitions}
    assert kept == {1: {0: len(sent), 2: 0}, 2: {0: len(sent), 1: 0}, 3: {1: 0, 2: 0}}


def test_group_is_listed_by_its_coordinator_only(cluster: EmbeddedCluster) -> None:
    found: dict[str, int] = {}
    for name in (f"g-{number}" for number in range(12)):
        node = ask(cluster, messages.FIND_COORDINATOR, 0, key=name).node_id
        for each in (1, 2, 3):
            answer = ask(cluster, messages.JOIN_GROUP, 3, each, **joining(name, version=3))
            assert answer.error_code == (0 if each == node else 16)
        found[name] = node
    assert len(set(found.values())) > 1
    for node in (1, 2, 3):
        listed = {one.group_id for one in ask(cluster, messages.LIST_GROUPS, 0, node).groups}
        assert listed == {name for name, coordinator in found.items() if coordinator == node}
        for api_key, values in (
            (messages.DESCRIBE_GROUPS, {"groups": list(found)}),
            (messages.DELETE_GROUPS, {"groups_names": list(found)}),
        ):
            answer = ask(cluster, api_key, 0, node, **values)
            results = getattr(answer, "groups", ()) or answer.results
            refused = {one.group_id for one in results if int(one.error_code) == 16}
            assert refused == found.keys() - listed


def test_pages_of_topics_have_every_partition_once(cluster: EmbeddedCluster) -> None:
    for name, partitions in (("a", 2), ("z", 5)):
        cluster.create_topic(name, partitions)
    seen: list[tuple[str, int]] = []
    cursor = None
    while True:
        answer = ask(cluster, messages.DESCRIBE_TOPIC_PARTITIONS, 0, response_partition_limit=3, cursor=cursor)
        page = [(str(topic.name), one.partition_index) for topic in answer.topics for one in topic.partitions]
        assert len(page) == 3 or answer.next_cursor is None
        seen += page
        if answer.next_cursor is None:
            break
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }
    assert seen == [("a", 0), ("a", 1), *(("t", index) for index in range(3)), *(("z", index) for index in range(5))]
