"""A call that only another client has is an error that says what to use, and probing finds nothing."""

from __future__ import annotations

import asyncio
import inspect
import socket
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat import aiokafka, confluent, kafka_python
from kafkabuf.errors import (
    ConfigError,
    IllegalStateError,
    InvalidTopicError,
    KafkaError,
    RecordTooLargeError,
    TimeoutError,
)
from kafkabuf.hints import FUTURE, PRODUCER
from kafkabuf.network import connections
from kafkabuf.producer import KafkaProducer
from rigs.producer import PATIENCE, Rig
from tests.network.test_reconnect import closed_port


@pytest.mark.parametrize("name", FUTURE)
def test_a_future_hints_at_its_own_methods(name: str) -> None:
    future: Any = Rig().send()
    assert not hasattr(future, name)
    assert not hasattr(type(future), name)
    with pytest.raises(AttributeError, match=FUTURE[name].partition("(")[0]):
        getattr(future, name)


@pytest.mark.parametrize("name", PRODUCER)
def test_a_producer_hints_at_its_own_methods(name: str) -> None:
    with KafkaProducer(bootstrap_servers="127.0.0.1:9") as producer:
        assert not hasattr(producer, name)
        assert not hasattr(KafkaProducer, name)
        with pytest.raises(AttributeError, match=PRODUCER[name].partition("(")[0]):
            getattr(producer, name)


def test_an_awaited_future_hints_at_the_producer_for_loops_and_is_no_awaitable() -> None:
    with EmbeddedCluster() as cluster:
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            own = producer.send("t", b"v")
            face = kafka_python.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
            theirs = face.send("t", b"v")
            for future, wait in ((own, "result"), (theirs, "get")):
                assert not inspect.isawaitable(future)
                assert not isinstance(future, Awaitable)

                async def wrong(future: Any = future) -> None:
                    await future

                with pytest.raises(TypeError, match=rf"AIOKafkaProducer.*{wait}\(\)"):
                    asyncio.run(wrong())
            face.close()


def test_a_second_start_says_one_producer_a_loop() -> None:
    async def twice() -> None:
        async with AIOKafkaProducer(bootstrap_servers="127.0.0.1:9", check=False) as producer:
            await producer.start()

    with pytest.raises(IllegalStateError, match="one producer for each loop"):
        asyncio.run(twice())


def test_a_transaction_that_was_not_prepared_says_what_to_call() -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="t") as producer:
            for call in (producer.begin_transaction, lambda: producer.send("t", b"v")):
                with pytest.raises(IllegalStateError, match=r"call init_transactions\(\)"):
                    call()


@pytest.mark.parametrize("servers", ["http://localhost:9092", "https://kafka.example.com", "HTTP://a:1,b:2"])
def test_a_url_is_no_bootstrap_server(servers: str) -> None:
    with pytest.raises(ConfigError, match=r"takes no URL.*host:port of a listener"):
        KafkaProducer(bootstrap_servers=servers)


def test_compat_aiokafka_says_what_takes_the_place_of_its_client() -> None:
    producer: Any = aiokafka.AIOKafkaProducer
    with pytest.raises(AttributeError, match="partitions_for"):
        _ = producer.client
    assert not hasattr(producer, "client")


def test_a_record_above_the_topics_limit_names_size_and_setting() -> None:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("small", 1, configs={"max.message.bytes": 1000})
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            future = producer.send("small", b"x" * 5000)
            with pytest.raises(
                RecordTooLargeError, match=r"needs 50\d\d bytes.*max\.message\.bytes of topic 'small'"
            ) as raised:
                future.result(60)
            assert f"--bootstrap-server {cluster.bootstrap_servers.split(',')[0]} --describe" in str(raised.value)
            assert "--entity-name small" in str(raised.value)


def test_a_time_out_without_any_answer_names_the_check() -> None:
    host, port = closed_port()
    with KafkaProducer(bootstrap_servers=f"{host}:{port}", max_block_ms=300) as producer:
        with pytest.raises(TimeoutError, match="check=True"):
            producer.send("t", b"v")


def test_a_port_that_never_answers_is_warned_of_within_five_seconds() -> None:
    """A program that has not set up logging reads the warning on stderr, before any time-out."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        script = f"""
import kafkabuf, kafkabuf.network.connections as connections
connections.SILENCE = 0.2  # of real time, in this process
kafkabuf.KafkaProducer(bootstrap_servers="{address}").send("t", b"v")
"""
        # The process waits for a minute; the test ends it with the first line that it writes.
        with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            process.kill()
    assert f"bootstrap server {address} has not answered" in line
    assert "security.protocol=PLAINTEXT" in line
    assert connections.SILENCE < 5


@pytest.mark.parametrize("kind", [KafkaProducer, AIOKafkaProducer])
@pytest.mark.parametrize("wrong", [{"acks": 7}, {"no_setting": 1}, {"linger_ms": "x"}])
def test_a_traceback_of_a_wrong_setting_has_two_frames_of_ours(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        kind(bootstrap_servers="127.0.0.1:9", **wrong)
    assert len(traceback.extract_tb(raised.value.__traceback__)) <= 3


@pytest.fixture(scope="module")
def local() -> Iterator[KafkaProducer]:
    with EmbeddedCluster(brokers=1) as cluster, KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("t", b"v").result(PATIENCE)
        yield producer


WRONG: list[dict[str, Any]] = [
    {"topic": 5},
    {"topic": "no name"},
    {"value": "text"},
    {"key": 5},
    {"headers": [("name", "text")]},
    {"headers": 5},
    {"partition": "x"},
    {"partition": 99},
    {"timestamp_ms": 1.5},
    {"timestamp_ms": -1},
    {"value": bytes(2_000_000)},
    {"opaque": 5},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: "-".join(wrong))
def test_a_traceback_of_a_wrong_argument_has_one_frame_of_ours(local: KafkaProducer, wrong: dict[str, Any]) -> None:
    by_name: dict[str, Any] = {"topic": "t", "value": b"v"} | wrong
    with pytest.raises(KafkaError) as quick:
        local.send(**by_name)
    names = ("topic", "value", "key", "headers", "partition", "timestamp_ms", "callback", "opaque")
    with pytest.raises(KafkaError) as by_place:
        local.send(*(by_name.get(name) for name in names))  # type: ignore[arg-type]
    for raised in (quick, by_place):
        assert len(traceback.extract_tb(raised.value.__traceback__)) == 2


def send_with(face: str, servers: str, record: tuple[Any, ...]) -> None:
    async def send(kind: Any) -> None:
        async with kind(bootstrap_servers=servers) as producer:
            await producer.send(*record)

    if face == "confluent":
        confluent.Producer({"bootstrap.servers": servers}).produce(*record)
    elif face == "kafka_python":
        with kafka_python.KafkaProducer(bootstrap_servers=servers) as producer:
            producer.send(*record)
    else:
        asyncio.run(send(AIOKafkaProducer if face == "aio" else aiokafka.AIOKafkaProducer))


FRAMES = {"aio": 1, "aiokafka": 2, "confluent": 4, "kafka_python": 2}


@pytest.mark.parametrize("face", FRAMES)
@pytest.mark.parametrize("wrong", [("t", 5), ("t", b"v", 5), ("no name", b"v"), ("t", bytes(2_000_000))])
def test_a_face_leaves_few_frames_of_ours(local: KafkaProducer, face: str, wrong: tuple[Any, ...]) -> None:
    servers = ",".join(f"{host}:{port}" for host, port in local.config.bootstrap_servers)

    with pytest.raises((KafkaError, KafkaException, TypeError)) as raised:
        send_with(face, servers, wrong)
    here = Path(__file__).name
    frames = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    behind_the_call = len(frames) - 1 - max(n for n, name in enumerate(frames) if Path(name).name == here)
    assert behind_the_call <= FRAMES[face]


def test_a_traceback_through_the_users_code_keeps_all_frames(local: KafkaProducer) -> None:
    def pairs() -> Iterator[tuple[str, bytes]]:
        yield "name", b"value"
        raise InvalidTopicError("the user's own")

    with pytest.raises(InvalidTopicError) as raised:
        local.send("t", b"v", headers=pairs())
    assert "pairs" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]


def test_an_error_that_is_not_raised_on_purpose_keeps_all_frames(
    local: KafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.topics, "await_topic", lambda name, timeout: 1 // 0)
    with pytest.raises(ZeroDivisionError) as raised:
        local.send("unknown-yet", b"v")
    assert len(traceback.extract_tb(raised.value.__traceback__)) > 3
