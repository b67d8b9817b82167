"""A row that Kafka refuses under `fail` ends the write after one attempt: its task and those beside it end at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, RecordTooLargeError
from kafkabuf.spark.reports.report import RefusedRow, TaskReport
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import notes, workers
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from kafkabuf.spark.writer import StreamWriter
from tests.spark.places import Place
from tests.spark.query import COLUMNS, batch_of, committed_values, options, values_of

pytest_plugins = ["tests.one_node"]

GUARANTEES = ["at_least_once", "exactly_once", "atomic"]
TOO_LARGE = pa.record_batch({"key": [b"k"], "value": [b"x" * 2**21], "partition": pa.array([0], pa.int32())})


@pytest.fixture(autouse=True)
def one_jvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """All tasks run under one JVM, and leave their notes in one folder."""
    monkeypatch.setattr(notes, "folder_of", lambda pid: tmp_path)
    yield
    workers.close_all()


class Write:
    """One micro-batch, with the calls that Spark makes."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, guarantee: str, patch: pytest.MonkeyPatch) -> None:
        self.sink = ArrowSink(options(cluster, topic, guarantee), COLUMNS)
        self.patch = patch
        self.pickled = pickle.dumps(StreamWriter(self.sink))

    def task(self, number: int, batches: Iterator[pa.RecordBatch]) -> TaskReport | RefusedRow:
        place = TaskAttempt(number, 0, MicroBatch(0, "query", "run"), number)
        self.patch.setattr(TaskAttempt, "current", lambda: place)
        writer: StreamWriter = pickle.loads(self.pickled)
        return writer.write(batches)

    def commit(self, *messages: TaskReport | RefusedRow) -> None:
        StreamWriter(self.sink).commit(list(messages), 0)

    def abort(self, *messages: TaskReport | RefusedRow) -> None:
        StreamWriter(self.sink).abort(list(messages), 0)


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic(partitions=3)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_task_that_names_a_row_succeeds_and_the_driver_fails_the_write(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    write = Write(cluster, topic, guarantee, monkeypatch)
    refused = write.task(0, iter([*batch_of(0, 0), TOO_LARGE]))
    refused = pickle.loads(pickle.dumps(refused))
    with pytest.raises(RecordTooLargeError, match=r"^row 50 of this task \(key b'k', 2097153 bytes\)") as caught:
        write.commit(refused)
    assert caught.value.__notes__[0].startswith("Task 0 says so.")
    write.abort(refused)
    if guarantee != "at_least_once":
        assert not committed_values(cluster, topic)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_other_tasks_of_the_write_end_at_their_next_rows(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    write = Write(cluster, topic, guarantee, monkeypatch)
    first = write.task(0, iter([TOO_LARGE]))
    batches = iter(batch_of(0, 1))
    second = write.task(1, batches)
    assert second == first
    assert len(list(batches)) == 1, "the task has taken one of two batches"
    write.abort(first, second)
    another = Write(cluster, topic, guarantee, monkeypatch)
    another.commit(another.task(0, iter(batch_of(0, 0))))
    assert committed_values(cluster, topic) == values_of(0, 0)


def test_columns_that_no_attempt_can_encode_end_the_write_after_one_attempt(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> TaskReport:
        raise ConfigError("the session's time zone: there is no time zone 'SystemV/PST8'")

    write = Write(cluster, topic, "at_least_once", monkeypatch)
    monkeypatch.setattr(ArrowSink, "send", refuse)
    refused = write.task(0, iter(()))
    with pytest.raises(ConfigError, match="SystemV/PST8"):
        write.commit(refused)


def test_spark_runs_a_task_once_that_names_a_row_though_it_may_try_four_times(tmp_path: Path) -> None:
    with EmbeddedCluster(brokers=1) as cluster, Place(tmp_path) as place:
        cluster.create_topic("x-row_at_fault", partitions=3)
        servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
        results = place.drive(["row_at_fault"], servers, prefix="x", master="local[1,4]")
        log = (tmp_path / "driver-x.log").read_text()
    assert "row 39 of this task (no key, 2000000 bytes)" in results["row_at_fault"]["error"]
    assert "Lost task" not in log
