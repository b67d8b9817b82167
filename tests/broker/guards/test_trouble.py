"""Faults on demand in the embedded broker: latency, throttling and quotas, cut connections; the request log."""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, KafkaError
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import API_VERSIONS, FETCH, INIT_PRODUCER_ID, LIST_OFFSETS, METADATA, PRODUCE
from tests.broker.raw_client import RawClient, batch
from tests.broker.transactions.support import World


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    yield one
    one.close()


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as one:
        one.create_topic("t", 2)
        yield one


def client_of(cluster: EmbeddedCluster, node_id: int) -> RawClient:
    host, port, _ = cluster.nodes()[node_id]
    return RawClient(f"{host}:{port}", 5)


def answered(world: World, client: RawClient, seconds: float) -> bool:
    """Whether the response comes once the cluster's clock is `seconds` further, and not before."""
    world.cluster.wait_for_request(METADATA)
    world.advance(seconds - 0.001)
    client.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.receive(METADATA, 9)
    client.socket.settimeout(5)
    world.advance(0.002)
    return client.receive(METADATA, 9) is not None


# ---- latency ---------------------------------------------------------------------------------------------------------


def test_latency_holds_until_it_is_taken_back(world: World) -> None:
    world.cluster.set_latency(3.0, METADATA)
    for _ in range(2):
        world.cluster.clear_requests()
        world.client.send(METADATA, 9, topics=[])
        assert answered(world, world.client, 3)
    assert world.client.ask(API_VERSIONS, 0).error_code == 0, "another API"
    world.cluster.set_latency(0, METADATA)
    assert world.client.ask(METADATA, 9, topics=[])


def test_latencies_of_api_node_and_once_add_up(world: World) -> None:
    world.cluster.set_latency(1.0)
    world.cluster.set_latency(2.0, node_id=1)
    world.cluster.set_latency(4.0, METADATA, 1)
    world.cluster.set_latency(100.0, node_id=2)
    world.cluster.set_latency(200.0, API_VERSIONS, 1)
    world.cluster.delay_next(METADATA, 8.0)
    world.client.send(METADATA, 9, topics=[])
    assert answered(world, world.client, 15)
    world.cluster.clear_faults()
    assert world.client.ask(METADATA, 9, topics=[])


def test_latency_holds_back_only_the_response(world: World) -> None:
    world.cluster.set_latency(5, PRODUCE)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    world.client.send(PRODUCE, 9, acks=-1, timeout=1000, topic_data=data)
    world.cluster.wait_for_request(PRODUCE)
    assert world.cluster.end_offset("t", 0) == 1
    assert world.cluster.stats().parked == 1


# ---- throttling (KIP-219) and quotas ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(PRODUCE, 9), (PRODUCE, 3), (FETCH, 12), (FETCH, 4), (METADATA, 9), (INIT_PRODUCER_ID, 4), (API_VERSIONS, 3)],
)
def test_throttled_client_is_told_and_not_served(world: World, api_key: int, version: int) -> None:
    client = world.client
    values: dict[str, Any] = {"acks": -1, "max_wait": 0, "client_software_name": "x", "client_software_version": "1"}
    world.cluster.throttle_next(api_key, 700)
    assert client.ask(api_key, version, **values).throttle_time.total_seconds() == 0.7
    client.send(API_VERSIONS, 0)
    client.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.receive(API_VERSIONS, 0)
    with RawClient(world.cluster.bootstrap_servers) as other:
        assert other.ask(API_VERSIONS, 0).error_code == 0, "others are not muted"
    client.socket.settimeout(5)
    world.advance(0.701)
    assert client.receive(API_VERSIONS, 0).error_code == 0
    assert client.ask(api_key, version, **values).throttle_time.total_seconds() == 0


def produce_as(client: RawClient, name: str | None, size: int, acks: int = -1) -> int:
    """Produces `size` bytes as the client `name`. Returns its throttle time in milliseconds."""
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"x" * size])}]}]
    entity = messages.build_request(PRODUCE, 9, acks=acks, timeout=1000, topic_data=data)
    client.send_frame(messages.encode_request(PRODUCE, 9, 1, name, entity))
    frame = client.receive_frame()
    assert frame is not None
    _, answer = messages.decode_response(PRODUCE, 9, frame)
    assert answer.responses[0].partition_responses[0].error_code == 0
    milliseconds: float = answer.throttle_time.total_seconds() * 1000
    return round(milliseconds)


def test_quota_holds_for_every_connection_of_its_client_only(world: World) -> None:
    world.cluster.set_producer_quota("fast", 10_000)
    assert produce_as(world.client, "fast", 5_000) == 0, "it may be ahead by a second's worth"
    first = produce_as(world.client, "fast", 15_000)
    assert 1000 < first < 1100
    with RawClient(world.cluster.bootstrap_servers) as other:
        assert produce_as(other, "other", 50_000) == 0
        assert produce_as(other, None, 50_000) == 0
        again = produce_as(other, "fast", 10_000)
        assert first + 1000 < again < first + 1100, "another connection of the same client"
    world.advance(first / 1000 + 0.01)
    assert world.client.ask(API_VERSIONS, 0).error_code == 0


def test_time_pays_the_debt_and_saves_at_most_one_second(world: World) -> None:
    world.cluster.set_producer_quota("fast", 10_000)
    owed = produce_as(world.client, "fast", 25_000) / 1000
    assert 1.5 < owed < 1.6
    world.advance(owed + 0.5)
    assert produce_as(world.client, "fast", 4_500) == 0, "half a second's worth"
    world.advance(3600)
    assert 450 < produce_as(world.client, "fast", 14_500) < 600, "an hour without records is worth a second"


def test_default_quota_is_for_each_client_and_can_be_removed(world: World) -> None:
    world.cluster.set_producer_quota(None, 1_000)
    world.cluster.set_producer_quota("free", 1e9)
    for name, throttled in (("a", True), ("b", True), (None, True), ("free", False)):
        with RawClient(world.cluster.bootstrap_servers) as client:
            assert (produce_as(client, name, 1_500) > 500) == throttled
    world.cluster.set_producer_quota(None, None)
    with RawClient(world.cluster.bootstrap_servers) as client:
        assert produce_as(client, "a", 50_000) == 0


def test_kafkabuf_producer_obeys_a_quota() -> None:
    with EmbeddedCluster() as cluster:
        cluster.set_producer_quota("me", 200_000)
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, client_id="me", batch_size=50_000) as producer:
            began = time.monotonic()
            for _ in range(8):
                producer.send("t", b"x" * 40_000)
            producer.flush(10)
        assert time.monotonic() - began > 0.4, "320 kB at 200 kB/s, of which a second's worth may come at once"
        assert cluster.end_offset("t", 0) == 8


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.set_latency(-1),
        lambda c: c.cut_after(-1),
        lambda c: c.set_producer_quota("x", 0),
        lambda c: EmbeddedCluster(request_log=-1),
    ],
)
def test_senseless_fault_is_refused(cluster: EmbeddedCluster, call: Any) -> None:
    with pytest.raises(ConfigError):
        call(cluster)


# ---- cut connections -------------------------------------------------------------------------------------------------


def test_only_the_connections_of_the_node_are_cut(cluster: EmbeddedCluster) -> None:
    with client_of(cluster, 1) as one, client_of(cluster, 2) as two:
        for client in (one, two):
            client.ask(API_VERSIONS, 0)
        assert cluster.cut_connections(2) == 1
        assert two.closed()
        assert one.ask(API_VERSIONS, 0).error_code == 0
        with client_of(cluster, 2) as again:
            assert again.ask(API_VERSIONS, 0).error_code == 0, "the node goes on"
        cluster.cut_connections()
        assert one.closed()


def test_cut_request_is_not_carried_out(cluster: EmbeddedCluster) -> None:
    node = cluster.leader("t", 0)[0]
    with client_of(cluster, node) as client, client_of(cluster, 3 - node) as other:
        cluster.cut_after(60, node)
        other.ask(API_VERSIONS, 0)
        client.send_frame(struct.pack(">hhih", API_VERSIONS, 0, 1, -1))
        assert client.receive_frame(), "14 bytes"
        data = [{"name": "t", "partition_data": [{"index": 0, "records": batch([b"x" * 100])}]}]
        client.send(PRODUCE, 9, acks=-1, timeout=1000, topic_data=data)
        assert client.closed()
        assert other.ask(API_VERSIONS, 0).error_code == 0
    assert cluster.end_offset("t", 0) == 0
    with client_of(cluster, node) as client:
        assert client.produce("t", batch([b"x" * 100])).error_code == 0, "once"


@pytest.mark.parametrize("nbytes", [0, 1, 3, 4, 5, 20])
def test_response_is_cut_at_its_byte(cluster: EmbeddedCluster, nbytes: int) -> None:
    cluster.cut_after(nbytes, sent=True)
    with client_of(cluster, 1) as client:
        client.send(API_VERSIONS, 0)
        got = b""
        while piece := client.socket.recv(100):
            got += piece
        assert len(got) == nbytes
    with client_of(cluster, 1) as client:
        assert client.ask(API_VERSIONS, 0).error_code == 0


def test_second_cut_counts_bytes_from_the_first_cut(cluster: EmbeddedCluster) -> None:
    for nbytes in (10, 30):
        cluster.cut_after(nbytes)
    for nbytes in (10, 30):
        with client_of(cluster, 2) as client:
            client.socket.sendall(struct.pack(">ihhih", 100, API_VERSIONS, 0, 1, -1)[:nbytes].ljust(nbytes, b"\0"))
            client.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.socket.recv(1)
            client.socket.settimeout(5)
            client.socket.sendall(b"\0")
            assert client.closed()


def test_producers_deliver_once_where_connections_are_cut(cluster: EmbeddedCluster) -> None:
    """KafkaProducer and librdkafka, both idempotent, while requests and responses are cut in the middle."""
    for number in range(6):
        cluster.cut_after(1500 + 700 * number, sent=number % 3 == 2)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0}
    ours = KafkaProducer({**settings, "retry.backoff.ms": 5, "reconnect.backoff.ms": 5})
    theirs = confluent_kafka.Producer(
        {**settings, "enable.idempotence": True, "retry.backoff.ms": 5, "reconnect.backoff.ms": 5}
    )
    for number in range(60):
        ours.send("t", b"%d" % number, partition=0)
        theirs.produce("t", b"%d" % number, partition=1)
        ours.flush(10)
        theirs.flush(10)
    ours.close()
    assert cluster.end_offsets("t") == {0: 60, 1: 60}


# ---- the request log -------------------------------------------------------------------------------------------------


def test_request_is_logged_with_its_fields(world: World) -> None:
    world.client.produce("t", batch([b"x"]), partition=1)
    (one,) = world.cluster.requests(PRODUCE)
    assert (one.api_key, one.version, one.client_id, one.node_id) == (PRODUCE, 9, "raw", 1)
    assert (one.topics, one.error_code, one.time_ms) == ({"t": (1,)}, 0, world.clock.time_ms())
    world.client.produce("nowhere", batch([b"x"]))
    assert [entry.error_code for entry in world.cluster.requests(PRODUCE)] == [0, 3]
    assert [entry.error_code for entry in world.cluster.requests(topic="nowhere")] == [3]
    assert world.cluster.requests(node_id=2) == []
    world.cluster.clear_requests()
    assert world.cluster.requests() == []


def test_log_names_the_topics_of_every_request(world: World) -> None:
    client = world.client
    topic_id = world.cluster._call(lambda c: c.catalogue.topic("t").topic_id)
    client.fetch("t", 0, partition=1)
    client.ask(METADATA, 9, topics=[{"name": "t"}, {"name": "u"}])
    client.ask(METADATA, 12, topics=[{"topic_id": topic_id, "name": None}, {"topic_id": uuid.UUID(int=7)}])
    client.ask(METADATA, 9, topics=None)
    client.ask(LIST_OFFSETS, 7, topics=[{"name": "t", "partitions": [{"partition_index": 1, "timestamp": -1}]}])
    client.ask(messages.DESCRIBE_PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0, 1]}])
    data = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
    client.ask(PRODUCE, 13, acks=1, timeout=1000, topic_data=data)
    found = [one.topics for one in world.cluster.requests()]
    assert [one.error_code for one in world.cluster.requests()] == [0, 0, 100, 0, 0, 0, 0], (
        "nodes' numbers are no errors"
    )
    unknown = str(uuid.UUID(int=7))
    expected: list[dict[str, tuple[int, ...]]] = [
        {"t": (1,)},
        {"t": (), "u": ()},
        {"t": (), unknown: ()},
        {},
        {"t": (1,)},
        {"t": (0, 1)},
        {"t": (0,)},
    ]
    assert found == expected


def test_log_has_the_first_error_of_the_response(world: World) -> None:
    client, cluster = world.client, world.cluster
    client.fetch("t", 99)
    client.ask(LIST_OFFSETS, 7, topics=[{"name": "t", "partitions": [{"partition_index": 9, "timestamp": -1}]}])
    client.ask(FETCH, 12, session_id=5)
    cluster.fail_next(METADATA, 29, topic="t")
    client.ask(METADATA, 9, topics=[{"name": "t"}])
    cluster.fail_next(API_VERSIONS, 35)
    client.ask(API_VERSIONS, 0)
    assert [one.error_code for one in cluster.requests()] == [1, 3, 70, 29, 35]


def test_request_without_a_response_has_no_error_code(world: World) -> None:
    world.client.send(FETCH, 12, max_wait=5000, min_bytes=1, topics=[{"topic": "t", "partitions": [{"partition": 0}]}])
    one, (two,) = world.cluster.wait_for_request(FETCH), world.cluster.requests(FETCH)
    assert (one.error_code, one.topics) == (None, {"t": (0,)})
    world.advance(5.001)
    world.client.receive(FETCH, 12)
    assert (one.error_code, two.error_code) == (None, None), "the log hands out copies"
    assert world.cluster.requests(FETCH)[0].error_code == 0


def test_request_log_keeps_the_last_requests() -> None:
    with EmbeddedCluster(request_log=3) as cluster, RawClient(cluster.bootstrap_servers) as client:
        for _ in range(5):
            client.ask(API_VERSIONS, 0)
        assert [one.correlation_id for one in cluster.requests()] == [3, 4, 5]
    with EmbeddedCluster(request_log=0) as cluster, RawClient(cluster.bootstrap_servers) as client:
        client.ask(API_VERSIONS, 0)
        assert cluster.requests() == []


def test_waiting_ends_with_the_expected_request(world: World) -> None:
    client, cluster = world.client, world.cluster
    client.ask(API_VERSIONS, 0)
    timer = threading.Timer(0.1, lambda: client.produce("t", batch([b"x"])))
    timer.start()
    assert cluster.wait_for_request(API_VERSIONS).correlation_id == 1, "one of the past"
    found = cluster.wait_for_request(where=lambda one: "t" in one.topics, topic="t")
    timer.join()
    assert found.api_key == PRODUCE
    with pytest.raises(TimeoutError, match=r"1 matching requests came within 0\.05 s, 2 were expected"):
        cluster.wait_for_request(PRODUCE, count=2, timeout=0.05)
    with pytest.raises(ZeroDivisionError):
        cluster.wait_for_request(where=lambda one: 1 // 0 == 1)
    timer = threading.Timer(0.05, lambda: client.ask(API_VERSIONS, 0))
    timer.start()
    with pytest.raises(ZeroDivisionError):
        cluster.wait_for_request(API_VERSIONS, count=2, where=lambda one: 1 // (3 - one.correlation_id) >= 0)
    timer.join()
    assert client.ask(API_VERSIONS, 0).error_code == 0, "the mistake was ours, not the client's"


def test_statistics_count_nodes_connections_and_bytes(cluster: EmbeddedCluster) -> None:
    with client_of(cluster, 1) as one, client_of(cluster, 2) as two:
        sent = received = 0
        for client in (one, two):
            client.send_frame(struct.pack(">hhih", API_VERSIONS, 0, 1, -1))
            sent += 14
            received += 4 + len(client.receive_frame() or b"")
        stats = cluster.stats()
        assert (stats.nodes, stats.nodes_up, stats.connections, stats.parked) == (2, 2, 2, 0)
        assert (stats.requests, stats.bytes_in, stats.bytes_out) == (2, sent, received)
        cluster.stop_node(2)
        assert (cluster.stats().nodes_up, cluster.stats().connections) == (1, 1)


def test_error_says_that_the_cluster_is_not_running() -> None:
    with pytest.raises(KafkaError, match="not running"):
        EmbeddedCluster().requests()
