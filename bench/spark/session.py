"""The Spark of a case, the rows that it writes, and what the machine spends on it."""

from __future__ import annotations

import atexit
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from bench.claim import Measurement, Metric

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2  # of Spark and of Kafka, unless a case says otherwise
RATE = Metric("rows_per_s", "rows/s", ",.0f")
CPU = Metric("cpu_us", "µs CPU/row", ".3f", more_is_better=False)
JVM = Metric("jvm_us", "µs in the JVM", ".3f", more_is_better=False, ratio=False)


@cache
def spark() -> tuple[SparkSession, Path]:
    """The Spark of this process, and a folder. Both end with the process: the cases of a group share them."""
    from kafkabuf.cli.demo.spark import session
    from rigs.jars import resolve_spark_avro_jars, resolve_spark_kafka_jars

    jars = ",".join([*resolve_spark_kafka_jars(), *resolve_spark_avro_jars()])
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} --driver-memory 3g pyspark-shell"
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkabuf-bench-")))
    return stack.enter_context(session("local[2]", folder)), folder


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """Rows with keys of 16 bytes and values of 100 bytes, and their numbers."""
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(
        "id", "lpad(string(id), 16, '0') as key", "rpad(string(id), 100, 'v') as value"
    )


def arrived(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> int:
    """The sum of the topic's end offsets: records and control records."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ends = admin.list_offsets({TopicPartition(topic, number): latest for number in range(partitions)})
    return sum(int(end.result().offset) for end in ends.values())


class Spent(NamedTuple):
    """Seconds of wall time, of CPU time of this process and all its descendants, and of that in JVMs."""

    wall: float
    cpu: float
    jvm: float

    def measurement(self, rows: int) -> Measurement:
        return {RATE.name: rows / self.wall, CPU.name: self.cpu / rows * 1e6, JVM.name: self.jvm / rows * 1e6}


def spent_by(run: Callable[[], object]) -> Spent:
    before, started = _cpu_of_tree(), time.perf_counter()
    run()
    wall, after = time.perf_counter() - started, _cpu_of_tree()
    return Spent(wall, after[0] - before[0], after[1] - before[1])


def _cpu_of_tree() -> tuple[float, float]:
    """User and system time of this process and all its descendants, including those that have ended; and of JVMs."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # the process has just ended
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        # The time of ended children counts for their parent: Python workers are children of a daemon, not of the JVM.
        own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        stats[int(path.parent.name)] = (int(fields[1]), own + ended, own if name == "java" else 0)
    tree, grown = {os.getpid()}, True
    while grown:
        children = {pid for pid, (parent, _, _) in stats.items() if parent in tree} - tree
        tree, grown = tree | children, bool(children)
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(stats[pid][1] for pid in tree) / ticks, sum(stats[pid][2] for pid in tree) / ticks
