"""Rows that Kafka refuses: each is refused alone, under every guarantee and policy, and every other row arrives once.

The tests call the guarantees as Spark does, without Spark (tests/spark/guarantees/test_exactly_once.py).
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import InvalidRecordError, InvalidTimestampError, KafkaError, RecordTooLargeError
from kafkabuf.protocol.messages import PRODUCE
from kafkabuf.spark import WriteReport, verify
from kafkabuf.spark.guarantees import atomic
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.reports.report import TaskReport
from kafkabuf.spark.rows import suspects, task
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker.limits import TopicLimits
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from tests.spark.job import PARTITIONS, committed

GUARANTEES = ["at_least_once", "exactly_once", "atomic"]
COLUMNS = ("key", "value", "timestamp", "partition")

RECORD_LIST_TOO_LARGE = 18
TWO_HOURS_MS = 7_200_000


@pytest.fixture(scope="module", params=[2, 0], ids=["v2", "v1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, transaction_version=request.param) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    """A compacted topic that takes no timestamp more than an hour off."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    hour = {"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"}
    cluster.create_topic(name, partitions=PARTITIONS, configs={"cleanup.policy": "compact", **hour})
    cluster.create_topic(f"{name}-dead", partitions=1)
    return name


def rows(count: int, bad: dict[int, str], partitions: int = PARTITIONS) -> pa.RecordBatch:
    """Rows 0 to `count`; those in `bad` have no key, or a timestamp that is "old" or "new"."""
    now = time.time_ns() // 1_000_000
    shifts = {"old": -TWO_HOURS_MS, "new": TWO_HOURS_MS}
    return pa.record_batch(
        {
            "key": pa.array([None if bad.get(n) == "keyless" else b"k%d" % n for n in range(count)], pa.binary()),
            "value": pa.array([b"%d" % n for n in range(count)], pa.binary()),
            "timestamp": pa.array(
                [now + shifts.get(bad.get(n, ""), 0) for n in range(count)], pa.timestamp("ms", "UTC")
            ),
            "partition": pa.array([n % partitions for n in range(count)], pa.int32()),
        }
    )


def pieces(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    return (batch.slice(begin, size) for begin in range(0, batch.num_rows, size))


class Write:
    """One write of one task, with the calls that Spark makes."""

    def __init__(
        self, cluster: EmbeddedCluster, topic: str, guarantee: str, policy: str, patch: pytest.MonkeyPatch, **more: str
    ) -> None:
        values = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "kafka.max.block.ms": "10000",
            "kafka.linger.ms": "5",
            "topic": topic,
            "deliveryguarantee": guarantee,
            "sinkid": f"sink-{topic}",
            "onrowerror": policy,
            **({"deadlettertopic": f"{topic}-dead"} if policy == "dead_letter" else {}),
            **more,
        }
        self.sink = ArrowSink(SinkOptions.parse(values), COLUMNS)
        self.patch = patch

    def run(self, batches: Iterator[pa.RecordBatch], attempt_id: int = 0) -> TaskReport:
        place = TaskAttempt(0, 0, MicroBatch(0, "query", "run"), attempt_id)
        self.patch.setattr(TaskAttempt, "current", lambda: place)
        delivery = self.sink.delivery()
        begun = delivery.begin(is_stream=True)
        report = delivery.send(batches, begun)
        delivery.commit([report], 0, begun)
        return report


def values_in(cluster: EmbeddedCluster, topic: str) -> Counter[bytes]:
    return committed(cluster.bootstrap_servers, topic, fetch_wait_max_ms="10")


def letters_in(cluster: EmbeddedCluster, topic: str, count: int) -> dict[bytes, dict[str, Any]]:
    """The headers of the dead letters, by value."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "group.id": "d"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, 10.0)
    consumer.close()
    return {message.value() or b"": dict(message.headers() or ()) for message in found}


def without_limits(patch: pytest.MonkeyPatch) -> None:
    """The tasks know no limits, as without the right to describe configs: the brokers judge."""
    patch.setattr(TopicLimits, "judge", lambda *_: {})


def judged_by(judge: str, patch: pytest.MonkeyPatch) -> None:
    """Leave the tasks the limits that the driver has read, or none."""
    if judge == "broker":
        without_limits(patch)


def policies(guarantee: str) -> list[str]:
    return ["skip"] if guarantee == "atomic" else ["skip", "dead_letter"]


@pytest.mark.parametrize("by", ["limits", "broker"])
@pytest.mark.parametrize(("guarantee", "policy"), [(g, policy) for g in GUARANTEES for policy in policies(g)])
def test_every_good_row_arrives_once_and_each_bad_row_goes_where_the_policy_says(
    cluster: EmbeddedCluster, topic: str, guarantee: str, policy: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_by(by, monkeypatch)
    bad = {0: "old", 7: "keyless", 100: "new", 101: "keyless", 599: "old"}
    batch = rows(600, bad)
    report = Write(cluster, topic, guarantee, policy, monkeypatch).run(pieces(batch, 100))
    assert (report.rows, report.skipped + report.dead_lettered) == (595, 5)
    assert (report.retries == 0) == (by == "limits"), (
        "a row that is judged by the limits costs no other row a second way"
    )
    assert values_in(cluster, topic) == Counter(b"%d" % n for n in range(600) if n not in bad)
    assert verify(WriteReport.from_messages([report]), {"bootstrap.servers": cluster.bootstrap_servers}).rows == 595
    if policy == "dead_letter":
        letters = letters_in(cluster, f"{topic}-dead", 5)
        assert set(letters) == {b"%d" % n for n in bad}
        times = batch["timestamp"].cast("int64").to_pylist()
        assert all(letters[b"%d" % n]["kafkabuf.timestamp"] == b"%d" % times[n] for n in bad)
        # Where a broker refuses several rows of a batch, Kafka's protocol does not tell the error of each.
        kinds = {
            "keyless": [b"InvalidRecordError"],
            "old": [b"InvalidTimestampError"],
            "new": [b"InvalidTimestampError"],
        }
        more = [b"InvalidRecordError"] if by == "broker" else []
        assert all(letters[b"%d" % n]["kafkabuf.error"] in kinds[kind] + more for n, kind in bad.items())


@pytest.mark.parametrize("by", ["limits", "broker"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_under_fail_the_error_names_the_row_that_the_broker_refused(
    cluster: EmbeddedCluster, topic: str, guarantee: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_by(by, monkeypatch)
    named = r"^row 150 of this task \(key b'k150', 7 bytes\) cannot be sent: "
    with pytest.raises(InvalidTimestampError, match=named) as caught:
        Write(cluster, topic, guarantee, "fail", monkeypatch).run(pieces(rows(300, {150: "new"}), 100))
    assert str(caught.value).count("row ") == 2, "one number, and the advice"
    assert str(caught.value).endswith("or set option 'onRowError' to 'skip' or 'dead_letter'")


def test_error_of_a_timestamp_names_the_users_column(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Write(cluster, topic, "at_least_once", "fail", monkeypatch, timestampcolumn="at")
    with pytest.raises(InvalidTimestampError, match="Correct column 'at', filter"):
        write.run(pieces(rows(3, {1: "new"}), 3))


def test_partition_whose_only_rows_were_refused_is_no_error(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_limits(monkeypatch)
    report = Write(cluster, topic, "exactly_once", "skip", monkeypatch).run(iter([rows(2, {1: "old"})]))
    assert (report.rows, report.skipped) == (1, 1)


@pytest.mark.parametrize("settings", [{"acks": "1", "enable.idempotence": "false"}, {"enable.idempotence": "false"}])
def test_producer_without_idempotence_sends_every_good_row(
    cluster: EmbeddedCluster, topic: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_limits(monkeypatch)
    kafka = {f"kafka.{name}": value for name, value in settings.items()}
    report = Write(cluster, topic, "at_least_once", "skip", monkeypatch, **kafka).run(
        pieces(rows(600, {300: "old"}), 100)
    )
    assert (report.rows, report.skipped) == (599, 1)
    assert values_in(cluster, topic) == Counter(b"%d" % n for n in range(600) if n != 300)


@pytest.mark.parametrize("kind", ["keyless", "old", "new"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_only_the_first_refused_row_costs_others_a_second_way(
    cluster: EmbeddedCluster, topic: str, guarantee: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_limits(monkeypatch)
    monkeypatch.setattr(task, "MAX_OPEN_REPORTS", 0)  # each Arrow batch of 100 rows waits for its outcome
    bad = dict.fromkeys(range(50, 3_000, 100), kind)
    report = Write(cluster, topic, guarantee, "skip", monkeypatch).run(pieces(rows(3_000, bad), 100))
    assert (report.rows, report.skipped) == (2_970, 30)
    assert 0 < report.retries < 100, "rows of the first Arrow batch, and of no other"
    assert values_in(cluster, topic) == Counter(b"%d" % n for n in range(3_000) if n not in bad)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_good_rows_that_look_like_a_refused_row_arrive(
    cluster: EmbeddedCluster, topic: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic takes rows up to an hour ahead. Row 10 is 100 minutes ahead, and each third row 55."""
    without_limits(monkeypatch)
    monkeypatch.setattr(task, "MAX_OPEN_REPORTS", 0)
    monkeypatch.setattr(suspects, "MAX_SUSPECTS", 20)
    now = time.time_ns() // 1_000_000
    ahead = pa.array(
        [now + 60_000 * (100 if n == 10 else 55 if n % 3 == 0 else 0) for n in range(900)], pa.timestamp("ms")
    )
    batch = rows(900, {}).set_column(2, "timestamp", ahead)
    report = Write(cluster, topic, guarantee, "skip", monkeypatch).run(pieces(batch, 100))
    assert (report.rows, report.skipped) == (899, 1)
    assert values_in(cluster, topic) == Counter(b"%d" % n for n in range(900) if n != 10)


class NamesNoRow:
    """Brokers that refuse a batch and name no row in it, as those before Kafka 2.4."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from kafkabuf.sending import recovery

        patch.setattr(recovery, "_errors_of_records", lambda error, _: (None, None))
        without_limits(patch)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_rows_that_no_broker_names_are_found_by_halving(
    cluster: EmbeddedCluster, topic: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    NamesNoRow(monkeypatch)
    bad = {1: "old", 120: "keyless", 121: "old", 398: "new"}
    report = Write(cluster, topic, guarantee, "skip", monkeypatch).run(pieces(rows(400, bad), 100))
    assert (report.rows, report.skipped) == (396, 4)
    assert values_in(cluster, topic) == Counter(b"%d" % n for n in range(400) if n not in bad)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_row_that_no_broker_names_is_named_under_fail(
    cluster: EmbeddedCluster, topic: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    NamesNoRow(monkeypatch)
    with pytest.raises(InvalidRecordError, match=r"^row 42 of this task \(no key, 2 bytes\)"):
        Write(cluster, topic, guarantee, "fail", monkeypatch).run(iter([rows(100, {42: "keyless"})]))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_batch_that_is_too_large_for_a_segment_goes_in_halves(
    cluster: EmbeddedCluster, topic: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_opening_sizes", lambda _: [])
    cluster.fail_next(PRODUCE, RECORD_LIST_TOO_LARGE, times=2, topic=topic)
    report = Write(cluster, topic, guarantee, "fail", monkeypatch).run(iter([rows(100, {}, partitions=1)]))
    assert (report.rows, report.skipped) == (100, 0)
    assert values_in(cluster, topic) == Counter(b"%d" % n for n in range(100))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_row_larger_than_the_topic_allows_is_refused_alone(
    cluster: EmbeddedCluster, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_limits(monkeypatch)
    small = f"s-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(small, partitions=1, configs={"max.message.bytes": "2000"})
    batch = rows(50, {}, partitions=1)
    large = [b"x" * 5_000 if n == 20 else b"%d" % n for n in range(50)]
    batch = batch.set_column(1, "value", pa.array(large, pa.binary()))
    report = Write(cluster, small, guarantee, "skip", monkeypatch).run(iter([batch]))
    assert (report.rows, report.skipped) == (49, 1)
    with pytest.raises(RecordTooLargeError, match=r"^row 20 of this task \(key b'k20', 5003 bytes\)"):
        Write(cluster, small, guarantee, "fail", monkeypatch, sinkid="other").run(iter([batch]))


def test_dead_letter_leaves_out_headers_without_a_key_and_null_headers(cluster: EmbeddedCluster, topic: str) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [[None, {"key": "a", "value": b"1"}], [{"key": None, "value": b"2"}], None]
    batch = pa.record_batch({"key": ["x", "y", "z"], "value": ["1", "2", "3"], "headers": pa.array(headers, kind)})
    values = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, "onrowerror": "dead_letter"}
    options = SinkOptions.parse({**values, "deadlettertopic": f"{topic}-dead"})
    report = ArrowSink(options, ("key", "value", "headers")).send(iter([batch]))
    assert (report.rows, report.dead_lettered) == (1, 2)
    letters = letters_in(cluster, f"{topic}-dead", 2)
    assert "a" in letters[b"1"]


def test_rows_wait_in_bounded_numbers_and_go_again_together(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_limits(monkeypatch)
    sent: list[int] = []
    queue = task.Task._queue

    def counted(self: task.Task, some: Any) -> None:
        sent.append(len(some))
        assert len(self._open_reports) <= task.MAX_OPEN_REPORTS + 1
        assert len(self._waiting) <= task.MAX_WAITING_PIECES + task.MAX_OPEN_REPORTS
        queue(self, some)

    monkeypatch.setattr(task.Task, "_queue", counted)
    bad = dict.fromkeys(range(5, 2000, 20), "old")
    Write(cluster, topic, "exactly_once", "skip", monkeypatch).run(pieces(rows(2_000, bad), 20))
    assert values_in(cluster, topic) == Counter(b"%d" % n for n in range(2_000) if n not in bad)
    assert len(sent) < 130, "100 Arrow batches, and few more calls"


@pytest.mark.parametrize("bad", [{}, {0: "old"}, {3: "old"}, {0: "old", 1: "keyless", 5: "new", 11: "old"}])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_opening_batches_have_their_sizes_where_rows_are_refused(
    cluster: EmbeddedCluster, topic: str, bad: dict[int, str], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes tell attempts of a task apart (atomic.py), so they are those of batches that the leader has."""
    if named:
        without_limits(monkeypatch)
    else:
        NamesNoRow(monkeypatch)
    monkeypatch.setattr(atomic, "_opening_sizes", lambda _: [4, 7])
    appended: list[int] = []
    send = task.Task._send_opening_batch

    def watched(self: task.Task, some: Any) -> Any:
        size, opening, before = self._opening[0], len(self._opening), self.rows
        rest = send(self, some)
        assert (len(self._opening) < opening) == (self.rows - before == size)
        appended.extend([size] * (opening - len(self._opening)))
        return rest

    monkeypatch.setattr(task.Task, "_send_opening_batch", watched)
    report = Write(cluster, topic, "atomic", "skip", monkeypatch).run(pieces(rows(60, bad, partitions=1), 5))
    assert appended == [4, 7]
    assert (report.rows, report.skipped) == (60 - len(bad), len(bad))
    assert values_in(cluster, topic) == Counter(b"%d" % n for n in range(60) if n not in bad)


def test_task_with_fewer_rows_than_its_opening_sends_them(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_opening_sizes", lambda _: [100, 100])
    report = Write(cluster, topic, "atomic", "skip", monkeypatch).run(pieces(rows(30, {}, partitions=1), 5))
    assert report.rows == 30


def test_null_topic_of_a_dead_letter_is_null(cluster: EmbeddedCluster, topic: str) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "onrowerror": "dead_letter"}
    sink = ArrowSink(SinkOptions.parse({**options, "deadlettertopic": f"{topic}-dead"}), ("value", "topic"))
    sink.send(iter([pa.record_batch({"value": ["a"], "topic": pa.array([None], pa.string())})]))
    (letter,) = letters_in(cluster, f"{topic}-dead", 1).values()
    assert letter["kafkabuf.topic"] is None
    assert letter["kafkabuf.reason"] == b"there is no topic: its column 'topic' is null"


def test_error_of_the_whole_topic_fails_the_task(
    cluster: EmbeddedCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.fail_next(PRODUCE, 29, topic=topic)
    with pytest.raises(KafkaError) as caught:
        Write(cluster, topic, "at_least_once", "skip", monkeypatch).run(iter([rows(10, {})]))
    assert caught.value.code == 29
