"""A Spark driver in a process of its own: `python -m tests.spark.driver FOLDER`, what to do in FOLDER/job.json.

    master or remote   where: Spark's master URL, or Connect's sc:// one
    settings           Spark's
    options            the sink's, for each write; kafka.bootstrap.servers among them
    ship               a folder of packages for Connect's server, which lacks them
    steps              names of functions below; each has the topic PREFIX-STEP
    prefix

FOLDER/told.json has what each step returned, and the traceback of each that failed.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from kafkabuf.spark import align, foreach_batch, last_report, partition_for, register
from tests.spark.job import PARTITIONS, Job

ROWS = 1000
KEYS = ["", "a", "key", "grüße", "x" * 100, None]


class Work(NamedTuple):
    """One step's."""

    spark: SparkSession
    topic: str
    options: dict[str, str]
    folder: Path

    def rows(self) -> DataFrame:
        return self.spark.range(0, ROWS, 1, 4).selectExpr("string(id) as key", "string(id) as value")

    def write(self, frame: DataFrame, **more: str) -> None:
        options = {**self.options, "topic": self.topic, **more}
        frame.write.format("kafkabuf").options(**options).mode("append").save()

    def job(self, guarantee: str) -> Job:
        """A stream of two micro-batches, not started."""
        servers = self.options["kafka.bootstrap.servers"]
        job = Job(self.spark, servers, self.topic, self.folder, guarantee, **self.options)
        job.rows(30)
        job.rows(50)
        return job


def at_least_once(work: Work) -> None:
    work.write(work.rows())


def registered(work: Work) -> None:
    register(work.spark)
    work.write(work.rows())


def atomic(work: Work) -> None:
    work.write(align(work.rows(), PARTITIONS), deliveryGuarantee="atomic", sinkId=work.topic)


def exactly_once_stream(work: Work) -> None:
    _replayed(work.job("exactly_once"))


def atomic_stream(work: Work) -> None:
    _replayed(work.job("atomic"))


def at_least_once_stream(work: Work) -> None:
    work.job("at_least_once").run()


def update_mode(work: Work) -> None:
    job = work.job("at_least_once")
    counts = job.frame().groupBy("key").count().selectExpr("key", "string(count) as value")
    writer = counts.writeStream.outputMode("update").foreachBatch(foreach_batch(job.options()))
    query = writer.option("checkpointLocation", str(work.folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def partitions(work: Work) -> list[int | None]:
    """Of KEYS, in a topic with seven."""
    frame = work.spark.createDataFrame([(number, key) for number, key in enumerate(KEYS)], "n int, key string")
    return [row.p for row in frame.select("n", partition_for(frame.key, 7).alias("p")).orderBy("n").collect()]


def report(work: Work) -> str:
    work.write(work.rows().limit(7))
    return str(last_report())


def row_too_large(work: Work) -> None:
    work.write(work.rows(), **{"kafka.max.request.size": "70"})


STEPS: dict[str, Callable[[Work], Any]] = {
    step.__name__: step
    for step in (
        *(at_least_once, registered, atomic, exactly_once_stream, atomic_stream, at_least_once_stream),
        *(update_mode, partitions, report, row_too_large),
    )
}


def _replayed(job: Job) -> None:
    """The second micro-batch again, with a third, after a crash of the driver's that came too early for Spark."""
    job.run()
    job.forget_newest_commit()
    job.rows(20)
    job.run()


def _ship(spark: SparkSession, environment: Path, scratch: Path) -> None:
    """The recipe of docs/spark.md."""
    for found in environment.iterdir():
        if found.is_dir():
            archive = shutil.make_archive(str(scratch / found.name), "gztar", found)
            spark.addArtifacts(f"{archive}#{found.name}", archive=True)
        elif found.suffix == ".py":
            spark.addArtifacts(str(found), pyfile=True)


def main(folder: Path) -> None:
    given = json.loads((folder / "job.json").read_text())
    builder = SparkSession.builder.config(map=given["settings"])
    where = given.get("remote")
    spark = (builder.remote(where) if where else builder.master(given["master"])).getOrCreate()
    told: dict[str, Any] = {}
    try:
        if "ship" in given:
            _ship(spark, Path(given["ship"]), folder)
        for name in given["steps"]:
            work = Work(spark, f"{given['prefix']}-{name}", given["options"], folder / name)
            try:
                told[name] = {"told": STEPS[name](work)}
            except Exception:
                told[name] = {"error": traceback.format_exc()}
    finally:
        (folder / "told.json").write_text(json.dumps(told))
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
