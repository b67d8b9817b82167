"""The producer's main flows against real Apache Kafka 4.1.2 and 3.9.2; other clients read the records back."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from kafka.partitioner import murmur2 as kafka_python_murmur2

from kafkabuf import KafkaProducer, RecordMetadata
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import (
    InvalidPartitionsError,
    KafkaError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from rigs.real_kafka import KAFKA_4, TEST_JVM, RealKafka
from tests.memory.pool_support import assert_all_free
from tests.real.consumers import READERS, read_with_confluent, read_with_kafka_python
from tests.wire.record_support import SampleRecord

PATIENCE = 30.0
MakeProducer = Callable[..., KafkaProducer]


@pytest.fixture(params=["kafka_4", "kafka_3_9"], ids=["4.1.2", "3.9.2"])
def kafka(request: pytest.FixtureRequest) -> RealKafka:
    server = request.getfixturevalue(request.param)
    assert isinstance(server, RealKafka)
    return server


@pytest.fixture
def make_producer() -> Iterator[MakeProducer]:
    """Makes producers. The end of the test closes them, and checks that their pools are whole."""
    made: list[KafkaProducer] = []

    def make(kafka: RealKafka, **settings: Any) -> KafkaProducer:
        made.append(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.flush(PATIENCE)
        assert_all_free(producer.pool)
        producer.close(PATIENCE)
        assert_all_free(producer.pool)


def values(partition: dict[int, SampleRecord]) -> list[bytes | None]:
    return [partition[offset].value for offset in sorted(partition)]


# ---- acknowledgements ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_arrive_in_order_under_every_acks(kafka: RealKafka, make_producer: MakeProducer, acks: str) -> None:
    topic = f"acks-{acks}"
    kafka.create_topic(topic, partitions=3)
    producer = make_producer(kafka, acks=acks)
    sent = [[b"%d" % n for n in range(partition, 3000, 3)] for partition in range(3)]
    futures = [[producer.send(topic, value, partition=p) for value in sent[p]] for p in range(3)]
    producer.flush(PATIENCE)
    read = read_with_confluent(kafka, topic, 3, wait_for=3000)
    for partition in range(3):
        offsets = [future.result(0).offset for future in futures[partition]]
        assert offsets == ([-1] * 1000 if acks == "0" else list(range(1000)))
        assert values(read[partition]) == sent[partition]


def test_callback_and_future_agree(kafka: RealKafka, make_producer: MakeProducer) -> None:
    kafka.create_topic("callbacks", partitions=4)
    producer = make_producer(kafka, batch_size=1024, linger_ms=1)
    called: list[tuple[RecordMetadata, KafkaError | None]] = []
    futures: list[RecordFuture] = []
    for n in range(4000):
        key = b"key" * (n % 2)
        callback = lambda metadata, error: called.append((metadata, error))  # noqa: E731
        futures.append(producer.send("callbacks", b"v" * (n % 50), key, partition=n % 4, callback=callback))
    producer.flush(PATIENCE)
    results = [future.result(0) for future in futures]
    assert producer.metrics()["producer-metrics"]["record-retry-total"] == 0, (
        "a repeated batch may arrive behind a later batch: the test cannot judge the order"
    )
    assert all(error is None for _, error in called)
    assert sorted(metadata for metadata, _ in called) == sorted(results), "flush() returned before the callbacks"
    for partition in range(4):
        assert [r.offset for r in results[partition::4]] == list(range(1000)), "offsets do not follow the sending"
        in_order = [metadata.offset for metadata, _ in called if metadata.partition == partition]
        assert in_order == list(range(1000)), "callbacks do not follow the offsets"
    assert [r.serialized_value_size for r in results] == [n % 50 for n in range(4000)]
    assert [r.serialized_key_size for r in results] == [3 * (n % 2) for n in range(4000)]


def test_close_sends_lingering_records(kafka: RealKafka) -> None:
    kafka.create_topic("close")
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=60_000) as producer:
        future = producer.send("close", b"last words")
        assert not future.done()
    assert future.result(0).offset == 0
    assert values(read_with_kafka_python(kafka, "close")[0]) == [b"last words"]
    assert_all_free(producer.pool)


# ---- partitions ------------------------------------------------------------------------------------------------------


def test_key_keeps_its_partition_and_its_order(kafka: RealKafka, make_producer: MakeProducer) -> None:
    """Three threads send records with and without keys. The records of a key keep their partition and their order."""
    kafka.create_topic("keyed", partitions=40)
    producer = make_producer(kafka, batch_size=2048, linger_ms=2, max_in_flight_requests_per_connection=1)

    def send(thread: int) -> None:
        for n in range(2000):
            key = b"%d/%d" % (thread, n % 90)
            producer.send("keyed", b"%d" % n, key if n % 4 else None)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(PATIENCE)
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    used_without_key = set()
    for partition, read in enumerate(read_with_kafka_python(kafka, "keyed", 40)):
        for _, record in sorted(read.items()):
            assert record.value is not None
            by_key[record.key].append(int(record.value))
            if record.key is None:
                used_without_key.add(partition)
            else:
                assert (kafka_python_murmur2(record.key) & 0x7FFFFFFF) % 40 == partition
    assert sorted(by_key.pop(None)) == sorted([*range(0, 2000, 4)] * 3)
    assert len(used_without_key) > 1, "the sticky partition has never changed"
    for key, numbers in by_key.items():
        remainder = int(key.split(b"/")[1])  # type: ignore[union-attr]
        assert numbers == [n for n in range(2000) if n % 90 == remainder and n % 4]


def test_partition_added_later_becomes_known(kafka: RealKafka, make_producer: MakeProducer) -> None:
    kafka.create_topic("growing", partitions=2)
    producer = make_producer(kafka)
    assert producer.send("growing", b"a", partition=1).result(PATIENCE).offset == 0
    with pytest.raises(InvalidPartitionsError, match=r"partition 2 of topic 'growing'.*0 to 1"):
        producer.send("growing", b"b", partition=2)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions("growing", 3)])["growing"].result(PATIENCE)

    def deliver() -> RecordMetadata | None:
        try:
            return producer.send("growing", b"b", partition=2).result(PATIENCE)
        except InvalidPartitionsError:  # the controller has created the partition, and the broker does not know it yet
            return None

    deadline = time.monotonic() + PATIENCE
    while (metadata := deliver()) is None:
        assert time.monotonic() < deadline
    assert (metadata.partition, metadata.offset) == (2, 0)
    assert values(read_with_kafka_python(kafka, "growing", 3)[2]) == [b"b"]


# ---- Arrow -----------------------------------------------------------------------------------------------------------


def test_arrow_rows_arrive_where_the_report_says(kafka: RealKafka, make_producer: MakeProducer) -> None:
    topics = ["arrow-a", "arrow-b"]
    for topic in topics:
        kafka.create_topic(topic, partitions=4)
    count = 3000
    # Each column has nulls in rows of its own.
    rows: list[dict[str, Any]] = [
        {
            "value": None if n % 11 == 0 else b"v%d" % n if n % 13 else b"",
            "key": None if n % 3 == 0 else f"ключ {n % 50}" if n % 7 else "",
            "topic": topics[n // 100 % 2],
            "partition": n % 4 if n % 2 else None,
            "timestamp": None if n % 5 == 0 else 1_700_000_000_000_000 + n * 1999,
            "headers": [{"key": f"h{i}", "value": b"x" * i or None} for i in range(n % 4)] if n % 6 else None,
        }
        for n in range(count)
    ]
    header = pa.struct({"key": pa.string(), "value": pa.large_binary()})
    types = {
        "value": pa.binary(),
        "key": pa.large_string(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.list_(header),
    }
    producer = make_producer(kafka, batch_size=2048, linger_ms=2)
    before = int(time.time() * 1000)
    report = producer.send_arrow(pa.Table.from_pylist(rows, pa.schema(types)))
    result = report.result(PATIENCE)
    after = int(time.time() * 1000)
    assert report.rows == count
    assert not result.error_code.any()
    read = {topic: read_with_confluent(kafka, topic, 4) for topic in topics}
    assert sum(len(partition) for partitions in read.values() for partition in partitions) == count
    for n, row in enumerate(rows):
        record = read[row["topic"]][result.partition[n]].pop(int(result.offset[n]))
        assert record.value == row["value"]
        assert record.key == (None if row["key"] is None else row["key"].encode())
        assert record.headers == tuple((h["key"], h["value"]) for h in row["headers"] or ())
        assert record.timestamp == result.timestamp[n]
        if row["timestamp"] is None:
            assert before <= record.timestamp <= after
        else:
            assert record.timestamp == row["timestamp"] // 1000
        if row["partition"] is not None:
            assert result.partition[n] == row["partition"]
        elif record.key is not None:
            assert result.partition[n] == (kafka_python_murmur2(record.key) & 0x7FFFFFFF) % 4
    ranges = {(r.topic, r.partition): r for r in report.ranges(0)}
    assert set(ranges) == {(topic, partition) for topic in topics for partition in range(4)}
    for (topic, partition), range_ in ranges.items():
        mine = [n for n in range(count) if rows[n]["topic"] == topic and result.partition[n] == partition]
        offsets = [int(result.offset[n]) for n in mine]
        assert (range_.first_offset, range_.last_offset, range_.rows) == (0, len(offsets) - 1, len(offsets))
        assert offsets == sorted(offsets), "rows of a partition are not in the order they were given"


# ---- what topics and brokers decide ----------------------------------------------------------------------------------


def test_log_append_time_is_reported_as_the_timestamp(kafka: RealKafka, make_producer: MakeProducer) -> None:
    kafka.create_topic("append-time", config={"message.timestamp.type": "LogAppendTime"})
    producer = make_producer(kafka)
    before = int(time.time() * 1000)
    metadata = producer.send("append-time", b"v", timestamp_ms=12345).result(PATIENCE)
    report = producer.send_arrow(pa.table({"value": [b"w", b"x"]}), "append-time").result(PATIENCE)
    times = [metadata.timestamp, *report.timestamp.tolist()]
    assert all(before <= timestamp <= time.time() * 1000 for timestamp in times)
    for read in READERS:
        [partition] = read(kafka, "append-time", 1)
        assert [record.timestamp for _, record in sorted(partition.items())] == times


def test_magic_1_on_kafka_4_fails_with_advice(kafka_4: RealKafka, make_producer: MakeProducer) -> None:
    kafka_4.create_topic("old-format")
    producer = make_producer(kafka_4, record_magic=1)
    errors: list[KafkaError | None] = []
    future = producer.send("old-format", b"v", callback=lambda _, error: errors.append(error))
    with pytest.raises(UnsupportedVersionError, match=r"set record\.magic to 2"):
        future.result(PATIENCE)
    producer.flush(PATIENCE)
    assert errors == [future.exception(0)]
    assert read_with_kafka_python(kafka_4, "old-format") == [{}]


@pytest.mark.parametrize("magic", ["auto", 2])
def test_kafka_4_accepts_the_default_format(kafka_4: RealKafka, make_producer: MakeProducer, magic: object) -> None:
    kafka_4.create_topic(f"format-{magic}")
    producer = make_producer(kafka_4, record_magic=magic)
    assert producer.send(f"format-{magic}", b"v").result(PATIENCE).offset == 0


def test_oversize_record_fails_alone(kafka: RealKafka, make_producer: MakeProducer) -> None:
    kafka.create_topic("small-messages", config={"max.message.bytes": "20000"})
    producer = make_producer(kafka, batch_size=16384, linger_ms=20)
    # The oversize record is alone in its batch: the batch before has no room for it, and it leaves no room behind it.
    sent = [b"%d" % n for n in range(300)]
    futures = [producer.send("small-messages", value) for value in sent[:200]]
    oversize = producer.send("small-messages", b"x" * 40_000)
    futures += [producer.send("small-messages", value) for value in sent[200:]]
    with pytest.raises(RecordTooLargeError):
        oversize.result(PATIENCE)
    assert [future.result(PATIENCE).offset for future in futures] == list(range(300))
    assert values(read_with_confluent(kafka, "small-messages")[0]) == sent
    assert producer.metrics()["producer-metrics"]["record-error-total"] == 1


def test_small_buffer_serves_all_waiting_threads(kafka: RealKafka, make_producer: MakeProducer) -> None:
    """Four threads send forty times the size of the buffer, so that each waits for the acknowledgement of others."""
    kafka.create_topic("small-buffer", partitions=5)
    producer = make_producer(kafka, buffer_memory=50_000, batch_size=4096)

    def send(thread: int) -> None:
        for n in range(1000):
            producer.send("small-buffer", b"%d/%d " % (thread, n) + b"x" * 480, partition=n % 5)
            if n % 100 == 99:
                producer.send("small-buffer", b"large" * 2000, partition=n % 5)  # three slabs

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    producer.flush(PATIENCE)
    assert producer.pool.waits_total > 0
    assert sum(len(partition) for partition in read_with_confluent(kafka, "small-buffer", 5)) == 4040


@pytest.fixture(scope="module")
def strict_kafka() -> Iterator[RealKafka]:
    with RealKafka(KAFKA_4, options={"auto.create.topics.enable": "false"}, jvm_options=TEST_JVM) as server:
        yield server


def test_unknown_topic_raises_after_max_block(strict_kafka: RealKafka, make_producer: MakeProducer) -> None:
    producer = make_producer(strict_kafka, max_block_ms=1200)
    started = time.monotonic()
    with pytest.raises(UnknownTopicOrPartitionError, match=r"nowhere.*1200"):
        producer.send("nowhere", b"v")
    assert 1.2 <= time.monotonic() - started < 5
    assert_all_free(producer.pool)
    strict_kafka.create_topic("nowhere")
    assert producer.send("nowhere", b"v").result(PATIENCE).offset == 0, "the producer still takes the topic for unknown"
