"""Writes of a cached DataFrame: each case writes the same rows again and again."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from bench import harness
from bench.claim import Job, Measurement
from bench.spark.session import PARTITIONS, Spent, arrived, rows_of, spark, spent_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WARM_UPS = 2
WRITES = 3  # measured
BAD_EVERY = 10_000  # of so many rows one is bad
COMPACTED = {"cleanup.policy": "compact"}

# Writes a DataFrame once: (rows, bootstrap, topic).
Write = Callable[["DataFrame", str, str], None]


def batch(write: Write, job: Job, *, aligned: bool = False, sends: bool = True) -> Measurement:
    """Write rows with a key and a value."""
    rows = rows_of(spark()[0], job.amount).select("key", "value")
    return measured(write, rows, job, aligned=aligned, expected=job.amount if sends else 0)


def on_one_core(write: Write, job: Job) -> Measurement:
    """As `batch`, with the JVM and Python on one core. This process starts both, and they stay on its cores."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return batch(write, job)


def skipping(write: Write, column: str, job: Job, *, bad: bool, aligned: bool = False) -> Measurement:
    """Write rows of which the broker refuses some, if `bad`: those with the wrong value in `column`.

    The write must leave out the bad rows and no other row.
    """
    every = bad_every(job.amount)
    rows = rows_of(spark()[0], job.amount).selectExpr(*columns_with(column, every if bad else 0))
    refused = job.amount // every if bad else 0
    limits = COMPACTED if column == "key" else harness.TOPIC_LIMITS
    return measured(
        write, rows, job, aligned=aligned, expected=job.amount - refused, limits=limits, check=partial(skipped, refused)
    )


def bad_every(rows: int) -> int:
    """A try with few rows has a bad row too."""
    return min(BAD_EVERY, rows)


def columns_with(column: str, every: int) -> list[str]:
    """Columns of rows of which each `every`-th has a null key, or a time two hours ahead; 0: no row."""
    is_bad = f"id % {every} = 0" if every else "false"
    if column == "key":
        return [f"if({is_bad}, null, key) as key", "value"]
    return ["key", "value", f"current_timestamp() + if({is_bad}, interval 2 hours, interval 0 hours) as timestamp"]


def skipped(rows: int) -> None:
    """Raise RuntimeError unless the last write left out so many rows."""
    from kafkabuf.spark import last_report

    report = last_report()
    if report is None or report.skipped != rows:
        raise RuntimeError(f"{rows} rows had to be skipped: {report}")


def measured(
    write: Write,
    rows: DataFrame,
    job: Job,
    *,
    aligned: bool = False,
    expected: int,
    limits: dict[str, str] = harness.TOPIC_LIMITS,
    check: Callable[[], None] = lambda: None,
) -> Measurement:
    """The median of writes after the warm-up, for the JVM's compiler and the Python workers."""
    from kafkabuf.spark import align

    rows = (align(rows, PARTITIONS) if aligned else rows).cache()
    rows.count()
    spent = []
    with harness.topic(job.bootstrap, limits, partitions=PARTITIONS) as topic:
        for _ in range(WARM_UPS + WRITES):
            spent.append(spent_by(lambda: write(rows, job.bootstrap, topic)))
            check()
        if arrived(job.bootstrap, topic) < len(spent) * expected:
            raise RuntimeError("rows are missing in the topic")
    rows.unpersist(blocking=True)
    return Spent(*map(statistics.median, zip(*spent[WARM_UPS:], strict=True))).measurement(job.amount)


# ---- sinks -----------------------------------------------------------------------------------------------------------


def noop(rows: DataFrame, bootstrap: str, topic: str) -> None:
    rows.write.format("noop").mode("overwrite").save()


def count(rows: DataFrame, bootstrap: str, topic: str) -> None:
    from bench.spark.counts import CountingSource

    rows.sparkSession.dataSource.register(CountingSource)
    rows.write.format("counting").mode("append").save()


def to(kind: str, options: Mapping[str, str] | None = None) -> Write:
    """Writes with a Kafka sink. A sinkId is the name of the topic."""

    def write(rows: DataFrame, bootstrap: str, topic: str) -> None:
        writer = rows.write.format(kind).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
        ids = {"sinkId": topic} if kind == "kafkabuf" else {}
        writer.options(**ids, **(options or {})).mode("append").save()

    return write
