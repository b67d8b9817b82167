"""Aligned rows without Spark: a task computes the partition that align() chose and did not send."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, KafkaError
from kafkabuf.partitioner import partition_for_key
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.rows.schema import ALIGNED, aligned_partitions
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker.place import TaskAttempt
from kafkabuf.spark.writer import BatchWriter
from tests.spark.job import PARTITIONS, placed

pytest_plugins = ["tests.one_node"]

TASK = 2
TEXT = T.StringType()


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic(partitions=PARTITIONS)


def schema_of(*names: str, **aligned: int) -> T.StructType:
    """The columns; `aligned` says which of them align() has marked, and with how many partitions."""
    fields = (T.StructField(name, TEXT, metadata={ALIGNED: aligned[name]} if name in aligned else {}) for name in names)
    found: T.StructType = T.StructType.fromJson(T.StructType(list(fields)).jsonValue())
    return found


def sink_of(cluster: EmbeddedCluster, topic: str, schema: T.StructType, **more: str) -> ArrowSink:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, **more}
    return ArrowSink.of(SinkOptions.parse(options), schema)


def keys(kind: str) -> list[str | None]:
    numbers = range(60)
    return [str(number) if kind == "keyed" or (kind == "mixed" and number % 2) else None for number in numbers]


@pytest.mark.parametrize("ignore_keys", ["false", "true"])
@pytest.mark.parametrize("kind", ["keyed", "keyless", "mixed"])
def test_row_with_a_key_goes_by_the_key_and_any_other_row_by_its_task(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, kind: str, ignore_keys: str
) -> None:
    sink = sink_of(
        cluster,
        topic,
        schema_of("key", "value", key=PARTITIONS),
        **{"kafka.partitioner.ignore.keys": ignore_keys},
    )
    monkeypatch.setattr(TaskAttempt, "current", lambda: TaskAttempt(TASK + PARTITIONS, 0, None))
    values = [f"{number}".encode() for number in range(60)]
    rows = pa.record_batch({"key": pa.array(keys(kind), pa.string()), "other": values, "value": values})
    assert pickle.loads(pickle.dumps(sink)).send(iter([rows.slice(0, 25), rows.slice(25)])).rows == 60
    chosen = [TASK if key is None else partition_for_key(key.encode(), PARTITIONS) for key in keys(kind)]
    assert sorted(placed(cluster.bootstrap_servers, topic)) == sorted(zip(chosen, values, strict=True))


def test_rows_without_the_column_key_go_by_their_task(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(cluster, topic, schema_of("value", value=PARTITIONS))
    monkeypatch.setattr(TaskAttempt, "current", lambda: TaskAttempt(TASK, 0, None))
    sink.send(iter([pa.record_batch({"value": [b"a", b"b"]})]))
    assert sorted(placed(cluster.bootstrap_servers, topic)) == [(TASK, b"a"), (TASK, b"b")]


@pytest.mark.parametrize(
    ("schema", "aligned"),
    [
        (schema_of("key", "value", key=3, value=3), 3),
        (schema_of("key", "value", key=3), 3),
        (schema_of("value", value=3), 3),
        (schema_of("key", "value"), None),
        (schema_of("key", "value", "partition", key=3, value=3), None),
    ],
    ids=["both", "new value", "no key", "not aligned", "own partition"],
)
def test_schema_says_whether_rows_are_aligned(schema: T.StructType, aligned: int | None) -> None:
    assert aligned_partitions(schema) == aligned


@pytest.mark.parametrize("more", [{}, {"deliveryguarantee": "atomic", "sinkid": "s"}], ids=["at_least_once", "atomic"])
def test_driver_refuses_rows_that_are_aligned_for_another_number_of_partitions(
    cluster: EmbeddedCluster, topic: str, more: dict[str, str]
) -> None:
    writer = BatchWriter(sink_of(cluster, topic, schema_of("value", value=4), **more))
    with pytest.raises(KafkaError, match=rf"align\(\) got 4 partitions, but topic '{topic}' has 3: .*align\(df, 3"):
        pickle.dumps(writer)


def test_task_refuses_them_where_the_driver_cannot_check(cluster: EmbeddedCluster, topic: str) -> None:
    sink: Any = sink_of(cluster, topic, schema_of("value", value=4), drivercheck="false")
    pickle.dumps(BatchWriter(sink))
    with pytest.raises(ConfigError, match=r"align\(\) got 4 partitions"):
        sink.send(iter([pa.record_batch({"value": [b"a"]})]))
    assert placed(cluster.bootstrap_servers, topic) == []
