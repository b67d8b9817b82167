"""Rows with text that is not UTF-8, which Spark makes of `cast(X'ff41' as string)`, or with more bytes than a dead
letter may have: one such row ends no job.

The tests call the guarantees as Spark does, without Spark.
"""

from __future__ import annotations

import json
import pickle
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import InvalidTimestampError, InvalidTopicError, SerializationError
from kafkabuf.spark import KafkabufDataSource
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from tests.spark.options.test_formats import records

pytest_plugins = ["tests.one_node"]

BAD = b"\xffA"
ROWS = 6
BAD_ROW = 3
GUARANTEES = ["at_least_once", "exactly_once", "atomic"]
CASES = [(g, policy) for g in GUARANTEES for policy in (["skip"] if g == "atomic" else ["skip", "dead_letter"])]
RECORD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}


@pytest.fixture
def topic(cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> str:
    """A topic that takes no timestamp more than an hour off."""
    hour = {"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"}
    name = new_topic(partitions=1, configs=hour)
    cluster.create_topic(f"{name}-dead", partitions=1)
    return name


def texts(*values: bytes | None) -> pa.Array:
    """A column of text with these bytes, UTF-8 or not."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def column(name: bytes = BAD) -> pa.Array:
    """A text in each row; that of one row is not UTF-8."""
    return texts(*(name if row == BAD_ROW else b"%d" % row for row in range(ROWS)))


def refused_times() -> pa.Array:
    """Timestamps, of which the topic refuses the one of the bad row."""
    now = time.time_ns() // 1_000_000
    shifts = [-7_200_000 if row == BAD_ROW else 0 for row in range(ROWS)]
    return pa.array([now + shift for shift in shifts], pa.timestamp("ms", "UTC"))


def written(
    cluster: EmbeddedCluster, schema: T.StructType, batch: pa.RecordBatch, patch: pytest.MonkeyPatch, **options: str
) -> TaskReport:
    """A write of one task, which Spark commits. The sink gets the batch and not a row less."""
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.max.block.ms": "10000",
        "kafka.linger.ms": "0",
        "sinkId": f"sink-{uuid.uuid4().hex[:8]}",
        **options,
    }
    place = TaskAttempt(0, 0, MicroBatch(0, "query", "run"), 7)
    patch.setattr(TaskAttempt, "current", lambda: place)
    writer = KafkabufDataSource(CaseInsensitiveDict(given)).streamWriter(schema, False)
    writer = pickle.loads(pickle.dumps(writer))
    report: TaskReport = writer.write(iter([batch]))
    KafkabufDataSource(CaseInsensitiveDict(given)).streamWriter(schema, False).commit([report], 0)
    return report


def policy_of(topic: str, guarantee: str, policy: str) -> dict[str, str]:
    dead = {"deadLetterTopic": f"{topic}-dead"} if policy == "dead_letter" else {}
    return {"deliveryGuarantee": guarantee, "onRowError": policy, **dead}


def check_outcome(cluster: EmbeddedCluster, topic: str, policy: str, report: TaskReport) -> Any:
    """All good rows are in the topic. Returns the dead letter."""
    assert (report.rows, report.skipped + report.dead_lettered) == (ROWS - 1, 1)
    assert len(records(cluster, topic, 1)) == ROWS - 1
    if policy == "skip":
        return None
    (letter,) = records(cluster, f"{topic}-dead", 1)
    return letter


RAW = T.StructType(
    [
        T.StructField("key", T.StringType()),
        T.StructField("value", T.StringType()),
        T.StructField("timestamp", T.TimestampType()),
    ]
)


@pytest.mark.parametrize(("guarantee", "policy"), CASES)
def test_refused_row_keeps_the_bytes_of_its_key_and_value(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str, policy: str
) -> None:
    batch = pa.record_batch([column(), column(BAD * 2), refused_times()], ["key", "value", "timestamp"])
    options = {"topic": topic, **policy_of(topic, guarantee, policy)}
    letter = check_outcome(cluster, topic, policy, written(cluster, RAW, batch, monkeypatch, **options))
    assert letter is None or (letter.key(), letter.value()) == (BAD, BAD * 2)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_under_fail_the_row_is_named(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    batch = pa.record_batch([column(), column(), refused_times()], ["key", "value", "timestamp"])
    with pytest.raises(InvalidTimestampError, match=r"^row 3 of this task \(key b'\\xffA', 4 bytes\)"):
        written(cluster, RAW, batch, monkeypatch, topic=topic, deliveryGuarantee=guarantee)


ENCODED = T.StructType([T.StructField("id", T.LongType()), T.StructField("name", T.StringType())])
FORMATS = {
    "json": {"valueFormat": "json"},
    "avro": {"valueFormat": "avro", "valueSchema": json.dumps(RECORD)},
}


def encoded() -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(ROWS)), column()], ["id", "name"])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("guarantee", "policy"), CASES)
def test_row_that_a_format_cannot_encode_keeps_the_bytes_of_its_text(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str, policy: str, format: str
) -> None:
    options = {"topic": topic, **policy_of(topic, guarantee, policy), **FORMATS[format]}
    letter = check_outcome(cluster, topic, policy, written(cluster, ENCODED, encoded(), monkeypatch, **options))
    if letter is not None:
        assert letter.value() == b'{"id":3,"name":"\xffA"}'
        assert dict(letter.headers())["kafkabuf.reason"].startswith(b"column 'name' of type string has the value b'")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_under_fail_the_column_of_a_text_that_a_format_cannot_encode_is_named(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str, format: str
) -> None:
    options = {"topic": topic, "deliveryGuarantee": guarantee, **FORMATS[format]}
    named = r"^row 3 of this task .* cannot be sent: column 'name' of type string has the value b'\\xffA'"
    with pytest.raises(SerializationError, match=named):
        written(cluster, ENCODED, encoded(), monkeypatch, **options)


@pytest.mark.parametrize(("guarantee", "policy"), CASES)
def test_raw_key_beside_a_value_that_cannot_be_encoded_keeps_its_bytes(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str, policy: str
) -> None:
    options = {"topic": topic, **policy_of(topic, guarantee, policy), **FORMATS["avro"], "keyColumns": "name"}
    letter = check_outcome(cluster, topic, policy, written(cluster, ENCODED, encoded(), monkeypatch, **options))
    assert letter is None or letter.key() == BAD


@pytest.mark.parametrize(("guarantee", "policy"), CASES)
def test_row_whose_topic_is_no_text_is_refused_alone(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str, policy: str
) -> None:
    schema = T.StructType([T.StructField("topic", T.StringType()), T.StructField("value", T.StringType())])
    topics = texts(*(BAD if row == BAD_ROW else topic.encode() for row in range(ROWS)))
    batch = pa.record_batch([topics, column()], ["topic", "value"])
    options = policy_of(topic, guarantee, policy) | ({} if guarantee == GUARANTEES[0] else {"markerTopic": topic})
    report = written(cluster, schema, batch, monkeypatch, **options)
    letter = check_outcome(cluster, topic, policy, report)
    assert letter is None or (letter.value(), dict(letter.headers())["kafkabuf.topic"]) == (BAD, BAD)


@pytest.mark.parametrize(("guarantee", "policy"), CASES)
def test_refused_row_with_a_header_whose_name_is_no_text_is_put_aside(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str, policy: str
) -> None:
    header = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    schema = T.StructType([*RAW.fields[1:], T.StructField("headers", T.ArrayType(header))])
    pairs = pa.StructArray.from_arrays([column(), pa.array([b"\xfe"] * ROWS)], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), pairs)
    batch = pa.record_batch([column(), refused_times(), headers], ["value", "timestamp", "headers"])
    options = {"topic": topic, **policy_of(topic, guarantee, policy)}
    letter = check_outcome(cluster, topic, policy, written(cluster, schema, batch, monkeypatch, **options))
    assert letter is None or dict(letter.headers())["\\xffA"] == b"\xfe"


@pytest.mark.parametrize(("guarantee", "policy"), CASES)
def test_refused_time_beyond_the_calendar_is_put_aside(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str, policy: str
) -> None:
    """Spark's timestamps reach to the year 294247."""
    now = time.time_ns() // 1000
    times = pa.array([2**62 if row == BAD_ROW else now for row in range(ROWS)], pa.timestamp("us", "UTC"))
    batch = pa.record_batch([column(), column(), times], ["key", "value", "timestamp"])
    options = {"topic": topic, **policy_of(topic, guarantee, policy)}
    letter = check_outcome(cluster, topic, policy, written(cluster, RAW, batch, monkeypatch, **options))
    assert letter is None or dict(letter.headers())["kafkabuf.timestamp"] == str(2**62 // 1000).encode()


LARGE = b"x" * (2 << 20)  # more than max.request.size
LEFT_OUT = {"value": {"value"}, "key": {"value", "key"}, "header": {"value", "key"}, "topic": set[str]()}


def large_rows(part: str, content: bytes, topic: str) -> tuple[T.StructType, pa.RecordBatch]:
    """Rows whose bad row has much content in one part, and a time that Kafka never takes."""
    header = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    kinds = {"key": T.StringType(), "topic": T.StringType(), "headers": T.ArrayType(header)}
    schema = T.StructType([*RAW.fields[1:], *(T.StructField(name, kind) for name, kind in kinds.items())])
    sizes = {name: column(content if name == part else b"small") for name in ("value", "key", "header")}
    pairs = pa.StructArray.from_arrays([column(b"h"), sizes["header"].cast(pa.binary())], ["key", "value"])
    topics = texts(*(content if part == "topic" and row == BAD_ROW else topic.encode() for row in range(ROWS)))
    times = pa.array([-5000 if row == BAD_ROW else 0 for row in range(ROWS)], pa.timestamp("us", "UTC"))
    headers = pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), pairs)
    columns = {"value": sizes["value"], "timestamp": times, "key": sizes["key"], "topic": topics, "headers": headers}
    return schema, pa.record_batch(columns)


@pytest.mark.parametrize("judge", ["producer", "broker"])
@pytest.mark.parametrize("part", LEFT_OUT)
@pytest.mark.parametrize("guarantee", GUARANTEES[:2])
def test_dead_letter_leaves_out_what_is_too_large_for_it(
    cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    guarantee: str,
    part: str,
    judge: str,
) -> None:
    topic = new_topic(partitions=1)
    content, limit = (LARGE, "1048588") if judge == "producer" else (LARGE[:2400], "2500")
    cluster.create_topic(f"{topic}-dead", partitions=1, configs={"max.message.bytes": limit})
    schema, batch = large_rows(part, content, topic)
    options = policy_of(topic, guarantee, "dead_letter") | (
        {} if guarantee == GUARANTEES[0] else {"markerTopic": topic}
    )
    options["timestampColumn"] = "timestamp"  # so that Kafka refuses a time before 1970
    letter = check_outcome(cluster, topic, "dead_letter", written(cluster, schema, batch, monkeypatch, **options))
    headers = dict(letter.headers())
    kept = {name for name, kept in (("value", letter.value()), ("key", letter.key())) if kept is not None}
    assert kept == {"value", "key"} - LEFT_OUT[part]
    assert ("h" in headers) == ("key" in kept)
    sizes = {name: content if name == part else b"small" for name in LEFT_OUT[part]}
    assert all(headers[f"kafkabuf.{name}.size"] == b"%d" % len(left_out) for name, left_out in sizes.items())


def test_error_names_a_topic_of_any_length_in_few_words(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, batch = large_rows("topic", LARGE, topic)
    with pytest.raises(InvalidTopicError, match=r"^row 3 of this task \(key b'small'") as caught:
        written(cluster, schema, batch, monkeypatch)
    assert len(str(caught.value)) < 1000
