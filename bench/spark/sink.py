"""Writes Spark's rows to Kafka: our sink beside Spark's own, each in a warm Spark of its own."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from bench import harness
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
WARM_UPS = 2
WRITES = 3  # measured writes of a batch case
BATCHES = 5  # measured micro-batches of a stream
FILES = 2  # files of a micro-batch: Spark reads each in a task of its own
RATE = Metric("rows_per_s", "rows/s", ",.0f")
CPU = Metric("cpu_us", "µs CPU/row", ".3f", more_is_better=False)

NOOP, COUNTS, THEIRS, OURS = "Spark's noop", "Arrow writer that counts", "Spark's Kafka sink", "kafkabuf"
LARGE = "Spark's Kafka sink, 128 KiB batches"
ALIGNED, ATOMIC = "kafkabuf, aligned", "kafkabuf, aligned, atomic"
STREAM_THEIRS, STREAM, STREAM_ONCE = "stream: Spark's Kafka sink", "stream: kafkabuf", "stream: kafkabuf, exactly_once"

# Writes a DataFrame once.
Write = Callable[["DataFrame", str, str], None]


@contextmanager
def _spark() -> Iterator[tuple[SparkSession, Path]]:
    from kafkabuf.cli.demo_spark import session
    from rigs.jars import resolve_spark_kafka_jars

    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--jars {','.join(resolve_spark_kafka_jars())} --driver-memory 3g pyspark-shell"
    )
    with tempfile.TemporaryDirectory(prefix="kafkabuf-bench-") as folder:
        with session("local[2]", Path(folder)) as spark:
            yield spark, Path(folder)


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """Rows with keys of 16 bytes and values of 100 bytes."""
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "lpad(string(id), 16, '0') as key", "rpad(string(id), 100, 'v') as value"
    )


def _arrived(bootstrap: str, topic: str) -> int:
    """The sum of the topic's end offsets: records and control records."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ends = admin.list_offsets({TopicPartition(topic, number): latest for number in range(PARTITIONS)})
    return sum(int(end.result().offset) for end in ends.values())


def cpu_of_tree() -> float:
    """User and system time of this process and all its descendants, including those that have ended."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # the process has just ended
        fields = text[text.rindex(")") + 2 :].split()
        stats[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    tree, grown = {os.getpid()}, True
    while grown:
        children = {pid for pid, (parent, _) in stats.items() if parent in tree} - tree
        tree, grown = tree | children, bool(children)
    return sum(stats[pid][1] for pid in tree) / os.sysconf("SC_CLK_TCK")


def _batch(write: Write, job: Job, *, aligned: bool = False, sends: bool = True) -> Measurement:
    from kafkabuf.spark import align

    with _spark() as (spark, _):
        rows = rows_of(spark, job.amount)
        if aligned:
            rows = align(rows, PARTITIONS)
        rows = rows.cache()
        rows.count()
        with harness.topic(job.bootstrap, partitions=PARTITIONS) as topic:
            for _ in range(WARM_UPS):  # for the JVM's compiler and the Python workers
                write(rows, job.bootstrap, topic)
            measured = [_timed(lambda: write(rows, job.bootstrap, topic)) for _ in range(WRITES)]
            if sends and _arrived(job.bootstrap, topic) < (WARM_UPS + WRITES) * job.amount:
                raise RuntimeError("rows are missing in the topic")
    wall, used = (statistics.median(figures) for figures in zip(*measured, strict=True))
    return {RATE.name: job.amount / wall, CPU.name: used / job.amount * 1e6}


def _timed(write: Callable[[], None]) -> tuple[float, float]:
    """Seconds of wall time, and of CPU time of all processes."""
    used, started = cpu_of_tree(), time.perf_counter()
    write()
    return time.perf_counter() - started, cpu_of_tree() - used


def _noop(rows: DataFrame, bootstrap: str, topic: str) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _count(rows: DataFrame, bootstrap: str, topic: str) -> None:
    from bench.spark.counts import CountingSource

    rows.sparkSession.dataSource.register(CountingSource)
    rows.write.format("counting").mode("append").save()


def _to(kind: str, rows: DataFrame, bootstrap: str, topic: str, **options: str) -> None:
    writer = rows.write.format(kind).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer.options(**options).mode("append").save()


def _large(rows: DataFrame, bootstrap: str, topic: str) -> None:
    _to("kafka", rows, bootstrap, topic, **{"kafka.batch.size": "131072"})


def _atomic(rows: DataFrame, bootstrap: str, topic: str) -> None:
    _to("kafkabuf", rows, bootstrap, topic, deliveryGuarantee="atomic", sinkId=topic)


def _stream(kind: str, options: dict[str, str], job: Job) -> Measurement:
    """Measure micro-batches from parquet files, each with all the rows: the median of those after the warm-up."""
    batches = WARM_UPS + BATCHES
    with _spark() as (spark, folder):
        rows_of(spark, job.amount).repartition(FILES).write.parquet(str(folder / "once"))
        (folder / "in").mkdir()
        for number, file in product(range(batches), sorted((folder / "once").glob("*.parquet"))):
            shutil.copy(file, folder / "in" / f"{number}-{file.name}")
        with harness.topic(job.bootstrap, partitions=PARTITIONS) as topic:
            used = cpu_of_tree()
            times = _streamed(kind, options, job.bootstrap, topic, spark, folder)
            used = cpu_of_tree() - used
            if len(times) != batches or _arrived(job.bootstrap, topic) < job.amount * batches:
                raise RuntimeError(f"{len(times)} micro-batches, and rows are missing")
    return {
        RATE.name: job.amount / statistics.median(times[WARM_UPS:]) * 1000,
        CPU.name: used / (job.amount * batches) * 1e6,
    }


def _streamed(
    kind: str, options: dict[str, str], bootstrap: str, topic: str, spark: SparkSession, folder: Path
) -> list[int]:
    """The time of addBatch for each micro-batch with rows, in milliseconds."""
    source = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", FILES)
    writer = source.parquet(str(folder / "in")).writeStream.format(kind).options(**options)
    if options:
        writer = writer.option("sinkId", topic)
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress["durationMs"]["addBatch"] for progress in query.recentProgress if progress["numInputRows"]]


ONCE = {"deliveryGuarantee": "exactly_once"}
CLAIM = Claim(
    name="spark",
    title="From Spark's executors rather than through Spark's own sink",
    cases=[
        Case(NOOP, partial(_batch, _noop, sends=False)),
        Case(COUNTS, partial(_batch, _count, sends=False)),
        Case(THEIRS, partial(_batch, partial(_to, "kafka"))),
        Case(LARGE, partial(_batch, _large)),
        Case(OURS, partial(_batch, partial(_to, "kafkabuf"))),
        Case(ALIGNED, partial(_batch, partial(_to, "kafkabuf"), aligned=True)),
        Case(ATOMIC, partial(_batch, _atomic, aligned=True)),
        Case(STREAM_THEIRS, partial(_stream, "kafka", {}), baseline=STREAM_THEIRS),
        Case(STREAM, partial(_stream, "kafkabuf", {}), baseline=STREAM_THEIRS),
        Case(STREAM_ONCE, partial(_stream, "kafkabuf", ONCE), baseline=STREAM_THEIRS),
    ],
    metrics=[RATE, CPU],
    baseline=THEIRS,
    amount=2_000_000,
    unit="rows",
    goals=[
        Goal("rows/s, of Spark's own sink", OURS, RATE.name, 2.0, THEIRS),
        Goal("CPU, of Spark's own sink's", OURS, CPU.name, 0.5, THEIRS, at_most=True, above=NOOP),
        Goal("rows/s, of a writer that only counts", OURS, RATE.name, 0.75, COUNTS),
        Goal("atomic, of at_least_once", ATOMIC, RATE.name, 0.9, ALIGNED),
        Goal("addBatch, of Spark's own sink", STREAM, RATE.name, 1.5, STREAM_THEIRS),
        Goal("exactly_once, of at_least_once", STREAM_ONCE, RATE.name, 0.9, STREAM),
    ],
    notes=[
        "local[2]; cached rows with keys of 16 bytes and values of 100 bytes; two Kafka partitions. CPU is that of the "
        "JVM and of Python together.",
        f"Each figure is the median of {WRITES} writes of one Spark, after {WARM_UPS} writes that warm it up.",
        f"Streams: {BATCHES} micro-batches after {WARM_UPS} that warm up, each with all the rows from {FILES} parquet "
        "files. The rate is that of the median addBatch; CPU includes the warm-up.",
        "Settings are the sinks' defaults: Spark's sink sends batches of 16 KiB, kafkabuf's, for two partitions, "
        "batches of 128 KiB.",
    ],
)
