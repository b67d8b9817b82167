"""Tasks whose rows name many topics, without Spark: what a task gives to its producer, and what arrives."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.append.report import BulkReport
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import InvalidTopicError
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import workers

TOPICS, ROWS = 50, 1_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster
        workers.close_all()


@pytest.fixture
def topics(cluster: EmbeddedCluster) -> list[str]:
    names = [f"t{number}-{uuid.uuid4().hex[:8]}" for number in range(TOPICS)]
    for name in names:
        cluster.create_topic(name, partitions=2)
    workers.close_all()  # the producer of the last test knows its topics
    return names


def send(cluster: EmbeddedCluster, column: pa.Array, **options: str) -> TaskReport:
    """The rows 0, 1, ... of one task, whose topics are `column`. All have one key."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
    values = pa.array([str(row) for row in range(len(column))])
    rows = pa.record_batch({"value": values, "key": pa.array(["k"] * len(column)), "topic": column})
    return ArrowSink(SinkOptions.parse(given), ("value", "key", "topic")).send(iter([rows]))


def numbers(cluster: EmbeddedCluster, topic: str) -> list[int]:
    """The rows that have arrived in a topic."""
    return [int(message.value or b"-1") for message in cluster.messages(topic)]


def interleaved(topics: list[str]) -> pa.Array:
    """Topics of rows: neighbours differ."""
    return pa.array([topics[row % len(topics)] for row in range(ROWS)])


def test_rows_of_a_topic_go_to_the_producer_together(
    cluster: EmbeddedCluster, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    send_arrow = KafkaProducer.send_arrow

    def noted(self: KafkaProducer, data: pa.RecordBatch, **arguments: Any) -> BulkReport:
        given.extend(data.column("topic").to_pylist())
        return send_arrow(self, data, **arguments)

    monkeypatch.setattr(KafkaProducer, "send_arrow", noted)
    report = send(cluster, interleaved(topics))
    assert sorted(topic for topic, _ in groupby(given)) == sorted(topics)
    assert report.rows == ROWS


def test_rows_of_many_topics_keep_their_order_in_each(cluster: EmbeddedCluster, topics: list[str]) -> None:
    send(cluster, interleaved(topics))
    for number, topic in enumerate(topics):
        assert numbers(cluster, topic) == list(range(number, ROWS, TOPICS))


def test_metadata_of_many_topics_takes_few_requests(
    cluster: EmbeddedCluster, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    begin_update = Metadata.begin_update

    def noted(self: Metadata, now: float) -> tuple[str, ...]:
        asked.append(begin_update(self, now))
        return asked[-1]

    monkeypatch.setattr(Metadata, "begin_update", noted)
    send(cluster, interleaved(topics))
    assert set(topics) <= set(asked[-1])
    assert len(asked) < TOPICS / 2


def test_rows_without_a_legal_topic_are_refused_alone_among_those_of_many_topics(
    cluster: EmbeddedCluster, topics: list[str]
) -> None:
    names = [topic.encode() for topic in topics]
    binary = pa.array([None, names[0], b"a b", names[1], b"\xffA", b"", names[0]], pa.binary())
    column = pa.Array.from_buffers(pa.string(), len(binary), binary.buffers())
    report = send(cluster, column, onrowerror="skip")
    assert (report.rows, report.skipped) == (3, 4)
    assert numbers(cluster, topics[0]) == [1, 6]
    with pytest.raises(InvalidTopicError, match=r"row 0 of this task"):
        send(cluster, column)
