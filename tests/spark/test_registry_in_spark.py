"""Writes of Spark's Python workers with a real Schema Registry, Apicurio. confluent-kafka's deserializer reads them."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from rigs.real_registry import RealRegistry
from tests.spark.job import PARTITIONS, Job
from tests.spark.options.test_formats import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafkabuf.broker import EmbeddedCluster

pytest_plugins = ["tests.spark.fixtures"]

Pairs = list[tuple[Any, Any]]


@pytest.fixture(scope="module")
def registry() -> Iterator[RealRegistry]:
    with RealRegistry() as registry:
        yield registry


@pytest.fixture
def topic(spark_cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    spark_cluster.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def read(registry: RealRegistry, spark_cluster: EmbeddedCluster, topic: str) -> Iterator[Callable[[], Pairs]]:
    """Keys and values of the topic. The reader knows nothing but the registry."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        deserializer = AvroDeserializer(client, conf={"subject.name.strategy.type": "TOPIC"})

        def decode(encoded: bytes | None, field: MessageField) -> Any:
            return None if encoded is None else deserializer(encoded, SerializationContext(topic, field))

        yield lambda: [
            (decode(message.key(), MessageField.KEY), decode(message.value(), MessageField.VALUE))
            for message in records(spark_cluster, topic)
        ]


def options(registry: RealRegistry, cluster: EmbeddedCluster, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "topic": topic,
        "valueFormat": "avro",
        "schema.registry.url": registry.url,
    }


def test_batch_is_read_by_the_registrys_own_clients(
    spark: SparkSession,
    spark_cluster: EmbeddedCluster,
    registry: RealRegistry,
    topic: str,
    read: Callable[[], Pairs],
) -> None:
    frame = spark.range(0, 300, 1, 3).selectExpr(
        "id", "if(id % 7 = 0, null, concat('C', id % 5)) as carrier", "timestamp_seconds(id - 150) as at",
        "cast(id / 4 - 20 as decimal(9, 2)) as price", "named_struct('ids', array(id, null)) as inner",
    )  # fmt: skip
    given = {**options(registry, spark_cluster, topic), "keyFormat": "avro", "keyColumns": "id, carrier"}
    frame.write.format("kafkabuf").options(**given).mode("append").save()
    found = {value["id"]: (key, value) for key, value in read()}
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    for number in range(300):
        carrier = None if number % 7 == 0 else f"C{number % 5}"
        key, value = found[number]
        assert key == {"id": number, "carrier": carrier}
        assert value == {
            "id": number,
            "carrier": carrier,
            "at": epoch + datetime.timedelta(seconds=number - 150),
            "price": Decimal(number) / 4 - 20,
            "inner": {"ids": [number, None]},
        }
    assert len(found) == 300


def test_topics_that_rows_name_are_read_by_the_registrys_own_clients(
    spark: SparkSession, spark_cluster: EmbeddedCluster, registry: RealRegistry, topic: str
) -> None:
    topics = [f"{topic}-a", f"{topic}-b"]
    for name in topics:
        spark_cluster.create_topic(name)
    frame = spark.range(0, 20, 1, 2).selectExpr("id", f"if(id % 2 = 0, '{topics[0]}', '{topics[1]}') as topic")
    given = options(registry, spark_cluster, topic)
    del given["topic"]
    frame.write.format("kafkabuf").options(**given).mode("append").save()
    frame.write.format("kafkabuf").options(**given, topics=",".join(topics)).mode("append").save()
    with SchemaRegistryClient({"url": registry.url}) as client:
        assert {f"{name}-value" for name in topics} <= set(client.get_subjects())
        deserializer = AvroDeserializer(client, conf={"subject.name.strategy.type": "TOPIC"})
        for number, name in enumerate(topics):
            context = SerializationContext(name, MessageField.VALUE)
            found: list[Any] = [
                deserializer(message.value(), context) for message in records(spark_cluster, name, partitions=1)
            ]
            assert sorted(value["id"] for value in found) == sorted(2 * list(range(number, 20, 2)))


def test_stream_with_a_wider_schema_is_read_beside_what_it_wrote_before(
    spark: SparkSession,
    spark_cluster: EmbeddedCluster,
    registry: RealRegistry,
    topic: str,
    read: Callable[[], Pairs],
    tmp_path: Path,
) -> None:
    fields: list[Any] = [{"name": "line", "type": "string"}]
    note: dict[str, Any] = {"name": "note", "type": ["null", "string"], "default": None}

    class Lines(Job):
        columns: tuple[str, ...] = ("value as line",)

        def frame(self) -> DataFrame:
            return super().frame().selectExpr(*self.columns)

    given = {**options(registry, spark_cluster, topic), "schema.registry.latest.cache.ttl.sec": "0"}
    del given["kafka.bootstrap.servers"], given["topic"]
    job = Lines(spark, spark_cluster.bootstrap_servers, topic, tmp_path, "exactly_once", **given)
    schema, wider = (
        json.dumps({"type": "record", "name": "Line", "fields": each}) for each in (fields, [*fields, note])
    )
    job.add_file(4)
    job.run(valueSchema=schema)
    job.forget_newest_commit()  # Spark replays the micro-batch
    job.run(valueSchema=schema)
    job.columns = ("value as line", "concat('of ', value) as note")
    job.add_file(3)
    job.run(valueSchema=wider)
    before = [{"line": f"0-{row}"} for row in range(4)]
    after = [{"line": f"1-{row}", "note": f"of 1-{row}"} for row in range(3)]
    assert sorted(read(), key=str) == [(None, value) for value in (*before, *after)]
