"""Nodes of EmbeddedCluster as clients see them: metadata of replicas and leaders; paused, isolated and killed nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, InvalidConfigError
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.waiting import wait_until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, clock=clock) as one:
        one.create_topic("t")
        yield one


def connect(cluster: EmbeddedCluster, node_id: int) -> RawClient:
    host, port, _ = cluster.nodes()[node_id]
    return RawClient(f"{host}:{port}")


def metadata(cluster: EmbeddedCluster, node_id: int, topic: str = "t") -> Any:
    with connect(cluster, node_id) as client:
        return client.ask(messages.METADATA, 12, topics=[{"name": topic}])


def partition_metadata(cluster: EmbeddedCluster, node_id: int) -> tuple[int, list[int], list[int]]:
    """Leader, ISR and offline replicas."""
    partition = metadata(cluster, node_id).topics[0].partitions[0]
    return partition.leader_id, sorted(partition.isr_nodes), sorted(partition.offline_replicas)


def pass_time(cluster: EmbeddedCluster, clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    cluster.tick()


def test_metadata_shows_dead_copies_as_offline(cluster: EmbeddedCluster) -> None:
    leader, _ = cluster.leader("t", 0)
    assert partition_metadata(cluster, 1) == (leader, [1, 2, 3], [])
    cluster.kill_node(1)
    answer = metadata(cluster, 3)
    assert (answer.controller_id, sorted(one.node_id for one in answer.brokers)) == (2, [2, 3])
    assert partition_metadata(cluster, 2)[1:] == ([2, 3], [1])
    cluster.start_node(1)
    wait_until(lambda: partition_metadata(cluster, 1)[1:] == ([1, 2, 3], []))
    assert metadata(cluster, 1).controller_id == 2


@pytest.mark.parametrize("trouble", ["pause", "isolate"])
def test_silent_node_answers_once_it_is_back(cluster: EmbeddedCluster, trouble: str) -> None:
    with connect(cluster, 2) as before:
        if trouble == "pause":
            cluster.pause_node(2)
        else:
            cluster.isolate_node(2, from_clients=True)
        with connect(cluster, 2) as after:
            for client in (before, after):
                client.send(messages.API_VERSIONS, 0)
                client.socket.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    client.socket.recv(1)
                client.socket.settimeout(10)
            if trouble == "pause":
                cluster.resume_node(2)
            else:
                cluster.heal_node(2)
            for client in (before, after):
                assert client.receive(messages.API_VERSIONS, 0).error_code == 0


def test_paused_node_sends_its_response_once_it_resumes(cluster: EmbeddedCluster, clock: ManualClock) -> None:
    leader, _ = cluster.leader("t", 0)
    for other in {1, 2, 3} - {leader}:
        cluster.set_replica_lag(other, 2.0)
    with connect(cluster, leader) as client:
        data = [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
        client.send(messages.PRODUCE, 9, acks=-1, timeout=60_000, topic_data=data)
        wait_until(lambda: cluster.end_offset("t", 0) == 1)
        cluster.pause_node(leader)
        for _ in range(4):
            pass_time(cluster, clock, 1.0)
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(10)
        cluster.resume_node(leader)
        for other in {1, 2, 3} - {leader}:
            cluster.set_replica_lag(other, 0)
        assert client.receive(messages.PRODUCE, 9).responses[0].partition_responses[0].error_code == 0


def test_isolated_node_keeps_the_metadata_it_had(cluster: EmbeddedCluster, clock: ManualClock) -> None:
    leader, epoch = cluster.leader("t", 0)
    other = leader % 3 + 1
    cluster.isolate_node(leader)
    pass_time(cluster, clock, 9)
    successor, risen = cluster.leader("t", 0)
    assert successor != leader
    assert risen == epoch + 1
    assert partition_metadata(cluster, leader) == (leader, [1, 2, 3], [])
    assert partition_metadata(cluster, other) == (successor, sorted({1, 2, 3} - {leader}), [leader])
    with connect(cluster, leader) as client:
        lost = client.produce("t", batch([b"x"]), acks=1)
        assert (lost.error_code, lost.base_offset) == (0, 0)
    assert (cluster.end_offset("t", 0), cluster.replica_end_offsets("t", 0)[leader]) == (0, 1)
    cluster.heal_node(leader)
    assert partition_metadata(cluster, leader)[0] == successor
    wait_until(lambda: cluster.replica_end_offsets("t", 0)[leader] == 0)


def test_topic_has_as_many_copies_as_were_asked_for(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("alone", replication_factor=1)
    for name, replicas in (("t", 3), ("alone", 1)):
        assert len(cluster.replica_end_offsets(name, 0)) == replicas
    metadata(cluster, 1, "by-itself")
    assert len(cluster.replica_end_offsets("by-itself", 0)) == 3
    with EmbeddedCluster(brokers=2, replication_factor=1) as modest:
        modest.create_topic("t")
        assert len(modest.in_sync("t", 0)) == 1


def test_partition_waits_for_the_node_with_its_only_copy(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("alone", replication_factor=1)
    owner, _ = cluster.leader("alone", 0)
    with connect(cluster, owner) as client:
        assert client.produce("alone", batch([b"x"])).error_code == 0
    cluster.kill_node(owner)
    assert cluster.leader("alone", 0)[0] == -1
    cluster.start_node(owner)
    assert (cluster.leader("alone", 0)[0], cluster.end_offset("alone", 0)) == (owner, 1)
    with connect(cluster, owner) as client:
        assert client.fetch("alone", 0).high_watermark == 1


def test_impossible_replication_is_refused(cluster: EmbeddedCluster) -> None:
    impossible: list[dict[str, Any]] = [
        {"brokers": 2, "replication_factor": 3},
        {"replication_factor": 0},
        {"min_insync_replicas": 0},
    ]
    for settings in impossible:
        with pytest.raises(ConfigError):
            EmbeddedCluster(**settings)
    with pytest.raises(ConfigError):
        cluster.set_replica_lag(1, -1)
    with pytest.raises(InvalidConfigError):
        cluster.create_topic("u", configs={"min.insync.replicas": "0"})
    leader, _ = cluster.leader("t", 0)
    victim = leader % 3 + 1
    cluster.kill_node(victim)
    with pytest.raises(ConfigError):
        cluster.move_leader("t", 0, victim)
    assert cluster.leader("t", 0)[0] == leader
    cluster.start_node(victim)
    wait_until(lambda: len(cluster.in_sync("t", 0)) == 3)
    cluster.move_leader("t", 0, victim)
    assert cluster.leader("t", 0)[0] == victim
    assert cluster.elect_preferred("t", 0)
    assert cluster.leader("t", 0)[0] == leader
