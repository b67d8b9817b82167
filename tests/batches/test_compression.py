"""Compression: other clients read the frames, the pool accounts for all memory, incompressible batches go plain."""

from __future__ import annotations

import gzip
import json
import os
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf import KafkaProducer
from kafkabuf.batches.codec import Codec, DoesNotFit, scratch_size
from kafkabuf.batches.compression import codec
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError
from rigs.real_kafka import RealKafka
from tests.memory.pool_support import assert_all_free
from tests.real.consumers import dumped, read_with_confluent, read_with_kafka_python

CODECS = ("gzip", "snappy", "lz4", "zstd")
# Another level of each codec. snappy has no levels.
LEVELS: dict[str, dict[str, int]] = {
    "gzip": {"compression.gzip.level": 9},
    "lz4": {"compression.lz4.level": 12},
    "zstd": {"compression.zstd.level": 19},
}
ROWS = [
    json.dumps({"row": row, "carrier": "UA", "dest": "JFK", "delay": row % 37, "hour": f"{row % 24}:00"}).encode()
    for row in range(3000)
]
MAGIC_2_HEADER = 61


def codec_named(name: str) -> Codec:
    return codec(name, -1, 9, 3)


def compress(name: str, records: bytes, room: int | None = None) -> bytes:
    target = bytearray(scratch_size(len(records)) if room is None else room)
    size = codec_named(name).compress(memoryview(records), memoryview(target))
    return bytes(target[:size])


def send_rows(server: Any, topic: str, **settings: Any) -> tuple[KafkaProducer, int]:
    """Send ROWS. Returns the open producer and the bytes that its batches took on the wire."""
    producer = KafkaProducer({"bootstrap.servers": server.bootstrap_servers, "linger.ms": 200, **settings})
    futures = [producer.send(topic, row, timestamp_ms=1_600_000_000_000 + n) for n, row in enumerate(ROWS)]
    producer.flush(30)
    for future in futures:
        future.result(0)
    return producer, sum({id(future.batch): future.batch.size for future in futures}.values())


# ---- frames ----------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=100_000))
def test_gzip_frame_is_gzip(records: bytes) -> None:
    assert gzip.decompress(compress("gzip", records)) == records


def varied_rows(size: int) -> bytes:
    """Rows of JSON, of which no two are alike."""
    dice = random.Random(size)
    rows = (
        b'{"row":%d,"carrier":"%s","tail":"N%d","delay":%d,"at":"2013-%02d-%02dT%02d:00Z"}'
        % (n, dice.choice([b"UA", b"AA", b"DL"]), dice.randrange(900), dice.randrange(-20, 90),
           1 + dice.randrange(12), 1 + dice.randrange(28), dice.randrange(24))
        for n in range(size // 60)
    )  # fmt: skip
    return b"\0\x12".join(rows)[:size]


@pytest.mark.parametrize("size", [16_384, 131_072])
@pytest.mark.parametrize("level", [-1, *range(1, 10)])
def test_gzip_level_compresses_as_much_as_that_of_zlib(level: int, size: int) -> None:
    records = varied_rows(size)
    target = bytearray(scratch_size(size))
    written = codec("gzip", level, 9, 3).compress(memoryview(records), memoryview(target))
    assert written < 1.04 * len(zlib.compress(records, level))


def test_lz4_and_snappy_compress_a_large_batch_better_than_in_javas_blocks() -> None:
    records = varied_rows(131_072)
    for name, block in (("lz4", 64 * 1024), ("snappy", 32 * 1024)):
        blocks = [records[start : start + block] for start in range(0, len(records), block)]
        assert len(compress(name, records)) < 0.98 * sum(len(compress(name, part)) for part in blocks)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("room", [0, 3, 20, 100])
def test_codec_refuses_memory_that_is_too_small(name: str, room: int) -> None:
    with pytest.raises(DoesNotFit):
        compress(name, os.urandom(5000), room)


@pytest.mark.parametrize("name", CODECS)
def test_incompressible_records_fit_the_scratch(name: str) -> None:
    for size in (0, 1, 500, 16_384, 65_536, 200_000):
        compress(name, os.urandom(size))


# ---- other clients and brokers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["default", "other"])
@pytest.mark.parametrize("name", CODECS)
def test_kafka_and_its_clients_read_every_codec(kafka_4: RealKafka, name: str, level: str) -> None:
    if level == "other" and name not in LEVELS:
        return
    topic = f"compressed-{name}-{level}"
    kafka_4.create_topic(topic)
    settings = LEVELS[name] if level == "other" else {}
    producer, size = send_rows(kafka_4, topic, **{"compression.type": name}, **settings)
    producer.close(10)
    assert_all_free(producer.pool)
    assert size < sum(map(len, ROWS)) / 2
    (read,) = read_with_confluent(kafka_4, topic, wait_for=len(ROWS))
    assert [read[offset].value for offset in range(len(ROWS))] == ROWS
    assert [read[offset].timestamp for offset in range(len(ROWS))] == [1_600_000_000_000 + n for n in range(len(ROWS))]
    batches = dumped(kafka_4, topic)
    assert all(batch.valid for batch in batches)
    assert sum(len(batch.records) for batch in batches) == len(ROWS)
    assert f"compresscodec: {name}" in kafka_4.dump_log(topic).lower()


def send_blocks(server: Any, topic: str, name: str) -> list[bytes]:
    """Send a batch of four blocks, of which lz4 sends one plain: it does not shrink. Check what librdkafka reads."""
    sent = [row * 20 for row in ROWS[:200]] + [os.urandom(1000) for _ in range(512)] + ROWS[:2000]
    settings = {"compression.type": name, "batch.size": 1_000_000, "linger.ms": 1000}
    with KafkaProducer({"bootstrap.servers": server.bootstrap_servers, **settings}) as producer:
        futures = [producer.send(topic, value) for value in sent]
        producer.flush(30)
    assert len({id(future.batch) for future in futures}) == 1
    (read,) = read_with_confluent(server, topic, wait_for=len(sent))
    assert [read[offset].value for offset in range(len(sent))] == sent
    return sent


@pytest.mark.parametrize("name", CODECS)
def test_librdkafka_reads_batches_of_several_blocks(name: str) -> None:
    with EmbeddedCluster(verify_records=True) as cluster:
        cluster.create_topic("blocks")
        send_blocks(cluster, "blocks", name)


@pytest.mark.parametrize("name", CODECS)
def test_kafka_reads_batches_of_several_blocks(kafka_4: RealKafka, name: str) -> None:
    topic = f"blocks-{name}"
    kafka_4.create_topic(topic)
    sent = send_blocks(kafka_4, topic, name)
    (batch,) = dumped(kafka_4, topic)
    assert batch.valid
    assert len(batch.records) == len(sent)


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4"])
def test_kafka_3_9_reads_compressed_magic_1(kafka_3_9: RealKafka, name: str) -> None:
    topic = f"compressed-magic-1-{name}"
    kafka_3_9.create_topic(topic)
    producer, size = send_rows(kafka_3_9, topic, **{"compression.type": name, "record.magic": 1})
    producer.close(10)
    assert_all_free(producer.pool)
    assert size < sum(map(len, ROWS)) / 2
    (read,) = read_with_confluent(kafka_3_9, topic, wait_for=len(ROWS))
    assert [read[offset].value for offset in range(len(ROWS))] == ROWS


def test_kafka_python_reads_gzip(kafka_4: RealKafka) -> None:
    kafka_4.create_topic("compressed-kafka-python")
    producer, _ = send_rows(kafka_4, "compressed-kafka-python", **{"compression.type": "gzip"})
    producer.close(10)
    (read,) = read_with_kafka_python(kafka_4, "compressed-kafka-python")
    assert [read[offset].value for offset in range(len(ROWS))] == ROWS


# ---- memory, and what goes plain -------------------------------------------------------------------------------------


def test_scratch_is_accounted_for() -> None:
    with EmbeddedCluster(verify_records=True) as cluster:
        producer, _ = send_rows(cluster, "scratch", **{"compression.type": "zstd", "buffer.memory": 1 << 20})
        held = producer.pool.accounting()
        assert held["scratch"] > 0
        assert sum(held.values()) == 1 << 20
        assert held["free"] + held["scratch"] == 1 << 20
        producer.close(10)
        assert_all_free(producer.pool)


@pytest.mark.parametrize("name", CODECS)
def test_records_that_do_not_shrink_are_sent_plain(name: Any) -> None:
    with (
        EmbeddedCluster(verify_records=True) as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, compression_type=name) as producer,
    ):
        value = os.urandom(10_000)
        future = producer.send("random", value)
        future.result(10)
        assert MAGIC_2_HEADER + len(value) < future.batch.size < MAGIC_2_HEADER + len(value) + 40


@pytest.mark.parametrize("name", CODECS)
def test_record_larger_than_the_scratch_is_compressed(name: Any) -> None:
    with (
        EmbeddedCluster(verify_records=True) as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, compression_type=name) as producer,
    ):
        future = producer.send("large", b"large " * 100_000)
        assert future.result(10).offset == 0
        assert future.batch.size < 100_000
        producer.flush(10)
        assert producer.pool.accounting()["in_flight"] == 0


def test_batch_without_memory_for_compression_goes_plain() -> None:
    with (
        EmbeddedCluster(verify_records=True) as cluster,
        KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, compression_type="gzip", buffer_memory=20 * 16_384
        ) as producer,
    ):
        # The record takes 13 of 18 slabs. The rest is too small for the codec, so the record goes plain.
        future = producer.send("tight", b"x" * 200_000)
        assert future.result(10).offset == 0
        assert future.batch.size > 200_000


def test_batch_goes_plain_when_the_codec_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(records: memoryview, target: memoryview) -> int:
        raise RuntimeError("the codec is broken")

    monkeypatch.setattr("kafkabuf.batches.compression.codec", lambda *settings: Codec(1, broken))
    with (
        EmbeddedCluster(verify_records=True) as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, compression_type="gzip") as producer,
    ):
        assert producer.send("broken", b"value").result(10).offset == 0
    assert "sent plain" in caplog.text


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"compression.type": "brotli"},
        {"compression.type": "gzip", "compression.gzip.level": 0},
        {"compression.type": "gzip", "compression.gzip.level": 10},
        {"compression.type": "lz4", "compression.lz4.level": 18},
        {"compression.type": "zstd", "compression.zstd.level": 23},
        {"compression.type": "zstd", "record.magic": 1},
        {"compression.type": "gzip", "buffer.memory": 16_384},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_impossible_compression_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"compress|zstd|buffer\.memory"):
        KafkaProducer({"bootstrap.servers": "127.0.0.1:1", **settings})
