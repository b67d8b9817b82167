"""What was written: reports by query and by write, the listener that joins them with Spark's progress, the metrics."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kafkabuf.append.offset_range import OffsetRange
from kafkabuf.spark import ReportListener, TaskReport, WriteReport, foreach_batch, last_report, writer
from kafkabuf.spark.options.options import LogReport
from kafkabuf.spark.prometheus import ReportCollector
from kafkabuf.spark.reports import kept_report
from kafkabuf.spark.reports.listener import KEPT_ENDED_QUERIES
from kafkabuf.spark.worker import notes
from kafkabuf.spark.worker.place import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from kafkabuf.broker import EmbeddedCluster

pytest_plugins = ["tests.spark.fixtures"]

ORDERS, CLICKS = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process stands for the driver's JVM, and for the user's process too. The folder of its reports."""
    monkeypatch.setattr(kept_report, "_of_application", lambda jvm: tmp_path / "reports")
    monkeypatch.setattr(kept_report, "_of_session", lambda: tmp_path / "reports")
    monkeypatch.setattr(notes, "jvm_above", lambda pid: pid)
    return tmp_path / "reports"


def report_of(query_id: str | None, batch: int, rows: int = 1, run_id: str = "run", **more: Any) -> WriteReport:
    """The report of one task that wrote so many rows to topic "t"."""
    micro_batch = None if query_id is None else MicroBatch(batch, query_id, run_id)
    ranges = (OffsetRange("t", 0, 0, rows - 1, rows, 10 * rows),)
    message = TaskReport(0, 0, rows, 10 * rows, ranges, skipped=1, retries=2, wait_seconds=0.5, batch=micro_batch)
    return WriteReport.from_messages([message], **more)


# ---- kept reports ----------------------------------------------------------------------------------------------------


def test_two_queries_and_two_writes_do_not_overwrite_each_others_reports(application: Path) -> None:
    reports = [
        report_of(ORDERS, 7, sink_id="orders"),
        report_of(CLICKS, 3),
        report_of(None, -1, rows=2, write_id="monday"),
        report_of(None, -1, rows=3, write_id="tuesday"),
        report_of(None, -1, rows=4),
    ]
    for report in reports:
        kept_report.keep(report)
    assert last_report(ORDERS) == reports[0]
    assert last_report(SimpleNamespace(id=CLICKS)) == reports[1]  # type: ignore[arg-type]
    assert last_report(write_id="monday") == reports[2]
    assert last_report(write_id="tuesday") == reports[3]
    assert last_report() == reports[4]
    assert last_report(write_id="wednesday") is None


def test_report_of_a_query_is_that_of_its_newest_micro_batch(application: Path) -> None:
    for batch in (9, 10, 11):
        kept_report.keep(report_of(ORDERS, batch))
    kept_report.keep(report_of(CLICKS, 1))
    found = last_report(ORDERS)
    assert found is not None
    assert (found.batch, found.query_id, found.run_id) == (11, ORDERS, "run")


def test_write_within_foreach_batch_is_found_by_its_query_and_by_its_write_id(application: Path) -> None:
    report = report_of(ORDERS, 5, write_id="orders-5")
    kept_report.keep(report)
    assert report.batch == 5
    assert last_report(ORDERS) == last_report(write_id="orders-5") == last_report() == report


def test_report_that_cannot_be_kept_does_not_fail_its_write(
    application: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_report, "_jvm_of_session", Mock(side_effect=ConnectionRefusedError("the JVM has ended")))
    kept_report.keep(report_of(ORDERS, 5))
    assert "last_report() will miss a report" in caplog.text
    assert "the JVM has ended" in caplog.text


def test_name_finds_an_active_query_and_no_other(application: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active = SimpleNamespace(streams=SimpleNamespace(active=[SimpleNamespace(name="orders", id=ORDERS)]))
    monkeypatch.setattr("pyspark.sql.SparkSession.active", lambda: active)
    kept_report.keep(report_of(ORDERS, 5))
    assert last_report("orders") == last_report(ORDERS)
    with pytest.raises(ValueError, match="no active query is called 'clicks'"):
        last_report("clicks")
    with pytest.raises(ValueError, match="no writeId"):
        last_report("orders", write_id="monday")


def test_number_of_files_is_bounded(application: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_report, "KEPT_REPORTS", 3)
    monkeypatch.setattr(kept_report, "KEPT_NAMES", 5)
    for number in range(20):
        kept_report.keep(report_of(ORDERS, number))
        kept_report.keep(report_of(None, -1, write_id=f"write-{number}"))
    files = sorted(path.relative_to(application) for path in application.rglob("*.json"))
    assert len(files) == 3 + 4
    assert last_report(ORDERS) == last_report(ORDERS)
    newest = last_report(ORDERS)
    assert newest is not None
    assert newest.batch == 19
    assert last_report(write_id="write-16") is not None
    assert last_report(write_id="write-15") is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"rows": 1}'])
def test_damaged_report_is_left_out(application: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    kept_report.keep(report_of(ORDERS, 1))
    (application / f"query-{ORDERS}" / "2.9999999999999999999.json").write_text(damage)
    with caplog.at_level(logging.DEBUG, "kafkabuf.spark"):
        newest = last_report(ORDERS)
    assert newest is not None
    assert newest.batch == 1
    assert "2.9999999999999999999.json is damaged" in caplog.text
    assert kept_report.reports_of(ORDERS, "run", 2) == []


def test_write_id_that_is_too_long_for_a_folder_has_no_report(application: Path) -> None:
    kept_report.keep(report_of(ORDERS, 1))
    assert last_report(write_id="w" * 5000) is None


def test_report_that_cannot_be_kept_does_not_fail_the_write(
    application: Path, caplog: pytest.LogCaptureFixture
) -> None:
    application.write_text("a file in the way")
    with caplog.at_level(logging.WARNING, "kafkabuf.spark"):
        kept_report.keep(report_of(ORDERS, 0))
    assert "last_report() will miss a report" in caplog.text


def test_key_values_are_one_line_for_programs() -> None:
    line = report_of(ORDERS, 7, rows=3, sink_id="orders").key_values()
    found = dict(pair.split("=") for pair in line.split(" "))
    assert (found["query_id"], found["batch"], found["rows"], found["topics"]) == (ORDERS, "7", "3", "t")
    assert (found["sink_id"], found["skipped"], found["wait_seconds"]) == ("orders", "1", "0.500")
    assert "write_id" not in found


@pytest.mark.parametrize(("wanted", "begin"), [("key_value", "tasks=1 rows=3"), ("batch", "micro-batch 7: 3 rows")])
def test_driver_logs_a_line_for_each_micro_batch_as_the_option_says(
    wanted: str, begin: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kafkabuf.spark"):
        writer._log_write(report_of(ORDERS, 7, rows=3), [], LogReport(wanted))
    (line,) = [found.getMessage() for found in caplog.records if found.name == "kafkabuf.spark"]
    assert line.startswith(begin)


# ---- the listener ----------------------------------------------------------------------------------------------------


def progress_of(query_id: str, batch: int, run_id: str = "run", name: str | None = None) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(id=query_id, runId=run_id, batchId=batch, name=name))


def run_of(query_id: str, name: str | None = None) -> Any:
    return SimpleNamespace(id=query_id, runId="run", name=name)


def test_listener_joins_each_progress_event_with_its_report_and_adds_up(application: Path) -> None:
    seen: list[tuple[int, int]] = []
    listener = ReportListener(lambda progress, report: seen.append((progress.batchId, report.rows)))
    listener.onQueryStarted(run_of(ORDERS, "orders"))
    for batch in range(3):
        kept_report.keep(report_of(ORDERS, batch, rows=batch + 1))
        kept_report.keep(report_of(CLICKS, batch, rows=100))
    for batch in range(3):  # the events come later than the reports
        listener.onQueryProgress(progress_of(ORDERS, batch, name="orders"))
    assert seen == [(0, 1), (1, 2), (2, 3)]
    (totals,) = listener.totals().values()
    assert (totals.name, totals.rows["t"], totals.bytes["t"]) == ("orders", 6, 60)
    assert (totals.micro_batches, totals.skipped, totals.retries, totals.wait_seconds) == (3, 3, 6, 1.5)
    newest = last_report(ORDERS)
    assert newest is not None
    assert (totals.last_batch, totals.last_commit) == (2, newest.committed_at)


def test_listener_counts_no_report_twice_and_none_of_another_run(application: Path) -> None:
    calls: list[int] = []
    listener = ReportListener(lambda progress, report: calls.append(report.rows))
    kept_report.keep(report_of(ORDERS, 4, rows=5, run_id="before the restart"))
    listener.onQueryProgress(progress_of(ORDERS, 4))
    assert calls == []
    kept_report.keep(report_of(ORDERS, 4, rows=6))
    for _ in range(2):
        listener.onQueryProgress(progress_of(ORDERS, 4))
    assert calls == [6]


def test_listener_that_comes_too_late_for_reports_warns_once(
    application: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_report, "KEPT_REPORTS", 3)
    listener = ReportListener()
    for batch in range(6):
        kept_report.keep(report_of(ORDERS, batch))
    listener.onQueryProgress(progress_of(ORDERS, 7))  # it wrote nothing
    assert not [found for found in caplog.records if found.name == "kafkabuf.spark"]
    for batch in range(6):
        listener.onQueryProgress(progress_of(ORDERS, batch))
    (warning,) = [found.getMessage() for found in caplog.records if found.name == "kafkabuf.spark"]
    assert "more than 3 micro-batches late" in warning
    assert listener.totals()[ORDERS].micro_batches == 3


def test_listener_forgets_queries_that_have_ended_long_ago(application: Path) -> None:
    listener = ReportListener()
    for number in range(KEPT_ENDED_QUERIES + 5):
        listener.onQueryStarted(run_of(str(uuid.UUID(int=number))))
    for number in range(1, KEPT_ENDED_QUERIES + 5):
        listener.onQueryTerminated(run_of(str(uuid.UUID(int=number))))
    left = set(listener.totals())
    assert len(left) == KEPT_ENDED_QUERIES + 1
    assert str(uuid.UUID(int=0)) in left, "it is active"
    assert str(uuid.UUID(int=4)) not in left
    assert str(uuid.UUID(int=5)) in left


# ---- Prometheus ------------------------------------------------------------------------------------------------------


def scraped(listener: ReportListener) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ReportCollector(listener))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_prometheus_scrapes_the_totals_by_query_and_topic(application: Path) -> None:
    listener = ReportListener()
    assert scraped(listener) == {}
    for query_id, name, batch in ((ORDERS, "orders", 7), (CLICKS, None, 2)):
        kept_report.keep(report_of(query_id, batch, rows=4))
        listener.onQueryProgress(progress_of(query_id, batch, name=name))
    found = scraped(listener)
    assert found['kafkabuf_spark_rows_total{query="orders",topic="t"}'] == 4
    assert found['kafkabuf_spark_bytes_total{query="orders",topic="t"}'] == 40
    assert found['kafkabuf_spark_skipped_total{query="orders"}'] == 1
    assert found['kafkabuf_spark_retries_total{query="orders"}'] == 2
    assert found['kafkabuf_spark_wait_seconds_total{query="orders"}'] == 0.5
    assert found['kafkabuf_spark_last_batch_id{query="orders"}'] == 7
    assert found[f'kafkabuf_spark_last_batch_id{{query="{CLICKS}"}}'] == 2
    newest = last_report(CLICKS)
    assert newest is not None
    last_commit = found[f'kafkabuf_spark_last_commit_timestamp_seconds{{query="{CLICKS}"}}']
    assert last_commit == pytest.approx(newest.committed_at)


def test_query_that_has_ended_has_no_time_of_its_newest_commit(application: Path) -> None:
    listener = ReportListener()
    kept_report.keep(report_of(ORDERS, 1))
    listener.onQueryProgress(progress_of(ORDERS, 1, name="orders"))
    name = 'kafkabuf_spark_last_commit_timestamp_seconds{query="orders"}'
    assert name in scraped(listener)
    listener.onQueryTerminated(run_of(ORDERS))
    assert name not in scraped(listener)
    listener.onQueryStarted(run_of(ORDERS, "orders"))
    assert name in scraped(listener)


def test_queries_with_one_name_share_their_metrics(application: Path) -> None:
    listener = ReportListener()
    for query_id, batch in ((ORDERS, 7), (CLICKS, 0)):  # the name goes over to a query with a new checkpoint
        listener.onQueryStarted(run_of(query_id, "orders"))
        kept_report.keep(report_of(query_id, batch, rows=4))
        listener.onQueryProgress(progress_of(query_id, batch, name="orders"))
        listener.onQueryTerminated(run_of(query_id))
    found = scraped(listener)
    assert found['kafkabuf_spark_rows_total{query="orders",topic="t"}'] == 8
    assert found['kafkabuf_spark_last_batch_id{query="orders"}'] == 0


# ---- Spark -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PySpark 4.2 warns of a pandas that it does not know
def test_spark_calls_the_listener_with_the_report_of_each_micro_batch(
    spark: SparkSession, spark_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    seen: list[tuple[str | None, int, int, int]] = []
    by_spark: list[tuple[int, dict[str, str]]] = []

    def on_report(progress: StreamingQueryProgress, report: WriteReport) -> None:
        seen.append((progress.name, progress.batchId, progress.numInputRows, report.rows))
        by_spark.append((progress.sink.numOutputRows, progress.sink.metrics))

    listener = ReportListener(on_report)
    spark.streams.addListener(listener)
    try:
        queries = {}
        for name, via in (("direct", None), ("foreach", foreach_batch)):
            topic = f"t-{uuid.uuid4().hex[:8]}"
            spark_cluster.create_topic(topic, partitions=2)
            options = {"kafka.bootstrap.servers": spark_cluster.bootstrap_servers, "topic": topic}
            queries[name] = _start(spark, tmp_path / name, name, options, via)
            queries[name].awaitTermination()
        spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    assert sorted(seen) == [(name, batch, 3 + batch, 3 + batch) for name in ("direct", "foreach") for batch in range(2)]
    # Spark counts the rows that it gave the sink, and nothing within foreachBatch.
    assert by_spark == [(3, {}), (4, {}), (-1, {}), (-1, {})]
    for query in queries.values():
        found = last_report(query)
        assert found is not None
        assert (found.query_id, found.run_id, found.batch) == (str(query.id), str(query.runId), 1)
        assert listener.totals()[str(query.id)].has_ended


def _start(
    spark: SparkSession,
    folder: Path,
    name: str,
    options: dict[str, str],
    via: Callable[[dict[str, str]], Callable[[DataFrame, int], None]] | None,
) -> Any:
    """A query of two micro-batches, with 3 and 4 rows."""
    (folder / "in").mkdir(parents=True)
    for number in range(2):
        path = folder / "in" / f"{number}.txt"
        path.write_text("row\n" * (3 + number))
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark reads the oldest file first
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    stream = rows.writeStream.queryName(name).option("checkpointLocation", str(folder / "checkpoint"))
    stream = stream.trigger(availableNow=True)
    return (stream.format("kafkabuf").options(**options) if via is None else stream.foreachBatch(via(options))).start()
