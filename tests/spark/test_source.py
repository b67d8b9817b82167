"""Spark's own Kafka source reads the records that kafkabuf wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkabuf import KafkaProducer
from rigs.jars import resolve_spark_kafka_jars
from tests.memory.pool_support import assert_all_free
from tests.real.consumers import Partition
from tests.wire.record_support import SampleRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rigs.real_kafka import RealKafka

pytest_plugins = ["tests.spark.fixtures"]

PARTITIONS = 3
NOW = 1_700_000_000_000


def read_with_spark(spark: SparkSession, kafka: RealKafka, topic: str) -> list[Partition]:
    session = spark.newSession()
    for jar in resolve_spark_kafka_jars():
        session.sql(f"ADD JAR '{jar}'")
    source = session.read.format("kafka").option("includeHeaders", "true").option("subscribe", topic)
    rows = source.option("kafka.bootstrap.servers", kafka.bootstrap_servers).load()
    partitions: list[Partition] = [{} for _ in range(PARTITIONS)]
    for row in rows.selectExpr("*", "unix_millis(timestamp) AS millis").collect():
        headers = tuple((header.key, bytes_or_none(header.value)) for header in row.headers or ())
        sample = SampleRecord(row.millis, bytes_or_none(row.key), bytes_or_none(row.value), headers)
        partitions[row.partition][row.offset] = sample
    return partitions


def bytes_or_none(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_sparks_kafka_source_reads_the_records_that_were_sent(spark: SparkSession, kafka_4: RealKafka) -> None:
    kafka_4.create_topic("spark-source", PARTITIONS)
    blobs = [None, b"", b"v", "žluť".encode(), bytes(range(256)), b"large" * 10_000]
    pairs: list[tuple[tuple[str, bytes | None], ...]] = [
        (),
        (("h", b"1"),),
        (("h", None), ("h", b""), ("", b"\xff"), ("ключ", b"x" * 200)),
    ]
    sent: list[Partition] = [{} for _ in range(PARTITIONS)]
    with KafkaProducer(bootstrap_servers=kafka_4.bootstrap_servers, batch_size=4096) as producer:
        futures = []
        for n in range(1500):
            # The timestamps go backwards, too.
            record = SampleRecord(NOW + n * 7919 % 10_007, blobs[n % 5], blobs[n // 5 % 6 - (n % 50 > 0)], pairs[n % 3])
            future = producer.send("spark-source", record.value, record.key, record.headers, n % 3, record.timestamp)
            futures.append((future, record))
        for future, record in futures:
            metadata = future.result(30)
            sent[metadata.partition][metadata.offset] = record
        assert_all_free(producer.pool)
    assert [len(partition) for partition in sent] == [500, 500, 500]
    assert read_with_spark(spark, kafka_4, "spark-source") == sent
