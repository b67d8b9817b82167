"""The decoder of records: batches and message sets of other clients, with every codec, and malformed ones."""

from __future__ import annotations

import asyncio
import gc
import gzip
from collections.abc import Callable, Iterator
from contextlib import suppress

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.log.decoding import Decoder
from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    CorruptMessageError,
    InvalidRecordError,
    KafkaError,
)
from tests.broker.message_support import (
    delete_before,
    producer,
    raw,
)
from tests.broker.raw_client import NOW, batch, message, sized, varint
from tests.effort import effort

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NO_TIME = -1


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3) as running:
        yield running
    gc.collect()


def headers(number: int) -> list[tuple[str, bytes]]:
    return [("h", b"%d" % number), ("h", b"")]


def send_with_confluent(cluster: EmbeddedCluster, topic: str, codec: str) -> None:
    client = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec, "linger.ms": 50}
    )
    for number in range(100):
        value, key = b"value %d" % number * 10, b"key %d" % number
        client.produce(topic, value, key, 0, timestamp=NOW + number, headers=[*headers(number)])
    assert client.flush(20) == 0


def send_with_kafka_python(cluster: EmbeddedCluster, topic: str, codec: str) -> None:
    compression = None if codec == "none" else codec
    servers = cluster.bootstrap_servers
    client = kafka.KafkaProducer(bootstrap_servers=servers, compression_type=compression, linger_ms=50)
    for number in range(100):
        value, key = b"value %d" % number * 10, b"key %d" % number
        client.send(topic, value, key, headers(number), 0, NOW + number)
    client.flush()
    client.close()


def send_with_aiokafka(cluster: EmbeddedCluster, topic: str, codec: str) -> None:
    async def run() -> None:
        servers = cluster.bootstrap_servers
        async with AIOKafkaProducer(bootstrap_servers=servers, compression_type=codec, linger_ms=50) as client:
            for number in range(100):
                value, key = b"value %d" % number * 10, b"key %d" % number
                await client.send(topic, value, key, 0, NOW + number, headers(number))

    asyncio.run(run())


CLIENTS = [
    *((send_with_confluent, codec) for codec in CODECS),
    *((send_with_kafka_python, codec) for codec in ("none", "gzip", "zstd")),
    *((send_with_aiokafka, codec) for codec in ("gzip", "snappy", "lz4", "zstd")),
]


@pytest.mark.parametrize(("send", "codec"), CLIENTS)
def test_records_of_other_clients_are_decoded(
    cluster: EmbeddedCluster, send: Callable[[EmbeddedCluster, str, str], None], codec: str
) -> None:
    topic = f"{send.__name__}-{codec}"
    cluster.create_topic(topic)
    send(cluster, topic, codec)
    found = cluster.wait_for_messages(topic, 100)
    assert found == [
        {
            "topic": topic,
            "partition": 0,
            "offset": number,
            "timestamp": NOW + number,
            "key": b"key %d" % number,
            "value": b"value %d" % number * 10,
            "headers": headers(number),
        }
        for number in range(100)
    ]
    stored = cluster.records(topic, 0)
    assert len(stored) < 100, "batches of several records"
    assert {data[22] & 7 for data in stored} == {CODECS.index(codec)}


def test_message_sets_are_decoded(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("sets")
    plain = message(b"0", key=b"k") + message(None, offset=1, time=NOW + 1) + message(b"", magic=0, offset=2)
    inner = b"".join(message(b"%d" % n, offset=n, time=NOW + 10 + n) for n in range(3))
    wrapper = message(gzip.compress(inner), attributes=1, offset=2, time=NOW + 12)
    with raw(cluster, "sets") as client:
        assert client.produce_v2("sets", plain) == (0, 0)
        assert client.produce_v2("sets", wrapper) == (0, 3)
        assert client.produce("sets", batch([b"new"])).error_code == 0
    found = cluster.wait_for_messages("sets", 7)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == [
        (0, NOW, b"k", b"0"),
        (1, NOW + 1, None, None),
        (2, NO_TIME, None, b""),
        (3, NOW + 10, None, b"0"),
        (4, NOW + 11, None, b"1"),
        (5, NOW + 12, None, b"2"),
        (6, NOW, None, b"new"),
    ]
    with raw(cluster, "sets") as client:
        delete_before(client, "sets", 4)
    assert [record.offset for record in cluster.messages("sets")] == [4, 5, 6]


def test_appended_time_is_the_time_of_each_record() -> None:
    with EmbeddedCluster(clock=ManualClock(wall_ms=NOW)) as cluster:
        cluster.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
        with producer(cluster, linger_ms=50) as client:
            client.send("t", b"a", timestamp_ms=5)
            client.send("t", b"b", timestamp_ms=6)
            client.flush()
        assert [record.timestamp for record in cluster.messages("t")] == [NOW, NOW]


def test_malformed_batch_raises_an_error_of_kafka() -> None:
    good = batch([b"one", b"two"])
    long_field = b"\0" + varint(0) + varint(0) + varint(-1) + varint(50)
    bodies = [varint(9) + b"\0", sized(long_field), sized(b"\0" + b"\xff" * 11), sized(b"\0")]
    damaged = [good[:-1] + b"X", batch([b""], count=2, last_delta=1), *(batch([b""], body=body) for body in bodies)]
    for data in damaged:
        with pytest.raises((CorruptMessageError, InvalidRecordError)):
            Decoder("t", 0, 0, None).records(data)
    assert [r.value for r in Decoder("t", 0, 0, None).records(good + good[:-1])] == [b"one", b"two"], "the part is left"


def test_offsets_that_compaction_removed_are_passed_over() -> None:
    record = b"\0" + varint(0) + varint(2) + sized(None) + sized(b"left") + varint(0)
    decoder = Decoder("t", 0, 1, [])
    found = decoder.records(batch([b""], body=sized(record), last_delta=4))
    assert [(each.offset, each.value) for each in found] == [(2, b"left")]
    assert decoder.offset == 5
    emptied = batch([b""], body=b"", count=0, last_delta=6)
    assert decoder.records(emptied) == []
    assert decoder.offset == 7


@settings(max_examples=effort(300), deadline=None)
@given(st.binary(max_size=60), st.integers(0, 7), st.sampled_from((0, 1, 2, 5)), st.integers(0, 5))
def test_random_records_raise_only_errors_of_kafka(body: bytes, kind: int, codec: int, count: int) -> None:
    attributes = kind << 3 | codec
    for data in (
        batch([b""], body=body, attributes=attributes, count=count, last_delta=0),
        message(body, attributes=attributes),
        body + bytes(17),
    ):
        with suppress(KafkaError):
            Decoder("t", 0, 0, []).records(data)
