"""`on_acknowledged`: one call for each batch, with the objects that send() was given for its records."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, KafkaError
from kafkabuf.producer import KafkaProducer
from kafkabuf.record_metadata import BatchOutcome, RecordMetadata
from kafkabuf.testing import MockProducer
from rigs.producer import PATIENCE, TOPIC, Rig, assert_whole, collecting_everywhere, quick_rig
from tests.batches.split_support import Topic

INVALID_RECORD = 87


def opened(**settings: Any) -> tuple[Rig, list[BatchOutcome]]:
    outcomes: list[BatchOutcome] = []
    return quick_rig(on_acknowledged=outcomes.append, **settings), outcomes


def test_a_batch_is_told_once_with_what_its_records_share() -> None:
    rig, outcomes = opened()
    for number in range(3):
        rig.send(b"v", timestamp_ms=100 - number, opaque=number)
    rig.ack_all()
    assert outcomes == [BatchOutcome(TOPIC, 0, 0, 3, 100, 100, None, {}, [0, 1, 2])]
    assert_whole(rig.pool)


def test_records_without_an_opaque_have_none_in_their_place() -> None:
    rig, outcomes = opened()
    for opaque in (None, "second", None, "fourth", None):
        rig.send(b"v", opaque=opaque)
    rig.ack_all()
    assert outcomes[0].opaques == [None, "second", None, "fourth", None]


def test_a_batch_in_which_no_record_has_an_opaque_has_an_empty_list() -> None:
    rig, outcomes = opened()
    rig.send(b"v")
    rig.ack_all()
    assert (outcomes[0].record_count, outcomes[0].opaques) == (1, [])


def test_time_of_the_broker_is_told_if_the_topic_uses_it() -> None:
    rig, outcomes = opened()
    rig.send(b"v", timestamp_ms=5)
    rig.drain_one().complete(10, 777)
    assert (outcomes[0].first_offset, outcomes[0].first_timestamp, outcomes[0].last_timestamp) == (10, 777, 777)


def test_a_failed_batch_is_told_with_its_error() -> None:
    rig, outcomes = opened()
    rig.send(b"v", opaque="mine")
    gone = KafkaError("gone")
    rig.drain_one().fail(gone)
    assert (outcomes[0].error, outcomes[0].first_offset, outcomes[0].opaques) == (gone, -1, ["mine"])


def test_records_that_the_broker_names_are_told_by_their_places() -> None:
    rig, outcomes = opened()
    for number in range(3):
        rig.send(b"v", opaque=number)
    named, others = KafkaError("named"), KafkaError("with others")
    rig.drain_one().fail(named, {1: named}, others)
    assert (outcomes[0].error, outcomes[0].record_errors) == (others, {1: named})


def test_parts_of_a_split_batch_are_told_with_their_own_records() -> None:
    rig, outcomes = opened()
    topic = Topic(rig, 200)
    for number in range(40):
        rig.send(b"%03d" % number, timestamp_ms=1000 + number, opaque=number)
    topic.serve()
    assert len(outcomes) > 2
    assert [opaque for outcome in outcomes for opaque in outcome.opaques] == list(range(40))
    for outcome in outcomes:
        assert outcome.opaques == list(range(outcome.first_offset, outcome.first_offset + outcome.record_count))
        assert outcome.first_timestamp == 1000 + outcome.opaques[0]
        assert outcome.last_timestamp == 1000 + outcome.opaques[-1]
    assert_whole(rig.pool)


def test_callbacks_of_records_run_before_the_batch_is_told() -> None:
    order: list[str] = []
    rig = quick_rig(on_acknowledged=lambda outcome: order.append("batch"))
    rig.send(b"v", callback=lambda metadata, error: order.append("record"), opaque=1)
    rig.ack_all()
    assert order == ["record", "batch"]


def test_an_error_in_on_acknowledged_is_reported_and_holds_up_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    def on_acknowledged(outcome: BatchOutcome) -> None:
        raise SystemExit("mine")

    rig = quick_rig(on_acknowledged=on_acknowledged)
    future = rig.send(b"v")
    rig.ack_all()
    assert future.result(0).offset == 0
    assert isinstance(seen[0].exc_value, SystemExit)
    assert "on_acknowledged raised for a batch of orders-0" in caplog.text
    assert_whole(rig.pool)


def test_a_log_handler_that_raises_takes_no_callback_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log")

    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    logger = logging.getLogger("kafkabuf.producer")
    monkeypatch.setattr(logger, "handlers", [Raising()])
    rig, outcomes = opened()
    offsets: list[int] = []

    def callback(metadata: RecordMetadata, error: KafkaError | None) -> None:
        offsets.append(metadata.offset)
        if metadata.offset == 1:
            raise ValueError("mine")

    for _ in range(4):
        rig.send(b"v", callback=callback)
    rig.ack_all()
    assert offsets == [0, 1, 2, 3]
    assert len(outcomes) == 1
    assert [type(one.exc_value) for one in seen] == [ValueError]  # the handler's error goes to stderr


def test_an_opaque_without_on_acknowledged_is_refused_and_the_record_not_queued() -> None:
    rig = quick_rig()
    with pytest.raises(ConfigError, match="give it on_acknowledged"):
        rig.send(b"v", opaque=1)
    assert not rig.accumulator.incomplete


def test_opaques_stay_beside_their_records_if_the_collector_sends_in_between() -> None:
    rig, outcomes = opened(slabs=64)

    def send_from_a_finalizer() -> None:
        if len(sent) < 200:
            sent.append(len(sent))
            rig.send(b"from the collector", opaque=b"from the collector")

    sent: list[int] = []
    with collecting_everywhere(send_from_a_finalizer):
        for _ in range(50):
            rig.send(b"from the loop", opaque=b"from the loop")
    rig.ack_all()
    told = [opaque for outcome in outcomes for opaque in outcome.opaques]
    assert told == [record.value for record in rig.log[TOPIC, 0]]


def test_failures_are_not_called_unseen(caplog: pytest.LogCaptureFixture) -> None:
    rig, outcomes = opened()
    rig.send(b"v")
    rig.client.answer(rig.sent_after_turn()[0], INVALID_RECORD)
    rig.turn()
    rig.sender.recovery.tell()
    assert outcomes[0].error is not None
    assert "were not read" not in caplog.text


@pytest.mark.parametrize("value", [5, "print", b"print"])
def test_what_cannot_be_called_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"on\.acknowledged"):
        MockProducer(on_acknowledged=value)


def test_a_mock_producer_tells_its_batches() -> None:
    outcomes: list[BatchOutcome] = []
    MockProducer(on_acknowledged=outcomes.append).send("t", b"v", opaque="mine")
    assert [outcome.opaques for outcome in outcomes] == [["mine"]]


def test_every_record_of_a_cluster_is_told_once() -> None:
    outcomes: list[BatchOutcome] = []
    with EmbeddedCluster(default_partitions=3) as cluster:
        with KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, batch_size=1024, on_acknowledged=outcomes.append
        ) as producer:
            futures = {number: producer.send("t", b"%d" % number, opaque=number) for number in range(2_000)}
            producer.flush(PATIENCE)
        told = {
            opaque: (outcome.partition, outcome.first_offset + place)
            for outcome in outcomes
            for place, opaque in enumerate(outcome.opaques)
        }
        assert told == {n: (future.result().partition, future.result().offset) for n, future in futures.items()}
