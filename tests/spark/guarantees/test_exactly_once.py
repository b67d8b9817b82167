"""exactly_once and atomic without Spark: the tests call what Spark calls, and let it fail at each step.

The tasks run in this process. A crash is an exception at a step, after which no producer is closed.
"""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from kafkabuf import KafkaProducer
from kafkabuf.admin.admin import Admin
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ConfigError, IllegalStateError, KafkaError, RecordTooLargeError
from kafkabuf.protocol import messages
from kafkabuf.sharing import begin_shared, join, leave
from kafkabuf.spark import WriteReport, verify
from kafkabuf.spark.guarantees import atomic
from kafkabuf.spark.options.options import Guarantee, OnRowError, SinkOptions
from kafkabuf.spark.reports.marker import Marker, read_marker, transactional_id_for
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import workers
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from kafkabuf.spark.writer import BatchWriter
from kafkabuf.transactions.groups import OffsetAndMetadata
from tests.spark.job import PARTITIONS
from tests.spark.query import COLUMNS, Query, all_values, batch_of, committed_values, options, values_of


class Crash(BaseException):
    """Stands for the death of the process."""


@pytest.fixture(scope="module", params=[2, 0], ids=["v2", "v1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, transaction_version=request.param) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture(params=["exactly_once", "atomic"])
def query(
    request: pytest.FixtureRequest,
    cluster: EmbeddedCluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Query:
    return Query(ArrowSink(options(cluster, topic, request.param), COLUMNS), monkeypatch, tmp_path)


# ---- every crash, then the replay ------------------------------------------------------------------------------------


def crash_in(owner: Any, name: str, *, after: bool, times: int = 0) -> Callable[[pytest.MonkeyPatch], None]:
    """Crash in a call of `owner.name`, before or after it does its work. The first `times` calls do not crash."""

    def arm(monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = getattr(owner, name), iter(range(1_000))

        def crashing(*args: Any, **kwargs: Any) -> Any:
            last = next(calls) == times
            if last and not after:
                raise Crash
            result = real(*args, **kwargs)
            if last:
                raise Crash
            return result

        monkeypatch.setattr(owner, name, crashing)

    return arm


CRASHES = {
    "before init_transactions": crash_in(KafkaProducer, "init_transactions", after=False),
    "after init_transactions": crash_in(KafkaProducer, "init_transactions", after=True),
    "before the first rows": crash_in(KafkaProducer, "send_arrow", after=False),
    "after the first rows": crash_in(KafkaProducer, "send_arrow", after=True),
    "in the second task": crash_in(KafkaProducer, "send_arrow", after=True, times=2),
    "before the marker": crash_in(KafkaProducer, "send_offsets_to_transaction", after=False),
    "after the marker": crash_in(KafkaProducer, "send_offsets_to_transaction", after=True),
    "after EndTxn": crash_in(KafkaProducer, "commit_transaction", after=True),
    "after EndTxn of the second task": crash_in(KafkaProducer, "commit_transaction", after=True, times=1),
}


@pytest.mark.parametrize("crash", CRASHES)
def test_replay_after_a_crash_at_any_step_neither_loses_nor_doubles_rows(
    query: Query, cluster: EmbeddedCluster, topic: str, crash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.batch(0)
    with monkeypatch.context() as patch:
        CRASHES[crash](patch)
        # A dead process closes no producer: its transaction stays open until the replay fences it.
        patch.setattr(workers, "close_after_failure", lambda client, seconds: None)
        try:
            query.batch(1)
        except Crash:
            pass
    seen = committed_values(cluster, topic) if query.sink.options.guarantee is Guarantee.ATOMIC else None
    assert seen in (None, all_values(1), all_values(2)), "the reader saw a part of an atomic micro-batch"
    query.restart()
    query.batch(1)
    query.batch(2)
    assert committed_values(cluster, topic) == all_values(3)


def test_replay_of_a_finished_batch_writes_nothing(query: Query, cluster: EmbeddedCluster, topic: str) -> None:
    query.batch(0)
    before = cluster.end_offsets(topic)
    query.restart()
    reports = query.batch(0)
    assert all(report.already_written for report in reports)
    assert cluster.end_offsets(topic) == before
    assert WriteReport.from_messages(list(reports)).rows == 0


def test_micro_batch_after_an_empty_micro_batch_is_written(query: Query, cluster: EmbeddedCluster, topic: str) -> None:
    writer = pickle.loads(pickle.dumps(query.writer()))
    reports = [query.task(writer, 0, task, rows=[]) for task in range(PARTITIONS)]
    query.writer().commit(list(reports), 0)
    query.batch(1)
    assert committed_values(cluster, topic) == all_values(2) - all_values(1)


def test_query_without_its_checkpoint_is_refused(query: Query, topic: str) -> None:
    query.batch(0)
    query.query_id = "another"
    with pytest.raises(IllegalStateError, match=r"another query \(query, this is another\).*Give a new sinkId"):
        query.batch(0)


def test_older_checkpoint_is_refused(query: Query) -> None:
    query.batch(0)
    query.batch(1)
    query.restart()
    with pytest.raises(IllegalStateError, match=r"write micro-batch 0, but micro-batch 1 has been"):
        query.batch(0)


def test_offset_that_the_sink_did_not_write_is_refused_as_a_marker(cluster: EmbeddedCluster, topic: str) -> None:
    name = transactional_id_for(f"sink-{topic}")
    with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 0): 7}, name)
        producer.commit_transaction()
        with Admin(producer.config) as admin, pytest.raises(KafkaError, match="no marker of this sink"):
            read_marker(admin, name, topic)


# ---- exactly_once ----------------------------------------------------------------------------------------------------


@pytest.fixture
def exactly_once_query(cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Query:
    return Query(ArrowSink(options(cluster, topic, "exactly_once"), COLUMNS), monkeypatch, tmp_path)


def test_repeated_task_writes_nothing_after_its_commit(
    exactly_once_query: Query, cluster: EmbeddedCluster, topic: str
) -> None:
    writer = exactly_once_query.begun()
    exactly_once_query.task(writer, 0, 0)
    second = exactly_once_query.task(writer, 0, 0, attempt=1)
    assert second.already_written
    assert committed_values(cluster, topic) == values_of(0, 0)


@pytest.mark.parametrize(
    "rows", [batch_of(0, 1), batch_of(0, 0, rows=48), []], ids=["other rows", "fewer rows", "no rows"]
)
def test_replay_with_other_rows_is_refused_and_writes_nothing(
    exactly_once_query: Query, cluster: EmbeddedCluster, topic: str, rows: list[pa.RecordBatch]
) -> None:
    exactly_once_query.task(exactly_once_query.begun(), 0, 0)
    before = cluster.end_offsets(topic)
    with pytest.raises(IllegalStateError, match=r"partition 0 of micro-batch 0 was written with 50 rows.*'atomic'"):
        exactly_once_query.task(exactly_once_query.begun(), 0, 0, rows=rows)
    assert cluster.end_offsets(topic) == before


def test_replay_may_change_the_order_and_the_arrow_batches(exactly_once_query: Query) -> None:
    exactly_once_query.task(exactly_once_query.begun(), 0, 0)
    halves = batch_of(0, 0)
    reordered = pa.Table.from_batches([halves[1], halves[0]]).combine_chunks().to_batches()
    assert exactly_once_query.task(exactly_once_query.begun(), 0, 0, rows=reordered).already_written


def test_replay_with_fewer_partitions_is_refused(exactly_once_query: Query) -> None:
    exactly_once_query.batch(0)
    writer = exactly_once_query.begun()
    for task in range(PARTITIONS):
        exactly_once_query.task(writer, 1, task)
    exactly_once_query.restart()
    writer = exactly_once_query.begun()
    reports = [exactly_once_query.task(writer, 1, task) for task in range(PARTITIONS - 1)]
    with pytest.raises(IllegalStateError, match="begun with a partition 2, and is replayed with 2 partitions"):
        exactly_once_query.writer().commit(list(reports), 1)


def test_micro_batch_may_have_fewer_partitions_than_an_earlier_micro_batch(exactly_once_query: Query) -> None:
    exactly_once_query.batch(0)
    exactly_once_query.restart()
    exactly_once_query.batch(1, tasks=PARTITIONS - 1)


def test_slower_attempt_is_fenced_and_its_rows_are_never_seen(
    exactly_once_query: Query, cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speculation: the second attempt begins after the first has sent its rows, and so the first cannot commit."""
    writer, real = exactly_once_query.begun(), KafkaProducer.commit_transaction
    faster: list[TaskReport] = []

    def overtaken(producer: KafkaProducer) -> None:
        monkeypatch.setattr(KafkaProducer, "commit_transaction", real)
        faster.append(exactly_once_query.task(writer, 0, 0, attempt=1))
        real(producer)

    monkeypatch.setattr(KafkaProducer, "commit_transaction", overtaken)
    with pytest.raises(KafkaError):
        exactly_once_query.task(writer, 0, 0)
    assert not faster[0].already_written
    assert committed_values(cluster, topic) == values_of(0, 0)


def test_failed_task_does_not_block_readers(exactly_once_query: Query, cluster: EmbeddedCluster, topic: str) -> None:
    rows = [
        *batch_of(0, 0),
        pa.record_batch({"key": [b""], "value": [b"x" * 2**21], "partition": pa.array([0], pa.int32())}),
    ]
    refused = exactly_once_query.task(exactly_once_query.begun(), 0, 0, rows=rows)
    assert committed_values(cluster, topic) == Counter()  # the reader reaches the end of each partition
    with pytest.raises(RecordTooLargeError, match=r"row 50 of this task \(key b'', 2097152 bytes\)"):
        exactly_once_query.writer().commit([refused], 0)


# ---- atomic ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def atomic_query(cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Query:
    return Query(ArrowSink(options(cluster, topic, "atomic"), COLUMNS), monkeypatch, tmp_path)


def test_writer_that_is_pickled_twice_begins_one_transaction(atomic_query: Query) -> None:
    writer = atomic_query.writer()
    first, second = (pickle.loads(pickle.dumps(writer)) for _ in range(2))
    assert first.begun == second.begun is not None


def test_second_attempt_of_a_task_fails_the_write(atomic_query: Query, cluster: EmbeddedCluster, topic: str) -> None:
    writer = pickle.loads(pickle.dumps(atomic_query.writer()))
    with pytest.raises(IllegalStateError, match=r"attempt 1 of task 0.*only once.*spark.speculation"):
        atomic_query.task(writer, 0, 0, attempt=1)


@pytest.mark.parametrize(
    ("slower_id", "rows", "arrow_rows"),
    [(8, 25, 25), (8, 50, 25), (258, 25, 25), (258, 50, 25), (8, 10, 5)],
    ids=[
        "next attempt id, half the rows",
        "next attempt id, all rows",
        "same first size, half the rows",
        "same first size, all rows",
        "small batches",
    ],
)
def test_concurrent_attempts_never_mix_their_rows(
    atomic_query: Query,
    cluster: EmbeddedCluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    slower_id: int,
    rows: int,
    arrow_rows: int,
) -> None:
    """Spark runs a stage again when an executor took its shuffle files along. A task then has two first attempts.

    1. The slower attempt sees no rows of this transaction in its partition.
    2. The faster attempt sees none either, and writes its rows.
    3. The slower attempt writes its rows. With equal sequence numbers the leader would take them for a repetition.
    """
    writer = pickle.loads(pickle.dumps(atomic_query.writer()))
    table = pa.Table.from_batches(batch_of(0, 0))
    faster = table.slice(0, rows).combine_chunks().to_batches(arrow_rows)
    slower = table.take(list(reversed(range(50)))).combine_chunks().to_batches(arrow_rows)
    note_writers, send = atomic._TransactionPart._note_writers, KafkaProducer.send_arrow

    def note_writers_and_be_overtaken(part: atomic._TransactionPart, partitions: set[tuple[str, int]]) -> None:
        note_writers(part, partitions)
        monkeypatch.setattr(atomic._TransactionPart, "_note_writers", note_writers)
        atomic_query.task(writer, 0, 0, rows=faster, attempt_id=7)

    def send_and_flush(producer: KafkaProducer, *args: Any, **kwargs: Any) -> Any:
        report = send(producer, *args, **kwargs)
        producer.flush()
        return report

    monkeypatch.setattr(atomic._TransactionPart, "_note_writers", note_writers_and_be_overtaken)
    monkeypatch.setattr(KafkaProducer, "send_arrow", send_and_flush)
    with pytest.raises(KafkaError):
        atomic_query.task(writer, 0, 0, rows=slower, attempt_id=slower_id)
    monkeypatch.undo()
    assert committed_values(cluster, topic) == Counter()


def test_second_task_that_writes_a_partition_is_refused(
    atomic_query: Query, cluster: EmbeddedCluster, topic: str
) -> None:
    """The task finds the other's rows at its end. If it cuts its batches otherwise, the broker refuses them before."""
    writer = pickle.loads(pickle.dumps(atomic_query.writer()))
    first = atomic_query.task(writer, 0, 0)
    refusal = rf"({topic}-0: written by two tasks|another task wrote the same Kafka partition).*align\(df"
    with pytest.raises(IllegalStateError, match=refusal):
        atomic_query.task(writer, 0, PARTITIONS)
    atomic_query.writer().abort([first, None], 0)
    assert committed_values(cluster, topic) == Counter()


def test_tasks_that_write_one_partition_at_the_same_time_are_told_to_align(
    atomic_query: Query, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task has looked before the other wrote."""
    monkeypatch.setattr(atomic._TransactionPart, "_note_writers", lambda part, partitions: None)
    writer = atomic_query.begun()
    atomic_query.task(writer, 0, 0, attempt_id=1)
    with pytest.raises(IllegalStateError, match=r"another task wrote the same Kafka partition.*align\(df"):
        atomic_query.task(writer, 0, PARTITIONS, attempt_id=2)


def test_writer_whose_sink_id_was_taken_over_is_told_so(query: Query) -> None:
    writer = query.begun()
    rows = batch_of(0, 0)

    def taken_over() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        other = query.begun()
        if query.sink.options.guarantee is Guarantee.EXACTLY_ONCE:
            query.task(other, 0, 0, attempt=1)
        yield rows[1]

    def write() -> None:
        report = query.task(writer, 0, 0, rows=taken_over())  # type: ignore[arg-type]
        query.writer().commit([report], 0)

    with pytest.raises(KafkaError) as caught:
        write()
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "nother writer has taken over" in told


def test_two_reports_of_one_partition_are_not_committed(
    atomic_query: Query, cluster: EmbeddedCluster, topic: str
) -> None:
    writer = pickle.loads(pickle.dumps(atomic_query.writer()))
    report = atomic_query.task(writer, 0, 0)
    with pytest.raises(IllegalStateError, match="written by two tasks"):
        atomic_query.writer().commit([report, replace(report, partition=1)], 0)
    atomic_query.writer().abort([report], 0)
    assert committed_values(cluster, topic) == Counter()


def test_commit_refuses_rows_that_no_task_reported(atomic_query: Query, cluster: EmbeddedCluster, topic: str) -> None:
    """Spark numbers the attempts of a repeated stage from 0 again. No task reports what the lost attempts wrote."""
    writer = pickle.loads(pickle.dumps(atomic_query.writer()))
    first = atomic_query.task(writer, 0, 0)
    lost = atomic_query.task(writer, 0, 1)
    with pytest.raises(
        IllegalStateError, match=r"-1 has 50 rows of this transaction, the tasks reported 0: .*did not tell the sink"
    ):
        atomic_query.writer().commit([first], 0)
    [entry] = lost.ranges
    with pytest.raises(IllegalStateError, match=r"has 50 rows of this transaction, the tasks reported 40"):
        atomic_query.writer().commit([first, replace(lost, ranges=(entry._replace(rows=40),))], 0)
    atomic_query.writer().abort([first], 0)
    assert committed_values(cluster, topic) == Counter()


def test_abort_unblocks_readers_at_once(atomic_query: Query, cluster: EmbeddedCluster, topic: str) -> None:
    writer = pickle.loads(pickle.dumps(atomic_query.writer()))
    report = atomic_query.task(writer, 0, 0)
    atomic_query.writer().abort([report, None], 0)
    assert committed_values(cluster, topic) == Counter()
    atomic_query.batch(0)
    assert committed_values(cluster, topic) == all_values(1)


def test_abort_without_reports_ends_the_transactions_of_all_tasks(
    query: Query, cluster: EmbeddedCluster, topic: str
) -> None:
    query.task(query.begun(), 0, 0)
    query.restart()
    writer = query.begun()
    query.task(writer, 0, 1)  # in a replay the driver ends the transactions, with each guarantee
    with workers.lent_admin(query.sink.options.producer) as admin:
        name = transactional_id_for(f"sink-{topic}")
        assert "Ongoing" in [transaction.state for transaction in admin.transactions(name)]
        writer.abort([], 0)
        assert "Ongoing" not in [transaction.state for transaction in admin.transactions(name)]
    query.batch(0)
    assert committed_values(cluster, topic) == all_values(1)


def test_transaction_that_another_driver_took_over_is_not_committed(
    atomic_query: Query, cluster: EmbeddedCluster, topic: str
) -> None:
    writer = pickle.loads(pickle.dumps(atomic_query.writer()))
    report = atomic_query.task(writer, 0, 0)
    pickle.dumps(atomic_query.writer())  # another driver begins its transaction
    with pytest.raises(KafkaError):
        atomic_query.writer().commit([report], 0)
    assert committed_values(cluster, topic) == Counter()


def test_batch_write_is_seen_whole_or_not_at_all(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ArrowSink(options(cluster, topic, "atomic"), COLUMNS)
    for last in ("commit", "abort"):
        writer = pickle.loads(pickle.dumps(BatchWriter(sink)))
        messages = []
        for task in range(PARTITIONS):
            monkeypatch.setattr(TaskAttempt, "current", lambda task=task: TaskAttempt(task, 0, None))
            messages.append(writer.write(iter(batch_of(0, task))))
        assert committed_values(cluster, topic) == (Counter() if last == "commit" else all_values(1))
        getattr(writer, last)(messages)
    assert committed_values(cluster, topic) == all_values(1)


def test_empty_batch_write_succeeds_and_writes_nothing(cluster: EmbeddedCluster, topic: str) -> None:
    writer = pickle.loads(pickle.dumps(BatchWriter(ArrowSink(options(cluster, topic, "atomic"), COLUMNS))))
    writer.commit([writer.write(iter([]))])
    assert committed_values(cluster, topic) == Counter()


# ---- shared transactions ---------------------------------------------------------------------------------------------


def test_producer_that_left_a_shared_transaction_closes_without_aborting_it(
    cluster: EmbeddedCluster, topic: str
) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"id-{topic}"}
    with KafkaProducer(settings) as first:
        first.init_transactions()
        shared = begin_shared(first)
        with pytest.raises(IllegalStateError):
            first.send(topic, b"outside")
    for partition in range(2):
        with KafkaProducer(settings) as member:
            join(member, shared)
            member.send(topic, b"%d" % partition, partition=partition)
            leave(member)
            with pytest.raises(IllegalStateError):
                member.send(topic, b"outside")
    with KafkaProducer(settings) as last:
        join(last, shared)
        last.commit_transaction()
    assert committed_values(cluster, topic) == Counter([b"0", b"1"])


def test_producer_joins_a_transaction_only_outside_of_another(cluster: EmbeddedCluster, topic: str) -> None:
    servers, name = cluster.bootstrap_servers, f"a-{topic}"
    with KafkaProducer(bootstrap_servers=servers, transactional_id=name) as first:
        first.init_transactions()
        shared = begin_shared(first)
    with KafkaProducer(bootstrap_servers=servers, transactional_id="another") as other:
        join(other, shared)
        with pytest.raises(IllegalStateError, match=r"assign.*needs a producer that is"):
            join(other, shared)
        other.send(topic, b"1").result(10)
        other.abort_transaction()


# ---- rows that cannot be sent ----------------------------------------------------------------------------------------


def rows_with_errors(topic: str) -> pa.RecordBatch:
    """Five rows. Only the first and the last one can be sent."""
    return pa.record_batch(
        {
            "key": ["a", "b", "c", "d", "e"],
            "value": [b"1", b"x" * 2**21, b"3", b"4", b"5"],
            "topic": [topic, topic, None, "no/topic", topic],
            "partition": pa.array([0, 0, 0, 0, 0], pa.int32()),
        }
    )


def sink_with_policy(cluster: EmbeddedCluster, policy: str, **more: str) -> ArrowSink:
    values = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "onrowerror": policy, **more}
    return ArrowSink(SinkOptions.parse(values), ("key", "value", "topic", "partition"))


def test_skipped_rows_are_counted_and_the_other_rows_are_sent(cluster: EmbeddedCluster, topic: str) -> None:
    report = sink_with_policy(cluster, "skip").send(iter([rows_with_errors(topic), rows_with_errors(topic)]))
    assert (report.rows, report.skipped) == (4, 6)
    assert committed_values(cluster, topic) == Counter({b"1": 2, b"5": 2})
    write_report = WriteReport.from_messages([report])
    assert verify(write_report, {"bootstrap.servers": cluster.bootstrap_servers}).rows == 4


def test_error_names_the_refused_row_with_its_key_and_size(cluster: EmbeddedCluster, topic: str) -> None:
    with pytest.raises(
        RecordTooLargeError, match=r"row 1 of this task \(key b'b', 2097153 bytes\).*filter it out.*'onRowError'"
    ):
        sink_with_policy(cluster, "fail").send(iter([rows_with_errors(topic).slice(0, 2)]))


def test_dead_letters_give_the_reason_and_omit_a_value_that_is_too_large(cluster: EmbeddedCluster, topic: str) -> None:
    dead = f"{topic}-dead"
    cluster.create_topic(dead, partitions=1)
    report = sink_with_policy(cluster, "dead_letter", deadlettertopic=dead).send(iter([rows_with_errors(topic)]))
    assert (report.rows, report.skipped, report.dead_lettered) == (2, 0, 3)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "dead"})
    consumer.assign([TopicPartition(dead, 0, 0)])
    letters = consumer.consume(3, 10.0)
    consumer.close()
    assert {message.key(): message.value() for message in letters} == {b"b": None, b"c": b"3", b"d": b"4"}
    by_key: dict[Any, dict[str, Any]] = {message.key(): dict(message.headers() or ()) for message in letters}
    assert by_key[b"b"]["kafkabuf.error"] == b"RecordTooLargeError"
    assert by_key[b"b"]["kafkabuf.value.size"] == str(2**21).encode()
    assert by_key[b"d"]["kafkabuf.topic"] == b"no/topic"
    assert b"null" in by_key[b"c"]["kafkabuf.reason"] or b"no topic" in by_key[b"c"]["kafkabuf.reason"]


def test_row_that_only_the_broker_refuses_counts_as_skipped(cluster: EmbeddedCluster, topic: str) -> None:
    small = f"{topic}-small"
    cluster.create_topic(small, partitions=1, configs={"max.message.bytes": "1000"})
    rows = pa.record_batch({"key": ["a", "b"], "value": [b"1", b"x" * 5_000], "topic": [small, small]})
    values = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "onrowerror": "skip"}
    report = ArrowSink(SinkOptions.parse(values), ("key", "value", "topic")).send(iter([rows]))
    assert (report.rows, report.skipped) == (1, 1)


# ---- verify(), options, Admin ----------------------------------------------------------------------------------------


def test_verify_refuses_a_wrong_checksum_or_row_count(query: Query, cluster: EmbeddedCluster, topic: str) -> None:
    report = WriteReport.from_messages(list(query.batch(0)))
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    assert verify(report, servers).strangers == 0
    with pytest.raises(KafkaError, match="checksum"):
        verify(replace(report, checksum=report.checksum ^ 1), servers)
    entry = report.ranges[0]
    with pytest.raises(KafkaError, match="51 rows were reported"):
        verify(replace(report, ranges=(entry._replace(rows=51),)), servers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deliveryguarantee": "exactly_onc"}, "allowed: at_least_once, exactly_once, atomic; did you mean"),
        ({"deliveryguarantee": "atomic"}, "option 'sinkId' is required"),
        ({"deliveryguarantee": "exactly_once", "sinkid": "a b"}, "option 'sinkId' is 'a b'"),
        ({"deliveryguarantee": "atomic", "sinkid": "a", "topic": ""}, "topic"),
        ({"onrowerror": "ignore"}, "allowed: fail, skip, dead_letter"),
        ({"onrowerror": "dead_letter"}, "option 'deadLetterTopic' is required"),
        ({"deadlettertopic": "d"}, "is for onRowError 'dead_letter'"),
        (
            {"deliveryguarantee": "atomic", "sinkid": "a", "onrowerror": "dead_letter", "deadlettertopic": "d"},
            "only one task may write a partition",
        ),
        ({"kafka.transactional.id": "x"}, "sinkId"),
        ({"sinkids": "x"}, "did you mean 'sinkId'"),
        ({"deliveryguarantee": "atomic", "sinkid": "a", "kafka.enable.idempotence": "false"}, "idempotence"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SinkOptions.parse({"kafka.bootstrap.servers": "localhost:9092", "topic": "t", **options})


def test_topic_column_needs_a_marker_topic() -> None:
    values = {"kafka.bootstrap.servers": "localhost:9092", "deliveryguarantee": "exactly_once", "sinkid": "a"}
    with pytest.raises(ConfigError, match="option 'markerTopic' is required"):
        SinkOptions.parse(values)
    assert SinkOptions.parse({**values, "markertopic": "m"}).sink_id_and_marker_topic() == ("a", "m")


def test_admin_reads_an_offset_only_after_its_transaction_ended(cluster: EmbeddedCluster, topic: str) -> None:
    """Admin retries after UNSTABLE_OFFSET_COMMIT until max.block.ms is over: the older marker would be wrong."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"id-{topic}"}
    with KafkaProducer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 0): 3}, f"group-{topic}")
        config = ProducerConfig.from_mapping({**settings, "max.block.ms": 300})
        with Admin(config) as admin, pytest.raises(KafkaError):
            admin.committed(f"group-{topic}", [(topic, 0)])
        producer.commit_transaction()
        with Admin(config) as admin:
            offsets = admin.committed(f"group-{topic}", [(topic, 0), (topic, 1)])
    assert offsets == {(topic, 0): OffsetAndMetadata(3), (topic, 1): None}


def test_admin_looks_up_a_coordinator_that_has_moved(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.fail_next(messages.OFFSET_FETCH, 16)
    cluster.fail_next(messages.FIND_COORDINATOR, 15)
    with Admin(ProducerConfig.from_mapping({"bootstrap.servers": cluster.bootstrap_servers})) as admin:
        assert admin.committed("nobody", [(topic, 0)]) == {(topic, 0): None}


def test_admin_gives_up_after_max_block_ms() -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 200})
    with Admin(config) as admin, pytest.raises(KafkaError):
        admin.partitions_of("t")


def test_marker_is_read_back_from_its_offset() -> None:
    marker = Marker(MicroBatch(7, "q", "r"), 5, 2**64 - 1)
    assert Marker.parse("g", marker.offset()) == marker
    assert OnRowError("skip") is OnRowError.SKIP
