"""Guarantees where markers, checkpoints, Spark partitions or outcomes are not as they should be; without Spark."""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from kafkabuf import KafkaProducer
from kafkabuf.admin.transactions import TransactionAdmin
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import IllegalStateError, KafkaError, TimeoutError
from kafkabuf.sharing import join
from kafkabuf.spark.guarantees import handover
from kafkabuf.spark.guarantees.exactly_once import ExactlyOnce
from kafkabuf.spark.reports.marker import transactional_id_for, write_group_for
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import workers
from kafkabuf.spark.worker.place import TaskAttempt
from kafkabuf.spark.writer import BatchWriter, NotBegunError
from tests.spark.job import PARTITIONS
from tests.spark.query import COLUMNS, Query, all_values, batch_of, committed_values, options, values_of


@pytest.fixture(scope="module", params=[2, 0], ids=["v2", "v1"])
def version(request: pytest.FixtureRequest) -> int:
    """The version of transactions."""
    return int(request.param)


@pytest.fixture(scope="module")
def cluster(version: int) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, transaction_version=version) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


class Queries:
    """Makes queries of one topic and one sinkId."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._cluster, self._topic, self._monkeypatch, self._folder = cluster, topic, monkeypatch, folder

    def __call__(self, guarantee: str, query_id: str = "query", **more: str) -> Query:
        sink = ArrowSink(options(self._cluster, self._topic, guarantee, **more), COLUMNS)
        return Query(sink, self._monkeypatch, self._folder, query_id)


@pytest.fixture
def queries(cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Queries]:
    yield Queries(cluster, topic, monkeypatch, tmp_path)
    workers.close_all()


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(ProducerConfig.from_mapping({"bootstrap.servers": cluster.bootstrap_servers})) as admin:
        yield admin


def is_free(cluster: EmbeddedCluster, topic: str) -> bool:
    """Whether no open transaction holds back the readers of the topic."""
    partitions = [(topic, number) for number in range(PARTITIONS)]
    with TransactionAdmin(ProducerConfig.from_mapping({"bootstrap.servers": cluster.bootstrap_servers})) as admin:
        return admin.end_offsets(partitions, committed=True) == admin.end_offsets(partitions, committed=False)


# ---- an abort frees the readers --------------------------------------------------------------------------------------


def test_stream_that_fails_before_a_task_has_finished_leaves_no_transaction_open(
    queries: Queries, cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []  # a killed worker closes no producer: a reference keeps the finalizer from closing it

    def leave_open(client: Any, seconds: float) -> None:
        client.flush()
        killed.append(client)

    for guarantee in ("atomic", "exactly_once"):
        query = queries(guarantee, sinkid=f"{topic}.{guarantee}")
        writer = query.begun()

        def rows() -> Iterator[pa.RecordBatch]:
            yield from batch_of(0, 0)
            raise SystemExit  # the worker is killed

        with monkeypatch.context() as patch:
            patch.setattr(workers, "close_after_failure", leave_open)
            with pytest.raises(SystemExit):
                query.task(writer, 0, 0, rows=rows())  # type: ignore[arg-type]
        assert not is_free(cluster, topic)
        query.writer().abort([None] * PARTITIONS, 0)
        assert is_free(cluster, topic)
    for client in killed:
        client.close(timeout=0)


def test_task_that_lives_on_after_the_abort_cannot_open_the_transaction_again(
    queries: Queries, cluster: EmbeddedCluster, topic: str
) -> None:
    query = queries("atomic")
    writer = query.begun()
    assert writer.begun.transaction is not None
    report = query.task(writer, 0, 0)
    with KafkaProducer({**dict(query.sink.options.producer), "transactional.id": "lives-on"}) as zombie:
        join(zombie, writer.begun.transaction)
        query.writer().abort([report, None, None], 0)
        late = zombie.send(topic, b"late", partition=1)
        assert isinstance(late.exception(10), KafkaError)
        zombie.close(timeout=0)
    assert is_free(cluster, topic)
    assert committed_values(cluster, topic) == Counter()


# ---- another number of Spark partitions ------------------------------------------------------------------------------


def cut(number: int, tasks: int) -> list[list[pa.RecordBatch]]:
    """The rows of a micro-batch of three tasks, cut for another number of tasks."""
    table = pa.Table.from_batches([rows for task in range(PARTITIONS) for rows in batch_of(number, task)])
    width = -(-table.num_rows // tasks)
    return [table.slice(task * width, width).combine_chunks().to_batches() for task in range(tasks)]


# Each number of tasks twice, and each set of finished tasks: one that begins, one that ends, and more than one.
@pytest.mark.parametrize(
    ("tasks", "finished"), [(1, [0]), (1, [1, 2]), (2, [2]), (2, [0]), (4, [1, 2]), (4, [2]), (6, [0]), (6, [1, 2])]
)
def test_no_row_is_seen_twice_when_a_replay_is_cut_in_another_way(
    queries: Queries, cluster: EmbeddedCluster, topic: str, finished: list[int], tasks: int
) -> None:
    query = queries("exactly_once")
    query.batch(0)
    writer = query.begun()
    for task in finished:
        query.task(writer, 1, task)
    before = committed_values(cluster, topic)
    query.restart()
    writer = query.begun()
    reports: list[WriterCommitMessage | None] = []
    error: IllegalStateError | None = None
    for task, rows in enumerate(cut(1, tasks)):
        try:
            reports.append(query.task(writer, 1, task, rows=rows))
        except IllegalStateError as refused:
            reports.append(None)
            error = refused
    try:
        if error is None:
            query.writer().commit(reports, 1)
    except IllegalStateError as refused:
        error = refused
    assert "same number of Spark partitions" in str(error)
    query.writer().abort(list(reports), 1)
    assert committed_values(cluster, topic) == before
    assert is_free(cluster, topic)
    query.restart()
    query.batch(1)
    query.batch(2)
    assert committed_values(cluster, topic) == all_values(3)


def test_replay_in_the_same_jvm_is_held_as_well(queries: Queries, cluster: EmbeddedCluster, topic: str) -> None:
    """The driver's note says that micro-batch 0 was committed; Spark lost its own commit and replays it, cut anew."""
    query = queries("exactly_once")
    query.batch(0)
    query.restart(new_jvm=False)
    writer = query.begun()
    query.task(writer, 0, 0)
    new_partition = query.task(writer, 0, PARTITIONS, rows=batch_of(0, 1))
    assert new_partition.transaction is not None
    query.writer().abort([None, None, None, new_partition], 0)
    assert committed_values(cluster, topic) == all_values(1)


def test_number_of_spark_partitions_may_change_between_micro_batches(
    queries: Queries, cluster: EmbeddedCluster, topic: str
) -> None:
    query = queries("exactly_once")
    for number, tasks in enumerate((3, 1, 5, 2, 5)):
        query.batch(number, tasks=tasks)
        if number == 2:
            query.restart()
    expected: Counter[bytes] = Counter()
    for number, tasks in enumerate((3, 1, 5, 2, 5)):
        for task in range(tasks):
            expected += values_of(number, task)
    assert committed_values(cluster, topic) == expected


# ---- lost markers, other guarantees ----------------------------------------------------------------------------------


def forget(admin: TransactionAdmin, topic: str, *partitions: int | None) -> None:
    for partition in partitions:
        admin.delete_group(transactional_id_for(f"sink-{topic}", partition))


@pytest.mark.parametrize("guarantee", ["exactly_once", "atomic"])
def test_lost_marker_refuses_the_next_micro_batch_unless_the_user_goes_on(
    queries: Queries, cluster: EmbeddedCluster, topic: str, guarantee: str, admin: TransactionAdmin
) -> None:
    query = queries(guarantee)
    query.batch(0)
    query.batch(1)
    forget(admin, topic, *([None] if guarantee == "atomic" else range(PARTITIONS)))
    query.restart()
    with pytest.raises(IllegalStateError, match=r"there is no marker, .*micro-batch 2: .*'onLostMarker'.*'continue'"):
        query.batch(2)
    assert committed_values(cluster, topic) == all_values(2)
    again = queries(guarantee, onlostmarker="continue")
    again.batch(2)
    again.batch(3)
    assert committed_values(cluster, topic) == all_values(4)


@pytest.mark.parametrize("guarantee", ["exactly_once", "atomic"])
def test_marker_that_is_too_old_refuses_the_micro_batch(queries: Queries, guarantee: str) -> None:
    query = queries(guarantee)
    query.batch(0)
    query.restart()
    with pytest.raises(IllegalStateError, match=r"marker.* is that of micro-batch 0, though Spark is at micro-batch 2"):
        query.batch(2)


def test_marker_of_one_spark_partition_that_is_lost_is_noticed(
    queries: Queries, topic: str, admin: TransactionAdmin
) -> None:
    query = queries("exactly_once")
    query.batch(0)
    forget(admin, topic, 1)
    query.restart()
    writer = query.begun()
    with pytest.raises(
        IllegalStateError, match="micro-batch 0 had 3 Spark partitions, and partition 1 has no marker of it"
    ):
        query.task(writer, 1, 1)


def test_marker_that_is_lost_within_a_micro_batch_is_noticed_in_its_replay(
    queries: Queries, cluster: EmbeddedCluster, topic: str, admin: TransactionAdmin
) -> None:
    query = queries("exactly_once")
    query.batch(0)
    query.batch(1)
    forget(admin, topic, 1)
    query.restart()
    with pytest.raises(IllegalStateError, match="micro-batch 0 had 3 Spark partitions, and partition 1 has no marker"):
        query.batch(1)
    assert committed_values(cluster, topic) == all_values(2)


def test_no_task_writes_where_the_markers_are_those_of_another_query(
    queries: Queries, cluster: EmbeddedCluster, topic: str
) -> None:
    """Spark partition 4 has no marker. Its task must refuse as the others do."""
    queries("exactly_once", query_id="former").batch(0)
    query = queries("exactly_once")
    writer = query.begun()
    with pytest.raises(IllegalStateError, match="the marker of this sinkId is that of another query"):
        query.task(writer, 0, 4)
    assert committed_values(cluster, topic) == all_values(1)


def test_driver_that_committed_before_another_jvm_wrote_does_not_trust_its_note(
    queries: Queries, cluster: EmbeddedCluster, topic: str
) -> None:
    """The first JVM commits micro-batch 0. A second JVM writes a part of micro-batch 1. The first JVM goes on."""
    query = queries("exactly_once")
    query.batch(0)
    first = query.jvm
    query.restart()
    query.task(query.begun(), 1, 0)
    query.restart(jvm=first)
    new = query.task(query.begun(), 1, PARTITIONS, rows=batch_of(1, 1))
    assert new.transaction is not None
    query.writer().abort([*[None] * PARTITIONS, new], 1)
    assert committed_values(cluster, topic) == all_values(1) + values_of(1, 0)


def test_task_of_a_dead_run_cannot_commit_once_the_next_run_has_begun(
    queries: Queries, cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay may have fewer Spark partitions, and then no task of it fences the task that lives on."""
    query = queries("exactly_once")
    query.batch(0)
    real = KafkaProducer.send_offsets_to_transaction

    def outlived(producer: KafkaProducer, *args: Any) -> None:
        monkeypatch.setattr(KafkaProducer, "send_offsets_to_transaction", real)
        query.begun()
        real(producer, *args)

    writer = query.begun()
    monkeypatch.setattr(KafkaProducer, "send_offsets_to_transaction", outlived)
    with pytest.raises(KafkaError):
        query.task(writer, 1, 2)
    assert committed_values(cluster, topic) == all_values(1)


@pytest.mark.parametrize(("first", "second"), [("exactly_once", "atomic"), ("atomic", "exactly_once")])
def test_guarantee_refuses_the_markers_of_the_other_guarantee(
    queries: Queries, cluster: EmbeddedCluster, topic: str, first: str, second: str, admin: TransactionAdmin
) -> None:
    queries(first).batch(0)
    with pytest.raises(NotBegunError, match=f"has markers of deliveryGuarantee '{first}'.*kafkabuf spark forget"):
        queries(second).batch(1)
    forget(admin, topic, *([None] if first == "atomic" else range(PARTITIONS)))
    queries(second, onlostmarker="continue").batch(1)
    queries(second).batch(2)
    assert committed_values(cluster, topic) == all_values(3)


def test_sink_ids_that_differ_by_a_number_share_nothing(queries: Queries, cluster: EmbeddedCluster, topic: str) -> None:
    queries("exactly_once", sinkid="s").batch(0)
    queries("atomic", sinkid="s.1").batch(0)
    assert committed_values(cluster, topic) == all_values(1) + all_values(1)


def test_markers_of_another_query_do_not_count_as_partitions_of_this_one(
    queries: Queries, cluster: EmbeddedCluster, topic: str, admin: TransactionAdmin
) -> None:
    """A former query with this sinkId had more partitions. The user has deleted all markers but one, and goes on."""
    queries("exactly_once", query_id="former").batch(0)
    forget(admin, topic, 0, 1)
    query = queries("exactly_once", onlostmarker="continue")
    query.batch(0, tasks=2)
    assert committed_values(cluster, topic) == all_values(1) + values_of(0, 0) + values_of(0, 1)


# ---- df.write --------------------------------------------------------------------------------------------------------


def write(sink: ArrowSink, monkeypatch: pytest.MonkeyPatch, rows: int = 50) -> list[TaskReport]:
    """One df.write."""
    driver = BatchWriter(sink)
    task_writer = pickle.loads(pickle.dumps(driver))
    reports = []
    try:
        for task in range(PARTITIONS):
            place = TaskAttempt(task, 0, None, task)
            monkeypatch.setattr(TaskAttempt, "current", lambda place=place: place)
            reports.append(pickle.loads(pickle.dumps(task_writer.write(iter(batch_of(0, task, rows))))))
        driver.commit(list(reports))
    except BaseException:
        driver.abort([*reports, *[None] * (PARTITIONS - len(reports))])
        raise
    return reports


@pytest.fixture
def write_sink(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> Any:
    return lambda **more: ArrowSink(options(cluster, topic, "atomic", **more), COLUMNS)


def test_write_that_is_run_again_with_its_write_id_writes_once(
    write_sink: Any, cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(write_sink(writeid="2026-11-22"), monkeypatch)
    again = write(write_sink(writeid="2026-11-22"), monkeypatch)
    assert all(report.already_written for report in again)
    write(write_sink(writeid="2026-11-23"), monkeypatch)
    write(write_sink(writeid="2026-11-22"), monkeypatch)
    assert committed_values(cluster, topic) == all_values(1) + all_values(1)
    assert is_free(cluster, topic)


def test_write_id_that_is_used_for_other_rows_is_refused(
    write_sink: Any, cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(write_sink(writeid="a"), monkeypatch)
    with pytest.raises(IllegalStateError, match=r"writeId 'a' was written before with 150 rows.*has 120"):
        write(write_sink(writeid="a"), monkeypatch, rows=40)
    assert committed_values(cluster, topic) == all_values(1)


def test_write_without_a_write_id_that_is_run_again_writes_twice(
    write_sink: Any, cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(write_sink(), monkeypatch)
    write(write_sink(), monkeypatch)
    assert committed_values(cluster, topic) == all_values(1) + all_values(1)


def commit_and_lose_the_response(producer: KafkaProducer) -> None:
    type(producer).commit_transaction.original(producer)  # type: ignore[attr-defined]
    raise TimeoutError("no response")


def lose_the_request(producer: KafkaProducer) -> None:
    raise TimeoutError("no response")


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Any:
    real = KafkaProducer.commit_transaction

    def lose(how: Any) -> None:
        how.original = real
        monkeypatch.setattr(KafkaProducer, "commit_transaction", how)

    return lose


def test_commit_whose_response_was_lost_is_a_success(
    write_sink: Any, queries: Queries, cluster: EmbeddedCluster, topic: str, monkeypatch: Any, losing: Any
) -> None:
    losing(commit_and_lose_the_response)
    write(write_sink(), monkeypatch)
    queries("atomic", sinkid="of-stream").batch(0)
    assert committed_values(cluster, topic) == all_values(1) + all_values(1)


def test_commit_that_was_never_carried_out_is_a_failure(
    write_sink: Any, cluster: EmbeddedCluster, topic: str, monkeypatch: Any, losing: Any
) -> None:
    losing(lose_the_request)
    with pytest.raises(TimeoutError, match="no response"):
        write(write_sink(), monkeypatch)
    assert committed_values(cluster, topic) == Counter()
    assert is_free(cluster, topic)


def test_error_says_so_where_nobody_knows_whether_the_write_was_committed(
    write_sink: Any, topic: str, monkeypatch: Any, losing: Any
) -> None:
    def unreachable(admin: TransactionAdmin, name: str) -> None:
        raise TimeoutError("no broker responds")

    losing(commit_and_lose_the_response)
    monkeypatch.setattr(TransactionAdmin, "fence", unreachable)
    group = write_group_for(f"sink-{topic}", None)
    with pytest.raises(
        TimeoutError, match=f"it is unknown whether.*kafkabuf spark status sink-{topic}.*{group}.*writeId"
    ):
        write(write_sink(), monkeypatch)


# ---- from task to task -----------------------------------------------------------------------------------------------


def test_task_goes_on_where_the_task_before_has_stopped(
    queries: Queries, cluster: EmbeddedCluster, version: int, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[handover.Handover | None] = []
    take = handover.take

    def watched(name: str, cluster: str) -> handover.Handover | None:
        taken.append(take(name, cluster))
        return taken[-1]

    monkeypatch.setattr(handover, "take", watched)
    query = queries("exactly_once")
    for number in range(4):
        query.batch(number)
    has_version_2 = version >= 2
    # The first micro-batch of a run has no note.
    assert [note is not None for note in taken] == [False] * PARTITIONS + [has_version_2] * (3 * PARTITIONS)
    assert committed_values(cluster, topic) == all_values(4)


def test_stale_note_is_fenced_and_the_rows_of_its_task_are_never_seen(
    queries: Queries, cluster: EmbeddedCluster, version: int, topic: str
) -> None:
    """The first attempt ran on another host. The second attempt finds an older note on its own host."""
    if version < 2:
        return  # there are no notes under version 1
    query = queries("exactly_once")
    query.batch(0)
    query.batch(1)
    cluster_of_note = ExactlyOnce(query.sink.options, COLUMNS)._cluster
    note = handover.take(transactional_id_for(f"sink-{topic}", 0), cluster_of_note)
    assert note is not None
    writer = query.begun()
    query.task(writer, 2, 0)
    handover.put(note, cluster_of_note)
    with pytest.raises(KafkaError):
        query.task(writer, 2, 0, attempt=1)
    assert query.task(writer, 2, 0, attempt=2).already_written
    assert committed_values(cluster, topic) == all_values(2) + values_of(2, 0)


def test_unreadable_note_is_ignored(queries: Queries, cluster: EmbeddedCluster, topic: str) -> None:
    query = queries("exactly_once")
    query.batch(0)
    for path in query.notes():
        path.write_text("{")
    query.batch(1)
    assert committed_values(cluster, topic) == all_values(2)
