"""A streaming query without Spark: it calls the writers as Spark does, one task after the other, in this process."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import notes, workers
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from kafkabuf.spark.writer import StreamWriter
from tests.spark.job import PARTITIONS, committed

COLUMNS = ("key", "value", "partition")


def options(cluster: EmbeddedCluster, topic: str, guarantee: str, **more: str) -> SinkOptions:
    values = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.max.block.ms": "10000",
        "kafka.retry.backoff.ms": "5",  # a cluster in this process needs no 100 ms to answer otherwise
        "topic": topic,
        "deliveryguarantee": guarantee,
        "sinkid": f"sink-{topic}",
        **more,
    }
    return SinkOptions.parse(values)


def batch_of(number: int, task: int, rows: int = 50) -> list[pa.RecordBatch]:
    """The rows of one task of a micro-batch, in two Arrow batches. Task n writes Kafka's partition n."""
    values = [f"{number}/{task}/{row}".encode() for row in range(rows)]
    table = pa.record_batch(
        {"key": values, "value": values, "partition": pa.array([task % PARTITIONS] * rows, pa.int32())}
    )
    return [table.slice(0, rows // 2), table.slice(rows // 2)]


def all_values(batches: int, tasks: int = PARTITIONS) -> Counter[bytes]:
    """The values of the first `batches` micro-batches."""
    return sum((values_of(number, task) for number in range(batches) for task in range(tasks)), Counter())


def values_of(number: int, task: int) -> Counter[bytes]:
    """The values of one task of a micro-batch."""
    return Counter(value for rows in batch_of(number, task) for value in rows.column("value").to_pylist())


def committed_values(cluster: EmbeddedCluster, topic: str) -> Counter[bytes]:
    """The values that a reader with read_committed sees."""
    return committed(cluster.bootstrap_servers, topic, fetch_wait_max_ms="10")


class Query:
    """A streaming query. It calls the writer as Spark does, one task after the other."""

    def __init__(self, sink: ArrowSink, monkeypatch: pytest.MonkeyPatch, folder: Path, query_id: str = "query") -> None:
        self._folder = folder
        self.sink = sink
        self.query_id = query_id
        self.run_id = "run-0"
        self._monkeypatch = monkeypatch
        self.restart()

    def restart(self, *, new_jvm: bool = True, jvm: Path | None = None) -> None:
        """Start again from the checkpoint. The notes of the workers are gone with their JVM, or are those of `jvm`."""
        self.run_id = f"run-{int(self.run_id.removeprefix('run-')) + 1}"
        if new_jvm:
            self._notes = jvm or Path(tempfile.mkdtemp(dir=self._folder))
            self._monkeypatch.setattr(notes, "folder_of", lambda pid: self._notes)
            workers.close_all()

    @property
    def jvm(self) -> Path:
        """The JVM, by the folder of its notes."""
        return self._notes

    def notes(self) -> list[Path]:
        """The notes that the workers have left for each other."""
        return [path for path in self._notes.iterdir() if path.is_file()]

    def writer(self) -> StreamWriter:
        """A new writer, which has not begun."""
        return StreamWriter(self.sink)

    def begun(self) -> StreamWriter:
        """A writer as the tasks get it: the driver has begun the micro-batch."""
        writer: StreamWriter = pickle.loads(pickle.dumps(self.writer()))
        return writer

    def task(
        self,
        writer: Any,
        number: int,
        task: int,
        rows: list[pa.RecordBatch] | None = None,
        attempt: int = 0,
        attempt_id: int = 0,
    ) -> TaskReport:
        place = TaskAttempt(task, attempt, MicroBatch(number, self.query_id, self.run_id), attempt_id)
        self._monkeypatch.setattr(TaskAttempt, "current", lambda: place)
        report = writer.write(iter(batch_of(number, task) if rows is None else rows))
        received: TaskReport = pickle.loads(pickle.dumps(report))
        return received

    def batch(self, number: int, tasks: int = PARTITIONS) -> list[TaskReport]:
        writer = pickle.loads(pickle.dumps(self.writer()))
        reports = [self.task(writer, number, task) for task in range(tasks)]
        self.writer().commit(list(reports), number)
        return reports
