"""df.writeStream.format("kafkabuf") with Spark itself: what Spark calls when, and what a restarted query finds."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafkabuf.partitioner import partition_for_key
from kafkabuf.spark import align, foreach_batch, last_report, partition_for, verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafkabuf.broker import EmbeddedCluster

pytest_plugins = ["tests.spark_fixtures"]

PARTITIONS = 3


class Job:
    """A stream from text files to a topic, which can be stopped, crash and be started again."""

    def __init__(self, spark: SparkSession, cluster: EmbeddedCluster, folder: Path, guarantee: str) -> None:
        self.spark, self.cluster, self.folder, self.guarantee = spark, cluster, folder, guarantee
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.expected: Counter[bytes] = Counter()
        self.batches = 0
        cluster.create_topic(self.topic, partitions=PARTITIONS)
        (folder / "in").mkdir()

    def rows(self, count: int) -> None:
        """One file of input."""
        lines = [f"{self.batches}-{row}" for row in range(count)]
        place = self.folder / "in" / f"{self.batches}.txt"
        place.write_text("".join(f"{line}\n" for line in lines))
        os.utime(place, (1_700_000_000 + self.batches,) * 2)  # Spark takes the older first
        self.expected += Counter(line.encode() for line in lines)
        self.batches += 1

    def options(self) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap_servers, "topic": self.topic}
        if self.guarantee != "at_least_once":
            given["sinkId"] = self.topic
        return {**given, "deliveryGuarantee": self.guarantee}

    def frame(self) -> DataFrame:
        rows = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        frame = rows.select("value", rows.value.alias("key"))
        return align(frame, PARTITIONS) if self.guarantee == "atomic" else frame

    def run(self, **more: str) -> None:
        """All there is, in as many micro-batches as there are new files."""
        writer = self.frame().writeStream.format("kafkabuf").options(**self.options(), **more)
        place = str(self.folder / "checkpoint")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()

    def forget_newest_commit(self) -> None:
        """What a driver leaves that dies between the sink's commit and Spark's own."""
        commits = self.folder / "checkpoint" / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)

    def found(self) -> Counter[bytes]:
        settings = {
            "bootstrap.servers": self.cluster.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        consumer, ended = Consumer(settings), 0
        found: Counter[bytes] = Counter()
        consumer.assign([TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)])
        while ended < PARTITIONS:
            message = consumer.poll(10.0)
            assert message is not None, "the reader is held up"
            value = message.value()
            if message.error() is not None:
                ended += 1
            elif value is not None:
                found[value] += 1
        consumer.close()
        return found


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once", "atomic"])
def test_replayed_micro_batch_is_seen_as_often_as_promised(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path, guarantee: str
) -> None:
    job = Job(spark, spark_cluster, tmp_path, guarantee)
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
    job = Job(spark, spark_cluster, tmp_path, "atomic")
    job.rows(10)
    with pytest.raises(Exception, match="cannot be sent"):
        job.run(**{"kafka.max.request.size": "40"})
    assert job.found() == Counter()
    job.run()
    assert job.found() == job.expected


def test_deleted_checkpoint_stops_the_query_with_the_reason(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job = Job(spark, spark_cluster, tmp_path, "exactly_once")
    job.rows(3)
    job.run()
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    with pytest.raises(Exception, match=r"marker is that of another query.*Give a new sinkId"):
        job.run()
    assert job.found() == job.expected


def test_foreach_batch_takes_output_mode_update(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job = Job(spark, spark_cluster, tmp_path, "at_least_once")
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
