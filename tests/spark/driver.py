"""A Spark driver in its own process: `python -m tests.spark.driver FOLDER`. FOLDER/job.json says what it does.

    master or remote   Spark's master URL, or the sc:// URL of a Connect server
    settings           Spark's settings
    options            the sink's options for each write, kafka.bootstrap.servers included
    ship               a folder of packages that the Connect server lacks
    steps              names of functions below; each step writes to the topic PREFIX-STEP
    prefix             the prefix of the topics

The driver writes FOLDER/results.json: what each step returned, or the traceback of a step that failed.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from kafkabuf.spark import activate, align, foreach_batch, last_report, partition_for, register
from tests.spark.functions import FUNCTIONS
from tests.spark.job import PARTITIONS, Job

ROWS = 1000
KEYS = ["", "a", "key", "grüße", "x" * 100, None]


class StepContext(NamedTuple):
    """What a step works with."""

    spark: SparkSession
    topic: str
    options: dict[str, str]
    folder: Path

    def rows(self) -> DataFrame:
        return self.spark.range(0, ROWS, 1, 4).selectExpr("string(id) as key", "string(id) as value")

    def write(self, frame: DataFrame, **overrides: str) -> None:
        options = {**self.options, "topic": self.topic, **overrides}
        frame.write.format("kafkabuf").options(**options).mode("append").save()

    def job(self, guarantee: str) -> Job:
        """A stream with the input of two micro-batches. The caller starts it."""
        servers = self.options["kafka.bootstrap.servers"]
        job = Job(self.spark, servers, self.topic, self.folder, guarantee, **self.options)
        job.add_file(30)
        job.add_file(50)
        return job


def at_least_once(context: StepContext) -> None:
    context.write(context.rows())


def registered(context: StepContext) -> None:
    register(context.spark)
    context.write(context.rows())


def from_a_thread(context: StepContext) -> None:
    with ThreadPoolExecutor(1, initializer=activate, initargs=(context.spark,)) as pool:
        pool.submit(context.write, context.rows()).result()


def atomic(context: StepContext) -> None:
    context.write(align(context.rows(), PARTITIONS), deliveryGuarantee="atomic", sinkId=context.topic)


def exactly_once_stream(context: StepContext) -> None:
    _run_and_replay(context.job("exactly_once"))


def atomic_stream(context: StepContext) -> None:
    _run_and_replay(context.job("atomic"))


def at_least_once_stream(context: StepContext) -> None:
    context.job("at_least_once").run()


def update_mode(context: StepContext) -> None:
    job = context.job("at_least_once")
    counts = job.frame().groupBy("key").count().selectExpr("key", "string(count) as value")
    writer = counts.writeStream.outputMode("update").foreachBatch(foreach_batch(job.options()))
    query = writer.option("checkpointLocation", str(context.folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def partitions(context: StepContext) -> list[int | None]:
    """The partition of each of KEYS in a topic with seven partitions."""
    frame = context.spark.createDataFrame([(number, key) for number, key in enumerate(KEYS)], "n int, key string")
    return [row.p for row in frame.select("n", partition_for(frame.key, 7).alias("p")).orderBy("n").collect()]


def report(context: StepContext) -> str:
    context.write(context.rows().limit(7))
    return str(last_report())


def origin(context: StepContext) -> list[str]:
    """The file of the package that each task imports."""

    def package(_: Iterable[int]) -> Iterable[str]:
        import kafkabuf

        yield kafkabuf.__file__

    return context.spark.sparkContext.parallelize(range(2), 2).mapPartitions(package).collect()


def row_too_large(context: StepContext) -> None:
    context.write(context.rows(), **{"kafka.max.request.size": "70"})


def row_at_fault(context: StepContext) -> None:
    """The last of 40 rows of one task is larger than a request may be."""
    rows = context.spark.range(0, 40, 1, 1).selectExpr("if(id = 39, repeat('x', 2000000), string(id)) as value")
    context.write(rows)


STEPS: dict[str, Callable[[StepContext], Any]] = {
    step.__name__: step
    for step in (
        *(at_least_once, registered, from_a_thread, atomic, exactly_once_stream, atomic_stream, at_least_once_stream),
        *(update_mode, partitions, report, origin, row_too_large, row_at_fault, *FUNCTIONS),
    )
}


def _run_and_replay(job: Job) -> None:
    """Run the stream, and run it again as if the driver had died before Spark committed the second micro-batch.

    The second run writes the second micro-batch again, and then a third one.
    """
    job.run()
    job.forget_newest_commit()
    job.add_file(20)
    job.run()


def _ship(spark: SparkSession, environment: Path, folder: Path) -> None:
    """Send the packages of a folder to the Connect server, as docs/spark.md says."""
    for package in environment.iterdir():
        if package.is_dir():
            archive = shutil.make_archive(str(folder / package.name), "gztar", package)
            spark.addArtifacts(f"{archive}#{package.name}", archive=True)
        elif package.suffix == ".py":
            spark.addArtifacts(str(package), pyfile=True)


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    builder = SparkSession.builder.config(map=job["settings"])
    remote = job.get("remote")
    spark = (builder.remote(remote) if remote else builder.master(job["master"])).getOrCreate()
    results: dict[str, Any] = {}
    try:
        if "ship" in job:
            _ship(spark, Path(job["ship"]), folder)
        for name in job["steps"]:
            context = StepContext(spark, f"{job['prefix']}-{name}", job["options"], folder / name)
            try:
                results[name] = {"returned": STEPS[name](context)}
            except Exception:
                results[name] = {"error": traceback.format_exc()}
    finally:
        (folder / "results.json").write_text(json.dumps(results))
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
