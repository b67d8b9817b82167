"""df.writeStream.format("kafkabuf") with Spark itself: replayed micro-batches, failed tasks, restarted queries."""

from __future__ import annotations

import gc
import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.functions import coalesce, expr, spark_partition_id

from kafkabuf.partitioner import partition_for_key
from kafkabuf.spark import align, foreach_batch, last_report, partition_for, verify
from kafkabuf.spark.worker import heap, worker_socket
from tests.spark.job import PARTITIONS, Job, placed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkabuf.broker import EmbeddedCluster

pytest_plugins = ["tests.spark.fixtures"]


def job_of(spark: SparkSession, cluster: EmbeddedCluster, folder: Path, guarantee: str) -> Job:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    return Job(spark, cluster.bootstrap_servers, topic, folder, guarantee)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once", "atomic"])
def test_replayed_micro_batch_is_seen_as_often_as_the_guarantee_says(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path, guarantee: str
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, guarantee)
    job.add_file(30)
    job.add_file(50)
    job.run()
    report = last_report()
    assert report is not None
    assert (report.batch, report.rows, report.already_written) == (1, 50, 0)
    assert verify(report, job.options() | {"group.id": "ignored"}).strangers == 0
    assert job.committed() == job.expected
    job.forget_newest_commit()
    job.add_file(20)
    job.run()
    twice = guarantee == "at_least_once"
    assert sum(job.committed().values()) == sum(job.expected.values()) + 50 * twice
    assert set(job.committed()) == set(job.expected)


def test_failed_task_fails_the_query_and_a_restart_continues(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, "atomic")
    job.add_file(10)
    with pytest.raises(Exception, match="cannot be sent"):
        job.run(**{"kafka.max.request.size": "40"})
    assert job.committed() == Counter()
    job.run()
    assert job.committed() == job.expected


@pytest.mark.parametrize("guarantee", ["exactly_once", "atomic"])
def test_task_whose_rows_are_cut_off_commits_none_of_them(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path, guarantee: str
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, guarantee)
    job.fails = True
    job.add_file(30_000)
    with pytest.raises(Exception, match="a step has failed"):
        job.run()
    assert job.committed() == Counter()
    job.fails = False
    job.run()
    assert job.committed() == job.expected


def test_query_without_its_checkpoint_fails_with_the_reason(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, "exactly_once")
    job.add_file(3)
    job.run()
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    with pytest.raises(Exception, match=r"that of another query.*Give a new sinkId"):
        job.run()
    assert job.committed() == job.expected


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PySpark 4.2 warns of a pandas that it does not know
def test_foreach_batch_supports_output_mode_update(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, "at_least_once")
    job.add_file(5)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    counts = job.frame().groupBy("key").count().selectExpr("key", "string(count) as value")
    writer = counts.writeStream.outputMode("update").foreachBatch(foreach_batch(job.options()))
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert job.committed() == Counter({b"1": 5})


def test_partition_for_agrees_with_the_producers_partitioner(spark: SparkSession) -> None:
    keys = ["", "a", "key", "grüße", "x" * 100, None]
    frame = spark.createDataFrame([(key, key) for key in keys], "key string, value string")
    rows = frame.select("key", partition_for(frame.key, 7).alias("p")).collect()
    expected = {key: None if key is None else partition_for_key(key.encode(), 7) for key in keys}
    assert {row.key: row.p for row in rows} == expected


def test_aligned_rows_of_one_partition_are_in_one_task(spark: SparkSession) -> None:
    frame = spark.range(200).selectExpr("if(id % 3 = 0, null, string(id)) as key", "string(id) as value")
    aligned = align(frame, PARTITIONS)
    own = [] if hasattr(frame, "repartitionById") else ["partition"]  # PySpark 4.0 spreads by a hash of this column
    assert aligned.columns == ["key", "value", *own]
    rows = aligned.select("key", partition_for(aligned.key, PARTITIONS).alias("p"), spark_partition_id().alias("task"))
    tasks: dict[int, set[int]] = {}
    for row in rows.collect():
        if row.key is not None:
            tasks.setdefault(row.p, set()).add(row.task)
    assert all(len(found) == 1 for found in tasks.values())
    assert own or all(found == {partition} for partition, found in tasks.items())
    preset = align(frame.selectExpr("value", "1 as partition"), PARTITIONS)
    assert [row.partition for row in preset.select("partition").distinct().collect()] == [1]


@pytest.mark.parametrize("guarantee", ["at_least_once", "atomic"])
def test_aligned_rows_arrive_where_align_put_them(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path, guarantee: str
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, guarantee)
    frame = spark.range(200).selectExpr("if(id % 3 = 0, null, string(id)) as key", "string(id) as value")
    spread = "int(pmod(xxhash64(value), 3))"
    partitions = frame.select("value", coalesce(partition_for(frame.key, PARTITIONS), expr(spread)).alias("p"))
    expected = sorted((row.p, row.value.encode()) for row in partitions.collect())
    align(frame, PARTITIONS).write.format("kafkabuf").options(**job.options()).mode("append").save()
    assert sorted(placed(job.servers, job.topic)) == expected


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PySpark 4.2 warns of a pandas that it does not know
def test_collector_spares_the_modules_of_workers(spark: SparkSession) -> None:
    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for _ in range(batch.num_rows):
                heap.freeze()
            yield pa.record_batch({"frozen": [gc.get_freeze_count() > 0]})

    assert [row.frozen for row in spark.range(0, 3, 1, 1).mapInArrow(ask, "frozen boolean").collect()] == [True]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PySpark 4.2 warns of a pandas that it does not know
def test_tasks_find_the_socket_of_their_worker(spark: SparkSession) -> None:
    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found, connect = [], socket.socket

        def note(fileno: int) -> socket.socket:
            found.append(connect(fileno=fileno))
            return found[-1]

        socket.socket = note  # type: ignore[misc, assignment]
        worker_socket.acknowledge()
        socket.socket = connect  # type: ignore[misc]
        yield from (pa.record_batch({"found": [len(found) == 1]}) for _ in batches)

    assert [row.found for row in spark.range(0, 3, 1, 1).mapInArrow(ask, "found boolean").collect()] == [True]
