"""Micro-batches of a stream: the figure is the time of addBatch, which ends with the commit of the sink."""

from __future__ import annotations

import os
import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from bench import harness
from bench.claim import Job, Measurement
from bench.spark.session import CPU, JVM, PARTITIONS, RATE, arrived, rows_of, spark, spent_by
from bench.spark.writes import bad_every, columns_with, skipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

WARM_UPS = 5
BATCHES = 30  # measured
FEWEST = 5  # measured in a run of all claims
FILES = 2  # of a micro-batch: Spark reads each in a task of its own
SMALL = 8  # rows of a small micro-batch, its tasks, and the topic's partitions
SMALL_WAIT_S = 120.0

Options = Mapping[str, str]


def large(kind: str, options: Options, job: Job, *, columns: Sequence[str] = ("key", "value")) -> Measurement:
    """Micro-batches from parquet files, each with all the rows of the job."""
    session, folder = spark()
    folder = folder / uuid.uuid4().hex
    rows_of(session, job.amount).repartition(FILES).write.parquet(str(folder / "once"))
    (folder / "in").mkdir()
    wanted = WARM_UPS + _measured_batches(job)
    begun = time.time() - wanted
    for number, file in product(range(wanted), sorted((folder / "once").glob("*.parquet"))):
        copied = shutil.copy(file, folder / "in" / f"{number}-{file.name}")
        # Spark takes files in the order of their times: a micro-batch must not have the same file twice.
        os.utime(copied, (begun + number, begun + number))
    source = session.readStream.schema("id long, key string, value string").option("maxFilesPerTrigger", FILES)
    frame = source.parquet(str(folder / "in")).selectExpr(*columns)
    figures = _measured(kind, options, frame, job, PARTITIONS, wanted, lambda query: query.awaitTermination(), folder)
    shutil.rmtree(folder)
    return figures


def skipping(options: Options, job: Job, *, bad: bool) -> Measurement:
    """As `large`, with rows that are two hours ahead, if `bad`: the write must leave out these and no other row."""
    every = bad_every(job.amount)
    figures = large("kafkabuf", options, job, columns=columns_with("timestamp", every if bad else 0))
    skipped(job.amount // every if bad else 0)
    return figures


def small(kind: str, options: Options, job: Job) -> Measurement:
    """Micro-batches of a few rows, each row in a task and a Kafka partition of its own."""
    from bench.spark.counts import CountingSource

    session, folder = spark()
    session.dataSource.register(CountingSource)
    source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", SMALL).option("numPartitions", SMALL)
    frame = source.load().selectExpr("string(value) as value", f"int(value % {SMALL}) as partition")
    wanted = WARM_UPS + _measured_batches(job)

    def wait(query: StreamingQuery) -> None:
        deadline = time.monotonic() + SMALL_WAIT_S
        # Rarely: the question costs CPU time, which a small micro-batch would notice.
        while len(_times(query)) < wanted and query.isActive and time.monotonic() < deadline:
            time.sleep(1.0)
        query.stop()

    return _measured(
        kind, options, frame, Job(SMALL, job.bootstrap), SMALL, wanted, wait, folder / uuid.uuid4().hex, once=False
    )


def _measured(
    kind: str,
    options: Options,
    frame: DataFrame,
    job: Job,
    partitions: int,
    wanted: int,
    wait: Callable[[StreamingQuery], object],
    folder: Path,
    *,
    once: bool = True,
) -> Measurement:
    """The median of addBatch of `wanted` micro-batches, but for the warm-up.

    `once`: the stream ends when its source has no more rows.
    """
    trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    with harness.topic(job.bootstrap, partitions=partitions) as topic:
        writer = frame.writeStream.format(kind).option("kafka.bootstrap.servers", job.bootstrap).option("topic", topic)
        ids = {"sinkId": topic} if kind == "kafkabuf" else {}
        writer = writer.options(**ids, **options).option("checkpointLocation", str(folder / "checkpoint"))
        times: list[int] = []

        def run() -> None:
            query = writer.trigger(**trigger).start()
            wait(query)
            times.extend(_times(query))

        spent = spent_by(run)
        rows = job.amount - job.amount // bad_every(job.amount)  # at least so many are good
        sent = kind == "counting" or arrived(job.bootstrap, topic, partitions) >= rows * len(times)
        if len(times) < wanted or not sent:
            raise RuntimeError(f"{len(times)} micro-batches, and rows are missing")
    figures = spent.measurement(job.amount * len(times))
    add_batch = statistics.median(times[WARM_UPS:]) / 1000
    return {RATE.name: job.amount / add_batch, CPU.name: figures[CPU.name], JVM.name: figures[JVM.name]}


def _measured_batches(job: Job) -> int:
    return max(round(BATCHES * job.brief), FEWEST)


def _times(query: StreamingQuery) -> list[int]:
    """The time of addBatch of each micro-batch with rows, in milliseconds."""
    return [progress["durationMs"]["addBatch"] for progress in query.recentProgress if progress["numInputRows"]]
