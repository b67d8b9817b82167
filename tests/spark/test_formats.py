"""Writes with valueFormat and keyFormat, without Spark: the calls of its driver and tasks, as in test_refused_rows.py.

fastavro decodes what arrived.
"""

from __future__ import annotations

import datetime
import io
import json
import pickle
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, KafkaError, SerializationError
from kafkabuf.partitioner import partition_for_key
from kafkabuf.spark import KafkabufDataSource, WriteReport, verify
from kafkabuf.spark.format_options import arrow_schema
from kafkabuf.spark.place import MicroBatch, TaskAttempt
from kafkabuf.spark.report import TaskReport
from kafkabuf.spark.schema import ALIGNED
from kafkabuf.spark.writer import BatchWriter, StreamWriter
from tests.formats.registry_support import FakeRegistry, running
from tests.spark.job import PARTITIONS

GUARANTEES = ["at_least_once", "exactly_once", "atomic"]
SMALL = {"type": "record", "name": "Flight", "fields": [{"name": "id", "type": "int"}]}
IDS = T.StructType([T.StructField("id", T.LongType(), nullable=False)])
TOO_LARGE = 2**40  # for Avro's int


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions=PARTITIONS)
    cluster.create_topic(f"{name}-dead", partitions=1)
    return name


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry


class Write:
    """Writes of one task with the calls that Spark makes, each in a process of its own: its side is pickled."""

    def __init__(
        self, cluster: EmbeddedCluster, topic: str, schema: T.StructType, patch: pytest.MonkeyPatch, **options: str
    ) -> None:
        given = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "kafka.max.block.ms": "10000",
            "kafka.linger.ms": "0",
            "topic": topic,
            "sinkId": f"sink-{topic}",
            "valueFormat": "avro",
            **options,
        }
        self.options, self.schema, self.patch = given, schema, patch

    def source(self) -> KafkabufDataSource:
        return KafkabufDataSource(CaseInsensitiveDict(self.options))

    def pickled(self) -> bytes:
        """What Spark sends to the tasks of a stream."""
        return pickle.dumps(self.source().streamWriter(self.schema, False))

    def run(self, *batches: pa.RecordBatch, number: int = 0, run_id: str = "run", task: int = 0) -> TaskReport:
        """One micro-batch of one task, which Spark commits."""
        place = TaskAttempt(task, 0, MicroBatch(number, "query", run_id), 7)
        self.patch.setattr(TaskAttempt, "current", lambda: place)
        writer: StreamWriter = pickle.loads(self.pickled())
        report = writer.write(iter(batches))
        committing = self.source().streamWriter(self.schema, False)
        committing.commit([report], number)
        return report


def batch_of(schema: T.StructType, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """The Arrow data that Spark gives a task for these rows."""
    return pa.RecordBatch.from_pylist(rows, arrow_schema(schema))


def records(cluster: EmbeddedCluster, topic: str, partitions: int = PARTITIONS) -> list[Any]:
    """What a reader with read_committed sees."""
    consumer, ended = (
        Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": "10",
            }
        ),
        0,
    )
    found = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while ended < partitions:
            message = consumer.poll(10.0)
            assert message is not None, "the reader got no message for 10 s"
            ended += message.error() is not None
            found += [message] if message.error() is None else []
    finally:
        consumer.close()
    return found


def decoded(schema: Any, encoded: bytes | None, prefix: int = 0) -> Any:
    """One Avro value behind a prefix of so many bytes."""
    assert encoded is not None
    stream = io.BytesIO(encoded[prefix:])
    value = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)  # type: ignore[call-arg]
    assert stream.read() == b""
    return value


# ---- what arrives ----------------------------------------------------------------------------------------------------

MANY = T.StructType(
    [
        T.StructField("id", T.LongType(), nullable=False),
        T.StructField("small", T.ShortType()),
        T.StructField("ok", T.BooleanType()),
        T.StructField("real", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("text", T.StringType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("price", T.DecimalType(10, 2)),
        T.StructField("day", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("tags", T.ArrayType(T.StringType(), containsNull=True)),
        T.StructField("counts", T.MapType(T.StringType(), T.IntegerType())),
        T.StructField("place", T.StructType([T.StructField("x", T.IntegerType(), nullable=False)])),
    ]
)
MANY_FIELDS = [
    {"name": "id", "type": "long"},
    *(
        {"name": name, "type": ["null", kind], "default": None}
        for name, kind in (
            ("small", "int"),
            ("ok", "boolean"),
            ("real", "float"),
            ("double", "double"),
            ("text", "string"),
            ("bytes", "bytes"),
            ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
            ("day", {"type": "int", "logicalType": "date"}),
            ("at", {"type": "long", "logicalType": "timestamp-micros"}),
            ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
            ("tags", {"type": "array", "items": ["null", "string"]}),
            ("counts", {"type": "map", "values": ["null", "int"]}),
            ("place", {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}),
        )
    ),
]
NOON = datetime.datetime(2013, 1, 1, 12, 0, 0, 123456)
FULL = {
    "id": 1, "small": -2, "ok": True, "real": 0.5, "double": 0.25, "text": "grüße", "bytes": b"\x00\xff",
    "price": Decimal("-12.34"), "day": datetime.date(2013, 1, 2), "at": NOON.replace(tzinfo=datetime.UTC),
    "local": NOON, "tags": ["a", None], "counts": {"a": 1, "b": None}, "place": {"x": 5},
}  # fmt: skip
EMPTY = dict.fromkeys(MANY.fieldNames()) | {"id": 2}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_each_type_of_spark_arrives_as_the_derived_schema_says(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    write = Write(cluster, topic, MANY, monkeypatch, deliveryGuarantee=guarantee)
    report = write.run(batch_of(MANY, [FULL]), batch_of(MANY, [EMPTY]))
    found = [decoded({"type": "record", "name": "Row", "fields": MANY_FIELDS}, m.value()) for m in records(cluster, topic)]
    assert sorted(found, key=lambda row: row["id"]) == [FULL, EMPTY]
    assert all(message.key() is None for message in records(cluster, topic))
    checked = verify(WriteReport.from_messages([report]), {"bootstrap.servers": cluster.bootstrap_servers})
    assert (checked.rows, checked.strangers) == (2, 0), "the checksum of the report is that of the bytes in Kafka"
