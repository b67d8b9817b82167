"""Topics with a limit below batch.size, on real and embedded brokers, read back by confluent-kafka."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import RecordTooLargeError
from rigs.real_kafka import RealKafka
from tests.memory.pool_support import assert_all_free
from tests.real.consumers import read_with_confluent

PATIENCE = 30.0
PRODUCE, MESSAGE_TOO_LARGE = 0, 10
LIMIT = 2000
BATCH = 64 * 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as running:
        yield running


def open_producer(server: Any, **settings: Any) -> KafkaProducer:
    """A producer with one request in flight: without idempotence it keeps the order."""
    defaults = {"batch_size": BATCH, "linger_ms": 50, "max_in_flight_requests_per_connection": 1}
    return KafkaProducer(defaults | settings, bootstrap_servers=server.bootstrap_servers)


def values(records: int) -> list[bytes]:
    """Values that compress to about half, so that refused batches and their parts are compressed."""
    return [b"%05d %s" % (n, b"the same" * 8) + os.urandom(20) for n in range(records)]


def send_and_read(server: Any, topic: str, **settings: Any) -> KafkaProducer:
    """Send records with all fields, and in the middle of a batch a record that is too large. Check every outcome."""
    sent: list[bytes | None] = [*values(2000), None]
    sent[700] = os.urandom(LIMIT + 1)
    headers = [("h", b"x"), ("n", None)] if settings.get("record_magic") != 1 else None
    producer = open_producer(server, **settings)
    futures = [
        producer.send(topic, value, key=b"%d" % n, headers=headers, timestamp_ms=1_600_000_000_000 + n, partition=0)
        for n, value in enumerate(sent)
    ]
    producer.flush(PATIENCE)
    assert isinstance(futures[700].exception(0), RecordTooLargeError)
    del futures[700]
    (read,) = read_with_confluent(server, topic, wait_for=2000)
    delivered = [n for n in range(2001) if n != 700]
    assert [future.result(0).offset for future in futures] == list(range(2000))
    assert [read[offset].value for offset in range(2000)] == [sent[n] for n in delivered]
    assert [read[offset].key for offset in range(2000)] == [b"%d" % n for n in delivered]
    assert [read[offset].timestamp for offset in range(2000)] == [1_600_000_000_000 + n for n in delivered]
    assert {read[offset].headers for offset in range(2000)} == {tuple(headers or ())}
    assert producer.metrics()["producer-metrics"]["record-error-total"] == 1
    assert producer.metrics()["producer-metrics"]["batch-split-total"] > 10
    producer.close(PATIENCE)
    assert_all_free(producer.pool)
    return producer


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafka_4_takes_all_parts(kafka_4: RealKafka, compression: str) -> None:
    topic = f"small-{compression}"
    kafka_4.create_topic(topic, config={"max.message.bytes": str(LIMIT)})
    send_and_read(kafka_4, topic, compression_type=compression)
    assert f"compresscodec: {compression}" in kafka_4.dump_log(topic).lower()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_kafka_3_9_takes_all_parts_of_magic_1(kafka_3_9: RealKafka, compression: str) -> None:
    topic = f"small-1-{compression}"
    kafka_3_9.create_topic(topic, config={"max.message.bytes": str(LIMIT)})
    send_and_read(kafka_3_9, topic, compression_type=compression, record_magic=1)


def test_report_of_a_split_table_names_the_offsets_in_kafka(kafka_4: RealKafka) -> None:
    kafka_4.create_topic("small-table", partitions=3, config={"max.message.bytes": str(LIMIT)})
    sent = values(3000)
    producer = open_producer(kafka_4, buffer_memory=6 * BATCH, compression_type="zstd")
    table = pa.table({"value": sent, "partition": pa.array([n % 3 for n in range(3000)], pa.int32())})
    report = producer.send_arrow(table, "small-table")
    result = report.result(PATIENCE)
    producer.close(PATIENCE)
    read = read_with_confluent(kafka_4, "small-table", 3, wait_for=3000)
    assert [read[n % 3][offset].value for n, offset in enumerate(result.offset.tolist())] == sent
    assert result.offset.tolist() == [n // 3 for n in range(3000)]
    assert [(row_range.first_offset, row_range.last_offset, row_range.rows) for row_range in report.ranges()] == [
        (0, 999, 1000)
    ] * 3
    assert producer.metrics()["producer-metrics"]["batch-split-total"] > 0
    assert_all_free(producer.pool)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_embedded_broker_takes_all_parts(cluster: EmbeddedCluster, compression: str) -> None:
    topic = f"small-{compression}"
    cluster.create_topic(topic, configs={"max.message.bytes": str(LIMIT)})
    send_and_read(cluster, topic, compression_type=compression)


def test_refusals_at_any_time_lose_no_record_and_no_memory(cluster: EmbeddedCluster) -> None:
    """Four threads wait for memory, and the broker now and then refuses as too large what it took before."""
    cluster.create_topic("moody", partitions=3)
    producer = open_producer(
        cluster, batch_size=4096, buffer_memory=10 * 4096, compression_type="zstd", linger_ms=1
    )  # fmt: skip
    sent = [[b"%d/%04d " % (thread, n) + os.urandom(100) for n in range(800)] for thread in range(4)]

    def send(mine: list[bytes]) -> None:
        for n, value in enumerate(mine):
            producer.send("moody", value, partition=n % 3)
            if n % 40 == 0:
                cluster.fail_next(PRODUCE, MESSAGE_TOO_LARGE, 3, "moody")

    threads = [threading.Thread(target=send, args=(mine,)) for mine in sent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    cluster.clear_faults()
    producer.flush(PATIENCE)
    producer.close(PATIENCE)
    assert_all_free(producer.pool)
    metrics = producer.metrics()["producer-metrics"]
    assert metrics["batch-split-total"] > 5
    server: Any = cluster
    read = read_with_confluent(server, "moody", 3, wait_for=3200 - int(metrics["record-error-total"]))
    assert sum(map(len, read)) == 3200 - metrics["record-error-total"]
    for partition in range(3):
        values_read = [read[partition][offset].value for offset in sorted(read[partition])]
        for number, mine in enumerate(sent):
            theirs = [value for value in values_read if value is not None and value.startswith(b"%d/" % number)]
            kept = set(theirs)
            assert theirs == [value for n, value in enumerate(mine) if n % 3 == partition and value in kept]
