"""The Sender when leaders move, when brokers ask for a pause, and when they name invalid records.

This file has cases of Kafka's SenderTest, RecordAccumulatorTest and ProducerBatchTest. A comment names each case.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    RefusedWithOthersError,
    TopicAuthorizationError,
)
from kafkabuf.producer import KafkaProducer
from rigs.fake_client import Answer, Sent, encode_answer
from rigs.producer import PATIENCE, TOPIC, Rig, assert_whole, only_request, quick_rig

NOT_LEADER, FENCED_EPOCH, REQUEST_TIMED_OUT, INVALID_RECORD, INVALID_TIMESTAMP = 6, 74, 7, 87, 32
ELSEWHERE = {9: ("elsewhere", 9092)}


def led(rig: Rig, *leaders: int, epoch: int) -> None:
    """Metadata names these leaders with this epoch."""
    rig.accumulator.topic_queues(TOPIC, leaders, [epoch] * len(leaders))


def refuse(rig: Rig, sent: Sent, answer: Answer, **more: Any) -> None:
    """Each partition of the request gets this answer."""
    answers = dict.fromkeys(sent.produced.records, answer)
    rig.client.answer_with(sent, encode_answer(sent.request.version, sent.correlation_id, answers, **more))
    rig.turn()


# ---- leaders that a response names (KIP-951) -------------------------------------------------------------------------


# Kafka: testWhenProduceResponseReturnsWithALeaderShipChangeErrorAndNewLeaderInformation
@pytest.mark.parametrize("code", [NOT_LEADER, FENCED_EPOCH])
def test_batch_goes_at_once_to_the_leader_that_the_response_names(code: int) -> None:
    rig = quick_rig(leaders=(1, 1, 1))
    rig.lead(1, 1, 1)  # epoch 1
    futures = [rig.send(partition=partition) for partition in range(3)]
    sent = only_request(rig)
    answers = {
        (TOPIC, 0): Answer(code, -1, leader=(9, 2)),
        (TOPIC, 1): Answer(code, -1, leader=(2, 5)),
        (TOPIC, 2): Answer(0, 100),
    }
    rig.client.answer_with(sent, encode_answer(12, sent.correlation_id, answers, nodes=ELSEWHERE))
    rig.turn()
    assert [future.done() for future in futures] == [False, False, True]
    assert [queue.leader for queue in rig.topic.queues] == [9, 2, 1]
    assert rig.metadata.snapshot.brokers[9].host == "elsewhere"
    assert rig.metadata.snapshot.topics[TOPIC].leader_epochs == [2, 5, 1]
    assert rig.update_wanted, "the client requests metadata too"
    again = rig.sent_after_turn()  # but the batches wait neither for metadata nor for a back-off
    assert {request.node_id: request.partitions for request in again} == {9: [0], 2: [1]}
    rig.ack_all()
    assert [future.result(0).offset for future in futures] == [0, 0, 100]
    assert_whole(rig.pool)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(NOT_LEADER, -1),  # names no leader
        Answer(NOT_LEADER, -1, leader=(2, 1)),  # no newer than the known epoch
        Answer(NOT_LEADER, -1, leader=(2, -1)),
        Answer(NOT_LEADER, -1, leader=(8, 5)),  # names no address of node 8
        Answer(REQUEST_TIMED_OUT, -1, leader=(2, 5)),  # an error that does not concern the leader
    ],
)
def test_useless_leader_in_a_response_is_ignored_and_the_batch_backs_off(answer: Answer) -> None:
    rig = quick_rig(leaders=(1,))
    rig.lead(1)
    future = rig.send()
    refuse(rig, only_request(rig), answer)
    assert rig.queue().leader == 1
    assert rig.sent_after_turn() == []
    rig.clock.advance(0.2)
    assert only_request(rig).node_id == 1
    rig.ack_all()
    assert future.result(0)


# Kafka: testProducerBatchRetriesWhenPartitionLeaderChanges, testExponentialRetryBackoffLeaderChange
def test_new_leader_gets_a_retry_at_once_and_a_known_leader_after_a_back_off() -> None:
    rig = quick_rig(leaders=(1,), delivery_timeout_ms=60_000, retry_backoff_ms=100, retry_backoff_max_ms=1000)
    led(rig, 1, epoch=100)
    future = rig.send()
    refuse(rig, only_request(rig), Answer(NOT_LEADER, -1))
    led(rig, 1, epoch=101)  # the same node in a new epoch counts as another leader
    refuse(rig, only_request(rig), Answer(NOT_LEADER, -1))
    # This leader has refused the batch now: from here on the batch backs off, and longer each time.
    for least, most in [(0.16, 0.24), (0.32, 0.48), (0.64, 0.96)]:
        rig.clock.advance(least - 0.001)
        assert rig.sent_after_turn() == []
        rig.clock.advance(most - least + 0.002)
        refuse(rig, only_request(rig), Answer(NOT_LEADER, -1))
    led(rig, 2, epoch=102)
    again = only_request(rig)
    assert again.node_id == 2
    rig.client.answer(again, base_offset=999)
    rig.turn()
    assert future.result(0).offset == 999
    assert_whole(rig.pool)


# Kafka: ProducerBatchTest.testWithLeaderChangesAcrossRetries
@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        (100, 101, False),
        (100, 100, True),
        (101, 100, True),  # an older leader
        (100, -1, True),  # the epoch is no longer known
        (-1, -1, True),
        (-1, 100, False),  # the first known epoch
    ],
)
def test_back_off_depends_on_the_leaders_epoch(before: int, after: int, waits: bool) -> None:
    rig = quick_rig(leaders=(1,))
    led(rig, 1, epoch=before)
    rig.send()
    refuse(rig, only_request(rig), Answer(NOT_LEADER, -1))
    led(rig, 1, epoch=after)
    assert len(rig.sent_after_turn()) == (not waits)


def test_batch_remembers_the_newest_leader_epoch_that_refused_it() -> None:
    rig = quick_rig(leaders=(1,), delivery_timeout_ms=60_000)
    led(rig, 1, epoch=100)
    rig.send()
    refuse(rig, only_request(rig), Answer(NOT_LEADER, -1))
    led(rig, 1, epoch=-1)
    rig.clock.advance(1)
    refuse(rig, only_request(rig), Answer(NOT_LEADER, -1))
    led(rig, 1, epoch=100)
    assert rig.sent_after_turn() == []


def test_batches_keep_their_order_on_their_way_to_a_new_leader() -> None:
    rig = quick_rig(leaders=(1,), delivery_timeout_ms=60_000)
    rig.lead(1)
    futures = rig.fill(batches=3)
    sent = rig.sent_after_turn()
    assert len(sent) == 3
    for request in sent:
        refuse(rig, request, Answer(NOT_LEADER, -1, leader=(9, 5)), nodes=ELSEWHERE)
    rig.ack_all()
    assert [request.produced.records for request in rig.client.sent[3:]] == [
        request.produced.records for request in sent
    ]
    assert {request.node_id for request in rig.client.sent[3:]} == {9}
    assert [future.result(0).offset for future in futures] == [0, 1, 2]
    assert_whole(rig.pool)


def test_leader_that_moved_costs_no_back_off_in_a_cluster() -> None:
    # The back-off is twenty seconds, and the test does not wait for it.
    with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("moving", partitions=1)
        settings: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 20_000, "retry_backoff_max_ms": 20_000}
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings) as producer:
            assert producer.send("moving", b"first").result(PATIENCE).offset == 0
            leader, epoch = cluster.leader("moving", 0)
            assert producer.accumulator.topics["moving"].queues[0].leader_epoch == epoch
            cluster.move_leader("moving", 0, 3 - leader)
            assert producer.send("moving", b"second").result(10).offset == 1


# ---- throttling, and responses about other partitions ----------------------------------------------------------------


def test_pause_that_a_response_asks_for_is_passed_on() -> None:
    rig = quick_rig()
    future = rig.send()
    sent = only_request(rig)
    answers = {(TOPIC, 0): Answer()}
    rig.client.answer_with(sent, encode_answer(12, sent.correlation_id, answers, throttle_ms=300))
    rig.turn()
    assert future.done(), "the pause concerns later requests"
    assert rig.client.pauses == [(1, 300)]
    rig.send()
    rig.ack_all()
    assert rig.client.pauses == [(1, 300), (1, 0)], "a response without a pause counts as 0 in the average"


@pytest.mark.parametrize(
    ("answers", "done"),
    [
        ({(TOPIC, 0): Answer()}, [True, False]),
        ({(TOPIC, 0): Answer(), (TOPIC, 1): Answer(), (TOPIC, 2): Answer()}, [True, True]),
        ({(TOPIC, 0): Answer(), ("other", 1): Answer()}, [True, False]),
        ({}, [False, False]),
    ],
)
def test_response_about_other_partitions_fails_its_connection(
    answers: dict[tuple[str, int], Answer], done: list[bool]
) -> None:
    rig = quick_rig(leaders=(1, 1), delivery_timeout_ms=60_000)
    futures = [rig.send(partition=0), rig.send(partition=1)]
    sent = only_request(rig)
    rig.client.answer_with(sent, encode_answer(12, sent.correlation_id, answers))
    rig.turn()
    assert [(node, type(error)) for node, error in rig.client.broken] == [(1, CorruptMessageError)]
    assert [future.done() for future in futures] == done
    rig.ack_all()
    assert all(future.result(0) for future in futures)


# ---- invalid records (KIP-467) ---------------------------------------------------------------------------------------


# Kafka: ProducerBatchTest.testCompleteExceptionallyWithRecordErrors, testRecordErrorPropagatedToApplication
def test_invalid_records_get_errors_of_their_own() -> None:
    rig = quick_rig(linger_ms=5)
    outcomes: list[tuple[int, Any]] = []
    futures = [rig.send(callback=lambda _, error, n=n: outcomes.append((n, error))) for n in range(5)]
    rig.linger_over()
    refuse(
        rig, only_request(rig), Answer(INVALID_RECORD, -1, message="the batch", record_errors=[(0, "zero"), (3, None)])
    )
    errors = [future.exception(0) for future in futures]
    assert [(type(errors[n]), str(errors[n])) for n in (0, 3)] == [
        (InvalidRecordError, "zero"),
        (InvalidRecordError, "the batch"),
    ]
    for n in (1, 2, 4):
        assert type(errors[n]) is RefusedWithOthersError
        assert str(errors[n]) == "the broker refused 2 other record(s) of this record's batch: the batch"
    assert outcomes == list(enumerate(errors))
    for future, error in zip(futures, errors, strict=True):
        with pytest.raises(KafkaError) as raised:
            future.result(0)
        assert raised.value is error
    assert rig.sender.record_errors == 5
    assert_whole(rig.pool)


def test_single_invalid_record_gets_the_batchs_kind_of_error() -> None:
    rig = quick_rig(linger_ms=5)
    futures = [rig.send() for _ in range(2)]
    rig.linger_over()
    refuse(rig, only_request(rig), Answer(INVALID_TIMESTAMP, -1, record_errors=[(1, "too old")]))
    error = futures[1].exception(0)
    assert (type(error), str(error)) == (InvalidTimestampError, "too old")
    assert type(futures[0].exception(0)) is RefusedWithOthersError


# Kafka: ProducerBatchTest.testCompleteExceptionallyWithNullRecordErrors
@pytest.mark.parametrize("code", [29, INVALID_RECORD])
def test_records_without_errors_of_their_own_share_the_batchs_error(code: int) -> None:
    rig = quick_rig(linger_ms=5)
    futures = [rig.send() for _ in range(3)]
    rig.linger_over()
    refuse(rig, only_request(rig), Answer(code, -1))
    errors = {future.exception(0) for future in futures}
    assert len(errors) == 1
    assert isinstance(errors.pop(), TopicAuthorizationError if code == 29 else InvalidRecordError)


def test_record_errors_of_a_part_count_from_its_first_record() -> None:
    rig = quick_rig(linger_ms=5, delivery_timeout_ms=60_000)
    futures = [rig.send(b"%d" % n) for n in range(4)]
    rig.linger_over()
    refuse(rig, only_request(rig), Answer(10, -1))  # too large: goes again in halves
    rig.client.answer(only_request(rig))
    rig.turn()
    refuse(rig, only_request(rig), Answer(INVALID_RECORD, -1, record_errors=[(1, "the last")]))
    assert [future.exception(0) and str(future.exception(0))[:8] for future in futures] == [
        None,
        None,
        "the brok",
        "the last",
    ]
    assert_whole(rig.pool)
