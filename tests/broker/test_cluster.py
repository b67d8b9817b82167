"""EmbeddedCluster: lifecycle, leaders, faults on demand, and its costs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    ClosedError,
    ConfigError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, default_partitions=2) as one:
        yield one


def connect(cluster: EmbeddedCluster, node_id: int) -> RawClient:
    host, port, _ = cluster.nodes()[node_id]
    return RawClient(f"{host}:{port}")


def leader_of(cluster: EmbeddedCluster, topic: str, partition: int = 0) -> RawClient:
    return connect(cluster, cluster.leader(topic, partition)[0])


def metadata(client: RawClient, *names: str, version: int = 12, **more: Any) -> Any:
    return client.ask(messages.METADATA, version, topics=[{"name": name} for name in names], **more)


# ---- lifecycle


def test_cluster_comes_up_at_once() -> None:
    def seconds() -> float:
        began = time.monotonic()
        with EmbeddedCluster(brokers=5) as cluster, RawClient(cluster.bootstrap_servers.split(",")[4]) as client:
            assert client.ask(18, 0).error_code == 0
            return time.monotonic() - began

    # The best of five runs counts: the machine may be busy with other things.
    assert min(seconds() for _ in range(5)) < 2


def test_idle_cluster_uses_next_to_no_cpu_time(cluster: EmbeddedCluster) -> None:
    clients = [connect(cluster, 1) for _ in range(20)]
    clients[0].send(1, 12, max_wait=1000, min_bytes=1, max_bytes=1, topics=[])
    assert cluster._thread is not None
    assert cluster._thread.ident is not None
    clock = time.pthread_getcpuclockid(cluster._thread.ident)
    time.sleep(0.1)
    began = time.clock_gettime(clock)
    time.sleep(0.3)
    assert time.clock_gettime(clock) - began < 0.01
    for one in clients:
        one.socket.close()


def test_stopping_closes_every_thread_and_socket() -> None:
    before = threading.active_count()
    cluster = EmbeddedCluster(brokers=2).start()
    cluster.create_topic("t")
    client = leader_of(cluster, "t")
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
    for _ in range(2):
        client.send(
            1, 12, max_wait=60_000, min_bytes=1, max_bytes=1, topics=[{"topic": "t", "partitions": [partition]}]
        )
    ports = [int(one.rpartition(":")[2]) for one in cluster.bootstrap_servers.split(",")]
    cluster.stop()
    cluster.stop()
    assert threading.active_count() == before
    assert client.closed()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)
    with pytest.raises(ClosedError):
        cluster.create_topic("t")
    client.socket.close()


def test_connection_accepted_while_stopping_is_closed() -> None:
    for _ in range(20):
        cluster = EmbeddedCluster().start()
        clients = [RawClient(cluster.bootstrap_servers, timeout=5) for _ in range(3)]
        cluster.stop()
        for one in clients:
            assert one.closed()
            one.socket.close()


def test_cluster_in_memory_starts_again_empty() -> None:
    cluster = EmbeddedCluster()
    for _ in range(2):
        cluster.start()
        assert cluster.topics() == {}
        cluster.create_topic("t")
        with pytest.raises(ClosedError):
            cluster.start()
        cluster.stop()


def test_failed_start_leaves_no_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        before = threading.active_count()
        cluster = EmbeddedCluster(brokers=2, ports=[0, taken.getsockname()[1]])
        with pytest.raises(OSError, match="Address already in use"):
            cluster.start()
        assert threading.active_count() == before


@pytest.mark.parametrize("values", [{"brokers": 0}, {"brokers": 2, "ports": [9092]}])
def test_impossible_cluster_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EmbeddedCluster(**values)


def test_cluster_listens_on_loopback_only(cluster: EmbeddedCluster) -> None:
    assert {host for host, _, _ in cluster.nodes().values()} == {"127.0.0.1"}


# ---- topics


def test_leaders_are_spread_over_the_nodes(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t", 6)
    assert Counter(cluster.leader("t", index)[0] for index in range(6)) == {1: 2, 2: 2, 3: 2}
    for number in range(3):
        cluster.create_topic(f"one-{number}")
    assert len({cluster.leader(f"one-{number}", 0)[0] for number in range(3)}) == 3


@pytest.mark.parametrize("partitions", [9_999, 10_000, 20_001])
def test_owner_creates_more_partitions_than_a_client(cluster: EmbeddedCluster, partitions: int) -> None:
    cluster.create_topic("wide", partitions, replication_factor=1)
    assert cluster.topics() == {"wide": partitions}
    assert {cluster.leader("wide", partition)[0] for partition in (0, 1, 2)} == {1, 2, 3}
    assert cluster.leader("wide", partitions - 1)[0] in (1, 2, 3)


def test_impossible_topic_is_refused(cluster: EmbeddedCluster) -> None:
    with pytest.raises(InvalidPartitionsError, match="at most 1,000,000 partitions"):
        cluster.create_topic("t", 2**31 - 1)
    cluster.create_topic("t")
    impossible: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("t", {}, TopicExistsError),
        ("no partitions", {}, InvalidTopicError),
        ("a" * 250, {}, InvalidTopicError),
        ("", {}, InvalidTopicError),
        ("..", {}, InvalidTopicError),
        ("u", {"partitions": 0}, InvalidPartitionsError),
        ("u", {"replication_factor": 4}, InvalidReplicationFactorError),
        ("u", {"configs": {"retention.bytes": "much"}}, InvalidConfigError),
    ]
    for name, values, error in impossible:
        with pytest.raises(error):
            cluster.create_topic(name, **values)
    assert cluster.topics() == {"t": 1}
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.end_offset("t", 1)


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_request_makes_the_wanted_topics(cluster: EmbeddedCluster, version: int) -> None:
    wanted = [
        {
            "name": "a",
            "num_partitions": 4,
            "replication_factor": 2,
            "configs": [{"name": "retention.bytes", "value": "9"}],
        },
        {"name": "b", "num_partitions": -1, "replication_factor": -1},
        {
            "name": "c",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 1, "broker_ids": [3]}, {"partition_index": 0, "broker_ids": [2, 1]}],
        },
        {
            "name": "d",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [9]}],
        },
        {"name": "e!", "num_partitions": 1, "replication_factor": 1},
    ]
    with connect(cluster, 2) as client:
        dry = client.ask(19, version, topics=wanted, timeout=1000, validate_only=True)
        assert cluster.topics() == {}
        answer = client.ask(19, version, topics=wanted, timeout=1000)
        again = client.ask(19, version, topics=wanted[:1], timeout=1000)
    assert [one.error_code for one in dry.topics] == [one.error_code for one in answer.topics] == [0, 0, 0, 39, 17]
    assert again.topics[0].error_code == 36
    assert cluster.topics() == {"a": 4, "b": 2, "c": 2}
    assert [cluster.leader("c", index)[0] for index in range(2)] == [2, 3]
    if version >= 5:
        assert (answer.topics[0].num_partitions, answer.topics[0].replication_factor) == (4, 2)


@pytest.mark.parametrize("version", range(14))
def test_metadata_shows_nodes_and_topics(cluster: EmbeddedCluster, version: int) -> None:
    cluster.create_topic("t", 3, replication_factor=2)
    with connect(cluster, 1) as client:
        answer = metadata(client, "t", "new", "bad name", version=version, allow_auto_topic_creation=True)
        addresses = {node_id: (host, port) for node_id, (host, port, _) in cluster.nodes().items()}
        assert {one.node_id: (one.host, one.port) for one in answer.brokers} == addresses
        known, new, _ = answer.topics
        assert [(one.name, one.error_code) for one in answer.topics] == [("t", 0), ("new", 0), ("bad name", 17)]
        assert [one.leader_id for one in known.partitions] == [cluster.leader("t", index)[0] for index in range(3)]
        assert [len(one.replica_nodes) for one in known.partitions] == [2, 2, 2]
        assert len(new.partitions) == 2
        nothing = client.ask(3, version, topics=[])
        assert [one.name for one in nothing.topics] == (["t", "new"] if version == 0 else [])
        if version >= 1:
            assert answer.controller_id == 1
            assert len(client.ask(3, version, topics=None).topics) == 2
        if version >= 12:
            by_id = client.ask(3, version, topics=[{"topic_id": known.topic_id, "name": None}])
            assert by_id.topics[0].name == "t"


def test_topic_is_created_only_if_client_and_cluster_allow_it(cluster: EmbeddedCluster) -> None:
    with connect(cluster, 1) as client:
        assert metadata(client, "t", allow_auto_topic_creation=False).topics[0].error_code == 3
    with EmbeddedCluster(auto_create_topics=False) as strict, connect(strict, 1) as client:
        assert metadata(client, "t", allow_auto_topic_creation=True).topics[0].error_code == 3
        assert strict.topics() == {}


# ---- nodes that come and go


def test_node_that_does_not_lead_refuses_records(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    leader, _ = cluster.leader("t", 0)
    for node_id in cluster.nodes():
        with connect(cluster, node_id) as client:
            expected = 0 if node_id == leader else 6
            assert client.produce("t", batch([b"x"])).error_code == expected
            assert client.fetch("t", 0).error_code == expected
            wanted = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            assert client.ask(2, 5, topics=wanted).topics[0].partitions[0].error_code == expected
    assert cluster.end_offset("t", 0) == 1


def test_partitions_of_a_dead_node_get_a_new_leader(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t", 3)
    victim, epoch = cluster.leader("t", 0)
    others = {index: cluster.leader("t", index) for index in (1, 2)}
    with connect(cluster, victim) as client:
        assert client.produce("t", batch([b"x"])).error_code == 0
        cluster.stop_node(victim)
        assert client.closed()
    with pytest.raises(ConnectionRefusedError):
        connect(cluster, victim)
    successor, risen = cluster.leader("t", 0)
    assert successor != victim
    assert risen == epoch + 1
    assert {index: cluster.leader("t", index) for index in (1, 2)} == others
    with leader_of(cluster, "t") as client:
        assert victim not in [one.node_id for one in metadata(client, "t").brokers]
        assert client.produce("t", batch([b"y"])).base_offset == 1
        assert client.fetch("t", 0, current_leader_epoch=epoch).error_code == 74
    cluster.start_node(victim)
    assert cluster.leader("t", 0) == (successor, risen)
    with connect(cluster, victim) as client:
        assert metadata(client, "t").topics[0].partitions[0].leader_epoch == risen


def test_next_replica_leads_after_the_leader(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t", 1, replication_factor=2)
    with connect(cluster, 1) as client:
        leader, heir = metadata(client, "t").topics[0].partitions[0].replica_nodes
    cluster.stop_node(leader)
    assert cluster.leader("t", 0)[0] == heir


def test_cluster_without_nodes_recovers_with_the_last_copy_in_sync(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    for node_id in cluster.nodes():
        cluster.stop_node(node_id)
    assert cluster.leader("t", 0)[0] == -1
    cluster.start_node(2)
    assert cluster.leader("t", 0)[0] == -1, "only the last that was in sync has everything"
    cluster.start_node(3)
    assert cluster.leader("t", 0)[0] == 3
    with connect(cluster, 3) as client:
        assert client.produce("t", batch([b"x"])).error_code == 0


def test_group_is_served_by_its_coordinator_only(cluster: EmbeddedCluster) -> None:
    with connect(cluster, 1) as client:
        coordinators = {
            name: client.ask(10, 4, key_type=0, coordinator_keys=[name]).coordinators[0].node_id
            for name in ("a", "b", "c", "d", "e")
        }
        assert len(set(coordinators.values())) > 1
        assert client.ask(10, 1, key="a", key_type=0).node_id == coordinators["a"]
        assert client.ask(10, 1, key="a", key_type=1).node_id == coordinators["a"]
        assert client.ask(10, 1, key="a", key_type=2).error_code == 42
        for group, node_id in coordinators.items():
            expected = 25 if node_id == 1 else 16
            assert client.ask(12, 4, group_id=group, member_id="m").error_code == expected
            offsets = client.ask(9, 8, groups=[{"group_id": group, "topics": None}]).groups[0]
            assert offsets.error_code == (0 if node_id == 1 else 16)


# ---- faults


def test_injected_error_appends_nothing_and_ends_after_its_requests(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    cluster.fail_next(messages.PRODUCE, 7, times=2)
    with leader_of(cluster, "t") as client:
        codes = [client.produce("t", batch([b"x"])).error_code for _ in range(4)]
    assert codes == [7, 7, 0, 0]
    assert cluster.end_offset("t", 0) == 2


def test_error_for_a_topic_hits_only_that_topic(cluster: EmbeddedCluster) -> None:
    for name in ("t", "u"):
        cluster.create_topic(name)
        cluster.move_leader(name, 0, 1)
    cluster.fail_next(messages.PRODUCE, 19, topic="u")
    cluster.fail_next(messages.METADATA, 5, topic="u")
    cluster.fail_next(messages.FETCH, 6, topic="u")
    cluster.fail_next(messages.LIST_OFFSETS, 3, topic="u")
    with connect(cluster, 1) as client:
        assert [client.produce(name, batch([b"x"])).error_code for name in "tuu"] == [0, 19, 0]
        assert [client.fetch(name, 0).error_code for name in "tuu"] == [0, 6, 0]
        assert [one.error_code for one in metadata(client, "t", "u").topics] == [0, 5]
        assert [one.error_code for one in metadata(client, "t", "u").topics] == [0, 0]
        wanted = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]} for name in "tu"]
        codes = [one.partitions[0].error_code for one in client.ask(2, 5, topics=wanted).topics]
        assert codes == [0, 3]


def test_request_with_a_dropped_response_is_carried_out(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("t")
    cluster.drop_next(messages.PRODUCE)
    with caplog.at_level(logging.WARNING), leader_of(cluster, "t") as client:
        data = [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
        client.send(0, 9, acks=-1, timeout=1000, topic_data=data)
        assert client.closed()
    assert "drop_next drops the response" in caplog.text
    assert cluster.end_offset("t", 0) == 1
    with leader_of(cluster, "t") as client:
        assert client.produce("t", batch([b"x"])).base_offset == 1


def test_delayed_response_delays_no_other_client() -> None:
    clock = ManualClock()
    with EmbeddedCluster(clock=clock) as cluster:
        cluster.create_topic("t")
        cluster.delay_next(messages.PRODUCE, 30.0)
        with RawClient(cluster.bootstrap_servers) as slow, RawClient(cluster.bootstrap_servers) as other:
            data = [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
            slow.send(0, 9, acks=-1, timeout=1000, topic_data=data)
            while not cluster.end_offset("t", 0):
                time.sleep(0.001)
            assert other.produce("t", batch([b"y"])).base_offset == 1
            slow.socket.settimeout(0.02)
            with pytest.raises(TimeoutError):
                slow.socket.recv(1)
            slow.socket.settimeout(10)
            clock.advance(30)
            cluster.tick()
            assert slow.receive(0, 9).responses[0].partition_responses[0].base_offset == 0


def test_long_poll_ends_at_its_time_on_the_clock() -> None:
    clock = ManualClock()
    with EmbeddedCluster(clock=clock) as cluster, RawClient(cluster.bootstrap_servers) as client:
        cluster.create_topic("t")
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
        client.send(
            1, 12, max_wait=20_000, min_bytes=1, max_bytes=1, topics=[{"topic": "t", "partitions": [partition]}]
        )
        client.socket.settimeout(0.02)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(10)
        clock.advance(20)
        cluster.tick()
        assert client.receive(1, 12).responses[0].partitions[0].error_code == 0
