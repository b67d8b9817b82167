"""KIP-714 with brokers that mean ill: records go on, close() keeps its time, nothing floods or grows."""

from __future__ import annotations

import logging
import pickle
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster, apis
from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.metrics import telemetry
from kafkabuf.protocol import messages

GET, PUSH = messages.GET_TELEMETRY_SUBSCRIPTIONS, messages.PUSH_TELEMETRY
INSTANCE = UUID(int=5)
GOOD: dict[str, Any] = {
    "client_instance_id": INSTANCE,
    "subscription_id": 7,
    "push_interval": 100,
    "telemetry_max_bytes": 1 << 20,
    "delta_temporality": True,
    "requested_metrics": ("",),
}
RECORDS = 2000  # in turns of the Sender enough for a flood
chance = random.Random(21)


def noise(header: Any, *_: Any) -> tuple[bytes, ...]:
    return (struct.pack(">i", header.correlation_id) + chance.randbytes(chance.randrange(60)),)


def no_bytes(header: Any, *_: Any) -> tuple[bytes, ...]:
    return (struct.pack(">i", header.correlation_id),)


def another_correlation(header: Any, *_: Any) -> tuple[bytes, ...]:
    return (struct.pack(">i", header.correlation_id + 1) + bytes(10),)


def changing(*_: Any) -> dict[str, Any]:
    return {**GOOD, "client_instance_id": UUID(int=chance.getrandbits(128)), "subscription_id": chance.getrandbits(31)}


def with_(**changes: Any) -> Callable[..., dict[str, Any]]:
    return lambda *_: {**GOOD, **changes}


def error(code: int) -> Callable[..., dict[str, Any]]:
    return lambda *_: {"error_code": code}


taken = error(0)
# Handlers for GetTelemetrySubscriptions and PushTelemetry, and what encodes the latter's and the former's responses.
HANDLERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "interval 0": (with_(push_interval=0), taken),
    "interval 1": (with_(push_interval=1), taken),
    "interval -1": (with_(push_interval=-1), taken),
    "interval 2^31-1": (with_(push_interval=2**31 - 1), taken),
    "100,000 names": (with_(requested_metrics=[f"org.apache.kafka.producer.{n}" for n in range(100_000)]), taken),
    "long names": (with_(requested_metrics=["x" * 30_000] * 20), taken),
    "codecs": (with_(accepted_compression_types=[-128, 99, 127] * 1000), taken),
    "nothing fits": (with_(telemetry_max_bytes=-5), taken),
    "another client each time": (changing, error(117)),
    **{f"push error {code}": (with_(), error(code)) for code in (-1, 6, 76, 87, 89, 117, 118, 32_000)},
    **{f"get error {code}": (error(code), taken) for code in (-1, 42, 76, 89, 117, 118, 32_000)},
}
ENCODERS = {"noise": noise, "no bytes": no_bytes, "another correlation": another_correlation}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedCluster]:
    apis.load()
    monkeypatch.setattr(telemetry, "DEFAULT_INTERVAL", 0.2)  # a connection that ends costs five minutes otherwise
    with EmbeddedCluster(client_metrics=True) as started:
        started.create_topic("t")
        yield started


def change(monkeypatch: pytest.MonkeyPatch, key: int, **changes: Any) -> None:
    monkeypatch.setitem(APIS, key, replace(APIS[key], of_peer=False, **changes))


def attack(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, least: int) -> None:
    """Sends until the broker was asked `least` times, and closes."""
    threads = threading.active_count()
    caplog.set_level(logging.INFO, "kafkabuf")
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0)
    start, count = time.monotonic(), 0
    most = 0.0
    while count < RECORDS or len(asked(cluster)) < least:
        began = time.monotonic()
        assert producer.send("t", b"v").result(20).offset == count
        most = max(most, time.monotonic() - began)
        count += 1
        assert time.monotonic() < start + 60, "the broker was asked less often than this test needs"
    began = time.monotonic()
    producer.close(5)
    assert time.monotonic() - began < 5
    assert len(asked(cluster)) <= least + 20 + (time.monotonic() - start) / telemetry.SHORTEST_INTERVAL, "a flood"
    assert threading.active_count() <= threads
    lines = [line for line in caplog.records if line.name.startswith("kafkabuf.") and "broker" not in line.name]
    assert len(lines) < 60, "a flood of the log"
    assert most < 5


def asked(cluster: EmbeddedCluster) -> list[Any]:
    return [*cluster.requests(GET), *cluster.requests(PUSH)]


@pytest.mark.parametrize("name", HANDLERS)
def test_records_flow_whatever_the_broker_wants(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    get, push = HANDLERS[name]
    change(monkeypatch, GET, handler=get)
    change(monkeypatch, PUSH, handler=push)
    attack(cluster, caplog, 1)


@pytest.mark.parametrize("key", [GET, PUSH])
@pytest.mark.parametrize("name", ENCODERS)
def test_records_flow_whatever_the_bytes_of_the_response_are(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, key: int
) -> None:
    change(monkeypatch, GET, handler=with_())
    change(monkeypatch, PUSH, handler=taken)
    change(monkeypatch, key, encode=ENCODERS[name])
    attack(cluster, caplog, 1 if key == GET else 2)


@pytest.mark.parametrize("key", [GET, PUSH])
def test_records_flow_if_each_response_is_a_closed_connection(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key: int
) -> None:
    change(monkeypatch, GET, handler=with_())
    change(monkeypatch, PUSH, handler=taken)
    cluster.drop_next(key, 1_000)
    attack(cluster, caplog, 2)


def test_100000_names_hold_the_senders_thread_for_a_moment() -> None:
    names = [f"org.apache.kafka.producer.{n:06}" for n in range(100_000)]
    response = messages.build_response(GET, 0, **{**GOOD, "requested_metrics": names})
    began = time.thread_time()
    subscription = telemetry._subscription(response)
    assert time.thread_time() - began < 3
    assert len(subscription.prefixes) == telemetry.MOST_PREFIXES


def test_producer_that_pushes_pickles_as_its_configuration(cluster: EmbeddedCluster) -> None:
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.client_instance_id(20)
        with pickle.loads(pickle.dumps(producer)) as other:
            assert other.client_instance_id(20) != producer.client_instance_id(0)
