"""Real Kafka's cleaner and ours make the same log of the same batches."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from aiokafka.record import MemoryRecords
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records.batch import HEADER
from kafkabuf.broker.records.config import LogConfig
from kafkabuf.broker.storage.batches import heads
from kafkabuf.clock import ManualClock
from rigs.real_kafka import KAFKA_4, TEST_JVM, RealKafka, admin_client
from tests.broker.log.cleaning_support import clean_closed
from tests.broker.log.support import stored
from tests.broker.raw_client import RawClient

SEGMENT_MS = 1000
NOW = time.time_ns() // 1_000_000 - 3_600_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[RealKafka]:
    options = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "50"}
    with RealKafka(KAFKA_4, options=options, jvm_options=TEST_JVM) as server:
        yield server


def produce(server: RealKafka) -> None:
    """Plain, idempotent and transactional batches with tombstones, in every codec, over several segments."""
    for number, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"] * 2):
        settings = {"bootstrap.servers": server.bootstrap_servers, "compression.type": codec, "linger.ms": 200}
        transactional = number % 3 == 1
        if transactional:
            settings["transactional.id"] = f"t{number}"
        elif number % 3 == 2:
            settings["enable.idempotence"] = True
        producer = Producer(settings)
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
        for index in range(6):
            value = None if (number + index) % 5 == 0 else b"%d" % number * 300
            key = b"k%d" % ((number * 3 + index) % 11)
            producer.produce("t", value, key, timestamp=NOW + 700 * number + index)
        producer.flush()
        if transactional:
            (producer.commit_transaction if number % 2 else producer.abort_transaction)()


def fetch_all(server: RealKafka, end: int) -> bytes:
    """Every batch of the log."""
    batches, offset = b"", 0
    with RawClient(server.bootstrap_servers) as client:
        while offset < end:
            data = bytes(client.fetch("t", offset, version=11, max_wait=100).records)
            for at, head in heads(data, offset):
                if head.last_offset >= offset:
                    batches += data[at : at + head.size]
                    offset = head.last_offset + 1
    return batches


def wait_for_markers(server: RealKafka) -> int:
    """Kafka writes the control record of a transaction after its end was answered. Returns the end of the log."""
    deadline = time.monotonic() + 30
    with RawClient(server.bootstrap_servers) as client:
        while True:
            answer = client.fetch("t", 0, version=11)
            if answer.last_stable_offset == answer.high_watermark:
                return int(answer.high_watermark)
            assert time.monotonic() < deadline, "a transaction stays open"


def wait_for_cleaning(server: RealKafka) -> int:
    """Returns the offset up to which Kafka has cleaned the log."""
    deadline = time.monotonic() + 30
    path = server.log_dir / "cleaner-offset-checkpoint"
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        found = [int(line.split()[2]) for line in lines if line.startswith("t 0 ")]
        if found and found[0]:
            return found[0]
        assert time.monotonic() < deadline, "Kafka does not clean"
        time.sleep(0.01)


def described(data: bytes) -> list[tuple[object, ...]]:
    """Header and records of each batch, without what depends on the time of the cleaning and on the compressor."""
    batches: list[tuple[object, ...]] = []
    for at, head in heads(data, 0):
        fields = HEADER.unpack_from(data, at)
        records = MemoryRecords(data[at : at + head.size]).next_batch()
        assert records is not None
        assert records.validate_crc()
        contents = [(record.offset, record.timestamp, record.key, record.value) for record in records]
        batches.append((head.base_offset, head.last_offset, fields[5], *fields[8:], contents))
    return batches


def test_cleaned_log_is_that_of_kafka(kafka: RealKafka) -> None:
    configs = {"segment.ms": str(SEGMENT_MS), "cleanup.policy": "delete", "retention.ms": "-1"}
    kafka.create_topic("t", config=configs)
    produce(kafka)
    end = wait_for_markers(kafka)
    before = fetch_all(kafka, end)
    entries = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "86400000"}
    changes = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in entries.items()]
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=changes)
    admin = admin_client(kafka.bootstrap_servers)
    admin.incremental_alter_configs([resource])[resource].result(10)
    cleaned_up_to = wait_for_cleaning(kafka)
    theirs = described(fetch_all(kafka, end))

    log = PartitionLog(LogConfig(compact=True, segment_ms=SEGMENT_MS), clock=ManualClock(wall_ms=NOW + 3_600_000))
    log.append_as_follower(before)
    assert described(stored(log)) == described(before)
    assert clean_closed(log) > 10
    assert log.clean_offset == cleaned_up_to
    assert described(stored(log)) == theirs
