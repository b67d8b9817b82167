"""What a Python worker of Spark takes while it writes: `python -m bench.spark.memory [rows]`.

For docs/spark.md: 2 million rows of 16 B keys and 100 B values, local[2], default settings, the embedded cluster. RSS
counts what workers share (Python's and the libraries' pages) in each of them, PSS by its part; containers count neither
but something between.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.spark.sink import PARTITIONS as TASKS
from bench.spark.sink import rows_of
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli.demo_spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INTERVAL = 0.2


def _mib(rollup: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) // 1024 if found else 0


def _is_ours(pid: int) -> bool:
    """Whether this process is above it: others may run Spark on the machine."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid > 1


def _workers() -> Iterator[tuple[int, int]]:
    """(RSS, PSS), in MiB, of the Python processes that run tasks; not of the driver's."""
    for place in Path("/proc").iterdir():
        try:
            command = (place / "cmdline").read_bytes().split(b"\0") if place.name.isdigit() else []
            if b"pyspark.daemon" in command and b"pyspark.worker" in command and _is_ours(int(place.name)):
                rollup = (place / "smaps_rollup").read_text()
                yield _mib(rollup, "Rss"), _mib(rollup, "Pss")
        except OSError:  # it has ended
            continue


@contextmanager
def _peak(name: str) -> Iterator[None]:
    """Print the largest figures of any one worker."""
    over, most = threading.Event(), [0, 0]

    def watch() -> None:
        while not over.wait(INTERVAL):
            for rss, pss in _workers():
                most[:] = max(most[0], rss), max(most[1], pss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    print(f"{name}: RSS {most[0]} MiB, PSS {most[1]} MiB a worker", flush=True)


def main(rows: int) -> None:
    """Workers that only pass rows on, then those that write them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedCluster(brokers=1, request_log=0) as cluster,
        session(f"local[{TASKS}]", Path(folder)) as spark,
    ):
        cluster.create_topic("t", partitions=TASKS)
        frame = rows_of(spark, rows).selectExpr("*", "cast(spark_partition_id() as int) as partition")

        def write(guarantee: str) -> Callable[[DataFrame], None]:
            options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t", "sinkId": "memory"}
            options["deliveryGuarantee"] = guarantee
            return lambda frame: frame.write.format("kafkabuf").options(**options).mode("append").save()

        ways: dict[str, Callable[[DataFrame], None]] = {
            "mapInArrow, rows passed on": lambda frame: (
                frame.mapInArrow(lambda batches: batches, frame.schema).write.format("noop").mode("append").save()
            ),
            "at_least_once": write("at_least_once"),
            "atomic": write("atomic"),
        }
        for name, way in ways.items():
            with _peak(name):
                way(frame)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
