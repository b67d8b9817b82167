"""A topic that is deleted and made again between two writes: the clients that a Python worker keeps learn of it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import workers
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from tests.spark.job import PARTITIONS
from tests.spark.query import committed_values, options

pytest_plugins = ["tests.one_node"]

ROWS = 50
_stages = itertools.count()


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    yield
    workers.close_all()


def place_of(kind: str) -> TaskAttempt:
    """The place of the only task of the next write: a run of a query, or a df.write."""
    number = next(_stages)
    micro_batch = MicroBatch(0, "query", f"run-{number}") if kind == "stream" else None
    return TaskAttempt(0, 0, micro_batch, attempt_id=number, stage=number)


def write(cluster: EmbeddedCluster, topic: str, guarantee: str, place: TaskAttempt, patch: pytest.MonkeyPatch) -> None:
    """One task writes rows without a key: the producer spreads them over the partitions that it knows."""
    patch.setattr(TaskAttempt, "current", lambda: place)
    delivery = ArrowSink(options(cluster, topic, guarantee, sinkid=uuid.uuid4().hex), ("value",)).delivery()
    begun = delivery.begin(is_stream=place.micro_batch is not None)
    batches = [pa.record_batch({"value": [b"%d" % row]}) for row in range(ROWS)]
    report = delivery.send(iter(batches), begun)
    delivery.commit([report], None if place.micro_batch is None else 0, begun)
    assert report.rows == ROWS


def make_again(cluster: EmbeddedCluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(60)
    cluster.create_topic(topic, partitions=partitions)


@pytest.mark.parametrize(
    ("guarantee", "kind"),
    [("at_least_once", "batch"), ("at_least_once", "stream"), ("exactly_once", "stream"), ("atomic", "batch")],
)
def test_topic_made_again_with_fewer_partitions_gets_the_rows_of_the_next_write(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, guarantee: str, kind: str
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=30)
    write(cluster, topic, guarantee, place_of(kind), monkeypatch)
    make_again(cluster, topic, PARTITIONS)
    write(cluster, topic, guarantee, place_of(kind), monkeypatch)
    assert sum(committed_values(cluster, topic).values()) == ROWS


def test_tasks_of_one_write_ask_for_metadata_once(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=1)
    sink = ArrowSink(options(cluster, topic, "at_least_once"), ("value",))
    counts = []
    for place in [place_of("batch")] * 3 + [place_of("batch")] * 2:
        monkeypatch.setattr(TaskAttempt, "current", lambda place=place: place)
        cluster.clear_requests()
        sink.delivery().send(iter([pa.record_batch({"value": [b"v"]})]), None)
        counts.append(sum(request.api_key == messages.METADATA for request in cluster.requests()))
    assert counts[1:] == [0, 0, 1, 0]
