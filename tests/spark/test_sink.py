"""The Spark sink: the driver's checks, a task's writer on a fake producer, and whole writes that kafka-python reads."""

from __future__ import annotations

import datetime
import logging
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from kafka.partitioner import murmur2
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from kafkabuf.append.offset_range import OffsetRange
from kafkabuf.append.report import FailedRows
from kafkabuf.errors import ConfigError, KafkaError, RecordTooLargeError
from kafkabuf.spark import KafkabufDataSource, TaskReport, WriteReport, activate, register
from kafkabuf.spark.options.option_names import Settings
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.rows import task
from kafkabuf.spark.rows.schema import sink_columns
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import workers
from kafkabuf.spark.worker.limits import TopicLimits
from kafkabuf.spark.writer import BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kafkabuf.broker import EmbeddedCluster

pytest_plugins = ["tests.spark.fixtures"]

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
HEADERS = "headers array<struct<key string, value binary>>"


TEXT, BYTES, INT, LONG = T.StringType(), T.BinaryType(), T.IntegerType(), T.LongType()
VALUE = ("value", BYTES)


def array_of_pairs(key: str, value: T.DataType) -> T.ArrayType:
    return T.ArrayType(T.StructType([T.StructField(key, TEXT), T.StructField("value", value)]))


def plan(options: dict[str, str], *columns: tuple[str, T.DataType], overwrite: bool = False) -> BatchWriter:
    """Make the writer as Spark's planner does."""
    source = KafkabufDataSource(CaseInsensitiveDict(options))
    writer = source.writer(T.StructType([T.StructField(*column) for column in columns or (VALUE,)]), overwrite)
    assert isinstance(writer, BatchWriter)
    return writer


# ---- validation: no Spark, no broker ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ([("key", TEXT)], ["'value'", "required", "string or binary", "'key'"]),
        ([("Value", TEXT)], ["'value'", "found 'Value'", "rename"]),
        ([("value", INT)], ["'value'", "type int", "allowed: string or binary"]),
        ([VALUE, ("key", LONG)], ["'key'", "type bigint", "allowed: string or binary"]),
        ([VALUE, ("partition", LONG)], ["'partition'", "type bigint", "allowed: int"]),
        (
            [VALUE, ("headers", T.MapType(TEXT, BYTES))],
            ["'headers'", "map<string,binary>", "allowed: array<struct<key:s"],
        ),
        ([VALUE, ("headers", array_of_pairs("key", TEXT))], ["'headers'", "value:string", "value:binary"]),
        ([VALUE, ("headers", array_of_pairs("k", BYTES))], ["'headers'", "<k:string", "<key:string"]),
        ([VALUE, ("value", TEXT)], ["'value'", "2 times"]),
    ],
)
def test_error_names_an_unusable_column_its_type_and_the_allowed_types(
    columns: list[tuple[str, T.DataType]], parts: list[str]
) -> None:
    with pytest.raises(ValueError, match="column") as caught:
        plan({**SERVERS, "topic": "t"}, *columns)
    for part in parts:
        assert part in str(caught.value)


def test_missing_topic_is_refused_before_any_task_runs() -> None:
    with pytest.raises(ValueError, match=r"no topic: give .option\('topic', ...\) or a column 'topic' \(string\)"):
        plan(SERVERS, ("value", TEXT))
    with pytest.raises(ValueError, match=r"column 'topic' has type int; allowed: string"):
        plan(SERVERS, VALUE, ("topic", INT))


def test_topic_option_wins_over_a_column_of_any_type() -> None:
    assert plan({**SERVERS, "topic": "t"}, VALUE, ("topic", INT)).sink.columns == ("value",)


def test_unknown_columns_are_ignored() -> None:
    ours: dict[str, T.DataType] = {
        "value": TEXT,
        "key": BYTES,
        "partition": INT,
        "topic": TEXT,
        "timestamp": T.TimestampType(),
    }
    ours["headers"] = array_of_pairs("key", BYTES)
    assert set(plan(SERVERS, ("a", INT), *ours.items(), ("offset", LONG)).sink.columns) == set(ours)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"option 'kafka\.bootstrap\.servers' is required"),
        ({"kafka.bootstrap.servers": " "}, r"option 'kafka\.bootstrap\.servers' is required"),
        ({"kafka.bootstrap.servers": "nowhere"}, r"bootstrap\.servers: 'nowhere' is not host:port"),
        ({**SERVERS, "kafka.linger.mss": "1"}, r"linger\.mss.*did you mean linger\.ms"),
        ({**SERVERS, "kafka.linger.ms": "soon"}, r"linger\.ms: .*'soon'"),
        ({**SERVERS, "kafka.key.serializer": "x"}, r"'kafka\.key\.serializer' cannot be used"),
        ({**SERVERS, "kafka.value.serializer": "x"}, r"'kafka\.value\.serializer' cannot be used"),
        ({**SERVERS, "topik": "t"}, r"option 'topik' does not exist; did you mean 'topic'"),
        ({**SERVERS, "linger.ms": "5"}, r"'linger\.ms' does not exist; did you mean 'kafka\.linger\.ms'"),
        ({**SERVERS, "path": "t"}, r"'path' cannot be used: save\(\) takes no path"),
        ({**SERVERS, "topic": ""}, r"'topic' is empty"),
    ],
)
def test_error_names_an_unusable_option_before_any_task_runs(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan({"topic": "t", **options})


def test_overwrite_is_refused_and_the_error_names_mode_append() -> None:
    with pytest.raises(ValueError, match=r"\.mode\('append'\)"):
        plan({**SERVERS, "topic": "t"}, overwrite=True)


def test_repr_hides_the_settings() -> None:
    assert "secret" not in repr(SinkOptions("t", (("sasl.password", "secret"),)))


def test_importing_the_sink_loads_no_extension() -> None:
    # Spark imports the sink to learn the format's name. If that failed, Spark would lose every Python data source.
    code = "import sys, kafkabuf, pyspark_kafkabuf; print([m for m in sys.modules if m.startswith('kafkabuf._')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- the task's writer, on a fake producer ---------------------------------------------------------------------------


class FakeReport:
    too_large = ()

    def __init__(self, producer: FakeProducer, rows: int, error: KafkaError | None) -> None:
        self.producer, self.rows, self.error = producer, rows, error
        self.first = producer.next_offset
        producer.next_offset += rows

    def done(self) -> bool:
        """No outcome comes before the task waits for it."""
        return False

    def failed_rows(self, timeout: float | None = None) -> list[FailedRows]:
        self.producer.unresolved -= 1
        return [] if self.error is None else [FailedRows(self.error, 0, np.arange(self.rows), self.rows)]

    def ranges(self, timeout: float | None = None) -> list[OffsetRange]:
        return [OffsetRange("t", 0, self.first, self.first + self.rows - 1, self.rows, 10 * self.rows)]


class FakeProducer:
    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.errors: dict[int, KafkaError] = {}
        self.unresolved = self.most_unresolved = self.next_offset = self.flushes = 0
        self.closed = False

    def send_arrow(self, batch: pa.RecordBatch, topic: str | None) -> FakeReport:
        self.batches.append(batch)
        self.unresolved += 1
        self.most_unresolved = max(self.most_unresolved, self.unresolved)
        return FakeReport(self, batch.num_rows, self.errors.get(len(self.batches) - 1))

    def flush(self, timeout: float | None = None) -> None:
        self.flushes += 1

    def metrics(self) -> dict[str, dict[str, float]]:
        return {"producer-metrics": {"record-retry-total": 0.0, "bufferpool-wait-time-ns-total": 0.0}}

    def close(self, timeout: float | None = None) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    producer = FakeProducer()
    monkeypatch.setattr(workers, "KafkaProducer", lambda settings: producer)
    monkeypatch.setattr(workers, "_idle", {})
    return producer


def batches(count: int, rows: int = 3) -> Iterator[pa.RecordBatch]:
    for _ in range(count):
        yield pa.record_batch({"value": pa.array([b"v"] * rows), "extra": pa.array([1] * rows)})


# A sink without batch.size would ask the cluster for the number of partitions.
SINK = ArrowSink(SinkOptions("t", (("batch.size", "16384"), ("bootstrap.servers", "localhost:9092"))), ("value",))


def test_long_task_keeps_few_reports_open(fake: FakeProducer) -> None:
    report = SINK.send(batches(100))
    assert fake.most_unresolved == task.MAX_OPEN_REPORTS + 1
    assert fake.unresolved == 0
    assert fake.flushes == 1
    assert (report.rows, report.bytes) == (300, 3000)


def test_commit_message_does_not_grow_with_the_rows(fake: FakeProducer) -> None:
    assert SINK.send(batches(100)).ranges == (OffsetRange("t", 0, 0, 299, 300, 3000),)


def test_only_the_columns_of_the_sink_are_sent(fake: FakeProducer) -> None:
    SINK.send(batches(1))
    assert fake.batches[0].schema.names == ["value"]


def kept_producers() -> list[tuple[int, str, Settings]]:
    """The keys of the producers that the worker keeps for the next task."""
    return [key for key, kept in workers._idle.items() if kept and key[1] == "producer"]


@pytest.mark.parametrize("failing", [0, 50, 99])
def test_failed_batch_fails_the_task_and_closes_its_producer(fake: FakeProducer, failing: int) -> None:
    fake.errors[failing] = KafkaError("no")
    with pytest.raises(KafkaError, match="no"):
        SINK.send(batches(100))
    assert fake.closed
    assert not kept_producers()
    assert len(fake.batches) <= failing + task.MAX_OPEN_REPORTS + 1


def test_empty_partition_opens_no_producer(fake: FakeProducer) -> None:
    assert SINK.send(batches(2, rows=0)).rows == 0
    assert not kept_producers()


def test_tasks_of_a_worker_share_one_producer_for_each_configuration(fake: FakeProducer) -> None:
    SINK.send(batches(1))
    SINK.send(batches(1))
    assert len(kept_producers()) == 1
    other = (("batch.size", "16384"), ("bootstrap.servers", "other:9092"))
    ArrowSink(SinkOptions("t", other), ("value",)).send(batches(1))
    assert len(kept_producers()) == 2
    assert not fake.closed


def test_forked_child_makes_its_own_producer(fake: FakeProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    SINK.send(batches(1))
    monkeypatch.setattr("os.getpid", lambda: -1)
    SINK.send(batches(1))
    assert len(kept_producers()) == 2


def test_task_without_a_message_fails_the_commit() -> None:
    message = TaskReport(partition=0, attempt=0, rows=1, bytes=1, ranges=())
    with pytest.raises(KafkaError, match=r"1 of 2 tasks reported nothing.*continuous trigger"):
        BatchWriter(SINK).commit([message, None])


def test_commit_logs_the_sum_of_all_tasks(caplog: pytest.LogCaptureFixture) -> None:
    messages = [
        TaskReport(partition=n, attempt=0, rows=5, bytes=50, ranges=(OffsetRange("t", 0, 5 * n, 5 * n + 4, 5, 50),))
        for n in range(2)
    ]
    with caplog.at_level(logging.INFO, "kafkabuf.spark"):
        BatchWriter(SINK).commit(list(messages))
    assert [found.getMessage() for found in caplog.records if found.name == "kafkabuf.spark"] == [
        "10 rows, 100 bytes by 2 tasks to 1 partitions of t"
    ]
    assert WriteReport.from_messages(messages).ranges == (OffsetRange("t", 0, 0, 9, 10, 100),)


def test_abort_says_that_sent_rows_stay_in_the_topic(caplog: pytest.LogCaptureFixture) -> None:
    BatchWriter(SINK).abort([TaskReport(partition=0, attempt=0, rows=1, bytes=1, ranges=()), None])
    assert "1 of 2 tasks had sent all their rows, which stay in the topic" in caplog.text


# ---- whole writes, read by kafka-python ------------------------------------------------------------------------------


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def write(frame: DataFrame, cluster: EmbeddedCluster, topic: str | None = None, **options: str) -> None:
    writer = frame.write.format("kafkabuf").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    for name, value in options.items():
        writer = writer.option(f"kafka.{name.replace('_', '.')}", value)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.mode("append").save()


def read(cluster: EmbeddedCluster, topic: str) -> list[Any]:
    """All records, ordered by partition and offset."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, enable_auto_commit=False)
    try:
        partitions = [
            kafka.TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        records: list[Any] = []
        deadline = time.monotonic() + 30
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            assert time.monotonic() < deadline, "the records did not arrive within 30 s"
            for fetched in consumer.poll(timeout_ms=200).values():
                records += fetched
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def test_every_column_arrives_unchanged(spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str) -> None:
    spark_cluster.create_topic(topic, partitions=3)
    at = datetime.datetime(2013, 1, 1, 10, 0, 0, 123000, tzinfo=datetime.UTC)
    headers = [("a", b"1"), ("a", b""), ("b", None)]
    frame = spark.createDataFrame(
        [(2, b"k", "grüße", at, headers), (0, None, "", at, None), (1, b"", None, at, [])],
        f"partition int, key binary, value string, timestamp timestamp, {HEADERS}",
    ).coalesce(1)
    write(frame, spark_cluster, topic)
    records = read(spark_cluster, topic)
    assert [(record.partition, record.key, record.value, list(record.headers)) for record in records] == [
        (0, None, b"", []),
        (1, b"", None, []),
        (2, b"k", "grüße".encode(), headers),
    ]
    assert {record.timestamp for record in records} == {1357034400123}


def test_topic_column_sends_each_row_to_its_topic(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names:
        spark_cluster.create_topic(name, partitions=2)
    frame = spark.range(300).select(
        F.concat(F.lit(f"{topic}-"), (F.col("id") % 3).cast("string")).alias("topic"),
        F.col("id").cast("string").alias("value"),
    )
    write(frame, spark_cluster)
    for n, name in enumerate(names):
        assert sorted(int(record.value) for record in read(spark_cluster, name)) == list(range(n, 300, 3))


def test_timestamp_is_an_instant_in_any_session_zone(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    spark_cluster.create_topic(topic)
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    write(session.sql("select 'v' as value, timestamp_millis(1357034400123) as timestamp"), spark_cluster, topic)
    assert [record.timestamp for record in read(spark_cluster, topic)] == [1357034400123]


def test_null_timestamp_becomes_the_time_of_sending_and_null_partition_that_of_the_key(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    spark_cluster.create_topic(topic, partitions=3)
    before = time.time_ns() // 1_000_000
    frame = spark.range(30).selectExpr(
        "string(id) as key", "'v' as value", "cast(null as timestamp) as timestamp", "cast(null as int) as partition"
    )
    write(frame, spark_cluster, topic)
    records = read(spark_cluster, topic)
    assert len(records) == 30
    assert all(before <= record.timestamp <= time.time_ns() // 1_000_000 for record in records)
    assert all(record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 3 for record in records)


@pytest.mark.parametrize("large", ["true", "false"])
def test_rows_arrive_with_large_and_with_plain_arrow_types(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str, large: str
) -> None:
    spark_cluster.create_topic(topic)
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    frame = session.range(100).selectExpr(
        "string(id) as key",
        "binary(string(id)) as value",
        "array(struct('h' as key, binary(string(id)) as value)) as headers",
    )
    write(frame, spark_cluster, topic)
    records = read(spark_cluster, topic)
    assert sorted(int(record.value) for record in records) == list(range(100))
    assert all(record.key == record.value and list(record.headers) == [("h", record.value)] for record in records)


@pytest.mark.parametrize("rows", [0, 1])
def test_frames_with_empty_partitions_are_written(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str, rows: int
) -> None:
    spark_cluster.create_topic(topic)
    write(spark.range(0, rows, 1, 4).selectExpr("string(id) as value"), spark_cluster, topic)
    assert len(read(spark_cluster, topic)) == rows


def test_row_that_is_too_large_fails_the_task_and_closes_its_producer(
    spark_cluster: EmbeddedCluster, topic: str
) -> None:
    spark_cluster.create_topic(topic, partitions=1)
    settings = (("bootstrap.servers", spark_cluster.bootstrap_servers), ("max.request.size", "2000"))
    pieces = [pa.record_batch({"value": ["v"] * 10}), pa.record_batch({"value": ["a", "x" * 2_000, "b"]})]
    with pytest.raises(
        RecordTooLargeError,
        match=r"row 11 of this task [^:]*: the record is too large: .* up to 20\d\d bytes, .*\(2000\)",
    ):
        ArrowSink(SinkOptions(topic, settings), ("value",)).send(iter(pieces))
    assert not [used for _, _, used in kept_producers() if set(settings) <= set(used)]


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [(1, 524288), (16, 524288), (17, 262144), (64, 131072), (65, 65536), (500, 16384), (100_000, 16384)],
)
def test_batch_size_falls_from_512_to_16_kib_as_partitions_grow(partitions: int, expected: int) -> None:
    assert workers.batch_size(32 << 20, partitions, 1 << 20) == expected


@pytest.mark.parametrize(("largest", "expected"), [(1 << 20, 524288), (524_287, 262144), (40_000, 32768), (1, 16384)])
def test_batch_fits_the_largest_message_that_the_topic_takes(largest: int, expected: int) -> None:
    assert workers.batch_size(32 << 20, 1, largest) == expected


def test_batch_size_follows_the_partitions_unless_set_or_rows_name_topics(spark_cluster: EmbeddedCluster) -> None:
    spark_cluster.create_topic("sized", partitions=200)
    settings = (("bootstrap.servers", spark_cluster.bootstrap_servers),)
    user_sized = SinkOptions("sized", (("batch.size", "100"), *settings))
    assert workers.task_settings(user_sized) == user_sized.producer
    assert workers.task_settings(SinkOptions(None, settings)) == settings
    assert workers.task_settings(SinkOptions("sized", settings)) == (("batch.size", "32768"), *settings)
    limits = TopicLimits("sized", max_bytes=20_000)
    assert workers.task_settings(SinkOptions("sized", settings), limits) == (("batch.size", "16384"), *settings)


def test_aligned_task_gets_large_batches_because_it_writes_one_partition_of_many(
    spark_cluster: EmbeddedCluster,
) -> None:
    spark_cluster.create_topic("sized-aligned", partitions=600)
    settings = (("bootstrap.servers", spark_cluster.bootstrap_servers),)
    aligned = SinkOptions("sized-aligned", settings, aligned=600)
    assert workers.task_settings(aligned) == (("batch.size", "524288"), *settings)
    assert workers.task_settings(replace(aligned, aligned=None)) == (("batch.size", "16384"), *settings)
    limits = TopicLimits("sized-aligned", max_bytes=200_000)
    assert workers.task_settings(aligned, limits) == (("batch.size", "131072"), *settings)
    user_sized = replace(aligned, producer=(("batch.size", "100"), *settings))
    assert workers.task_settings(user_sized) == user_sized.producer


def test_slice_of_a_batch_sends_only_its_rows(spark_cluster: EmbeddedCluster, topic: str) -> None:
    spark_cluster.create_topic(topic, partitions=1)
    whole = pa.record_batch(
        {
            "key": pa.array([None if n % 3 == 0 else str(n) for n in range(20)]),
            "value": pa.array([None if n % 5 == 0 else b"%d" % n for n in range(20)], pa.binary()),
        }
    )
    settings = (("bootstrap.servers", spark_cluster.bootstrap_servers),)
    report = ArrowSink(SinkOptions(topic, settings), ("value", "key")).send(iter([whole.slice(4, 9)]))
    assert report.rows == 9
    assert [(entry.topic, entry.first_offset, entry.last_offset, entry.rows) for entry in report.ranges] == [
        (topic, 0, 8, 9)
    ]
    assert [(record.key, record.value) for record in read(spark_cluster, topic)] == [
        (None if n % 3 == 0 else b"%d" % n, None if n % 5 == 0 else b"%d" % n) for n in range(4, 13)
    ]


def test_unreachable_cluster_fails_the_write_within_max_block_ms(spark: SparkSession, topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    writer = spark.range(1).selectExpr("'v' as value").write.format("kafkabuf").option("topic", topic)
    start = time.monotonic()
    with pytest.raises(Exception, match=r"within max\.block\.ms.*See that Kafka runs there") as caught:
        writer.options(**{"kafka.bootstrap.servers": address, "kafka.max.block.ms": "1500"}).mode("append").save()
    assert address in str(caught.value)
    assert time.monotonic() - start < 20, (
        "the write took more than 1.5 s and the time that Spark needs to make the writer"
    )


def test_misspelt_setting_is_reported_by_the_driver(spark: SparkSession) -> None:
    writer = spark.range(1).selectExpr("'v' as value").write.format("kafkabuf").option("topic", "t")
    with pytest.raises(Exception, match=r"did you mean linger\.ms"):
        writer.options(**SERVERS).option("kafka.linger.mss", "1").mode("append").save()


def test_registered_format_writes_in_another_session(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    spark_cluster.create_topic(topic)
    session = spark.newSession()
    register(session)
    write(session.range(3).selectExpr("string(id) as value"), spark_cluster, topic)
    assert len(read(spark_cluster, topic)) == 3


def test_each_thread_of_a_pool_writes_once_it_has_activated_the_session(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    spark_cluster.create_topic(topic)

    def write_value(value: str) -> None:
        write(spark.range(1).selectExpr(f"'{value}' as value"), spark_cluster, topic)

    with ThreadPoolExecutor(2, initializer=activate, initargs=(spark,)) as pool:
        list(pool.map(write_value, "abcd"))
    assert sorted(record.value for record in read(spark_cluster, topic)) == [b"a", b"b", b"c", b"d"]
    with ThreadPoolExecutor(1) as pool, pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        pool.submit(write_value, "e").result()


def test_topic_made_again_with_fewer_partitions_gets_the_rows_of_the_next_write(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    frame = spark.range(0, 400, 1, 4).selectExpr("string(id) as key", "string(id) as value")
    for partitions in (30, 2):
        if partitions == 2:
            admin = AdminClient({"bootstrap.servers": spark_cluster.bootstrap_servers})
            admin.delete_topics([topic])[topic].result(60)
        spark_cluster.create_topic(topic, partitions=partitions)
        write(frame, spark_cluster, topic)
    assert len(read(spark_cluster, topic)) == 400


class Operator:
    """A scheduler's task: it is made in one thread and executed in another, where it finds the session by itself."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, stream: Path) -> None:
        self.cluster, self.topic, self.stream = cluster, topic, stream

    def execute(self) -> None:
        spark = SparkSession.builder.getOrCreate()
        activate(spark)
        frame = spark.range(1).selectExpr("'v' as value")
        write(frame, self.cluster, self.topic)
        frame.write.parquet(str(self.stream / "rows"))
        rows = spark.readStream.schema(frame.schema).parquet(str(self.stream / "rows"))
        options = {"kafka.bootstrap.servers": self.cluster.bootstrap_servers, "topic": self.topic}
        writer = rows.writeStream.format("kafkabuf").options(**options).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.stream / "checkpoint")).start().awaitTermination()


def test_operator_in_a_thread_of_its_own_writes_and_starts_a_stream(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    spark_cluster.create_topic(topic)
    errors: list[BaseException] = []

    def execute() -> None:
        try:
            Operator(spark_cluster, topic, tmp_path).execute()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    thread.join()
    assert not errors
    assert [record.value for record in read(spark_cluster, topic)] == [b"v", b"v"]


def test_sql_inserts_into_a_view_and_into_a_table(
    spark: SparkSession, spark_cluster: EmbeddedCluster, topic: str
) -> None:
    spark_cluster.create_topic(topic)
    options = f"('kafka.bootstrap.servers' '{spark_cluster.bootstrap_servers}', topic '{topic}')"
    view, table = f"view_{topic[-6:]}", f"table_{topic[-6:]}"
    spark.sql(f"CREATE TEMPORARY VIEW {view} (key STRING, value STRING) USING kafkabuf OPTIONS {options}")
    spark.sql(f"INSERT INTO {view} SELECT 'k', 'by view'")
    spark.sql(f"CREATE TABLE {table} (value STRING) USING kafkabuf OPTIONS {options}")
    try:
        spark.sql(f"INSERT INTO {table} WITH {options} SELECT 'by table'")
        with pytest.raises(Exception, match="Spark passes on no OPTIONS of a table: in SQL write INSERT INTO name"):
            spark.sql(f"INSERT INTO {table} SELECT 'lost'")
    finally:
        spark.sql(f"DROP TABLE {table}")
    assert {(record.key, record.value) for record in read(spark_cluster, topic)} == {
        (b"k", b"by view"),
        (None, b"by table"),
    }


def test_write_without_a_mode_is_refused_by_spark(spark: SparkSession) -> None:
    """docs/spark.md quotes the error: Spark raises it before it calls the sink."""
    writer = spark.range(1).selectExpr("'v' as value").write.format("kafkabuf").options(**SERVERS)
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode'):
        writer.option("topic", "t").save()


def test_sink_columns_have_a_fixed_order() -> None:
    one_order, other_order = (
        T.StructType([T.StructField(name, TEXT) for name in names]) for names in (["key", "value"], ["value", "key"])
    )
    # Writes with equal columns then pickle to equal bytes.
    assert sink_columns(one_order, "t") == sink_columns(other_order, "t")
