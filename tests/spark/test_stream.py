"""df.writeStream.format("kafkabuf") with Spark itself: what Spark calls when, and what a restarted query finds."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkabuf.partitioner import partition_for_key
from kafkabuf.spark import align, foreach_batch, last_report, partition_for, verify
from tests.spark.job import PARTITIONS, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkabuf.broker import EmbeddedCluster

pytest_plugins = ["tests.spark.fixtures"]


def job_of(spark: SparkSession, cluster: EmbeddedCluster, folder: Path, guarantee: str) -> Job:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    return Job(spark, cluster.bootstrap_servers, topic, folder, guarantee)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once", "atomic"])
def test_replayed_micro_batch_is_seen_as_often_as_promised(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path, guarantee: str
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, guarantee)
    job.rows(30)
    job.rows(50)
    job.run()
    report = last_report()
    assert report is not None
    assert (report.batch, report.rows, report.already_written) == (1, 50, 0)
    assert verify(report, job.options() | {"group.id": "ignored"}).strangers == 0
    assert job.found() == job.expected
    job.forget_newest_commit()
    job.rows(20)
    job.run()
    twice = guarantee == "at_least_once"
    assert sum(job.found().values()) == sum(job.expected.values()) + 50 * twice
    assert set(job.found()) == set(job.expected)


def test_failing_task_fails_the_query_and_the_restart_goes_on(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, "atomic")
    job.rows(10)
    with pytest.raises(Exception, match="cannot be sent"):
        job.run(**{"kafka.max.request.size": "40"})
    assert job.found() == Counter()
    job.run()
    assert job.found() == job.expected


def test_deleted_checkpoint_stops_the_query_with_the_reason(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, "exactly_once")
    job.rows(3)
    job.run()
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    with pytest.raises(Exception, match=r"that of another query.*Give a new sinkId"):
        job.run()
    assert job.found() == job.expected


def test_foreach_batch_takes_output_mode_update(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job = job_of(spark, spark_cluster, tmp_path, "at_least_once")
    job.rows(5)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    counts = job.frame().groupBy("key").count().selectExpr("key", "string(count) as value")
    writer = counts.writeStream.outputMode("update").foreachBatch(foreach_batch(job.options()))
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert job.found() == Counter({b"1": 5})


def test_partitions_of_keys_are_javas(spark: SparkSession) -> None:
    keys = ["", "a", "key", "grüße", "x" * 100, None]
    frame = spark.createDataFrame([(key, key) for key in keys], "key string, value string")
    found = frame.select("key", partition_for(frame.key, 7).alias("p")).collect()
    expected = {key: None if key is None else partition_for_key(key.encode(), 7) for key in keys}
    assert {row.key: row.p for row in found} == expected


def test_aligned_rows_of_one_partition_are_in_one_task(spark: SparkSession) -> None:
    frame = spark.range(200).selectExpr("if(id % 3 = 0, null, string(id)) as key", "string(id) as value")
    aligned = align(frame, PARTITIONS)
    tasks = aligned.selectExpr("partition", "spark_partition_id() as task").distinct().collect()
    assert sorted(row.partition for row in tasks) == list(range(PARTITIONS))
    kept = align(frame.selectExpr("value", "1 as partition"), PARTITIONS)
    assert [row.partition for row in kept.select("partition").distinct().collect()] == [1]
