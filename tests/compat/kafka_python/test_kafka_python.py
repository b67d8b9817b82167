"""compat.kafka_python: a program written for kafka-python runs after a change of one import."""

from __future__ import annotations

import gc
import importlib
import pickle
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import kafka.errors as peers
import pytest
from kafka.partitioner import DefaultPartitioner, Partitioner

from kafkabuf import errors
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.compat.kafka_python import FutureRecordMetadata, KafkaProducer, RecordMetadata
from kafkabuf.compat.kafka_python import settings as kafka_python_settings
from kafkabuf.compat.kafka_python.errors import as_peer
from kafkabuf.errors import error_for_code
from kafkabuf.protocol.messages import INIT_PRODUCER_ID, METADATA, PRODUCE
from tests.compat import TOPIC, late_name
from tests.network.test_reconnect import closed_port

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.KafkaError)]
PATIENCE = 20


@pytest.fixture
def new(cluster: EmbeddedCluster) -> Iterator[Callable[..., KafkaProducer]]:
    opened: list[KafkaProducer] = []

    def open_(**configs: Any) -> KafkaProducer:
        opened.append(KafkaProducer(**{"bootstrap_servers": cluster.bootstrap_servers} | configs))
        return opened[-1]

    yield open_
    cluster.clear_faults()
    for producer in opened:
        producer.close(0)


def test_settings_are_those_of_the_installed_version() -> None:
    here, there = kafka_python_settings.DEFAULTS, kafka.KafkaProducer.DEFAULT_CONFIG
    assert here.keys() >= there.keys()
    of_version_2 = {"buffer_memory", "api_version_auto_timeout_ms", "sock_chunk_bytes", "sock_chunk_buffer_count"}
    assert here.keys() - there.keys() == of_version_2
    objects = {"partitioner", "kafka_client"}
    assert {name: here[name] for name in there.keys() - objects} == {
        name: value for name, value in there.items() if name not in objects
    }
    assert KafkaProducer.DEFAULT_CONFIG is here


def test_a_record_ends_as_kafka_pythons_metadata(new: Callable[..., KafkaProducer]) -> None:
    producer = new()
    future = producer.send(TOPIC, b"value", b"key", [("größe", b"12"), ("n", b"")], 3, 1_600_000_000_000)
    metadata: Any = future.get(timeout=PATIENCE)
    where = kafka.TopicPartition(TOPIC, 3)
    assert metadata == (TOPIC, 3, where, metadata.offset, 1_600_000_000_000, None, 3, 5, 10)
    assert metadata._fields == kafka.producer.future.RecordMetadata._fields
    assert (metadata.topic_partition.topic, metadata.topic_partition.partition) == where
    assert future.is_done
    assert future.succeeded()
    assert not future.failed()
    assert not future.retriable()
    assert (future.value, future.exception) == (metadata, None)
    plain: Any = producer.send(TOPIC, value=None, key=b"k", partition=3).get(PATIENCE)
    assert (plain.offset, plain.serialized_value_size, plain.serialized_header_size) == (metadata.offset + 1, -1, -1)


def test_callbacks_get_their_arguments_first_and_run_also_when_added_late(new: Callable[..., KafkaProducer]) -> None:
    seen: list[Any] = []
    done = threading.Event()
    future = new(linger_ms=50).send(TOPIC, b"v", partition=0)
    returned = future.add_callback(lambda *args, **more: seen.append((args, more)), 1, more=2)
    assert returned is future.add_errback(seen.append) is future
    future.add_callback(lambda metadata: done.set())
    assert done.wait(PATIENCE)
    metadata = future.get(PATIENCE)
    assert seen == [((1, metadata), {"more": 2})]
    future.add_both(lambda outcome: seen.append(outcome)).add_errback(seen.append)
    assert seen[1:] == [metadata]


def test_a_failed_record_calls_its_errbacks_with_kafka_pythons_error(
    new: Callable[..., KafkaProducer], cluster: EmbeddedCluster
) -> None:
    cluster.fail_next(PRODUCE, errors.RecordListTooLargeError.code)
    seen: list[Any] = []
    future = (
        new()
        .send(TOPIC, b"v", partition=0)
        .add_errback(
            seen.append,
        )
        .add_callback(seen.append)
    )
    with pytest.raises(peers.RecordListTooLargeError) as raised:
        future.get(PATIENCE)
    assert isinstance(raised.value, errors.RecordListTooLargeError)
    assert future.failed()
    assert not future.succeeded()
    assert future.value is None
    assert isinstance(future.exception, peers.RecordListTooLargeError)
    assert [type(error) for error in seen] == [type(raised.value)]


def test_a_time_out_of_get_is_kafka_pythons(new: Callable[..., KafkaProducer], cluster: EmbeddedCluster) -> None:
    cluster.delay_next(PRODUCE, 3)
    future = new().send(TOPIC, b"v", partition=0)
    with pytest.raises(peers.KafkaTimeoutError):
        future.get(timeout=0.05)
    assert not future.is_done
    assert (future.value, future.exception) == (None, None)
    cluster.clear_faults()


def test_a_topic_that_the_user_may_not_see_fails_the_future(
    new: Callable[..., KafkaProducer], cluster: EmbeddedCluster
) -> None:
    producer = new()
    cluster.fail_next(METADATA, errors.TopicAuthorizationError.code, times=100, topic="secret")
    seen: list[Any] = []
    future = producer.send("secret", b"v").add_errback(seen.append)
    assert future.is_done
    with pytest.raises(peers.TopicAuthorizationFailedError):
        future.get()
    assert isinstance(seen[0], peers.TopicAuthorizationFailedError)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ValueError),
        ({"value": "text"}, TypeError),
        ({"topic": b"orders", "value": b"v"}, TypeError),
        ({"topic": "a b", "value": b"v"}, ValueError),
        ({"value": b"v", "partition": "0"}, TypeError),
        ({"value": b"v", "partition": 1.5}, ValueError),
        ({"value": b"v", "timestamp_ms": 1.5}, TypeError),
        ({"value": b"v", "timestamp_ms": True}, TypeError),
        ({"value": b"v", "headers": {"k": b"v"}}, TypeError),
        ({"value": b"v", "headers": [("k", None)]}, TypeError),
        ({"value": b"v", "headers": [("k", 1)]}, TypeError),
        ({"value": b"v", "partition": 99}, ValueError),
        ({"value": b"v", "partition": -1}, ValueError),
        ({"value": b"x" * 2_000_000}, peers.MessageSizeTooLargeError),
    ],
)
def test_send_raises_as_kafka_python(
    new: Callable[..., KafkaProducer], cluster: EmbeddedCluster, arguments: dict[str, Any], expected: type[Exception]
) -> None:
    peer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=5000)
    try:
        for producer in (new(), peer):
            with pytest.raises(expected):
                producer.send(**({"topic": TOPIC} | arguments))
    finally:
        peer.close()


def test_a_topic_that_is_no_text_is_a_type_error(new: Callable[..., KafkaProducer]) -> None:
    with pytest.raises(TypeError):
        new().partitions_for(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "name", "text"),
    [
        ("kafka_python", "KafkaConsumer", "import it from kafka"),
        ("aiokafka", "AIOKafkaConsumer", "import it from aiokafka"),
        ("confluent", "SerializingProducer", "key_serializer and value_serializer"),
        ("confluent", "AIOProducer", "kafkabuf.aio.AIOKafkaProducer"),
        ("confluent", "Consumer", "import it from confluent_kafka"),
    ],
)
def test_an_import_of_what_a_face_lacks_names_what_to_use(module: str, name: str, text: str) -> None:
    with pytest.raises(ImportError, match=text):
        exec(f"from kafkabuf.compat.{module} import {name}", {})
    assert not hasattr(importlib.import_module(f"kafkabuf.compat.{module}"), "no_name_of_any_client")


def test_closed_producer_raises_illegal_state(new: Callable[..., KafkaProducer]) -> None:
    producer = new()
    producer.close(timeout=1)
    producer.close()
    with pytest.raises(peers.IllegalStateError):
        producer.send(TOPIC, b"v")

    class Unopened(KafkaProducer):
        def __init__(self) -> None: ...

    with pytest.raises(peers.IllegalStateError):
        Unopened().send(TOPIC, b"v")


def test_a_future_comes_from_send_only() -> None:
    with pytest.raises(TypeError):
        FutureRecordMetadata()


def test_a_chained_future_gets_the_outcome(new: Callable[..., KafkaProducer], cluster: EmbeddedCluster) -> None:
    producer = new()
    behind = kafka.future.Future()
    future = producer.send(TOPIC, b"v", partition=0).chain(behind)
    assert future.get(PATIENCE) == behind.value
    cluster.fail_next(PRODUCE, errors.RecordListTooLargeError.code)
    behind = kafka.future.Future()
    with pytest.raises(peers.RecordListTooLargeError):
        producer.send(TOPIC, b"v", partition=0).chain(behind).get(PATIENCE)
    assert isinstance(behind.exception, peers.RecordListTooLargeError)


@pytest.mark.parametrize("linger_ms", [0, 100])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_callback_that_raises_stops_no_other(new: Callable[..., KafkaProducer], linger_ms: int) -> None:
    seen: list[Any] = []
    future = new(linger_ms=linger_ms).send(TOPIC, b"v")
    if not linger_ms:
        future.get(PATIENCE)
    future.add_callback(lambda metadata: 1 / 0).add_callback(seen.append)
    assert future.get(PATIENCE) == seen[0]


def test_serializers_raise_their_own_errors(new: Callable[..., KafkaProducer]) -> None:
    with pytest.raises(ZeroDivisionError):
        new(value_serializer=lambda data: 1 // data).send(TOPIC, 0)


# ---- settings --------------------------------------------------------------------------------------------------------


def own_settings(**configs: Any) -> dict[str, Any]:
    return kafka_python_settings.settings_of(kafka_python_settings.complete(configs), configs)


@pytest.mark.parametrize("servers", ["a,b:1", ["a", "b:1"], ["a:9092", "b:1"], " a , b:1 ,"])
def test_servers_may_be_a_list_and_leave_out_the_port(servers: Any) -> None:
    assert own_settings(bootstrap_servers=servers)["bootstrap_servers"] == "a:9092,b:1"


def test_none_means_the_default() -> None:
    given = dict.fromkeys(kafka_python_settings.DEFAULTS)
    assert own_settings(**given) == own_settings()


def test_tls_and_passwords_are_read_only_where_they_are_in_use() -> None:
    found = own_settings(ssl_certfile="/nowhere", sasl_plain_username="user", ssl_context=ssl.create_default_context())
    assert not [name for name in found if name.startswith(("ssl_", "sasl_"))]


@pytest.mark.parametrize("given", [("2.5.1", (2, 5, 1)), ((2, 5), (2, 5)), ("auto", None), (None, None)])
def test_api_version_may_be_text(given: tuple[Any, Any]) -> None:
    assert kafka_python_settings.complete({"api_version": given[0]})["api_version"] == given[1]


def test_config_has_the_settings_in_use(new: Callable[..., KafkaProducer]) -> None:
    assert (new(acks="all").config["acks"], new().config["enable_idempotence"]) == (-1, True)
    config = new(acks=1, linger_ms=7).config
    assert (config["acks"], config["enable_idempotence"], config["linger_ms"]) == (1, False, 7)
    assert config["client_id"].startswith("kafkabuf")


def test_addresses_of_ipv6_get_a_port() -> None:
    found = own_settings(bootstrap_servers=["::1", "[::1]", "[::1]:1", "SSL://h"])["bootstrap_servers"]
    assert found == "[::1]:9092,[::1]:9092,[::1]:1,SSL://h:9092"


def test_settings_have_their_meaning(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("CERT")
    (tmp_path / "key.pem").write_text("KEY")

    found = own_settings(
        acks="all",
        retries=float("inf"),
        compression_type=None,
        send_buffer_bytes=None,
        receive_buffer_bytes=4096,
        ssl_cafile="ca.pem",
        ssl_certfile=str(tmp_path / "cert.pem"),
        ssl_keyfile=str(tmp_path / "key.pem"),
        ssl_password="secret",
        ssl_check_hostname=False,
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_plain_username="user",
        sasl_plain_password="word",
    )
    expected = {
        "acks": "all",
        "retries": 2**31 - 1,
        "compression_type": "none",
        "send_buffer_bytes": -1,
        "receive_buffer_bytes": 4096,
        "ssl_truststore_location": "ca.pem",
        "ssl_keystore_certificate_chain": "CERT",
        "ssl_keystore_key": "KEY",
        "ssl_key_password": "secret",
        "ssl_endpoint_identification_algorithm": "",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "user",
        "sasl_password": "word",
        "linger_ms": 0,
        "reconnect_backoff_max_ms": 30_000,
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ({"bootstrap_server": "h"}, "no setting bootstrap_server"),
        ({"bootstrap_server": None}, "no setting bootstrap_server"),
        ({"proxy_url": "socks5://h"}, "without a proxy"),
        ({"selector": object}, "polls its sockets itself"),
        ({"socket_options": [(6, 1, 0)]}, "no other options"),
        ({"allow_auto_create_topics": False}, "auto.create.topics.enable"),
        ({"ssl_crlfile": "f"}, "ssl_context"),
        ({"compression_type": "brotli"}, r"compression\.type"),
        ({"security_protocol": "SSL", "ssl_certfile": "/nowhere"}, "cannot be read"),
        ({"transactional_id": "t", "enable_idempotence": False}, "enable.idempotence"),
        ({"enable_idempotence": True, "acks": 1}, "acks"),
    ],
)
def test_a_wrong_setting_is_named(configs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        KafkaProducer(bootstrap_servers="127.0.0.1:1", api_version=(2, 5), **configs)
    assert isinstance(raised.value, peers.KafkaConfigurationError)


@pytest.mark.parametrize(
    "configs", [{"acks": 1}, {"acks": 0}, {"retries": 0}, {"max_in_flight_requests_per_connection": 9}]
)
def test_settings_that_contradict_idempotence_switch_it_off(
    new: Callable[..., KafkaProducer], cluster: EmbeddedCluster, configs: dict[str, Any]
) -> None:
    cluster.clear_requests()
    new(**configs).send(TOPIC, b"v", partition=1).get(PATIENCE)
    assert not cluster.requests(INIT_PRODUCER_ID)


def test_fractions_of_a_millisecond_are_rounded_up(new: Callable[..., KafkaProducer]) -> None:
    times = {"linger_ms": 0.5, "request_timeout_ms": 999.1, "delivery_timeout_ms": 1000.2, "max_block_ms": 5000.0}
    producer = new(**times, retry_backoff_ms=0.0)
    assert {name: producer.config[name] for name in times} == times
    config = producer._producer.config
    found = config.linger_ms, config.request_timeout_ms, config.delivery_timeout_ms, config.max_block_ms
    assert (found, config.retry_backoff_ms) == ((1, 1000, 1001, 5000), 0)
    producer.send(TOPIC, b"v").get(PATIENCE)


@pytest.mark.parametrize("wrong", [-0.5, float("inf"), float("nan")])
def test_a_time_that_is_no_time_is_refused(wrong: float) -> None:
    with pytest.raises(peers.KafkaConfigurationError, match="linger"):
        KafkaProducer(bootstrap_servers="127.0.0.1:1", api_version=(2, 5), linger_ms=wrong)


@pytest.mark.parametrize("name", ["linger_ms", "request_timeout_ms", "delivery_timeout_ms", "bootstrap_timeout_ms"])
@pytest.mark.parametrize("wrong", ["soon", True, [5]])
def test_a_time_that_is_no_number_is_refused_by_its_name(name: str, wrong: Any) -> None:
    with pytest.raises(peers.KafkaConfigurationError, match=f"{name}: expected a number of milliseconds"):
        KafkaProducer(bootstrap_servers="127.0.0.1:1", api_version=(2, 5), **{name: wrong})


def test_times_of_the_environment_are_numbers_in_text(new: Callable[..., KafkaProducer]) -> None:
    producer = new(linger_ms="5", request_timeout_ms="999.1", delivery_timeout_ms="5000", bootstrap_timeout_ms="20000")
    config = producer._producer.config
    assert (config.linger_ms, config.request_timeout_ms, config.delivery_timeout_ms) == (5, 1000, 5000)
    producer.send(TOPIC, b"v").get(PATIENCE)


def test_an_early_limit_of_delivery_shortens_requests_too(new: Callable[..., KafkaProducer]) -> None:
    new(delivery_timeout_ms=5000).send(TOPIC, b"v").get(PATIENCE)


def test_without_api_version_the_constructor_waits_for_a_broker() -> None:
    with pytest.raises(peers.KafkaTimeoutError, match="127"):
        KafkaProducer(bootstrap_servers="{}:{}".format(*closed_port()), bootstrap_timeout_ms=200)


def test_the_constructor_waits_for_a_name_that_cannot_be_resolved_yet(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = late_name.resolve_after(monkeypatch, failures=2)
    port = cluster.bootstrap_servers.rpartition(":")[2]
    with KafkaProducer(bootstrap_servers=f"{late_name.NAME}:{port}") as producer:
        assert producer.send(TOPIC, b"v").get(PATIENCE).topic == TOPIC
    assert len(lookups) == 3


def test_a_name_that_is_never_resolved_is_kafka_pythons_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    late_name.resolve_after(monkeypatch, failures=1000)
    with pytest.raises(peers.KafkaTimeoutError, match=late_name.NAME):
        KafkaProducer(bootstrap_servers=late_name.NAME, bootstrap_timeout_ms=200)


def test_wrong_credentials_end_the_wait_at_once() -> None:
    with EmbeddedCluster(security=Security(users={"alice": "right"})) as cluster:
        with pytest.raises(peers.KafkaTimeoutError) as raised:
            KafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers,
                bootstrap_timeout_ms=60_000,
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="PLAIN",
                sasl_plain_username="alice",
                sasl_plain_password="wrong",
            )
    assert isinstance(raised.value, errors.SaslAuthenticationError)


def test_with_api_version_the_constructor_does_not_wait(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(
        bootstrap_servers="{}:{}".format(*closed_port()), api_version=(2, 5), max_block_ms=100
    ) as producer:
        assert not producer.bootstrap_connected()
        with pytest.raises(peers.KafkaTimeoutError):
            producer.send(TOPIC, b"v")
    with KafkaProducer(bootstrap_servers=[cluster.bootstrap_servers]) as producer:
        assert producer.bootstrap_connected()
        assert producer.max_usable_produce_magic(producer.config["api_version"]) == 2


def test_ssl_context_is_the_users() -> None:
    context = ssl.create_default_context()
    producer = KafkaProducer(
        bootstrap_servers="127.0.0.1:1",
        api_version=(2, 5),
        security_protocol="SSL",
        ssl_context=context,
        ssl_cafile="x",
    )
    assert producer._producer._ssl_context is context
    producer.close(0)


class TokenProvider:
    def token(self) -> str:
        return "alice-token"


class ExtendingProvider(TokenProvider):
    def extensions(self) -> dict[str, str]:
        return {"pool": "p1"}


@pytest.mark.parametrize(("provider", "extensions"), [(TokenProvider(), {}), (ExtendingProvider(), {"pool": "p1"})])
def test_token_provider_is_kafka_pythons(provider: TokenProvider, extensions: dict[str, str]) -> None:
    security = Security(oauth_validator=lambda token: token.split("-")[0])
    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    provided = own_settings(**sasl, sasl_oauth_token_provider=provider)["sasl_oauthbearer_token_provider"]()
    assert provided == ("alice-token", None, extensions)
    with EmbeddedCluster(security=security) as cluster:
        servers = cluster.bootstrap_servers
        with KafkaProducer(bootstrap_servers=servers, **sasl, sasl_oauth_token_provider=provider) as producer:
            assert producer.send("secure", b"v").get(PATIENCE).offset == 0


# ---- serializers, partitioners ---------------------------------------------------------------------------------------


class Upper(kafka.serializer.Serializer):  # type: ignore[misc]
    def serialize(self, topic: str, headers: Any, data: Any) -> Any:
        return None if data is None else data.upper().encode()


def values_in(cluster: EmbeddedCluster, topic: str, partition: int) -> list[Any]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, consumer_timeout_ms=PATIENCE * 1000)
    where = kafka.TopicPartition(topic, partition)
    consumer.assign([where])
    consumer.seek_to_beginning()
    end = consumer.end_offsets([where])[where]
    found: list[Any] = []
    while len(found) < end:
        found.append(next(consumer))
    consumer.close()
    return [(record.key, record.value) for record in found]


def test_serializers_of_both_kinds_are_called(new: Callable[..., KafkaProducer], cluster: EmbeddedCluster) -> None:
    cluster.create_topic("serialized", 1)
    producer = new(key_serializer=str.encode, value_serializer=Upper())
    producer.send("serialized", "value", key="key").get(PATIENCE)
    assert values_in(cluster, "serialized", 0) == [(b"key", b"VALUE")]


def test_default_partitioner_keeps_keys_where_kafka_python_has_them(new: Callable[..., KafkaProducer]) -> None:
    keys = [f"key-{n}".encode() for n in range(50)]
    producer = new()
    expected = [kafka.partitioner.murmur2(key) % 2**31 % 4 for key in keys]
    assert [future.get(PATIENCE).partition for future in [producer.send(TOPIC, b"v", key) for key in keys]] == expected
    assert kafka_python_settings.partitioner_in({"partitioner": DefaultPartitioner()}) is None


class Closing(Upper):
    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("with_partitioner", [False, True])
def test_close_closes_the_serializers_once(new: Callable[..., KafkaProducer], with_partitioner: bool) -> None:
    serializer = Closing()
    producer = new(value_serializer=serializer, **({"partitioner": Noting()} if with_partitioner else {}))
    producer.close()
    producer.close()
    assert serializer.closed == 1


class Noting(Partitioner):  # type: ignore[misc]
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: Any) -> int:
        everywhere = sorted(cluster.partitions_for_topic(topic))
        assert everywhere == sorted(cluster.available_partitions_for_topic(topic))
        assert topic in cluster.topics()
        self.calls.append((key, key_bytes, value, value_bytes))
        return int(everywhere[-1])


def test_a_partitioner_of_the_user_sees_key_and_value_before_and_after(new: Callable[..., KafkaProducer]) -> None:
    mine = Noting()
    producer = new(partitioner=mine, key_serializer=str.encode, value_serializer=Upper())
    assert producer.send(TOPIC, "v", key="k").get(PATIENCE).partition == 3
    assert producer.send(TOPIC, "v", key="k", partition=1).get(PATIENCE).partition == 1
    assert mine.calls == [("k", b"k", "v", b"V")]


class Older:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def partition(self, topic: str, key: Any, cluster: Any) -> int:
        self.calls.append((topic, key, sorted(cluster.partitions_for_topic(topic))))
        return 2


class TakesAll:
    def partition(self, *arguments: Any) -> int:
        return len(arguments) - 3


class TakesAllInVersion3(Partitioner):  # type: ignore[misc]
    def partition(self, *arguments: Any) -> int:
        return len(arguments) - 3


class WithoutBase:
    partition = Noting.partition

    def __init__(self) -> None:
        self.calls: list[Any] = []


def test_a_partitioner_of_the_older_form_gets_topic_key_and_cluster(new: Callable[..., KafkaProducer]) -> None:
    mine = Older()
    producer = new(partitioner=mine, key_serializer=str.encode)
    assert producer.send(TOPIC, b"v", key="k").get(PATIENCE).partition == 2
    assert mine.calls == [(TOPIC, b"k", [0, 1, 2, 3])]


@pytest.mark.parametrize(("mine", "partition"), [(TakesAll(), 0), (TakesAllInVersion3(), 3), (WithoutBase(), 3)])
def test_the_base_class_and_then_the_arguments_tell_the_form_of_a_partitioner(
    new: Callable[..., KafkaProducer], mine: Any, partition: int
) -> None:
    assert new(partitioner=mine).send(TOPIC, b"v", b"k").get(PATIENCE).partition == partition


def test_a_partitioner_of_version_2_gets_lists_of_numbers(new: Callable[..., KafkaProducer]) -> None:
    calls: list[Any] = []

    def mine(key: Any, everywhere: list[int], available: list[int]) -> int:
        calls.append((key, everywhere, available))
        return 2

    assert new(partitioner=mine).send(TOPIC, b"v", b"k").get(PATIENCE).partition == 2
    assert calls == [(b"k", [0, 1, 2, 3], [0, 1, 2, 3])]


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_partitions_flush_and_metrics_have_kafka_pythons_shapes(new: Callable[..., KafkaProducer]) -> None:
    producer = new(linger_ms=60_000, delivery_timeout_ms=200_000, client_id="mine")
    assert producer.partitions_for(TOPIC) == {0, 1, 2, 3}
    future = producer.send(TOPIC, b"v")
    producer.flush(timeout=PATIENCE)
    assert future.succeeded()
    metrics = producer.metrics()
    assert metrics is not None
    assert metrics["producer-metrics"]["record-send-total"] == 1
    assert repr(producer) == "<KafkaProducer client_id=mine transactional_id=None>"


def test_metrics_may_be_off(new: Callable[..., KafkaProducer]) -> None:
    assert new(metrics_enabled=False).metrics() is None


def test_flush_and_close_end_after_their_time_out(new: Callable[..., KafkaProducer], cluster: EmbeddedCluster) -> None:
    producer = new()
    producer.partitions_for(TOPIC)
    cluster.delay_next(PRODUCE, 5)
    future = producer.send(TOPIC, b"v", partition=2)
    with pytest.raises(peers.KafkaTimeoutError):
        producer.flush(timeout=0.05)
    with pytest.raises(ValueError, match="timeout"):
        producer.flush(timeout=-1)
    producer.close(timeout=0.05)
    assert future.failed()
    assert isinstance(future.exception, peers.KafkaError)


def test_a_topic_that_stays_unknown_is_kafka_pythons_time_out() -> None:
    with EmbeddedCluster(auto_create_topics=False) as without:
        producer = KafkaProducer(bootstrap_servers=without.bootstrap_servers, max_block_ms=200)
        for call in (lambda: producer.send("nowhere", b"v"), lambda: producer.partitions_for("nowhere")):
            with pytest.raises(peers.KafkaTimeoutError, match=r"auto\.create\.topics\.enable") as raised:
                call()
            assert isinstance(raised.value, errors.UnknownTopicOrPartitionError)
            assert isinstance(pickle.loads(pickle.dumps(raised.value)), peers.KafkaTimeoutError)
        producer.close()


def test_a_full_buffer_is_a_time_out(new: Callable[..., KafkaProducer], cluster: EmbeddedCluster) -> None:
    producer = new(buffer_memory=16_384, max_block_ms=100)
    producer.partitions_for(TOPIC)
    cluster.delay_next(PRODUCE, 5)
    producer.send(TOPIC, b"x" * 16_000, partition=0)
    with pytest.raises(peers.KafkaTimeoutError):
        producer.send(TOPIC, b"x" * 16_000, partition=0)


def test_transactions_commit_and_abort(new: Callable[..., KafkaProducer], cluster: EmbeddedCluster) -> None:
    producer = new(transactional_id="tx")
    producer.init_transactions()
    producer.init_transactions()  # as in kafka-python, a second call does nothing
    producer.begin_transaction()
    producer.send(TOPIC, b"v", partition=0).get(PATIENCE)
    producer.send_offsets_to_transaction({kafka.TopicPartition(TOPIC, 0): kafka.OffsetAndMetadata(7, "m", -1)}, "group")
    consumer = kafka.structs.ConsumerGroupMetadata("group", -1, "", None)
    producer.send_offsets_to_transaction({kafka.TopicPartition(TOPIC, 1): kafka.OffsetAndMetadata(8, "", -1)}, consumer)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()
    with pytest.raises(peers.IllegalStateError):
        producer.send(TOPIC, b"v")
    with pytest.raises(peers.IllegalStateError):
        new().begin_transaction()


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_every_code_of_a_broker_is_kafka_pythons_class() -> None:
    for code, peer in peers.kafka_errors.items():
        own = error_for_code(code, "text")
        if type(own) is not errors.UnknownServerError:
            both = as_peer(own)
            expected = peers.KafkaTimeoutError if code == 7 and isinstance(own, errors.TimeoutError) else peer
            assert isinstance(both, expected | peers.KafkaConnectionError), code
            assert isinstance(both, type(own))
            assert (str(both), both.retriable, both.code) == ("text", own.retriable, own.code)


@pytest.mark.parametrize("own", ERRORS)
def test_every_error_of_kafkabuf_can_be_kafka_pythons(own: type[errors.KafkaError]) -> None:
    both = as_peer(own("text"))
    assert isinstance(both, peers.KafkaError)
    assert isinstance(both, own)
    assert str(both) == "text"
    assert {both: 1}[both] == 1


def test_an_error_says_what_its_settings_are_called_here(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.pem")
    with pytest.raises(
        peers.KafkaConfigurationError, match=r"\(ssl\.truststore\.location is ssl_cafile here\)$"
    ) as raised:
        KafkaProducer(bootstrap_servers="127.0.0.1:1", security_protocol="SSL", ssl_cafile=missing)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert str(as_peer(errors.ConfigError("linger.ms and my.sasl.username"))) == "linger.ms and my.sasl.username"


def test_the_protocol_and_the_mechanism_may_be_in_lower_case() -> None:
    with EmbeddedCluster(security=Security(users={"ada": "secret"})) as secured:
        login = {"sasl_plain_username": "ada", "sasl_plain_password": "secret"}
        protocol = {"security_protocol": "sasl_plaintext", "sasl_mechanism": "plain"}
        producer = KafkaProducer(bootstrap_servers=secured.bootstrap_servers, **protocol, **login)
        assert producer.send(TOPIC, b"v").get(PATIENCE).offset == 0
        producer.close()


def test_a_number_of_the_environment_is_a_number_in_text(new: Callable[..., KafkaProducer]) -> None:
    assert new(max_in_flight_requests_per_connection="9").config["enable_idempotence"] is False
    with pytest.raises(peers.KafkaConfigurationError, match="max_in_flight_requests_per_connection: expected a number"):
        new(max_in_flight_requests_per_connection="many")


def test_an_error_survives_a_pickle_and_a_second_translation() -> None:
    error = as_peer(errors.TimeoutError("late"))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == "late"
    assert as_peer(again) is again


def test_without_kafka_python_errors_are_kafkabufs_own() -> None:
    code = (
        "import sys; sys.modules['kafka'] = None\n"
        "from kafkabuf.compat.kafka_python import KafkaProducer\n"
        "from kafkabuf.errors import ConfigError, TimeoutError\n"
        "try: KafkaProducer(bootstrap_servers='127.0.0.1:1', bootstrap_timeout_ms=50)\n"
        "except TimeoutError as error: assert type(error) is TimeoutError\n"
        "else: raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_producer_without_errors_never_imports_kafka_python(cluster: EmbeddedCluster) -> None:
    code = (
        "import sys\n"
        "from kafkabuf.compat.kafka_python import KafkaProducer\n"
        f"with KafkaProducer(bootstrap_servers='{cluster.bootstrap_servers}') as producer:\n"
        f"    producer.send('{TOPIC}', b'v').get(20)\n"
        "assert 'kafka' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_forked_child_sends_with_a_producer_of_its_own(cluster: EmbeddedCluster) -> None:
    code = (
        "import os\n"
        "from kafkabuf.compat.kafka_python import KafkaProducer\n"
        f"producer = KafkaProducer(bootstrap_servers='{cluster.bootstrap_servers}')\n"
        f"offset = producer.send('{TOPIC}', b'v', partition=0).get(20).offset\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        f"    os._exit(producer.send('{TOPIC}', b'v', partition=0).get(20).offset != offset + 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        f"assert producer.send('{TOPIC}', b'v', partition=0).get(20).offset == offset + 2\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_producer_that_is_dropped_ends_its_thread(
    new: Callable[..., KafkaProducer], cluster: EmbeddedCluster
) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    thread = producer._producer._thread
    del producer
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_metadata_is_a_tuple_of_kafka_pythons_fields() -> None:
    assert RecordMetadata._fields == kafka.producer.future.RecordMetadata._fields
