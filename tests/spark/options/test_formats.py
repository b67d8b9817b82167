"""Writes with valueFormat and keyFormat, without Spark: the calls of its driver and tasks, as in test_refused_rows.py.

fastavro decodes what arrived.
"""

from __future__ import annotations

import datetime
import io
import itertools
import json
import pickle
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from google.protobuf import descriptor_pb2
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, IllegalStateError, KafkaError, SerializationError
from kafkabuf.partitioner import partition_for_key
from kafkabuf.shown import json_object
from kafkabuf.spark import KafkabufDataSource, WriteReport, verify
from kafkabuf.spark.options import format_options
from kafkabuf.spark.options.format_options import arrow_schema, key_rule
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.rows.schema import ALIGNED, ALIGNED_BY
from kafkabuf.spark.worker import workers
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from kafkabuf.spark.writer import NotBegunError, StreamWriter
from tests.formats.registry.support import FakeRegistry, running
from tests.spark.job import PARTITIONS

GUARANTEES = ["at_least_once", "exactly_once", "atomic"]
SMALL = {"type": "record", "name": "Flight", "fields": [{"name": "id", "type": "int"}]}
IDS = T.StructType([T.StructField("id", T.LongType(), nullable=False)])
TOO_LARGE = 2**40  # for Avro's int


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as cluster:
        yield cluster
        workers.close_all()


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
        assert isinstance(report, TaskReport)
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
    value = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
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
    *(
        {"name": name, "type": ["null", kind], "default": None}
        for name, kind in (
            ("id", "long"),
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
            (
                "place",
                {
                    "type": "record",
                    "name": "Place",
                    "fields": [{"name": "x", "type": ["null", "int"], "default": None}],
                },
            ),
        )
    ),
]
NOON = datetime.datetime(2013, 1, 1, 12, 0, 0, 123456)
FULL: dict[str, Any] = {
    "id": 1, "small": -2, "ok": True, "real": 0.5, "double": 0.25, "text": "grüße", "bytes": b"\x00\xff",
    "price": Decimal("-12.34"), "day": datetime.date(2013, 1, 2), "at": NOON.replace(tzinfo=datetime.UTC),
    "local": NOON, "tags": ["a", None], "counts": {"a": 1, "b": None}, "place": {"x": 5},
}  # fmt: skip
EMPTY: dict[str, Any] = dict.fromkeys(MANY.fieldNames()) | {"id": 2}


ROW = {"type": "record", "name": "Row", "fields": MANY_FIELDS}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_each_type_of_spark_arrives_as_the_derived_schema_says(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    write = Write(cluster, topic, MANY, monkeypatch, deliveryGuarantee=guarantee)
    report = write.run(batch_of(MANY, [FULL]), batch_of(MANY, [EMPTY]))
    found = [decoded(ROW, message.value()) for message in records(cluster, topic)]
    assert sorted(found, key=lambda row: row["id"]) == [FULL, EMPTY]
    assert all(message.key() is None for message in records(cluster, topic))
    checked = verify(WriteReport.from_messages([report]), {"bootstrap.servers": cluster.bootstrap_servers})
    assert (checked.rows, checked.strangers) == (2, 0), "the checksum of the report is that of the bytes in Kafka"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (T.DayTimeIntervalType(), r"column 'span' has the type duration\[us\]"),
        (T.YearMonthIntervalType(), "column 'span': .*YearMonthIntervalType"),
        (T.MapType(T.IntegerType(), T.StringType()), r"column 'span\{key\}' has the type int32"),
        (T.MapType(T.NullType(), T.NullType()), "column 'span' is a map whose keys have the type void.* cast it"),
        (T.VariantType(), "column 'span' has the type variant"),
        (T.ArrayType(T.StructType([T.StructField("v", T.VariantType())])), r"column 'span\[\].v' has the type variant"),
    ],
)
def test_type_without_an_avro_type_is_refused_before_any_task(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, kind: T.DataType, name: str
) -> None:
    write = Write(cluster, topic, T.StructType([T.StructField("span", kind)]), monkeypatch)
    with pytest.raises(NotBegunError, match=name):
        write.pickled()


def test_interval_becomes_a_duration_of_a_given_schema(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "span", "type": fixed}]}
    spark = T.StructType([T.StructField("span", T.DayTimeIntervalType(), nullable=False)])
    write = Write(cluster, topic, spark, monkeypatch, valueSchema=json.dumps(schema))
    write.run(batch_of(spark, [{"span": datetime.timedelta(milliseconds=1234)}]))
    (message,) = records(cluster, topic)
    assert message.value() == (0).to_bytes(8, "little") + (1234).to_bytes(4, "little")


def test_values_have_one_schema_whatever_is_nullable_in_the_plan_and_in_the_data(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nullable = T.StructType([T.StructField("id", T.LongType(), nullable=True)])
    for number, (plan, data) in enumerate(itertools.product((IDS, nullable), repeat=2)):
        Write(cluster, topic, plan, monkeypatch).run(batch_of(data, [{"id": 7}]), number=number)
    assert [message.value() for message in records(cluster, topic)] == 4 * [b"\x02\x0e"], "a union with null"


# ---- which columns are the value, the key and the rest ---------------------------------------------------------------

PLAIN = T.StructType(
    [
        T.StructField("id", T.LongType(), nullable=False),
        T.StructField("carrier", T.StringType()),
        T.StructField("at", T.TimestampType()),
    ]
)
PLAIN_ROWS: list[dict[str, Any]] = [
    {"id": 1, "carrier": "UA", "at": NOON.replace(tzinfo=datetime.UTC)},
    {"id": 2, "carrier": None, "at": NOON.replace(tzinfo=datetime.UTC)},
]
PLAIN_AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": ["null", "long"], "default": None},
        {"name": "carrier", "type": ["null", "string"], "default": None},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}], "default": None},
    ],
}
PAIR = {
    "type": "record",
    "name": "Pair",
    "fields": [{"name": "carrier", "type": ["null", "string"]}, {"name": "id", "type": "long"}],
}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"keyColumns": "carrier"}, [b"UA", None]),
        ({"keyColumns": "carrier", "keyFormat": "avro"}, [b"\x04UA", None]),
        ({"keyColumns": "id", "keyFormat": "Avro", "keySchema": "long"}, [b"\x02", b"\x04"]),
        (
            {"keyColumns": "id, carrier", "keyFormat": "avro", "keySchema": json.dumps(PAIR)},
            [b"\x02\x04UA\x02", b"\x00\x04"],
        ),
    ],
    ids=["raw", "one column", "schema", "record"],
)
def test_key_columns_make_the_key_and_stay_in_the_value(
    cluster: EmbeddedCluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    keys: list[bytes | None],
) -> None:
    Write(cluster, topic, PLAIN, monkeypatch, **options).run(batch_of(PLAIN, PLAIN_ROWS))
    found = {decoded(PLAIN_AVRO, message.value())["id"]: message for message in records(cluster, topic)}
    assert [decoded(PLAIN_AVRO, found[number].value()) for number in (1, 2)] == PLAIN_ROWS
    assert [found[number].key() for number in (1, 2)] == keys
    for message in found.values():
        if message.key() is not None:
            assert message.partition() == partition_for_key(message.key(), PARTITIONS)


HEADERS = T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))


def test_the_records_own_columns_are_no_part_of_the_value(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"topic": T.StringType(), "partition": T.IntegerType(), "key": T.StringType(), "headers": HEADERS}
    schema = T.StructType([*(T.StructField(name, kind) for name, kind in own.items()), *PLAIN.fields])
    row: dict[str, Any] = {
        "topic": "other",
        "partition": 2,
        "key": "k",
        "headers": [{"key": "h", "value": b"1"}],
        **PLAIN_ROWS[0],
    }
    Write(cluster, topic, schema, monkeypatch, timestampColumn="at").run(batch_of(schema, [row]))
    (message,) = records(cluster, topic)
    assert decoded(PLAIN_AVRO, message.value()) == PLAIN_ROWS[0], "the column of the timestamps stays in the value"
    assert (message.partition(), message.key(), message.headers()) == (2, b"k", [("h", b"1")])
    assert message.timestamp()[1] == 1357041600123


def test_column_value_alone_is_the_value_and_its_null_is_kafkas_null(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = T.StructType([T.StructField("timestamp", T.StringType(), nullable=False)])
    schema = T.StructType([T.StructField("key", T.IntegerType()), T.StructField("value", inner)])
    write = Write(cluster, topic, schema, monkeypatch, keyFormat="avro")
    write.run(batch_of(schema, [{"key": 1, "value": {"timestamp": "x"}}, {"key": 2, "value": None}]))
    assert {message.key(): message.value() for message in records(cluster, topic)} == {
        b"\x02": b"\x02\x02x",
        b"\x04": None,
    }


def test_only_the_key_may_have_a_format(cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("value", T.StringType())])
    options = {"valueFormat": "raw", "keyFormat": "avro", "keyColumns": "id"}
    Write(cluster, topic, schema, monkeypatch, **options).run(batch_of(schema, [{"id": 1, "value": "as it is"}]))
    assert [(message.key(), message.value()) for message in records(cluster, topic)] == [(b"\x02", b"as it is")]


def test_extra_columns_are_refused_before_any_task_or_ignored(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    with pytest.raises(KafkaError, match="carrier"):
        Write(cluster, topic, PLAIN, monkeypatch, valueSchema=schema).pickled()
    write = Write(cluster, topic, PLAIN, monkeypatch, valueSchema=schema, extraColumns="ignore")
    write.run(batch_of(PLAIN, PLAIN_ROWS))
    assert sorted(message.value() for message in records(cluster, topic)) == [b"\x02", b"\x04"]


@pytest.mark.parametrize(
    ("options", "zone", "text"),
    [
        ({}, "UTC", '"at":"2013-01-01T12:00:00.123Z"'),
        ({}, "Asia/Kolkata", '"at":"2013-01-01T17:30:00.123+05:30"'),
        ({"timeZone": "+01:00", "timestampFormat": "dd HH"}, "UTC", '"at":"01 13"'),
        ({"timestampNTZFormat": "dd"}, "UTC", '"at":"2013-01-01T12:00:00.123Z"'),
        ({"ignoreNullFields": "false"}, "UTC", '"carrier":null,"at":"2013-01-01T12:00:00.123Z"'),
    ],
    ids=["UTC", "session", "option", "no instant", "nulls"],
)
def test_json_is_that_of_sparks_to_json(
    cluster: EmbeddedCluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    zone: str,
    text: str,
) -> None:
    batch = batch_of(PLAIN, [PLAIN_ROWS[1]])
    at = batch.column("at").cast(pa.timestamp("us", zone))
    write = Write(cluster, topic, PLAIN, monkeypatch, **{"valueFormat": "json", **options})
    write.run(batch.set_column(2, "at", at))
    assert [message.value().decode() for message in records(cluster, topic)] == [f'{{"id":2,{text}}}']


def test_protobuf_writes_the_message_of_a_descriptor_file(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry, tmp_path: Path
) -> None:
    number = descriptor_pb2.FieldDescriptorProto(
        name="id", number=1, type="TYPE_INT32", label="LABEL_OPTIONAL", json_name="id"
    )
    message = descriptor_pb2.DescriptorProto(name="Flight", field=[number])
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3", message_type=[message])
    path = tmp_path / "descriptors"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    options = {"valueFormat": "protobuf", "valueMessage": "p.Flight", "valueDescriptors": str(path)}
    options |= {"onRowError": "skip", "schema.registry.url": registry.url}
    report = Write(cluster, topic, IDS, monkeypatch, **options).run(ids(3, {1}))
    (known,) = registry.subjects[f"{topic}-value"]
    assert (report.rows, report.skipped, known["schemaType"]) == (2, 1, "PROTOBUF")
    prefix = b"\0" + known["id"].to_bytes(4, "big") + b"\0"
    assert sorted(message.value() for message in records(cluster, topic)) == [prefix, prefix + b"\x08\x02"]


# ---- rows that cannot be encoded -------------------------------------------------------------------------------------

BAD = {0, 7, 100, 101, 299}


def ids(count: int, bad: set[int]) -> pa.RecordBatch:
    """Rows 0 to `count`; those in `bad` do not fit Avro's int."""
    return batch_of(IDS, [{"id": TOO_LARGE + n if n in bad else n} for n in range(count)])


def pieces(batch: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    return [batch.slice(begin, size) for begin in range(0, batch.num_rows, size)]


def policies(guarantee: str) -> list[str]:
    return ["skip"] if guarantee == "atomic" else ["skip", "dead_letter"]


@pytest.mark.parametrize(("guarantee", "policy"), [(g, policy) for g in GUARANTEES for policy in policies(g)])
def test_every_good_row_arrives_once_and_each_bad_row_goes_where_the_policy_says(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str, policy: str
) -> None:
    options = {"deliveryGuarantee": guarantee, "onRowError": policy, "valueSchema": json.dumps(SMALL)}
    options |= {"deadLetterTopic": f"{topic}-dead"} if policy == "dead_letter" else {}
    report = Write(cluster, topic, IDS, monkeypatch, **options).run(*pieces(ids(300, BAD), 100))
    assert (report.rows, report.skipped + report.dead_lettered, report.retries) == (295, 5, 0)
    found = sorted(decoded(SMALL, message.value())["id"] for message in records(cluster, topic))
    assert found == [n for n in range(300) if n not in BAD]
    if policy == "dead_letter":
        letters = records(cluster, f"{topic}-dead", 1)
        assert [json.loads(letter.value()) for letter in letters] == [{"id": TOO_LARGE + n} for n in sorted(BAD)]
        headers = dict(letters[1].headers())
        assert headers["kafkabuf.error"] == b"SerializationError"
        assert headers["kafkabuf.reason"].startswith(b"column 'id' of type int64 has the value 1099511627783")
        assert headers["kafkabuf.topic"] == topic.encode()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_under_fail_the_error_names_the_row(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    options = {"deliveryGuarantee": guarantee, "valueSchema": json.dumps(SMALL)}
    named = r"^row 250 of this task \(no key, .* cannot be sent: column 'id' of type int64 has the value 1099511628026,"
    with pytest.raises(SerializationError, match=named) as caught:
        Write(cluster, topic, IDS, monkeypatch, **options).run(*pieces(ids(300, {250}), 100))
    assert str(caught.value).endswith("or set option 'onRowError' to 'skip' or 'dead_letter'")


def test_rows_whose_keys_and_rows_whose_values_cannot_be_encoded_are_all_refused(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("other", T.LongType())])
    options = {"keyFormat": "avro", "keyColumns": "other", "keySchema": "int", "onRowError": "skip"}
    fields = [{"name": "id", "type": "int"}, {"name": "other", "type": "long"}]
    options["valueSchema"] = json.dumps({**SMALL, "fields": fields})
    rows = [{"id": TOO_LARGE, "other": 1}, {"id": 2, "other": TOO_LARGE}, {"id": 3, "other": 3}]
    report = Write(cluster, topic, schema, monkeypatch, **options).run(batch_of(schema, rows))
    assert (report.rows, report.skipped) == (1, 2)
    assert [message.key() for message in records(cluster, topic)] == [b"\x06"]


def test_key_that_cannot_be_encoded_is_json_in_its_dead_letter(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"keyFormat": "avro", "keyColumns": "id", "keySchema": "int"}
    options |= {"onRowError": "dead_letter", "deadLetterTopic": f"{topic}-dead"}
    report = Write(cluster, topic, IDS, monkeypatch, **options).run(ids(3, {1}))
    assert (report.rows, report.dead_lettered) == (2, 1)
    (letter,) = records(cluster, f"{topic}-dead", 1)
    assert json.loads(letter.key()) == {"id": TOO_LARGE + 1}
    assert decoded(["null", "long"], letter.value()) == TOO_LARGE + 1, "the value as it would have been sent"


def test_batch_of_bad_rows_alone_is_skipped(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"onRowError": "skip", "valueSchema": json.dumps(SMALL)}
    report = Write(cluster, topic, IDS, monkeypatch, **options).run(ids(3, {0, 1, 2}), ids(2, set()))
    assert (report.rows, report.skipped) == (2, 3)


def test_replay_with_the_same_bad_rows_is_recognised_and_with_others_refused(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"deliveryGuarantee": "exactly_once", "onRowError": "skip", "valueSchema": json.dumps(SMALL)}
    write = Write(cluster, topic, IDS, monkeypatch, **options)
    write.run(*pieces(ids(300, BAD), 100))
    again = write.run(*pieces(ids(300, BAD), 70), run_id="again")
    assert (again.already_written, again.rows) == (True, 0)
    assert len(records(cluster, topic)) == 295
    other = ids(300, BAD).to_pylist()
    other[7]["id"] += 1  # still bad
    with pytest.raises(IllegalStateError, match="replay"):
        write.run(batch_of(IDS, other), run_id="third")


def test_row_as_json_text_has_what_json_lacks_as_text() -> None:
    row = FULL | {"real": float("nan"), "double": float("-inf")}
    batch = batch_of(MANY, [row])
    text = json_object({name: batch.column(name)[0] for name in batch.schema.names})
    assert json.loads(text) == {
        "id": 1, "small": -2, "ok": True, "real": "nan", "double": "-inf", "text": "grüße", "bytes": "AP8=",
        "price": "-12.34", "day": "2013-01-02", "at": "2013-01-01T12:00:00.123456+00:00",
        "local": "2013-01-01T12:00:00.123456", "tags": ["a", None], "counts": [["a", 1], ["b", None]],
        "place": {"x": 5},
    }  # fmt: skip


def test_time_beyond_the_calendar_has_a_text() -> None:
    batch = pa.record_batch({"at": pa.array([2**62], pa.timestamp("us", "UTC"))})
    assert json.loads(json_object({"at": batch.column(0)[0]})) == {"at": f"{2**62} (timestamp[us, tz=UTC])"}


# ---- alignment -------------------------------------------------------------------------------------------------------


def aligned(schema: T.StructType, name: str, metadata: dict[str, Any]) -> T.StructType:
    fields = [
        T.StructField(field.name, field.dataType, field.nullable, metadata if field.name == name else {})
        for field in schema.fields
    ]
    return T.StructType(fields)


def test_aligned_row_goes_by_its_encoded_key(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"keyColumns": "id", "keyFormat": "avro"}
    schema = aligned(IDS, "id", {ALIGNED: PARTITIONS, ALIGNED_BY: key_rule(options)})
    Write(cluster, topic, schema, monkeypatch, **options).run(ids(50, set()))
    found = records(cluster, topic)
    assert len(found) == 50
    assert all(message.partition() == partition_for_key(message.key(), PARTITIONS) for message in found)


def test_aligned_row_without_a_key_goes_by_its_task(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = aligned(IDS, "id", {ALIGNED: PARTITIONS})
    Write(cluster, topic, schema, monkeypatch).run(ids(5, set()), task=2)
    assert [message.partition() for message in records(cluster, topic)] == [2] * 5


def test_rows_that_are_aligned_by_another_key_are_refused(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = aligned(IDS, "id", {ALIGNED: PARTITIONS})
    with pytest.raises(ConfigError, match=r"align\(df, partitions, options\)"):
        Write(cluster, topic, schema, monkeypatch, keyColumns="id", keyFormat="avro").pickled()


# ---- the Schema Registry ---------------------------------------------------------------------------------------------


def test_driver_registers_the_derived_schemas_and_tasks_write_their_prefixes(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry
) -> None:
    options = {"schema.registry.url": registry.url, "keyColumns": "id", "keyFormat": "avro"}
    write = Write(cluster, topic, PLAIN, monkeypatch, **options)
    write.run(batch_of(PLAIN, PLAIN_ROWS[:1]))
    (message,) = records(cluster, topic)
    (value,), (key,) = registry.subjects[f"{topic}-value"], registry.subjects[f"{topic}-key"]
    assert message.value()[:5] == b"\0" + value["id"].to_bytes(4, "big")
    assert decoded(json.loads(value["schema"]), message.value(), prefix=5) == PLAIN_ROWS[0]
    assert message.key() == b"\0" + key["id"].to_bytes(4, "big") + b"\x02"


def test_registry_is_asked_once_by_all_micro_batches_and_never_by_a_commit(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry
) -> None:
    write = Write(cluster, topic, IDS, monkeypatch, **{"schema.registry.url": registry.url})
    write.run(ids(1, set()))
    seen = len(registry.seen)
    write.run(ids(1, set()), number=1)
    assert len(registry.seen) == seen
    format_options._registry.cache_clear()  # as in another Python worker of the driver
    writer = write.source().streamWriter(write.schema, False)
    writer.commit([pickle.loads(write.pickled()).write(iter([ids(1, set())]))], 2)
    assert len(registry.seen) == 2 * seen, "the writer that was pickled has asked, the writer that commits has not"


@pytest.mark.parametrize("own", [True, False], ids=["own headers", "no headers"])
def test_header_names_the_schema_behind_the_rows_own_headers(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry, own: bool
) -> None:
    schema = T.StructType([T.StructField("value", T.LongType()), *([T.StructField("headers", HEADERS)] if own else [])])
    pair = {"key": "a", "value": b"1"}
    rows: list[dict[str, Any]] = [
        {"value": 1, "headers": [pair, pair]},
        {"value": 2, "headers": None},
        {"value": None, "headers": [pair]},
    ]
    options = {"schema.registry.url": registry.url, "schema.registry.schema.id.framing": "header"}
    report = Write(cluster, topic, schema, monkeypatch, **options).run(batch_of(schema, rows))
    guid = UUID(registry.subjects[f"{topic}-value"][0]["guid"]).bytes
    named = [("__value_schema_id", b"\x01" + guid)]
    theirs = [("a", b"1")] if own else []
    found = {message.value(): message.headers() for message in records(cluster, topic)}
    assert found == {b"\x02": theirs * 2 + named, b"\x04": named, None: theirs or None}
    verify(WriteReport.from_messages([report]), {"bootstrap.servers": cluster.bootstrap_servers})


def test_headers_name_the_schemas_of_key_and_value(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry
) -> None:
    schema = T.StructType([T.StructField("key", T.LongType()), T.StructField("value", T.StringType())])
    options = {"schema.registry.url": registry.url, "schema.registry.schema.id.framing": "header", "keyFormat": "avro"}
    rows: list[dict[str, Any]] = [{"key": 1, "value": "a"}, {"key": 2, "value": None}, {"key": None, "value": "c"}]
    Write(cluster, topic, schema, monkeypatch, **options).run(batch_of(schema, rows))
    value, key = (
        (f"__{field}_schema_id", b"\x01" + UUID(registry.subjects[f"{topic}-{field}"][0]["guid"]).bytes)
        for field in ("value", "key")
    )
    found = {message.key(): message.headers() for message in records(cluster, topic)}
    assert found == {b"\x02": [value, key], b"\x04": [key], None: [value]}


def test_tasks_get_no_secret_of_the_registry_and_no_repr_shows_one(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(FakeRegistry(authorization="Basic bWU6czNudGluM2w=")) as registry:
        options = {"schema.registry.url": registry.url, "schema.registry.basic.auth.user.info": "me:s3ntin3l"}
        write = Write(cluster, topic, IDS, monkeypatch, **options)
        writer = write.source().streamWriter(IDS, False)
        assert isinstance(writer, StreamWriter)
        assert "s3ntin3l" not in repr(writer.sink)
        sent = pickle.dumps(writer)
    assert registry.subjects, "the registry has accepted the password"
    assert b"s3ntin3l" not in sent
    assert b"schema.registry" not in sent


def test_refusal_of_the_registry_is_the_drivers_error(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry
) -> None:
    registry.subjects[f"{topic}-value"] = [{"schema": '"string"', "id": 1}]
    registry.compatible = False
    with pytest.raises(NotBegunError, match="Schema being registered is incompatible"):
        Write(cluster, topic, IDS, monkeypatch, **{"schema.registry.url": registry.url}).pickled()


# ---- options ---------------------------------------------------------------------------------------------------------

AVRO = {"valueformat": "avro"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"valueformat": "arvo"},
            r"option 'valueFormat' is 'arvo'; allowed: raw, avro, json, protobuf.*did you mean 'avro'",
        ),
        ({"keyformat": "xml"}, r"option 'keyFormat' is 'xml'"),
        ({"valueschema": "long"}, r"option 'valueSchema' needs a format: set option 'valueFormat'"),
        ({"keyschema": "long", **AVRO}, r"option 'keySchema' needs a format: set option 'keyFormat'"),
        ({"valueschema": "nothing", **AVRO}, r"option 'valueSchema': "),
        ({"keycolumns": "a,b", **AVRO}, r"'keyColumns' names 2 columns, which need a keyFormat"),
        ({"keycolumns": "a,,b", **AVRO}, r"'keyColumns' is 'a,,b'"),
        ({"keycolumns": "a,a", "keyformat": "avro"}, r"'keyColumns' is 'a,a'"),
        ({"extracolumns": "ignore"}, r"'extraColumns' needs a format.*to 'avro' or 'protobuf'"),
        ({"extracolumns": "ignore", "valueformat": "json"}, r"'extraColumns' needs a format"),
        ({"timezone": "UTC", **AVRO}, r"'timeZone' needs a format.*set option 'valueFormat' to 'json'"),
        ({"timezone": "Nowhere", "valueformat": "json"}, r"option 'timeZone': .*Nowhere"),
        ({"dateformat": "eee", "valueformat": "json"}, r"option 'dateFormat': "),
        ({"ignorenullfields": "no", "valueformat": "json"}, r"option 'ignoreNullFields' is 'no'; allowed: true, false"),
        ({"valueschema": "[]", "valueformat": "json"}, r"option 'valueSchema': "),
        ({"valuemessage": "p.M", **AVRO}, r"'valueMessage' needs a format.*to 'protobuf'"),
        ({"valueformat": "protobuf"}, r"'protobuf' needs the options 'valueMessage'.*and 'valueDescriptors'"),
        (
            {"valueformat": "protobuf", "valuemessage": "p.M", "valuedescriptors": "/no/such/file"},
            r"options 'valueMessage' and 'valueDescriptors': .*/no/such/file",
        ),
        ({"extracolumns": "drop", **AVRO}, r"option 'extraColumns' is 'drop'; allowed: error, ignore"),
        ({"schema.registry.url": "http://h:1"}, r"'schema\.registry\.\*' need a format"),
        ({"topics": "a", "topic": "", **AVRO}, r"option 'topics'.*needs the options 'schema\.registry\.\*'"),
        ({"schema.registry.urls": "x", **AVRO}, r"among the options 'schema\.registry\.\*': .*urls"),
        ({"kafka.schema.registry.url": "http://h:1", **AVRO}, r"write 'schema\.registry\.url'"),
        ({"valueformats": "avro"}, r"'valueformats' does not exist; did you mean 'valueFormat'"),
    ],
)
def test_error_names_an_unusable_option(options: dict[str, str], message: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t", **options}
    if not given["topic"]:
        del given["topic"]
    with pytest.raises(ConfigError, match=message):
        SinkOptions.parse(given)


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({"keycolumns": "b", **AVRO}, {"a": T.LongType()}, r"'keyColumns' is 'b', but there is no column 'b'"),
        ({"keycolumns": "a", **AVRO}, {"a": T.LongType()}, r"column 'a' has type bigint.*keyFormat"),
        ({"keyformat": "avro", **AVRO}, {"a": T.LongType()}, r"'keyFormat' is set, but there is no column 'key'"),
        ({"keycolumns": "a"}, {"a": T.StringType()}, r"column 'value' \(string or binary\) is required"),
        (AVRO, {"a": T.LongType(), "partition": T.LongType()}, r"column 'partition' has type bigint"),
    ],
)
def test_error_names_an_unusable_column(options: dict[str, str], columns: dict[str, T.DataType], message: str) -> None:
    schema = T.StructType([T.StructField(name, kind) for name, kind in columns.items()])
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t", **options}
    with pytest.raises(ValueError, match=message):
        KafkabufDataSource(CaseInsensitiveDict(given)).writer(schema, False)


def test_column_that_occurs_twice_is_refused() -> None:
    schema = T.StructType([T.StructField("a", T.LongType()), T.StructField("a", T.LongType())])
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t", **AVRO}
    with pytest.raises(ValueError, match="column 'a' occurs 2 times"):
        KafkabufDataSource(CaseInsensitiveDict(given)).writer(schema, False)


def test_schema_of_a_write_is_known_without_the_registry() -> None:
    options = {"valueFormat": "avro", "keyFormat": "avro", "keyColumns": "id", "schema.registry.url": "http://h:1"}
    assert json.loads(format_options.schema_for(PLAIN, options, "value")) == PLAIN_AVRO
    assert json.loads(format_options.schema_for(PLAIN, options, "key")) == "long"
    with pytest.raises(ConfigError, match="set option 'keyFormat' to 'avro'"):
        format_options.schema_for(PLAIN, {"valueFormat": "avro"}, "key")
