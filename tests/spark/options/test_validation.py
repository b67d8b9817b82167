"""Bad input and misuse: what Spark's own Kafka sink says, what this sink says, and that this sink says it early.

Before Spark makes a task it calls `writer()` or `streamWriter()` and pickles the result. These tests do both by hand.
"""

from __future__ import annotations

import pickle
import re
import struct
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.errors import ConfigError, InvalidTimestampError, KafkaError, UnknownTopicOrPartitionError
from kafkabuf.protocol.messages import METADATA
from kafkabuf.spark import KafkabufDataSource, WriteReport, foreach_batch, map_in_arrow, source, verify, write
from kafkabuf.spark.guarantees import preflight
from kafkabuf.spark.rows import alignment
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from kafkabuf.spark.writer import BatchWriter, NotBegunError, StreamWriter

pytest_plugins = ["tests.spark.fixtures"]

TEXT, BYTES, INT, LONG = T.StringType(), T.BinaryType(), T.IntegerType(), T.LongType()
INSTANT, LOCAL_TIME = T.TimestampType(), T.TimestampNTZType()
VALUE = ("value", BYTES)
SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
GUARANTEES = ["at_least_once", "exactly_once", "atomic"]
BLOCK_MS = 700


class Case(NamedTuple):
    """`spark`: what Spark's sink says or does. `ours`: a pattern of the error that this sink raises before any task."""

    spark: str
    ours: str
    options: Mapping[str, str] = MappingProxyType({})
    columns: tuple[tuple[str, T.DataType], ...] = (VALUE,)
    overwrite: bool = False


def pairs(key: T.DataType, value: T.DataType) -> T.ArrayType:
    return T.ArrayType(T.StructType([T.StructField("key", key), T.StructField("value", value)]))


CASES = {
    "no topic": Case(
        "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
        r"no topic: give \.option\('topic', \.\.\.\) or a column 'topic' \(string\); the columns are 'value'",
    ),
    "topic of a wrong type": Case(
        "topic attribute unsupported type int. topic must be a(n) string",
        "column 'topic' has type int; allowed: string",
        columns=(VALUE, ("topic", INT)),
    ),
    "no value": Case(
        "Required attribute 'value' not found",
        r"column 'value' \(string or binary\) is required; the columns are 'topic', 'key'",
        columns=(("topic", TEXT), ("key", TEXT)),
    ),
    "value of a wrong type": Case(
        "value attribute unsupported type int. value must be a(n) string or binary",
        "column 'value' has type int; allowed: string or binary: cast it to string",
        {"topic": "t"},
        (("value", INT),),
    ),
    "key of a wrong type": Case(
        "key attribute unsupported type bigint. key must be a(n) string or binary",
        "column 'key' has type bigint; allowed: string or binary: cast it to string",
        {"topic": "t"},
        (VALUE, ("key", LONG)),
    ),
    "partition of a wrong type": Case(
        "partition attribute unsupported type string. partition must be a(n) int",
        "column 'partition' has type string; allowed: int",
        {"topic": "t"},
        (VALUE, ("partition", TEXT)),
    ),
    "headers of a wrong type": Case(
        "headers attribute unsupported type array<struct<key:string,value:string>>. headers must be a(n) array<...",
        r"column 'headers' has type array<struct<key:string,value:string>>; allowed: array<struct<key:string,value:bin",
        {"topic": "t"},
        (VALUE, ("headers", pairs(TEXT, TEXT))),
    ),
    "headers whose value stands before their key": Case(
        "headers attribute unsupported type array<struct<value:binary,key:string>>. headers must be a(n) array<...",
        r"column 'headers' has type array<struct<value:binary,key:string>>; allowed: array<struct<key:string,value:bin",
        {"topic": "t"},
        (VALUE, ("headers", T.ArrayType(T.StructType([T.StructField("value", BYTES), T.StructField("key", TEXT)])))),
    ),
    "headers of other names": Case(
        "headers attribute unsupported type array<struct<k:string,v:binary>>. headers must be a(n) array<...",
        r"column 'headers' has type array<struct<k:string,v:binary>>; allowed: array<struct<key:string,value:bin",
        {"topic": "t"},
        (VALUE, ("headers", T.ArrayType(T.StructType([T.StructField("k", TEXT), T.StructField("v", BYTES)])))),
    ),
    "overwrite": Case(
        "Save mode Overwrite not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default).",
        r"mode 'overwrite' is not supported: .*Use \.mode\('append'\)",
        {"topic": "t"},
        overwrite=True,
    ),
    "key serializer": Case(
        "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer.",
        r"'kafka\.key\.serializer' cannot be used: the sink writes the bytes of the column",
        {"topic": "t", "kafka.key.serializer": "x"},
    ),
    "value serializer": Case(
        "Kafka option 'value.serializer' is not supported as value are serialized with ByteArraySerializer.",
        r"'kafka\.value\.serializer' cannot be used: the sink writes the bytes of the column",
        {"topic": "t", "kafka.value.serializer": "x"},
    ),
    "no bootstrap servers": Case(
        "in each task: No resolvable bootstrap urls given in bootstrap.servers",
        r"option 'kafka\.bootstrap\.servers' is required: \.option\(",
        {"topic": "t", "kafka.bootstrap.servers": ""},
    ),
    "a setting that does not exist": Case(
        "nothing: a warning in the executors' logs", r"did you mean linger\.ms", {"topic": "t", "kafka.linger.mss": "1"}
    ),
    "a setting out of range": Case(
        "in each task: Invalid value many for configuration acks",
        "among the options 'kafka.*': acks",
        {"topic": "t", "kafka.acks": "many"},
    ),
    "an illegal topic": Case(
        "in each task: Invalid topics: [a/b]", r"'topic' is 'a/b', which is no legal topic name", {"topic": "a/b"}
    ),
    "a blank topic": Case("in each task: Invalid topics: []", "option 'topic' is empty", {"topic": "  "}),
    "an illegal marker topic": Case(
        "no such option",
        r"option 'markerTopic' is '\.\.', which is no legal topic name",
        {"topic": "t", "markerTopic": ".."},
    ),
    "exactly_once for a batch write": Case(
        "no such option",
        "is for streams: .* Use 'atomic' for df.write",
        {"topic": "t", "deliveryGuarantee": "exactly_once", "sinkId": "s"},
    ),
    "driverCheck off where the driver takes part": Case(
        "no such option",
        "with deliveryGuarantee 'atomic' the driver must reach the brokers",
        {"topic": "t", "deliveryGuarantee": "atomic", "sinkId": "s", "driverCheck": "false"},
    ),
    "a timestamp column that is missing": Case(
        "no such option",
        "option 'timestampColumn' is 'now', but there is no such column; the columns are 'value', 'at'",
        {"topic": "t", "timestampColumn": "now"},
        (VALUE, ("at", INSTANT)),
    ),
    "a timestamp column that differs from several in case": Case(
        "no such option",
        "option 'timestampColumn' is 'AT', and several columns differ in case: at, At",
        {"topic": "t", "timestampColumn": "AT"},
        (VALUE, ("at", INSTANT), ("At", INSTANT)),
    ),
    "a key column that is named twice": Case(
        "no such option",
        "option 'keyColumns' is 'ID,id', which names a column twice",
        {"topic": "t", "keyFormat": "json", "keyColumns": "ID,id"},
        (VALUE, ("id", LONG)),
    ),
    "a timestamp column of a wrong type": Case(
        "no such option",
        "column 'at' has type bigint; allowed: timestamp",
        {"topic": "t", "timestampColumn": "at"},
        (VALUE, ("timestamp", INSTANT), ("at", LONG)),
    ),
    "a column timestamp of a wrong type that the option names": Case(
        "no such option",
        "column 'timestamp' has type timestamp_ntz; allowed: timestamp: it has no time zone, .* cast it to timestamp",
        {"topic": "t", "timestampColumn": "timestamp"},
        (VALUE, ("timestamp", LOCAL_TIME)),
    ),
    "an unknown onLostMarker": Case(
        "no such option", "'onLostMarker' is 'skip'; allowed: fail, continue", {"topic": "t", "onLostMarker": "skip"}
    ),
    "an illegal writeId": Case(
        "no such option", "'writeId' is 'of today'; allowed are 1 to 200 letters", {"topic": "t", "writeId": "of today"}
    ),
    "an unknown logReport": Case(
        "no such option", "allowed: off, batch, key_value, tasks", {"topic": "t", "logReport": "all"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_before_any_task_runs(name: str) -> None:
    case = CASES[name]
    options = {name: value for name, value in {**SERVERS, **case.options}.items() if value}
    schema = T.StructType([T.StructField(*column) for column in case.columns])
    with pytest.raises(ValueError, match=case.ours):
        KafkabufDataSource(CaseInsensitiveDict(options)).writer(schema, case.overwrite)


def test_blanks_around_a_topic_are_removed() -> None:
    """Spark's own sink removes them, too."""
    assert batch_writer({**SERVERS, "topic": " t\n"}).sink.options.topic == "t"


def test_reading_is_refused_with_the_format_that_reads() -> None:
    data_source = KafkabufDataSource(CaseInsensitiveDict(SERVERS))
    with pytest.raises(ConfigError, match=r"only writes: .* format 'kafka'\. In SQL name the columns: CREATE TEMP"):
        data_source.schema()
    with pytest.raises(ConfigError, match="only writes: read the topic with Spark's own format 'kafka'"):
        data_source.reader(T.StructType([]))


def test_write_without_any_option_gets_advice_for_sql() -> None:
    schema = T.StructType([T.StructField(*VALUE)])
    with pytest.raises(ConfigError, match=r"is required: .* INSERT INTO name WITH .* CREATE TEMPORARY VIEW"):
        KafkabufDataSource(CaseInsensitiveDict({})).writer(schema, overwrite=False)


def test_a_stream_refuses_a_write_id() -> None:
    options = CaseInsensitiveDict({**SERVERS, "topic": "t", "writeId": "today"})
    with pytest.raises(
        ConfigError, match=r"'writeId' is for df\.write: the sink knows the micro-batches of a stream by their"
    ):
        KafkabufDataSource(options).streamWriter(T.StructType([T.StructField(*VALUE)]), overwrite=False)


@pytest.mark.parametrize("guarantee", ["at_least_once", "atomic"])
def test_write_id_and_on_lost_marker_are_read(guarantee: str) -> None:
    given = {"deliveryGuarantee": guarantee, "sinkId": "s", "writeId": "orders.2026-08-01", "onLostMarker": "Continue"}
    options = batch_writer({**SERVERS, "topic": "t", **given}).sink.options
    assert (options.write_id, options.on_lost_marker) == ("orders.2026-08-01", "continue")
    options = batch_writer({**SERVERS, "topic": "t"}).sink.options
    assert (options.write_id, options.on_lost_marker) == (None, "fail")


def batch_writer(options: dict[str, str], columns: tuple[tuple[str, T.DataType], ...] = (VALUE,)) -> BatchWriter:
    schema = T.StructType([T.StructField(*column) for column in columns])
    writer = KafkabufDataSource(CaseInsensitiveDict(options)).writer(schema, overwrite=False)
    assert isinstance(writer, BatchWriter)
    return writer


# ---- options and columns that are ignored ----------------------------------------------------------------------------

SOURCE_OPTIONS = [
    "assign", "subscribe", "subscribePattern", "startingOffsets", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "startingTimestamp", "endingOffsets", "endingOffsetsByTimestamp",
    "endingTimestamp", "failOnDataLoss", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs", "maxOffsetsPerTrigger", "maxRecordsPerPartition", "maxTriggerDelay",
    "minOffsetsPerTrigger", "minPartitions", "kafka.group.id", "kafka.auto.offset.reset", "kafka.max.poll.records",
    "kafka.isolation.level", "kafka.enable.auto.commit",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_said_yet() -> None:
    source._warn_once.cache_clear()


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_options_of_sparks_kafka_source_are_ignored_with_one_warning(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = CaseInsensitiveDict({**SERVERS, "topic": "t", **dict.fromkeys(SOURCE_OPTIONS, "1")})
    schema = T.StructType([T.StructField(*VALUE)])
    for _ in range(3):
        data_source = KafkabufDataSource(options)
        make = data_source.writer if kind == "batch" else data_source.streamWriter
        writer: Any = make(schema, overwrite=False)
        assert dict(writer.sink.options.producer) == {"bootstrap.servers": "localhost:9092"}
    assert [record.levelname for record in caplog.records] == ["WARNING"], (
        "a stream makes a writer for each micro-batch"
    )
    for name in SOURCE_OPTIONS:
        assert name in caplog.text


def test_options_that_sparks_sink_knows_are_ignored_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    batch_writer({**SERVERS, "topic": "t", "includeHeaders": "true", "checkpointLocation": "c", "queryName": "q"})
    assert caplog.text == ""


def test_unknown_options_stay_errors_whose_hints_are_accepted() -> None:
    misspelt = {
        "deliveryGarantee": "deliveryGuarantee",
        "timestampColum": "timestampColumn",
        "linger.ms": "kafka.linger.ms",
        "bootstrap.servers": "kafka.bootstrap.servers",
        "compression_type": "kafka.compression.type",
        "group.id": None,
        "transactional.id": None,
        "retention": None,
    }
    for name, hint in misspelt.items():
        with pytest.raises(ConfigError, match=f"option '{name.lower()}' does not exist") as caught:
            batch_writer({**SERVERS, "topic": "t", name: "1"})
        found = re.search("did you mean '(.*?)'", str(caught.value))
        assert (found and found[1]) == hint, name


@pytest.mark.parametrize(("kind", "text"), [(LONG, "bigint"), (T.DateType(), "date"), (LOCAL_TIME, "timestamp_ntz")])
def test_column_timestamp_that_is_no_timestamp_is_ignored_with_a_warning(
    kind: T.DataType, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Spark's own sink, which ignores the column whatever its type is."""
    columns = (VALUE, ("timestamp", kind))
    for _ in range(3):
        assert batch_writer({**SERVERS, "topic": "t"}, columns).sink.columns == ("value",)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"ignores column 'timestamp': it has type {text}, allowed: timestamp" in caplog.text
    assert ("cast it to timestamp" in caplog.text) == (kind is LOCAL_TIME)


@pytest.mark.parametrize(
    ("columns", "options", "lost"),
    [
        (("topic",), {}, "'topic'"),
        (("timestamp",), {"timestampColumn": "none"}, "'timestamp'"),
        (("topic", "timestamp", "at"), {"timestampColumn": "at"}, "'timestamp' and 'topic'"),
        (("timestamp", "at"), {"timestampColumn": "timestamp"}, None),
        (("timestamp",), {}, None),
        (("topic",), {"keyColumns": "topic"}, None),
        (("topic", "value"), {}, None),
        (("topic",), {"valueFormat": "raw", "keyFormat": "json", "keyColumns": "id"}, None),
    ],
)
def test_column_that_a_format_leaves_out_of_the_record_is_named(
    columns: tuple[str, ...], options: dict[str, str], lost: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = {"topic": T.StringType(), "timestamp": INSTANT, "at": INSTANT, "value": T.StringType()}
    if options.get("valueFormat") == "raw":
        columns = (*columns, "value")
    schema = (("id", LONG), *((name, kinds[name]) for name in columns))
    batch_writer({**SERVERS, "topic": "t", "valueFormat": "json", **options}, schema)
    assert [f"the value has no column {lost}:" in record.message for record in caplog.records] == [True] * bool(lost)


@pytest.mark.parametrize(("given", "key"), [("ID", "id"), ("id", "id"), ("Name", "Name"), ("name", "name")])
def test_option_names_a_column_as_sparks_analyser_does(given: str, key: str) -> None:
    """The column of exactly this name goes before one that differs in case."""
    columns = (("id", T.StringType()), ("Name", T.StringType()), ("name", T.StringType()), ("At", INSTANT))
    options = {**SERVERS, "topic": "t", "valueFormat": "json", "keyColumns": given, "timestampColumn": "at"}
    sink = batch_writer(options, columns).sink
    assert sink.options.timestamp_column == "At"
    assert sink.options.formats is not None
    assert sink.options.formats.key_columns == (key,)
    assert sink.columns == ("value", "key", "timestamp")


@pytest.mark.parametrize(
    ("columns", "options", "ignored"),
    [
        (("Key",), {"topic": "t"}, "'Key'"),
        (("KEY", "key"), {"topic": "t"}, None),
        (("Topic",), {"topic": "t"}, None),
        (("Topic", "topic", "Partition", "HEADERS"), {}, "'Partition' and 'HEADERS'"),
        (("Key",), {"topic": "t", "valueFormat": "json"}, None),
    ],
)
def test_column_that_is_no_part_of_the_record_for_its_case_is_named(
    columns: tuple[str, ...], options: dict[str, str], ignored: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's own sink ignores it silently, whatever spark.sql.caseSensitive is."""
    value = () if "valueFormat" in options else (VALUE,)
    batch_writer({**SERVERS, **options}, (*value, *((name, T.StringType()) for name in columns)))
    texts = [f"ignores column {ignored}, as Spark's own sink does" in record.message for record in caplog.records]
    assert texts == [True] * bool(ignored)


@pytest.mark.parametrize("option", [{}, {"timestampColumn": "timestamp"}], ids=["as Spark's own", "named"])
def test_time_before_1970_is_the_time_of_sending_unless_an_option_names_the_column(
    strict_cluster: EmbeddedCluster, topic: str, option: dict[str, str]
) -> None:
    """Spark's own sink ignores the column. Its source gives the time -1 ms to a record that has none."""
    strict_cluster.create_topic(topic, partitions=1)
    options = {"kafka.bootstrap.servers": strict_cluster.bootstrap_servers, "topic": topic, **option}
    times = pa.array([-1000, None, 5000], pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"timestamp": times, "value": [b"v"] * 3})
    sink = batch_writer(options, (("timestamp", INSTANT), VALUE)).sink
    if option:
        with pytest.raises(InvalidTimestampError, match="row 0 of this task"):
            sink.send(iter([rows]))
        return
    before = time.time_ns() // 1_000_000
    assert sink.send(iter([rows])).rows == 3
    found = [message.timestamp for message in strict_cluster.messages(topic)]
    assert [stamp >= before for stamp in found] == [True, True, False]
    assert found[2] == 5


@pytest.mark.parametrize("none", ["none", "NONE", "", " "])
@pytest.mark.parametrize("kind", [INSTANT, LONG])
def test_timestamp_column_none_sends_no_column(none: str, kind: T.DataType, caplog: pytest.LogCaptureFixture) -> None:
    options = {**SERVERS, "topic": "t", "timestampColumn": none}
    assert batch_writer(options, (VALUE, ("timestamp", kind))).sink.columns == ("value",)
    assert caplog.text == ""


@pytest.mark.parametrize(("named", "expected"), [("at", 7), ("timestamp", 5), ("none", None), (None, 5)])
def test_timestamp_column_gives_the_records_their_timestamps(
    strict_cluster: EmbeddedCluster, topic: str, named: str | None, expected: int | None
) -> None:
    strict_cluster.create_topic(topic, partitions=1)
    options = {"kafka.bootstrap.servers": strict_cluster.bootstrap_servers, "topic": topic}
    options |= {} if named is None else {"timestampColumn": named}
    rows = pa.record_batch({
        "at": pa.array([7000], pa.timestamp("us", "UTC")),
        "timestamp": pa.array([5000], pa.timestamp("us", "UTC")),
        "value": [b"v"],
    })  # fmt: skip
    sink = batch_writer(options, (("at", INSTANT), ("timestamp", INSTANT), VALUE)).sink
    before = time.time_ns() // 1_000_000
    assert sink.send(iter([rows])).rows == 1
    (stored,) = strict_cluster.records(topic, 0)
    (timestamp,) = struct.unpack_from(">q", stored, 27)  # baseTimestamp
    assert timestamp == expected if expected is not None else timestamp >= before


# ---- checks that ask the cluster -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["auto-create", "no auto-create"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, auto_create_topics=request.param) as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def begin(kind: str, options: dict[str, str], columns: tuple[tuple[str, T.DataType], ...] = (VALUE,)) -> Any:
    """Do what the driver does before the tasks. Returns the writer that the tasks get."""
    all_options = CaseInsensitiveDict({"kafka.max.block.ms": str(BLOCK_MS), "sinkId": uuid.uuid4().hex, **options})
    schema = T.StructType([T.StructField(*column) for column in columns])
    data_source = KafkabufDataSource(all_options)
    make = data_source.writer if kind == "batch" else data_source.streamWriter
    return pickle.loads(pickle.dumps(make(schema, overwrite=False)))


KINDS = [
    (kind, guarantee)
    for kind in ("batch", "stream")
    for guarantee in GUARANTEES
    if (kind, guarantee) != ("batch", "exactly_once")
]


@pytest.mark.parametrize(("kind", "guarantee"), KINDS)
def test_missing_topic_is_created_or_refused_before_any_task_runs(
    cluster: EmbeddedCluster, topic: str, kind: str, guarantee: str
) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, "deliveryGuarantee": guarantee}
    try:
        begin(kind, options)
    except NotBegunError as error:
        created, text = False, str(error)
        assert f"option 'topic': topic '{topic}' not present in metadata after {BLOCK_MS} ms" in text
        assert cluster.bootstrap_servers in text
        assert text.endswith("Create the topic, or correct its name")
    else:
        created = True
    assert created == (topic in cluster.topics())


@pytest.mark.parametrize(
    ("guarantee", "option", "more"),
    [
        ("exactly_once", "markerTopic", {}),
        ("atomic", "markerTopic", {}),
        ("at_least_once", "deadLetterTopic", {"onRowError": "dead_letter"}),
    ],
)
def test_missing_topic_of_another_option_is_refused_before_any_task_runs(
    strict_cluster: EmbeddedCluster, topic: str, guarantee: str, option: str, more: dict[str, str]
) -> None:
    options = {
        "kafka.bootstrap.servers": strict_cluster.bootstrap_servers,
        "deliveryGuarantee": guarantee,
        option: topic,
        **more,
    }
    with pytest.raises(NotBegunError, match=rf"option '{option}': topic '{topic}' not present .*Create the topic"):
        begin("stream", options, (VALUE, ("topic", TEXT)))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_missing_topic_of_a_row_fails_the_task(
    strict_cluster: EmbeddedCluster, topic: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TaskAttempt(0, 0, MicroBatch(0, "query", "run"))
    monkeypatch.setattr(TaskAttempt, "current", lambda: place)
    options = {
        "kafka.bootstrap.servers": strict_cluster.bootstrap_servers,
        "deliveryGuarantee": guarantee,
        "markerTopic": "there",
        "onRowError": "skip",
    }
    writer = begin("stream", options, (VALUE, ("topic", TEXT)))
    rows = pa.record_batch({"value": [b"1", b"2"], "topic": ["there", topic]})
    with pytest.raises(UnknownTopicOrPartitionError, match=rf"'{topic}' not present in metadata after") as caught:
        writer.write(iter([rows]))
    assert caught.value.__notes__ == ["Create the topic, or correct its name."]
    assert len(caught.traceback) <= 4, "the traceback has frames that tell a user of Spark nothing"


@pytest.mark.parametrize(("kind", "guarantee"), KINDS)
def test_unreachable_brokers_fail_the_write_within_max_block_ms(unused_address: str, kind: str, guarantee: str) -> None:
    start = time.monotonic()
    with pytest.raises(NotBegunError) as caught:
        begin(kind, {"kafka.bootstrap.servers": unused_address, "topic": "t", "deliveryGuarantee": guarantee})
    assert time.monotonic() - start < BLOCK_MS / 1000 + 3, "the write took longer than one attempt"
    text = str(caught.value)
    assert f"within max.block.ms ({BLOCK_MS} ms); bootstrap servers: {unused_address}; last error: " in text
    assert "See that Kafka runs there and that the driver can reach it" in text
    assert ("driverCheck" in text) == (guarantee == "at_least_once")


def test_wrong_password_fails_at_once() -> None:
    options = {
        "topic": "t",
        "kafka.max.block.ms": "60000",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "guessed",
    }
    with EmbeddedCluster(brokers=1, security=Security(users={"alice": "secret"})) as cluster:
        start = time.monotonic()
        with pytest.raises(NotBegunError, match=r"(?i)authentication|password|credentials") as caught:
            begin("batch", {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options})
    assert time.monotonic() - start < 10
    assert "guessed" not in str(caught.value)


def test_driver_check_can_be_switched_off(unused_address: str) -> None:
    begin("batch", {"kafka.bootstrap.servers": unused_address, "topic": "t", "driverCheck": "false"})


def test_stream_checks_the_cluster_once_and_each_batch_write_again(strict_cluster: EmbeddedCluster) -> None:
    """A micro-batch is short, so a stream checks once, and then only reads the limits of the topic (DescribeConfigs).

    The cluster may have gone since the last batch write.
    """
    options = {"kafka.bootstrap.servers": strict_cluster.bootstrap_servers, "topic": "there", "sinkId": "s"}
    preflight._passed.clear()
    asked = []
    for kind in ("stream", "stream", "batch", "batch"):
        before = len(strict_cluster.requests(METADATA))
        begin(kind, options)
        asked.append(len(strict_cluster.requests(METADATA)) > before)
    assert asked == [True, False, True, True]


def test_sparks_pickler_raises_the_drivers_error_unchanged(unused_address: str) -> None:
    from pyspark.serializers import CloudPickleSerializer

    data_source = KafkabufDataSource(CaseInsensitiveDict({"kafka.bootstrap.servers": unused_address, "topic": "t"}))
    writer = data_source.streamWriter(T.StructType([T.StructField(*VALUE)]), overwrite=False)
    assert isinstance(writer, StreamWriter)
    writer.sink.options.__dict__["producer"] += (("max.block.ms", "100"),)
    with pytest.raises(NotBegunError):
        CloudPickleSerializer().dumps(writer)  # type: ignore[no-untyped-call]


# ---- misuse ----------------------------------------------------------------------------------------------------------


class Frame:
    """A DataFrame of a session that may have the setting spark.speculation."""

    def __init__(self, speculation: str | None) -> None:
        settings = {} if speculation is None else {"spark.speculation": speculation}
        self.sparkSession = SimpleNamespace(conf=settings)
        self.columns = ["partition"]

    def repartitionById(self, *_: Any) -> str:
        return "aligned"


@pytest.mark.parametrize("speculation", [None, "false", "true"])
def test_speculation_is_reported_before_any_task_runs(
    speculation: str | None, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.sql.functions.col", lambda name: name)
    frame: Any = Frame(speculation)
    alignment.align(frame, 3)
    assert [str(warning.message) for warning in recwarn] == [
        f"{alignment.SPECULATION}, and align() is for such writes"
    ] * (speculation == "true")
    begun = Mock(side_effect=KafkaError("begun"))
    monkeypatch.setattr(BatchWriter, "begin", begun)
    for guarantee in ("at_least_once", "atomic"):
        options = {**SERVERS, "topic": "t", "deliveryguarantee": guarantee, "sinkid": "s"}
        writer = KafkabufDataSource(options).writer(T.StructType([T.StructField(*VALUE)]), overwrite=False)
        is_refused = (guarantee, speculation) == ("atomic", "true")
        error = r"spark\.speculation is true: .*set it to false" if is_refused else "begun"
        with pytest.raises(KafkaError, match=error):
            map_in_arrow.run(frame, writer, None)


@pytest.mark.parametrize("has_data_sources", [True, False])
def test_write_over_spark_connect_needs_data_sources(has_data_sources: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_in_arrow, "HAS_DATA_SOURCES", has_data_sources)
    frame: Any = Mock(isStreaming=False)
    type(frame).__module__ = "pyspark.sql.connect.dataframe"
    if has_data_sources:
        assert write(frame, SERVERS, Topic="t", driverCheck=False, sinkId=None) is None
        frame.write.format.assert_called_once_with("kafkabuf")
        given = frame.write.format().options.call_args.kwargs
        assert given == {**SERVERS, "topic": "t", "drivercheck": "false"}
    else:
        with pytest.raises(ConfigError, match="needs them over Spark Connect: use a classic session"):
            write(frame, SERVERS)
        with pytest.raises(ConfigError, match="needs them over Spark Connect: use a classic session"):
            foreach_batch(SERVERS)(frame, 0)


def test_verify_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ImportError, match=r'needs the package confluent_kafka: pip install "kafkabuf\[verify\]"'):
        verify(WriteReport(0, 0, 0, ()), SERVERS)
