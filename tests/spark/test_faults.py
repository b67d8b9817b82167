"""Brokers that go down while Spark's tasks write, and reports that hold whatever lies among the rows.

What Spark calls is called by hand: see test_spark_exactly_once.py.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import KafkaError, RecordTooLargeError, TimeoutError
from kafkabuf.spark import WriteReport, verify, workers
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.place import MicroBatch, TaskAttempt
from kafkabuf.spark.report import TaskReport
from kafkabuf.spark.sink import ArrowSink
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
    """Spark runs this thread as its only task."""
    monkeypatch.setattr(TaskAttempt, "current", lambda: TaskAttempt(0, 0, MicroBatch(0, "query", "run")))
    monkeypatch.setattr(workers, "_CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(workers, "_producers", {})


def sink(cluster: EmbeddedCluster, *columns: str, **options: str) -> ArrowSink:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "sinkid": uuid.uuid4().hex}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    return ArrowSink(SinkOptions.parse(given), columns or ("value",))


def run(sink: ArrowSink, rows: Callable[[], Iterator[pa.RecordBatch]]) -> WriteReport:
    """One micro-batch, as Spark runs it; a task that fails aborts it."""
    writer = pickle.loads(pickle.dumps(StreamWriter(sink)))
    done: list[Any] = [None]
    try:
        done = [writer.write(rows())]
        StreamWriter(sink).commit(list(done), 0)
    except KafkaError:
        StreamWriter(sink).abort(list(done), 0)
        raise
    return WriteReport.from_messages(done, 0)


def proven(report: WriteReport, cluster: EmbeddedCluster) -> tuple[int, int]:
    """Rows that are there, byte for byte, and others among them."""
    found = verify(report, {"bootstrap.servers": cluster.bootstrap_servers}, timeout=20)
    return found.rows, found.strangers


def pieces(at_half: Callable[[], None] = lambda: None) -> Iterator[pa.RecordBatch]:
    for piece in range(PIECES):
        if piece == PIECES // 2:
            at_half()
        yield pa.record_batch({"value": [b"%d" % (piece * ROWS + row) for row in range(ROWS)]})


# ---- a broker that goes down in mid-job ------------------------------------------------------------------------------


@pytest.fixture
def frail() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        yield cluster


def waiting(cluster: EmbeddedCluster, guarantee: str, patience_ms: int) -> ArrowSink:
    settings = {"max__block": patience_ms, "delivery__timeout": patience_ms, "request__timeout": 500, "linger": 0}
    options = {f"kafka__{name}__ms": str(value) for name, value in settings.items()}
    return sink(cluster, topic="t", deliveryguarantee=guarantee, sinkid="frail", **options)


def kill(cluster: EmbeddedCluster) -> int:
    node, _ = cluster.leader("t", 0)
    cluster.kill_node(node)
    return node


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_broker_that_comes_back_in_mid_job_costs_or_doubles_rows(frail: EmbeddedCluster, guarantee: str) -> None:
    def fall_and_rise() -> None:
        node = kill(frail)
        threading.Timer(0.3, frail.start_node, [node]).start()

    report = run(waiting(frail, guarantee, 60_000), lambda: pieces(fall_and_rise))
    assert proven(report, frail) == (PIECES * ROWS, 0)
    assert frail.end_offset("t", 0) == PIECES * ROWS + (guarantee != "at_least_once"), "rows are there twice"


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_broker_that_stays_away_hangs_the_task_or_hides_what_is_lost(frail: EmbeddedCluster, guarantee: str) -> None:
    writes, start, fallen = waiting(frail, guarantee, PATIENCE_MS), time.monotonic(), []
    with pytest.raises(TimeoutError, match=rf"of t-0 were not acknowledged within .*\({PATIENCE_MS} ms\)") as caught:
        run(writes, lambda: pieces(lambda: fallen.append(kill(frail))))
    assert time.monotonic() - start < 3 * PATIENCE_MS / 1000 + 3, "nothing hangs: to send, to give up, to abort"
    assert frail.bootstrap_servers in caught.value.__notes__[0]
    frail.start_node(fallen[0])
    report = run(waiting(frail, guarantee, 60_000), pieces)  # Spark replays the micro-batch
    assert proven(report, frail)[0] == PIECES * ROWS


@pytest.mark.parametrize("guarantee", ["exactly_once", "atomic"])
def test_broker_that_is_gone_when_all_rows_are_there_is_not_named(
    frail: EmbeddedCluster, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's commit finds it out, or the driver's."""
    writes, real = waiting(frail, guarantee, PATIENCE_MS), KafkaProducer.send_offsets_to_transaction

    def marked(producer: KafkaProducer, *given: Any) -> None:
        real(producer, *given)
        kill(frail)

    monkeypatch.setattr(KafkaProducer, "send_offsets_to_transaction", marked)
    with pytest.raises(KafkaError) as caught:
        run(writes, pieces)
    assert frail.bootstrap_servers in caught.value.__notes__[0]


# ---- reports that hold -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_write_without_rows_has_nothing_to_prove(cluster: EmbeddedCluster, topic: str, guarantee: str) -> None:
    report = run(sink(cluster, topic=topic, deliveryguarantee=guarantee), lambda: iter([]))
    assert (report.rows, report.ranges, report.checksum) == (0, (), 0)
    assert str(report) == "micro-batch 0: 0 rows, 0 bytes by 1 tasks to 0 partitions of no topic"
    assert proven(report, cluster) == (0, 0)


def test_rows_of_others_among_ours_are_taken_for_ours(cluster: EmbeddedCluster, topic: str) -> None:
    def one_of_others() -> None:
        flush_ours()
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as other:
            other.send(topic, b"stranger").result(10)

    report = run(sink(cluster, topic=topic), lambda: pieces(one_of_others))
    assert proven(report, cluster) == (PIECES * ROWS, 1)


def flush_ours() -> None:
    """So that the report's range begins before what others write now, and ends behind it."""
    for producer in workers._producers.values():
        producer.flush()


def test_aborted_rows_among_ours_are_counted(cluster: EmbeddedCluster, topic: str) -> None:
    def abort_one() -> None:
        flush_ours()
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=uuid.uuid4().hex) as other:
            other.init_transactions()
            other.begin_transaction()
            other.send(topic, b"aborted").result(10)
            other.abort_transaction()

    report = run(sink(cluster, topic=topic), lambda: pieces(abort_one))
    [entry] = report.ranges
    assert entry.last_offset - entry.first_offset + 1 == PIECES * ROWS + 2, "the aborted row and its marker lie within"
    assert proven(report, cluster) == (PIECES * ROWS, 0)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_large_compressed_batches_have_another_checksum(cluster: EmbeddedCluster, topic: str, codec: str) -> None:
    values = [os.urandom(20_000) + b"x" * 50_000 for _ in range(30)]
    writes = sink(cluster, topic=topic, kafka__compression__type=codec, kafka__batch__size="1000000")
    report = run(writes, lambda: iter([pa.record_batch({"value": values})]))
    assert proven(report, cluster) == (30, 0)


def test_nulls_and_empty_fields_have_another_checksum(cluster: EmbeddedCluster, topic: str) -> None:
    rows = pa.record_batch(
        {
            "key": [None, "", "grüße"],
            "value": pa.array([b"1", None, b""], pa.binary()),
            "headers": pa.array([None, [], [{"key": "", "value": None}, {"key": "", "value": b""}]], HEADERS),
        }
    )
    report = run(sink(cluster, "key", "value", "headers", topic=topic), lambda: iter([rows]))
    assert proven(report, cluster) == (3, 0)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_several_topics_are_not_all_reported(cluster: EmbeddedCluster, topic: str, guarantee: str) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names:
        cluster.create_topic(name, partitions=2)
    rows = pa.record_batch({"value": [b"%d" % n for n in range(60)], "topic": [names[n % 3] for n in range(60)]})
    writes = sink(cluster, "value", "topic", deliveryguarantee=guarantee, markertopic=topic)
    report = run(writes, lambda: iter([rows]))
    assert {entry.topic: entry.rows for entry in report.ranges if entry.rows >= 20} == dict.fromkeys(names, 20)
    assert proven(report, cluster) == (60, 0)


def test_report_without_offsets_is_waited_for(cluster: EmbeddedCluster, topic: str) -> None:
    report = run(sink(cluster, topic=topic, kafka__acks="0", kafka__enable__idempotence="false"), pieces)
    with pytest.raises(KafkaError, match="no offsets, since with acks=0"):
        proven(report, cluster)


def test_what_a_task_did_is_not_told() -> None:
    report = TaskReport(3, 1, 5, 50, (), skipped=1, retries=2, wait_seconds=0.25)
    assert str(report) == (
        "task 3, attempt 1: 5 rows, 50 bytes, 1 skipped, 0 dead letters, 2 sent again, 0.2 s waited for memory; "
        "offsets: none"
    )
    assert str(WriteReport.from_messages([report])).endswith(
        ", 1 rows skipped, 2 rows sent again, 0.2 s waited for memory"
    )


# ---- rows that are refused -------------------------------------------------------------------------------------------


def troubled() -> pa.RecordBatch:
    headers = pa.array([[{"key": "h", "value": b"1"}], [{"key": None, "value": b"2"}], None], HEADERS)
    return pa.record_batch({"key": ["a", "b", "c"], "value": [b"1", b"2", b"x" * 2**21], "headers": headers})


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_replay_of_refused_rows_is_taken_for_other_rows(cluster: EmbeddedCluster, topic: str, policy: str) -> None:
    more = {"deadlettertopic": topic} if policy == "dead_letter" else {}
    writes = sink(
        cluster, "key", "value", "headers", topic=topic, deliveryguarantee="exactly_once", onrowerror=policy, **more
    )
    first = run(writes, lambda: iter([troubled()]))
    assert (first.rows, first.skipped + first.dead_lettered) == (1, 2)
    assert run(writes, lambda: iter([troubled()])).already_written == 1


def test_dead_letter_that_is_refused_is_counted_as_sent(cluster: EmbeddedCluster, topic: str) -> None:
    small = f"{topic}-small"
    cluster.create_topic(small, configs={"max.message.bytes": "200"})
    writes = sink(cluster, "key", "value", "headers", topic=topic, onrowerror="dead_letter", deadlettertopic=small)
    with pytest.raises(RecordTooLargeError, match=r"a dead letter cannot be sent either: .*'deadLetterTopic'"):
        writes.send(iter([troubled()]))
