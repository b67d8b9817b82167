"""Each face takes the settings of a file, and says what came of the records that the file held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat.aiokafka import AIOKafkaProducer
from kafkabuf.compat.confluent import Producer
from kafkabuf.compat.kafka_python import KafkaProducer
from kafkabuf.errors import ConfigError
from kafkabuf.spool.recovered import Recovered
from tests.compat import TOPIC
from tests.spool.test_producer import in_child
from tests.waiting import wait_until

Use = Callable[[str, Path, bool], Recovered | None]
LONG_MS = 600_000
SIZE = 1 << 20
_alive: list[object] = []  # a producer that is collected sends its records


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as running:
        running.create_topic(TOPIC)
        yield running


def of_kafka_python(servers: str, path: Path, fills: bool) -> Recovered | None:
    linger = LONG_MS if fills else 0
    producer = KafkaProducer(
        bootstrap_servers=servers, linger_ms=linger, delivery_timeout_ms=2 * LONG_MS, buffer_path=path,
        buffer_memory=SIZE,
    )  # fmt: skip
    if fills:
        _alive.append(producer)
        producer.send(TOPIC, b"left")
    else:
        settle(producer.recovered)
        producer.close()
    return producer.recovered


def of_aiokafka(servers: str, path: Path, fills: bool) -> Recovered | None:
    async def run() -> Recovered | None:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, linger_ms=LONG_MS if fills else 0, enable_idempotence=True, buffer_path=path,
            buffer_memory=SIZE,
        )  # fmt: skip
        await producer.start()
        if fills:
            _alive.append(producer)
            await producer.send(TOPIC, b"left")
        else:
            settle(producer.recovered)
            await producer.stop()
        return producer.recovered

    return asyncio.run(run())


def of_confluent(servers: str, path: Path, fills: bool) -> Recovered | None:
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": LONG_MS if fills else 0, "message.timeout.ms": 2 * LONG_MS,
         "queue.buffering.max.kbytes": 1024, "kafkabuf.buffer.path": str(path)}
    )  # fmt: skip
    if fills:
        _alive.append(producer)
        producer.produce(TOPIC, b"left")
        wait_until(lambda: len(producer._lines) == 0)  # a broker has described the topic
    else:
        settle(producer.recovered)
        producer.close()
    return producer.recovered


def settle(recovered: Recovered | None) -> None:
    assert recovered is not None
    wait_until(lambda: recovered.pending == 0)


@pytest.mark.parametrize("use", [of_kafka_python, of_aiokafka, of_confluent])
def test_record_of_a_killed_process_is_delivered_through_the_same_face(
    cluster: EmbeddedCluster, tmp_path: Path, use: Use
) -> None:
    path = tmp_path / "buffer"
    in_child(lambda: use(cluster.bootstrap_servers, path, True))
    assert cluster.messages(TOPIC) == []
    recovered = use(cluster.bootstrap_servers, path, False)
    assert recovered is not None
    assert (recovered.records.total(), recovered.delivered.total()) == (1, 1)
    assert [message.value for message in cluster.messages(TOPIC)] == [b"left"]


def test_without_a_file_nothing_is_recovered(cluster: EmbeddedCluster) -> None:
    ours = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    theirs = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    assert ours.recovered is theirs.recovered is None
    ours.close()
    theirs.close()


def test_setting_of_the_file_without_a_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"kafkabuf\.buffer\.full is about the file"):
        KafkaProducer(bootstrap_servers="localhost:9", buffer_full="refuse")
    with pytest.raises(ConfigError, match=r"kafkabuf\.buffer\.full is about the file"):
        AIOKafkaProducer(bootstrap_servers="localhost:9", buffer_full="refuse")
    with pytest.raises(KafkaException, match=r"kafkabuf\.buffer\.full is about the file"):
        Producer({"bootstrap.servers": "localhost:9", "kafkabuf.buffer.full": "refuse"})


def test_keyword_that_nobody_knows_is_a_type_error_of_aiokafkas_face() -> None:
    more: dict[str, Any] = {"buffer_pathh": "x"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'buffer_pathh'"):
        AIOKafkaProducer(bootstrap_servers="localhost:9", **more)
