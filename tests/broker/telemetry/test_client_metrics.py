"""KIP-714 on the embedded broker: clients push what the operator subscribes to, and a test asks what has arrived."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import cramjam
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.configs.resources import MetricsConfigs
from kafkabuf.broker.telemetry import arrived, manager, otlp
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.broker.waiting.slices import finish
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, CorruptMessageError, InvalidConfigError, TimeoutError
from kafkabuf.metrics import otlp as encoder
from kafkabuf.protocol import messages as m
from tests.broker.raw_client import RawClient
from tests.metrics.otlp_reader import metrics_data

GET, PUSH, ALTER = m.GET_TELEMETRY_SUBSCRIPTIONS, m.PUSH_TELEMETRY, m.INCREMENTAL_ALTER_CONFIGS
PREFIX = "org.apache.kafka.producer."
ALL: dict[str, dict[str, str | int | float | bool]] = {"all": {"metrics": "*", "interval.ms": 100}}
CLIENT_METRICS = 16


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ms=time.time_ns() // 1_000_000)


@pytest.fixture
def cluster(clock: ManualClock) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(client_metrics=True, clock=clock) as started:
        yield started


def subscribe(client: RawClient, name: str, **configs: str | None) -> None:
    """`interval_ms` stands for interval.ms; None deletes."""
    changes = [
        {"name": key.replace("_", "."), "value": value, "config_operation": int(value is None)}
        for key, value in configs.items()
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": changes}
    (response,) = client.ask(ALTER, 1, resources=[resource], validate_only=False).responses
    assert response.error_code == 0, response.error_message


def ask(client: RawClient, instance_id: UUID | None = None) -> Any:
    return client.ask(GET, 0, client_instance_id=instance_id)


def push(client: RawClient, subscription: Any, content: bytes = b"", **more: Any) -> int:
    values = {"terminating": False, "compression_type": 0, "metrics": content, **more}
    values.setdefault("client_instance_id", subscription.client_instance_id)
    return int(client.ask(PUSH, 0, subscription_id=subscription.subscription_id, **values).error_code)


def encoded(**values: float) -> bytes:
    points = [encoder.Point(name, None, value, name.endswith("total")) for name, value in values.items()]
    return encoder.encode(points, {"transactional_id": "t-1"}, 5, 7, delta=True, largest=1 << 30)


# ---- what clients do


def test_metrics_of_a_producer_arrive() -> None:
    with EmbeddedCluster(2, client_metrics=ALL) as cluster:
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, client_id="shop") as producer:
            producer.send("t", b"v").result(10)
            cluster.wait_for_client_metrics(where=lambda pushed: pushed.value(f"{PREFIX}record.send.total") == 1)
        found = cluster.wait_for_client_metrics(where=lambda pushed: pushed.terminating)
        assert {(pushed.client_id, pushed.client_instance_id) for pushed in cluster.client_metrics()} == {
            ("shop", found[0].client_instance_id)
        }
        assert any(point.labels == {"topic": "t"} for pushed in cluster.client_metrics() for point in pushed.points)


def test_metrics_of_librdkafka_arrive() -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    with EmbeddedCluster(client_metrics=ALL) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        producer.produce("t", b"v")
        assert producer.flush(10) == 0
        (pushed, *_) = cluster.wait_for_client_metrics(2, timeout=30)
        assert {f"{PREFIX}connection.creation.total", f"{PREFIX}node.request.latency.avg"} <= {
            point.name for point in pushed.points
        }
        assert any("node.id" in point.labels for point in pushed.points)


def test_without_client_metrics_the_node_does_not_list_the_apis() -> None:
    for given, listed in ((False, False), (True, True), (ALL, True)):
        with EmbeddedCluster(client_metrics=given) as cluster, RawClient(cluster.bootstrap_servers) as client:
            answer = client.ask(m.API_VERSIONS, 3, client_software_name="raw", client_software_version="1")
            assert ({GET, PUSH} <= {api.api_key for api in answer.api_keys}) == listed
            assert ask(client).error_code == 0, "Kafka answers what it does not list"


@pytest.mark.parametrize(
    "given", [5, [], {3: {}}, {"a": {"interval.ms": 5}}, {"a": {"such": "x"}}, {"a": {"match": "x"}}, {"": ALL["all"]}]
)
def test_wrong_subscription_is_refused_at_the_start(given: Any) -> None:
    with pytest.raises(ConfigError, match="client_metrics"):
        EmbeddedCluster(client_metrics=given)


# ---- subscriptions


def test_subscriptions_that_match_add_up(cluster: EmbeddedCluster, client: RawClient) -> None:
    client.ask(m.API_VERSIONS, 3, client_software_name="raw-client", client_software_version="1.5")
    subscribe(client, "one", metrics="a.,b.", interval_ms="5000")
    subscribe(client, "two", metrics="b.,c.", interval_ms="400000", match="client_software_name=raw-.*")
    subscribe(client, "three", metrics="d.", match="client_id=raw,client_software_version=1[.]5")
    subscribe(client, "part", metrics="x.", match="client_software_name=raw")
    subscribe(client, "other", metrics="y.", match="client_id=raw,client_source_address=10[.].*")
    subscribe(client, "unreadable", metrics="z.", match="client_id=(?!a)raw")
    answer = ask(client)
    assert sorted(answer.requested_metrics) == ["a.", "b.", "c.", "d."]
    assert answer.push_interval.total_seconds() == 5
    assert (answer.telemetry_max_bytes, answer.delta_temporality) == (1 << 20, True)
    assert answer.accepted_compression_types == (4, 3, 1, 2)
    subscribe(client, "all", metrics="*")
    assert ask(client, answer.client_instance_id).requested_metrics == ("*",)


def test_patterns_that_take_long_match_no_client_and_stall_nobody(cluster: EmbeddedCluster, client: RawClient) -> None:
    long = "|".join(["raw"] * 8_000)
    for number in range(5):
        subscribe(client, f"long-{number}", metrics=f"x{number}.", match=f"client_id={long}")
        subscribe(client, f"deep-{number}", metrics=f"y{number}.", match="client_id=((a{60}){60}){60}b")
    subscribe(client, "plain", metrics="a.")
    start = time.monotonic()
    assert ask(client).requested_metrics == ("a.",)
    assert time.monotonic() - start < 20


def test_pattern_that_would_take_long_to_compile_stalls_nobody() -> None:
    """To compile 390 sets of 65,535 characters takes seconds."""
    configs = MetricsConfigs()
    began = time.thread_time()
    sets = "[\x01-\uffff]" * 390
    configs.replace("s", {"match": f"client_id=(?i){sets}"}, dry_run=False)
    assert time.thread_time() - began < 0.5
    with pytest.raises(InvalidConfigError, match="Illegal client matching pattern"):
        configs.replace("s", {"match": "client_id=[a"}, dry_run=False)


def test_changed_subscription_is_told_at_the_next_push(
    cluster: EmbeddedCluster, client: RawClient, clock: ManualClock
) -> None:
    subscribe(client, "s", metrics="a.")
    first = ask(client)
    subscribe(client, "s", metrics="b.")
    assert push(client, first) == 117
    second = ask(client, first.client_instance_id)
    assert (second.error_code, second.requested_metrics) == (0, ("b.",))
    assert second.subscription_id != first.subscription_id
    assert push(client, second) == 89, "as in Kafka: clients spread their first pushes"
    clock.advance(301)
    assert push(client, second) == 0
    subscribe(client, "s", metrics=None)
    assert ask(client, first.client_instance_id).requested_metrics == ()


def test_subscription_has_the_same_id_on_every_node() -> None:
    with EmbeddedCluster(2, client_metrics=ALL) as cluster:
        one, two = (RawClient(address) for address in cluster.bootstrap_servers.split(","))
        with one, two:
            subscription = ask(one)
            assert push(two, subscription) == 0
            assert [pushed.node_id for pushed in cluster.client_metrics()] == [2]


# ---- errors


def test_early_requests_are_throttled(cluster: EmbeddedCluster, client: RawClient, clock: ManualClock) -> None:
    subscribe(client, "s", metrics="a.", interval_ms="1000")
    subscription = ask(client)
    instance = subscription.client_instance_id
    assert ask(client, instance).error_code == 89
    assert push(client, subscription) == 0, "the first push may be early"
    assert push(client, subscription) == 89
    assert ask(client, instance).error_code == 89
    clock.advance(0.99)
    assert push(client, subscription) == 89
    clock.advance(0.02)
    assert push(client, subscription) == 0
    assert push(client, subscription, terminating=True) == 0, "the last push may be early"
    assert len(cluster.client_metrics()) == 3


def test_nothing_is_taken_after_the_last_push(cluster: EmbeddedCluster, client: RawClient) -> None:
    subscription = ask(client)
    assert push(client, subscription, terminating=True) == 0
    assert push(client, subscription, terminating=True) == 42
    assert [pushed.terminating for pushed in cluster.client_metrics()] == [True]


def test_push_that_cannot_be_taken_gets_kafkas_error(cluster: EmbeddedCluster, client: RawClient) -> None:
    subscription = ask(client)
    for instance_id in (None, UUID(int=0), UUID(int=1)):
        assert push(client, subscription, client_instance_id=instance_id) == 42
    assert push(client, subscription, compression_type=5) == 76
    assert ask(client, subscription.client_instance_id).error_code == 0, "after this error a client may ask at once"
    assert push(client, ask(client), bytes((1 << 20) + 1)) == 118
    assert cluster.client_metrics() == []


def test_end_of_the_connection_forgets_the_client(cluster: EmbeddedCluster) -> None:
    with RawClient(cluster.bootstrap_servers) as client:
        subscription = ask(client)
        assert push(client, subscription, terminating=True) == 0
    deadline = time.monotonic() + 10
    while cluster.stats().connections:
        assert time.monotonic() < deadline
    with RawClient(cluster.bootstrap_servers) as client:
        assert push(client, subscription) == 0


def test_injected_error_reaches_the_client(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.fail_next(PUSH, 118)
    subscription = ask(client)
    assert push(client, subscription) == 118
    assert push(client, subscription) == 0


# ---- what arrived


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_read(cluster: EmbeddedCluster, client: RawClient, codec: int) -> None:
    content = encoded(**{"a.total": 3.0, "b": 0.5})
    pack: Any = (bytes, gzip.compress, cramjam.snappy.compress_raw, cramjam.lz4.compress, cramjam.zstd.compress)[codec]
    assert push(client, ask(client), bytes(pack(content)), compression_type=codec) == 0
    (pushed,) = cluster.client_metrics()
    assert pushed.labels == {"transactional_id": "t-1"}
    assert pushed.points == [
        otlp.MetricPoint("a.total", 3.0, {}, "delta", 5, 7),
        otlp.MetricPoint("b", 0.5, {}, "gauge", 5, 7),
    ]
    assert (pushed.value("b"), pushed.value("b", topic="t"), pushed.value("c")) == (0.5, None, None)


@pytest.mark.parametrize("codec", range(1, 5))
def test_push_that_becomes_huge_is_no_metrics(cluster: EmbeddedCluster, client: RawClient, codec: int) -> None:
    bomb = bytes(20 << 20)
    pack: Any = (bytes, gzip.compress, cramjam.snappy.compress_raw, cramjam.lz4.compress, cramjam.zstd.compress)[codec]
    packed = bytes(pack(bomb))
    taken = push(client, ask(client), packed, compression_type=codec)
    assert taken == 0
    (pushed,) = cluster.client_metrics()
    assert pushed.error is not None
    assert pushed.error.startswith(f"a push of client 'raw', {pushed.client_instance_id}: ")
    assert (pushed.labels, pushed.points) == ({}, [])


@pytest.mark.parametrize(
    "damaged",
    [b"\x0a", b"\x0a\x05\x12", b"\x08\x01\x0a\x02\xff\xff", b"\x0b", b"\xff" * 20, b"\x0a\x02\x08\x01" * 2 + b"\x0a"],
)
def test_push_that_is_no_protobuf_is_no_metrics(cluster: EmbeddedCluster, client: RawClient, damaged: bytes) -> None:
    assert push(client, ask(client), damaged) == 0
    (pushed,) = cluster.client_metrics()
    assert pushed.error is not None


def test_push_that_cannot_be_read_does_not_hide_the_others(cluster: EmbeddedCluster, client: RawClient) -> None:
    for content in (b"\x0b", encoded(b=0.5)):
        with RawClient(cluster.bootstrap_servers) as other:
            assert push(other, ask(other), content) == 0
    first, second = cluster.client_metrics()
    assert (first.error is None, first.points, second.error, second.value("b")) == (False, [], None, 0.5)
    assert cluster.wait_for_client_metrics() == [second], "a push that can be read"
    assert cluster.wait_for_client_metrics(where=lambda pushed: pushed.error) == [first]
    with pytest.raises(TimeoutError, match=r"1 of 2 pushes .* of 2 in all; a push of client 'raw', .*wire type"):
        cluster.wait_for_client_metrics(2, timeout=0.01)


def test_points_are_read_as_google_reads_them() -> None:
    data = metrics_data()
    resource = data.resource_metrics.add()
    for key, value in (("text", "a"), ("int", -5), ("double", 0.5), ("bool", True)):
        setattr(resource.resource.attributes.add(key=key).value, f"{key if key != 'text' else 'string'}_value", value)
    scope = resource.scope_metrics.add()
    gauge = scope.metrics.add(name="g", unit="skipped").gauge.data_points
    gauge.add(as_int=-7, time_unix_nano=2**63).attributes.add(key="k").value.string_value = "v"
    total = scope.metrics.add(name="s").sum
    total.temporality, total.is_monotonic = 2, True
    total.data_points.add(as_double=1.5, start_time_unix_nano=1)
    scope.metrics.add(name="h").histogram.data_points.add()
    read = otlp.decode(data.SerializeToString())
    assert read.labels == {"text": "a", "int": -5, "double": 0.5, "bool": True}
    assert read.points == [
        otlp.MetricPoint("g", -7, {"k": "v"}, "gauge", 0, 2**63),
        otlp.MetricPoint("s", 1.5, {}, "sum", 1, 0),
    ]


def test_fields_without_end_are_no_metrics() -> None:
    with pytest.raises(CorruptMessageError, match="fields"):
        otlp.decode(b"\x10\x01" * (otlp.MOST_FIELDS + 1))


def test_wait_says_how_many_came(cluster: EmbeddedCluster, client: RawClient) -> None:
    push(client, ask(client))
    with pytest.raises(TimeoutError, match=r"0 of 1 pushes .* of 1 in all"):
        cluster.wait_for_client_metrics(timeout=0.01, where=lambda pushed: pushed.points)


# ---- bounds


def test_cluster_keeps_the_last_pushes_within_bounds() -> None:
    kept = arrived.Arrived()
    for number in range(100):
        kept.add(arrived.Push(UUID(int=number), None, 1, 0, False, 0, bytes(1 << 20)))
    pushes, count = kept.since(0)
    assert ([push.client_instance_id.int for push in pushes], count) == (list(range(36, 100)), 100)
    assert [push.client_instance_id.int for push in kept.since(98)[0]] == [98, 99]
    for number in range(arrived.MOST_PUSHES + 5):
        kept.add(arrived.Push(UUID(int=number), None, 1, 0, False, 0, b""))
    assert len(kept.since(0)[0]) == arrived.MOST_PUSHES
    for _ in range(arrived.MOST_PUSHES):
        kept.add(arrived.Push(UUID(int=7), "x" * 32_767, 1, 0, False, 0, b""))
    assert len(kept.since(0)[0]) == arrived.MOST_BYTES // 32_767, "the ids of clients count, too"


def test_node_remembers_so_many_clients_and_forgets_those_that_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "MOST_CLIENTS", 50)
    clock = ManualClock()
    clients = manager.ClientMetricsManager(1, MetricsConfigs(), clock, 100, arrived.Arrived())
    peer = Peer()

    def get(number: int) -> int:
        request = m.build_request(GET, 0, client_instance_id=UUID(int=number))
        return int(finish(clients.subscribe(request, None, peer)).get("error_code", 0))

    assert [get(number) for number in range(2, 62)] == [0] * 60
    assert len(clients._clients) == 50
    assert (get(61), get(2)) == (89, 0), "61 is known, 2 was forgotten"
    clock.advance(901)
    assert get(61) == 0
    clients.disconnected(peer)
    assert (len(clients._of_peers), len(clients._clients)) == (0, 49)
