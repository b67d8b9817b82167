"""Writes with a Schema Registry whose rows name their topics, with the calls of Spark's driver and tasks."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any
from uuid import UUID

import fastavro
import pytest
from pyspark.sql import types as T

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError
from kafkabuf.spark.options.format_options import FormatOptions
from kafkabuf.spark.reports.report import RefusedRow
from kafkabuf.spark.writer import NotBegunError
from tests.formats.registry.support import FakeRegistry, running
from tests.spark.options.test_formats import HEADERS, Write, batch_of, cluster, records, registry, topic

__all__ = ["cluster", "registry", "topic"]  # fixtures

ROWS = T.StructType([T.StructField("id", T.LongType()), T.StructField("topic", T.StringType())])


def rows(*topics: str | None) -> Any:
    """Rows 0, 1, ... that name these topics."""
    return batch_of(ROWS, [{"id": row, "topic": name} for row, name in enumerate(topics)])


@pytest.fixture
def topics(cluster: EmbeddedCluster, topic: str) -> list[str]:
    """Two topics of one partition."""
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        cluster.create_topic(name, partitions=1)
    return names


@pytest.fixture
def write(cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry) -> Write:
    write = Write(cluster, topic, ROWS, monkeypatch, **{"schema.registry.url": registry.url})
    del write.options["topic"]
    return write


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    return [message.value() for message in records(cluster, topic, partitions=1)]


def latest(registry: FakeRegistry, topic: str, kind: Any, number: int) -> None:
    """Make a schema of a field `id` the latest version of the topic's subject."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": kind}]}
    registry.subjects[f"{topic}-value"] = [{"schema": json.dumps(schema), "id": number, "version": 1}]


def test_each_topic_that_rows_name_has_a_subject_of_its_own(
    cluster: EmbeddedCluster, registry: FakeRegistry, write: Write, topics: list[str]
) -> None:
    report = write.run(rows(*topics, *topics, topics[0]))
    assert report.rows == 5
    assert set(registry.subjects) == {f"{name}-value" for name in topics}
    for name, expected in zip(topics, ([0, 2, 4], [1, 3]), strict=True):
        (known,) = registry.subjects[f"{name}-value"]
        schema = fastavro.parse_schema(json.loads(known["schema"]))
        found = []
        for value in values(cluster, name):
            assert value[:5] == b"\0" + known["id"].to_bytes(4)
            row: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema)
            found.append(row["id"])
        assert found == expected


@pytest.mark.parametrize("listed", [True, False], ids=["option topics", "first sight"])
def test_each_topic_has_the_schema_of_its_own_subject(
    cluster: EmbeddedCluster, registry: FakeRegistry, write: Write, topics: list[str], listed: bool
) -> None:
    latest(registry, topics[0], "long", 7)
    latest(registry, topics[1], ["null", "long"], 8)
    write.options |= {"schema.registry.use.latest.version": "true", "schema.registry.auto.register.schemas": "false"}
    if listed:
        write.options["topics"] = ", ".join(topics)
    write.run(rows(*topics, *topics))
    assert values(cluster, topics[0]) == [b"\0\0\0\0\x07\0", b"\0\0\0\0\x07\4"]
    assert values(cluster, topics[1]) == [b"\0\0\0\0\x08\2\2", b"\0\0\0\0\x08\2\6"]


@pytest.mark.parametrize(("ttl", "asked"), [("-1", 2), ("0", 4)])
def test_task_asks_about_a_topic_once_whatever_the_worker_remembers(
    registry: FakeRegistry, write: Write, topics: list[str], ttl: str, asked: int
) -> None:
    write.options["schema.registry.latest.cache.ttl.sec"] = ttl
    write.run(rows(*topics), rows(*topics))
    assert len(registry.seen) == len(topics)
    write.run(rows(*topics), number=1)
    assert len(registry.seen) == asked


def test_driver_asks_about_listed_topics_and_tasks_get_no_secret(
    cluster: EmbeddedCluster, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(FakeRegistry(authorization="Basic bWU6czNudGluM2w=")) as registry:
        options = {"schema.registry.url": registry.url, "schema.registry.basic.auth.user.info": "me:s3ntin3l"}
        write = Write(cluster, topics[0], ROWS, monkeypatch, **options)
        del write.options["topic"]
        writer = pickle.dumps(write.source().streamWriter(ROWS, False))
        assert b"s3ntin3l" in writer, "the tasks must ask"
        write.options["topics"] = ",".join(topics)
        writer = pickle.dumps(write.source().streamWriter(ROWS, False))
        assert b"s3ntin3l" not in writer
        assert b"schema.registry" not in writer
        assert set(registry.subjects) == {f"{name}-value" for name in topics}
        seen = len(registry.seen)
        assert write.run(rows(*topics)).rows == 2
        assert len(registry.seen) == seen


def test_topic_that_is_not_listed_fails_the_write_once(write: Write, topics: list[str]) -> None:
    write.options["topics"] = topics[0]
    row = pickle.loads(write.pickled()).write(iter([rows(*topics)]))
    assert isinstance(row, RefusedRow)
    assert row.text.startswith(f"a row names topic '{topics[1]}', and option 'topics' does not")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "a, b c"}, r"option 'topics' is 'a, b c', and 'b c' is no legal topic name"),
        ({"topics": ""}, r"option 'topics' is '', and '' is no legal topic name"),
        ({"topics": "a", "topic": "b"}, r"option 'topics'.*no option 'topic'"),
    ],
)
def test_error_says_what_the_option_topics_may_be(write: Write, options: dict[str, str], message: str) -> None:
    write.options |= options
    with pytest.raises(ConfigError, match=message):
        write.source().streamWriter(ROWS, False)


def test_rows_without_a_legal_topic_are_refused_alone_and_the_registry_hears_of_none(
    cluster: EmbeddedCluster, registry: FakeRegistry, write: Write, topics: list[str], topic: str
) -> None:
    write.options |= {"onRowError": "dead_letter", "deadLetterTopic": f"{topic}-dead"}
    report = write.run(rows(None, topics[0], "a b", topics[0]))
    assert (report.rows, report.dead_lettered) == (2, 2)
    assert list(registry.subjects) == [f"{topics[0]}-value"]
    letters = records(cluster, f"{topic}-dead", partitions=1)
    assert [dict(letter.headers())["kafkabuf.error"] for letter in letters] == [b"InvalidTopicError"] * 2


@pytest.mark.parametrize("own", [True, False], ids=["own headers", "no headers"])
def test_headers_name_the_schema_of_each_topic(
    cluster: EmbeddedCluster, registry: FakeRegistry, write: Write, topics: list[str], own: bool
) -> None:
    write.schema = T.StructType([*ROWS, *([T.StructField("headers", HEADERS)] if own else [])])
    write.options |= {"schema.registry.schema.id.framing": "header", "onRowError": "skip"}
    mine = {"headers": [{"key": "a", "value": b"1"}]} if own else {}
    given = [{"id": row, "topic": name, **mine} for row, name in enumerate([None, *topics])]
    assert write.run(*(batch_of(write.schema, some) for some in (given[:1], given))).skipped == 2
    for name in topics:
        guid = UUID(registry.subjects[f"{name}-value"][0]["guid"]).bytes
        (found,) = records(cluster, name, partitions=1)
        assert found.headers() == [*([("a", b"1")] if own else []), ("__value_schema_id", b"\x01" + guid)]


def test_two_tasks_that_make_a_subject_at_once_both_write(
    cluster: EmbeddedCluster, registry: FakeRegistry, write: Write, topics: list[str]
) -> None:
    registry.faults = [409]  # what Apicurio answers to the second
    assert write.run(rows(topics[0])).rows == 1
    assert len(registry.seen) == 2


def test_refusal_of_the_registry_fails_the_write_once(registry: FakeRegistry, write: Write, topics: list[str]) -> None:
    registry.subjects[f"{topics[1]}-value"] = [{"schema": '"string"', "id": 1}]
    registry.compatible = False
    row = pickle.loads(write.pickled()).write(iter([rows(*topics)]))
    assert isinstance(row, RefusedRow)
    assert f"topic '{topics[1]}': subject" in row.text


def test_key_that_chooses_a_partition_needs_the_topic_of_its_schema() -> None:
    given = {"keyformat": "avro", "schema.registry.url": "http://h:1"}  # what align() gets
    formats = FormatOptions.parse(given)
    assert formats is not None
    key = T.StructType([T.StructField("key", T.LongType())])
    with pytest.raises(ConfigError, match=r"a subject for each topic, and no topic is named: name it with \.option"):
        formats.resolved(key, None, 1.0)


def test_columns_that_fit_no_topic_are_the_drivers_error(write: Write) -> None:
    write.schema = T.StructType([*ROWS, T.StructField("m", T.MapType(T.LongType(), T.LongType()))])
    with pytest.raises(NotBegunError, match=r"column 'm\{key\}'"):
        write.pickled()


def test_row_that_cannot_be_encoded_is_refused_alone_among_topics_with_other_schemas(
    cluster: EmbeddedCluster, registry: FakeRegistry, write: Write, topics: list[str]
) -> None:
    latest(registry, topics[0], "int", 7)
    latest(registry, topics[1], "long", 8)
    write.options |= {"schema.registry.use.latest.version": "true", "schema.registry.auto.register.schemas": "false"}
    write.options |= {"onRowError": "skip"}
    large = 2**40
    given = [{"id": large, "topic": topics[0]}, {"id": large, "topic": topics[1]}, {"id": 1, "topic": topics[0]}]
    report = write.run(batch_of(ROWS, given))
    assert (report.rows, report.skipped) == (2, 1)
    assert values(cluster, topics[0]) == [b"\0\0\0\0\x07\2"]
    write.options["onRowError"] = "fail"
    given = [{"id": 1, "topic": topics[0]}, {"id": 1, "topic": topics[1]}, {"id": large, "topic": topics[0]}]
    row = pickle.loads(write.pickled()).write(iter([rows(topics[0]), batch_of(ROWS, given)]))
    assert isinstance(row, RefusedRow)
    assert row.text.startswith("row 3 of this task")
