"""Brokers that go down while Spark's tasks write; reports that stay right whatever other records lie among the rows.

The tests call what Spark calls, as in test_exactly_once.py.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ClosedError, KafkaError, RecordTooLargeError, TimeoutError
from kafkabuf.spark import WriteReport, verify
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import workers
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from kafkabuf.spark.writer import StreamWriter

GUARANTEES = ["at_least_once", "exactly_once", "atomic"]
PIECES, ROWS = 10, 100
PATIENCE_MS = 1200
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, auto_create_topics=False) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name)
    return name


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this thread the only task of a micro-batch."""
    monkeypatch.setattr(TaskAttempt, "current", lambda: TaskAttempt(0, 0, MicroBatch(0, "query", "run")))
    monkeypatch.setattr(workers, "ABORT_SECONDS", 0.2)
    monkeypatch.setattr(workers, "_idle", {})


def sink(cluster: EmbeddedCluster, *columns: str, **options: str) -> ArrowSink:
    values = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "sinkid": uuid.uuid4().hex}
    values |= {name.replace("__", "."): value for name, value in options.items()}
    return ArrowSink(SinkOptions.parse(values), columns or ("value",))


def run(sink: ArrowSink, rows: Callable[[], Iterator[pa.RecordBatch]]) -> WriteReport:
    """Run one micro-batch as Spark does. A failed task aborts it."""
    writer = pickle.loads(pickle.dumps(StreamWriter(sink)))
    reports: list[Any] = [None]
    try:
        reports = [writer.write(rows())]
        StreamWriter(sink).commit(list(reports), 0)
    except KafkaError:
        StreamWriter(sink).abort(list(reports), 0)
        raise
    return WriteReport.from_messages(reports, 0)


def verified(report: WriteReport, cluster: EmbeddedCluster) -> tuple[int, int]:
    """The number of reported rows that the topics have byte for byte, and of other records among them."""
    result = verify(report, {"bootstrap.servers": cluster.bootstrap_servers}, timeout=20)
    return result.rows, result.strangers


def pieces(at_half: Callable[[], None] = lambda: None) -> Iterator[pa.RecordBatch]:
    """Arrow batches. `at_half` is called after half of them."""
    for piece in range(PIECES):
        if piece == PIECES // 2:
            at_half()
        yield pa.record_batch({"value": [b"%d" % (piece * ROWS + row) for row in range(ROWS)]})


# ---- a broker that goes down in mid-job ------------------------------------------------------------------------------


@pytest.fixture
def own_cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        yield cluster


def sink_with_timeouts(cluster: EmbeddedCluster, guarantee: str, patience_ms: int) -> ArrowSink:
    settings = {"max__block": patience_ms, "delivery__timeout": patience_ms, "request__timeout": 500, "linger": 0}
    options = {f"kafka__{name}__ms": str(value) for name, value in settings.items()}
    return sink(cluster, topic="t", deliveryguarantee=guarantee, sinkid="own-cluster", **options)


def kill(cluster: EmbeddedCluster) -> int:
    """Kill the leader of t-0. Returns its id."""
    node, _ = cluster.leader("t", 0)
    cluster.kill_node(node)
    return node


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_broker_that_restarts_in_mid_job_neither_loses_nor_doubles_rows(
    own_cluster: EmbeddedCluster, guarantee: str
) -> None:
    def restart_leader() -> None:
        node = kill(own_cluster)
        threading.Timer(0.3, own_cluster.start_node, [node]).start()

    report = run(sink_with_timeouts(own_cluster, guarantee, 60_000), lambda: pieces(restart_leader))
    assert verified(report, own_cluster) == (PIECES * ROWS, 0)
    assert own_cluster.end_offset("t", 0) == PIECES * ROWS + (guarantee != "at_least_once"), "the topic has rows twice"


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_broker_that_stays_down_fails_the_task_within_its_timeouts(
    own_cluster: EmbeddedCluster, guarantee: str
) -> None:
    writes, start, killed = sink_with_timeouts(own_cluster, guarantee, PATIENCE_MS), time.monotonic(), []
    with pytest.raises(TimeoutError, match=rf"of t-0 were not acknowledged within .*\({PATIENCE_MS} ms\)") as caught:
        run(writes, lambda: pieces(lambda: killed.append(kill(own_cluster))))
    assert time.monotonic() - start < 3 * PATIENCE_MS / 1000 + 3, "a send, a time-out or an abort hung"
    assert own_cluster.bootstrap_servers in caught.value.__notes__[0]
    own_cluster.start_node(killed[0])
    report = run(sink_with_timeouts(own_cluster, guarantee, 60_000), pieces)  # Spark replays the micro-batch
    assert verified(report, own_cluster)[0] == PIECES * ROWS


@pytest.mark.parametrize("guarantee", ["exactly_once", "atomic"])
def test_error_of_a_failed_commit_names_the_bootstrap_servers(
    own_cluster: EmbeddedCluster, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader dies after all rows arrived. The commit of the task, or of the driver, fails."""
    writes, real = sink_with_timeouts(own_cluster, guarantee, PATIENCE_MS), KafkaProducer.send_offsets_to_transaction

    def send_marker_and_kill(producer: KafkaProducer, *args: Any) -> None:
        real(producer, *args)
        kill(own_cluster)

    monkeypatch.setattr(KafkaProducer, "send_offsets_to_transaction", send_marker_and_kill)
    with pytest.raises(KafkaError) as caught:
        run(writes, pieces)
    assert own_cluster.bootstrap_servers in caught.value.__notes__[0]


# ---- reports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_report_of_a_write_without_rows_is_verified(cluster: EmbeddedCluster, topic: str, guarantee: str) -> None:
    report = run(sink(cluster, topic=topic, deliveryguarantee=guarantee), lambda: iter([]))
    assert (report.rows, report.ranges, report.checksum) == (0, (), 0)
    assert str(report) == "micro-batch 0: 0 rows, 0 bytes by 1 tasks to 0 partitions of no topic"
    assert verified(report, cluster) == (0, 0)


def test_rows_of_another_producer_are_counted_as_strangers(cluster: EmbeddedCluster, topic: str) -> None:
    def send_stranger() -> None:
        flush_task()
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as other:
            other.send(topic, b"stranger").result(10)

    report = run(sink(cluster, topic=topic), lambda: pieces(send_stranger))
    assert verified(report, cluster) == (PIECES * ROWS, 1)


def flush_task() -> None:
    """Flush the rows of the task, so that the next records lie within the range that the task reports."""
    for producer in [found for found in gc.get_objects() if type(found) is KafkaProducer]:
        with suppress(ClosedError):  # another test has closed it
            producer.flush()


def test_aborted_rows_are_not_counted(cluster: EmbeddedCluster, topic: str) -> None:
    def abort_a_row() -> None:
        flush_task()
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=uuid.uuid4().hex) as other:
            other.init_transactions()
            other.begin_transaction()
            other.send(topic, b"aborted").result(10)
            other.abort_transaction()

    report = run(sink(cluster, topic=topic), lambda: pieces(abort_a_row))
    [entry] = report.ranges
    assert entry.last_offset - entry.first_offset + 1 == PIECES * ROWS + 2, (
        "the range must span the aborted row and its control record"
    )
    assert verified(report, cluster) == (PIECES * ROWS, 0)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_large_compressed_batches_are_verified(cluster: EmbeddedCluster, topic: str, codec: str) -> None:
    values = [os.urandom(20_000) + b"x" * 50_000 for _ in range(30)]
    writes = sink(cluster, topic=topic, kafka__compression__type=codec, kafka__batch__size="1000000")
    report = run(writes, lambda: iter([pa.record_batch({"value": values})]))
    assert verified(report, cluster) == (30, 0)


def test_nulls_and_empty_fields_are_verified(cluster: EmbeddedCluster, topic: str) -> None:
    rows = pa.record_batch(
        {
            "key": [None, "", "grüße"],
            "value": pa.array([b"1", None, b""], pa.binary()),
            "headers": pa.array([None, [], [{"key": "", "value": None}, {"key": "", "value": b""}]], HEADERS),
        }
    )
    report = run(sink(cluster, "key", "value", "headers", topic=topic), lambda: iter([rows]))
    assert verified(report, cluster) == (3, 0)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_report_covers_every_topic(cluster: EmbeddedCluster, topic: str, guarantee: str) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names:
        cluster.create_topic(name, partitions=2)
    rows = pa.record_batch({"value": [b"%d" % n for n in range(60)], "topic": [names[n % 3] for n in range(60)]})
    writes = sink(cluster, "value", "topic", deliveryguarantee=guarantee, markertopic=topic)
    report = run(writes, lambda: iter([rows]))
    assert {entry.topic: entry.rows for entry in report.ranges if entry.rows >= 20} == dict.fromkeys(names, 20)
    assert verified(report, cluster) == (60, 0)


def test_verify_refuses_a_report_without_offsets(cluster: EmbeddedCluster, topic: str) -> None:
    report = run(sink(cluster, topic=topic, kafka__acks="0", kafka__enable__idempotence="false"), pieces)
    with pytest.raises(KafkaError, match="no offsets, since with acks=0"):
        verified(report, cluster)


def test_text_of_a_report_has_every_count() -> None:
    report = TaskReport(3, 1, 5, 50, (), skipped=1, retries=2, wait_seconds=0.25)
    assert str(report) == (
        "task 3, attempt 1: 5 rows, 50 bytes, 1 skipped, 0 dead letters, 2 sent again, 0.2 s waited for memory; "
        "offsets: none"
    )
    assert str(WriteReport.from_messages([report])).endswith(
        ", 1 rows skipped, 2 rows sent again, 0.2 s waited for memory"
    )


# ---- refused rows ----------------------------------------------------------------------------------------------------


def rows_with_errors() -> pa.RecordBatch:
    """Three rows. Only the first one can be sent."""
    headers = pa.array([[{"key": "h", "value": b"1"}], [{"key": None, "value": b"2"}], None], HEADERS)
    return pa.record_batch({"key": ["a", "b", "c"], "value": [b"1", b"2", b"x" * 2**21], "headers": headers})


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_replay_with_refused_rows_counts_as_already_written(cluster: EmbeddedCluster, topic: str, policy: str) -> None:
    more = {"deadlettertopic": topic} if policy == "dead_letter" else {}
    writes = sink(
        cluster, "key", "value", "headers", topic=topic, deliveryguarantee="exactly_once", onrowerror=policy, **more
    )
    first = run(writes, lambda: iter([rows_with_errors()]))
    assert (first.rows, first.skipped + first.dead_lettered) == (1, 2)
    assert run(writes, lambda: iter([rows_with_errors()])).already_written == 1


def test_refused_dead_letter_fails_the_task(cluster: EmbeddedCluster, topic: str) -> None:
    small = f"{topic}-small"
    cluster.create_topic(small, configs={"max.message.bytes": "200"})
    writes = sink(cluster, "key", "value", "headers", topic=topic, onrowerror="dead_letter", deadlettertopic=small)
    with pytest.raises(
        RecordTooLargeError,
        match=r"^row 2 of this task \(key .*Its dead letter cannot be sent either: .*'deadLetterTopic'",
    ):
        writes.send(iter([rows_with_errors()]))
