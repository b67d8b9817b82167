"""The memory of a Python worker of Spark while it writes: `python -m bench.spark.memory [rows]`.

Its figures are for docs/spark.md: 2 million rows of 16 B keys and 100 B values, local[2], default settings, the
embedded cluster. RSS counts a page that workers share (Python's and the libraries') in each of them; PSS divides it
among them. The figure of a container lies between the two.
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

from bench.spark.session import PARTITIONS as TASKS
from bench.spark.session import rows_of
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli.demo.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INTERVAL = 0.2


def _mib(rollup: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(match[1]) // 1024 if match else 0


def _is_ours(pid: int) -> bool:
    """Whether the process descends from this one: other programs may run Spark on the machine."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid > 1


def _workers() -> Iterator[tuple[int, int]]:
    """(RSS, PSS) in MiB of each Python process that runs tasks, without the driver's."""
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
            if b"pyspark.daemon" in command and b"pyspark.worker" in command and _is_ours(int(folder.name)):
                rollup = (folder / "smaps_rollup").read_text()
                yield _mib(rollup, "Rss"), _mib(rollup, "Pss")
        except OSError:  # the process has ended
            continue


@contextmanager
def _peak(name: str) -> Iterator[None]:
    """Print the largest figures of any worker during the `with`."""
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
    """Measure workers that only pass rows on, and then workers that write them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedCluster(brokers=1, request_log=0) as cluster,
        session(f"local[{TASKS}]", Path(folder)) as spark,
    ):
        cluster.create_topic("t", partitions=TASKS)
        frame = rows_of(spark, rows).selectExpr("key", "value", "cast(spark_partition_id() as int) as partition")

        def write(guarantee: str) -> Callable[[DataFrame], None]:
            options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t", "sinkId": "memory"}
            options["deliveryGuarantee"] = guarantee
            return lambda frame: frame.write.format("kafkabuf").options(**options).mode("append").save()

        writes: dict[str, Callable[[DataFrame], None]] = {
            "mapInArrow, rows passed on": lambda frame: (
                frame.mapInArrow(lambda batches: batches, frame.schema).write.format("noop").mode("append").save()
            ),
            "at_least_once": write("at_least_once"),
            "atomic": write("atomic"),
        }
        for name, run in writes.items():
            with _peak(name):
                run(frame)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
