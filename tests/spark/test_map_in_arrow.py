"""`kafkabuf.spark.write` and `foreach_batch`: under PySpark 3.5, and under the environment's PySpark.

One driver runs the steps (functions.py) under PySpark 3.5, once for all tests. It is a process with the packages of
`requirements/spark-3.5.lock` on its path (versions.py). In the shared session the steps run in this process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import KafkaError
from kafkabuf.spark import map_in_arrow
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.reports.report import TaskReport
from tests.spark.driver import STEPS, StepContext
from tests.spark.functions import ROWS
from tests.spark.job import PARTITIONS
from tests.spark.options.test_formats import decoded, records
from tests.spark.places import Place
from tests.spark.versions import WITHOUT_DATA_SOURCES, packages, version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.spark.fixtures"]

OLDER, CURRENT = "3.5", "current"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as cluster:
        for prefix in (OLDER, CURRENT):
            for step in CHECKS:
                cluster.create_topic(f"{prefix}-{step}", partitions=PARTITIONS)
                cluster.create_topic(f"{prefix}-{step}-dead", partitions=PARTITIONS)
        yield cluster


@pytest.fixture(scope="module")
def older(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of all steps under PySpark 3.5."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    with Place(tmp_path_factory.mktemp(OLDER), packages=packages(WITHOUT_DATA_SOURCES)) as place:
        return place.drive([*CHECKS, "registration"], options, prefix=OLDER, master="local[2]")


def check_value_kinds(cluster: EmbeddedCluster, topic: str, returned: Any) -> None:
    messages = records(cluster, topic)
    assert returned["reports"] == {kind: [4, ROWS] for kind in ("text", "bytes", "json", "avro", "protobuf")}
    by_kind: dict[str, list[Any]] = {kind: [] for kind in returned["reports"]}
    for message in messages:
        by_kind[message.key().decode()].append(message)
    texts = {message.headers()[0][1]: message for message in by_kind["text"]}
    for number in range(ROWS):
        message = texts[str(number).encode()]
        assert message.value() == (None if number == 1 else str(number).encode())
        assert (message.partition(), message.timestamp()[1]) == (number % 3, 1_700_000_000_000 + number)
    values = {kind: sorted(message.value() or b"" for message in found) for kind, found in by_kind.items()}
    assert values["bytes"] == sorted(str(number).encode("utf-16le") for number in range(ROWS))
    assert values["json"] == sorted(text.encode() for text in returned["json"])
    rows = [decoded(json.loads(returned["schema"]), value) for value in values["avro"]]
    assert sorted((int(row["text"]), row["number"], round(row["at"].timestamp() * 1e6)) for row in rows) == [
        (number, None if number % 3 == 0 else number, number * 1_000_001) for number in range(ROWS)
    ]
    # Field 1 as a varint; proto3 leaves a zero out.
    assert values["protobuf"] == sorted(bytes([8, number]) if number % 3 else b"" for number in range(ROWS))


def check_refused_row(cluster: EmbeddedCluster, topic: str, returned: Any) -> None:
    good = sorted(str(number).encode() for number in range(ROWS) if number != 7)
    assert returned["reports"] == {"skip": [ROWS - 1, 1, 0], "dead_letter": [ROWS - 1, 0, 1]}
    assert "row 7 of this task" in returned["error"]
    assert "RecordTooLargeError" in returned["error"]
    messages = records(cluster, topic)
    for policy in (b"skip", b"dead_letter"):
        assert sorted(message.value() for message in messages if message.key() == policy) == good
    (letter,) = records(cluster, f"{topic}-dead")
    headers = dict(letter.headers())
    assert (headers["kafkabuf.error"], headers["kafkabuf.value.size"]) == (b"RecordTooLargeError", b"900")


def check_exactly_once(cluster: EmbeddedCluster, topic: str, returned: Any) -> None:
    expected = Counter(f"{file}-{row}".encode() for file, rows in enumerate((30, 50, 20)) for row in range(rows))
    assert Counter(message.value() for message in records(cluster, topic)) == expected
    assert [text.partition(":")[0] for text in returned] == ["micro-batch 1", "micro-batch 2"]


def check_cut_off_rows(cluster: EmbeddedCluster, topic: str, returned: Any) -> None:
    assert returned == 0
    expected = Counter(f"0-{row}".encode() for row in range(30_000))
    assert Counter(message.value() for message in records(cluster, topic)) == expected


def check_no_partitions(cluster: EmbeddedCluster, topic: str, returned: Any) -> None:
    assert returned == [1, 0]


def check_refusals(cluster: EmbeddedCluster, topic: str, returned: Any) -> None:
    batch, no_query, stream, misspelt = returned
    assert "is for streams" in batch
    assert "does not belong to micro-batch 0 of a query" in no_query
    assert "write() is for batches" in stream
    assert "did you mean 'topic'" in misspelt
    assert records(cluster, topic) == []


CHECKS: dict[str, Callable[[EmbeddedCluster, str, Any], None]] = {
    "value_kinds": check_value_kinds,
    "refused_row": check_refused_row,
    "exactly_once_functions": check_exactly_once,
    "atomic_functions": check_exactly_once,
    "cut_off_rows": check_cut_off_rows,
    "no_partitions": check_no_partitions,
    "refusals": check_refusals,
}


@pytest.mark.parametrize("step", CHECKS)
def test_functions_hold_their_promises_under_pyspark_3_5(
    step: str, cluster: EmbeddedCluster, older: dict[str, dict[str, Any]]
) -> None:
    result = older[step]
    assert "error" not in result, result["error"]
    CHECKS[step](cluster, f"{OLDER}-{step}", result["returned"])


def test_format_names_the_functions_where_pyspark_has_no_data_sources(older: dict[str, dict[str, Any]]) -> None:
    assert "kafkabuf.spark.write(df, ...)" in older["registration"]["returned"]
    assert f"PySpark {version(WITHOUT_DATA_SOURCES)} has no Python data sources" in older["registration"]["returned"]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PySpark 4.2 warns of a pandas that it does not know
@pytest.mark.parametrize("step", CHECKS)
def test_functions_hold_their_promises_under_this_pyspark(
    step: str, cluster: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    context = StepContext(
        spark, f"{CURRENT}-{step}", {"kafka.bootstrap.servers": cluster.bootstrap_servers}, tmp_path / step
    )
    returned = json.loads(json.dumps(STEPS[step](context)))
    CHECKS[step](cluster, context.topic, returned)


# ---- the driver, without Spark ---------------------------------------------------------------------------------------


class Frame:
    """A frame whose tasks run in this process, one for each of `partitions`. `failure` is that of Spark's job."""

    def __init__(self, partitions: Sequence[int], failure: Exception | None = None) -> None:
        self._partitions, self._failure = partitions, failure
        self._rows: list[Any] = []
        self.sparkSession = Mock(conf={})

    def mapInArrow(self, send: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]], schema: str) -> Frame:
        assert schema == "report binary"
        self._rows = [Mock(report=batch["report"][0].as_py()) for _ in self._partitions for batch in send(iter(()))]
        return self

    def collect(self) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        return self._rows


def writer_of(partitions: Sequence[int]) -> Mock:
    """A writer whose tasks report these partitions."""
    writer = Mock()
    writer.sink.options = SinkOptions.parse({"kafka.bootstrap.servers": "localhost:9092", "topic": "t"})
    writer.write.side_effect = [report_of(partition) for partition in partitions]
    return writer


def report_of(partition: int) -> TaskReport:
    return TaskReport(partition, 0, 1, 1, ())


def calls_of(writer: Mock) -> list[str]:
    return [name for name, _, _ in writer.method_calls]


def test_driver_begins_before_the_tasks_and_commits_their_reports() -> None:
    writer, frame = writer_of([0, 1]), cast(Any, Frame([0, 1]))
    assert map_in_arrow.run(frame, writer, 7) is writer.finish.return_value
    assert calls_of(writer) == ["begin", "write", "write", "finish"]
    writer.finish.assert_called_once_with([report_of(0), report_of(1)], 7)


def test_driver_takes_back_a_write_whose_task_failed() -> None:
    writer, frame = writer_of([0, 1]), cast(Any, Frame([0, 1], failure=ValueError("the task failed")))
    with pytest.raises(ValueError, match="the task failed"):
        map_in_arrow.run(frame, writer, None)
    writer.take_back.assert_called_once_with([])
    writer.finish.assert_not_called()


def test_driver_takes_back_a_write_whose_commit_failed() -> None:
    writer, frame = writer_of([0]), cast(Any, Frame([0]))
    writer.finish.side_effect = KafkaError("no")
    with pytest.raises(KafkaError, match="no"):
        map_in_arrow.run(frame, writer, None)
    writer.take_back.assert_called_once_with([report_of(0)])


def test_driver_that_misses_a_report_commits_nothing() -> None:
    writer, frame = writer_of([0, 2]), cast(Any, Frame([0, 2]))
    with pytest.raises(KafkaError, match=r"the reports of the tasks \[0, 2\]"):
        map_in_arrow.run(frame, writer, None)
    writer.finish.assert_not_called()
    writer.take_back.assert_called_once_with([])
