"""What the first task of a Python worker costs beside its rows: `python -m bench.spark.first_task [runs]`.

Spark ends a Python worker that has been idle for a minute, so the first task after a pause imports the sink again. Each
run is a fresh process that has imported what every Arrow task imports (pyspark's worker and pyarrow). It then receives
a pickled writer, as from Spark, and sends a batch of one row to the embedded cluster, which runs in the parent. The
figures are CPU time of the fresh process in milliseconds: minimum and median. They are for docs/spark.md.
"""

from __future__ import annotations

import json
import pickle
import statistics
import subprocess
import sys

import pyarrow as pa
from pyspark.sql import types as T

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from kafkabuf.spark.writer import StreamWriter

RUNS = 10
ROWS = [pa.record_batch({"key": [b"key"], "value": [b"value"]})]
GUARANTEES = ("at_least_once", "exactly_once", "atomic")

# A worker of Spark: it has no hypothesis, which tests install and the protocol's schemas import where they find it.
WORKER = """
import json, pickle, sys, time
if "without-hypothesis" in sys.argv: sys.modules["hypothesis"] = None
import pyarrow, pyspark.worker
from pyspark.sql.datasource import DataSourceArrowWriter
batches = pickle.load(sys.stdin.buffer)
known, start = set(sys.modules), time.process_time()
writer, attempt = pickle.load(sys.stdin.buffer)
from kafkabuf.spark.worker.place import TaskAttempt
TaskAttempt.current = staticmethod(lambda: attempt)
first = writer.write(iter(batches))
spent, loaded = time.process_time() - start, sorted(set(sys.modules) - known)
writer.sink.delivery().abort([first], writer.begun)
print(json.dumps([spent * 1000, loaded]))
"""


def first_task(sink: ArrowSink, *arguments: str) -> tuple[float, list[str]]:
    """Milliseconds of CPU of a first task in a fresh process, and the modules that it loads."""
    attempt = TaskAttempt(0, 0, MicroBatch(0, "query", "run"))
    given = pickle.dumps(ROWS) + pickle.dumps((StreamWriter(sink), attempt))
    command = [sys.executable, "-c", WORKER, *arguments]
    printed = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout
    spent, loaded = json.loads(printed.splitlines()[-1])
    return float(spent), loaded


def main(runs: int, *arguments: str) -> None:
    """Measure each guarantee, in turns."""
    schema = T.StructType([T.StructField(name, T.BinaryType()) for name in ("key", "value")])
    with EmbeddedCluster(brokers=1, request_log=0) as cluster:
        sinks = {}
        for guarantee in GUARANTEES:
            cluster.create_topic(guarantee, partitions=2)
            options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": guarantee}
            options |= {"deliveryguarantee": guarantee}
            sinks[guarantee] = options
        spent: dict[str, list[float]] = {name: [] for name in GUARANTEES}
        modules = {}
        for run in range(runs):
            for name, options in sinks.items():
                # A sinkId has one stream, and a micro-batch is written once.
                sink = ArrowSink.of(SinkOptions.parse(options | {"sinkid": f"{name}-{run}"}), schema)
                took, modules[name] = first_task(sink, *arguments)
                spent[name].append(took)
    for name, times in spent.items():
        print(f"{name}: {min(times):.0f} ms at least, {statistics.median(times):.0f} ms in the median", end="")
        print(f", {len(modules[name])} modules")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS, *sys.argv[2:])
