"""Spark's rows to Kafka: our sink beside Spark's own, each in a Spark of its own, warm."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.claim import Case, Claim, Goal, Job, Measurement, Metric

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
WARM_UPS = 2
BATCHES = 3
FILES = 2  # of a micro-batch: Spark reads each in a task of its own
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
    from tests.jars import resolve_spark_kafka_jars

    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--jars {','.join(resolve_spark_kafka_jars())} --driver-memory 3g pyspark-shell"
    )
    with tempfile.TemporaryDirectory(prefix="kafkabuf-bench-") as folder:
        place = Path(folder)
        with session("local[2]", place) as spark:
            yield spark, place


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """Keys of 16 bytes and values of 100."""
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "lpad(string(id), 16, '0') as key", "rpad(string(id), 100, 'v') as value"
    )


def _topic(bootstrap: str) -> str:
    name = f"spark-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    return name


def _arrived(bootstrap: str, topic: str) -> int:
    """How far the topic's ends are from 0: records, and the markers of transactions."""
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}  # type: ignore[no-untyped-call]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_offsets(asked)
    return sum(int(one.result().offset) for one in found.values())


def cpu_of_tree() -> float:
    """User and system time of this process and all its descendants, of those that have ended too."""
    stats = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = place.read_text()
        except OSError:
            continue  # it has just ended
        fields = text[text.rindex(")") + 2 :].split()
        stats[int(place.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    ours, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, _) in stats.items() if parent in ours} - ours
        ours, grown = ours | more, bool(more)
    return sum(stats[pid][1] for pid in ours) / os.sysconf("SC_CLK_TCK")


def _batch(write: Write, job: Job, *, aligned: bool = False, sends: bool = True) -> Measurement:
    from kafkabuf.spark import align

    with _spark() as (spark, _):
        rows = rows_of(spark, job.amount)
        if aligned:
            rows = align(rows, PARTITIONS)
        rows = rows.cache()
        rows.count()
        topic = _topic(job.bootstrap)
        for _ in range(WARM_UPS):  # the JVM's compiler, the Python workers
            write(rows, job.bootstrap, topic)
        used, started = cpu_of_tree(), time.perf_counter()
        write(rows, job.bootstrap, topic)
        wall, used = time.perf_counter() - started, cpu_of_tree() - used
        if sends and _arrived(job.bootstrap, topic) < (WARM_UPS + 1) * job.amount:
            raise RuntimeError("rows are missing in the topic")
    return {RATE.name: job.amount / wall, CPU.name: used / job.amount * 1e6}


def _noop(rows: DataFrame, bootstrap: str, topic: str) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _count(rows: DataFrame, bootstrap: str, topic: str) -> None:
    from bench.spark_counts import CountingSource

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
    """Micro-batches of all the rows each, from parquet files; the median of all but the first, the warm-up."""
    with _spark() as (spark, place):
        for _ in range(BATCHES + 1):
            rows_of(spark, job.amount).repartition(FILES).write.mode("append").parquet(str(place / "in"))
        topic = _topic(job.bootstrap)
        source = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", FILES)
        writer = source.parquet(str(place / "in")).writeStream.format(kind).options(**options)
        if options:
            writer = writer.option("sinkId", topic)
        writer = writer.option("kafka.bootstrap.servers", job.bootstrap).option("topic", topic)
        used = cpu_of_tree()
        query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        used = cpu_of_tree() - used
        times = [progress["durationMs"]["addBatch"] for progress in query.recentProgress if progress["numInputRows"]]
        if len(times) != BATCHES + 1 or _arrived(job.bootstrap, topic) < job.amount * (BATCHES + 1):
            raise RuntimeError(f"{len(times)} micro-batches, and rows are missing")
    return {
        RATE.name: job.amount / statistics.median(times[1:]) * 1000,
        CPU.name: used / (job.amount * (BATCHES + 1)) * 1e6,
    }


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
        "local[2]; keys of 16 bytes, values of 100, cached; two Kafka partitions. CPU: JVM and Python together.",
        f"Each write is the third of its Spark: {WARM_UPS} are warm-up.",
        f"Streams: {BATCHES} micro-batches after one of warm-up, all the rows each, from {FILES} parquet files; rate "
        "by the median addBatch, CPU with the warm-up.",
        "Settings are the sinks' defaults: Spark's sends batches of 16 KiB, kafkabuf's for two partitions of 128 KiB.",
    ],
)
