"""The Sender, turned by hand against a scripted broker: what is sent where, what is sent again, what expires.

The cases of Kafka's SenderTest that concern a producer without idempotence are here in our own words; a comment names
the case.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkabuf.errors import (
    ClusterAuthorizationError,
    CorruptMessageError,
    InvalidRecordError,
    KafkaError,
    NetworkError,
    RecordTooLargeError,
    TimeoutError,
    UnknownServerError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
from rigs.fake_client import Answer, encode_answer, read_records
from rigs.producer import SLAB, TOPIC, assert_whole, only_request, quick_rig

REQUEST_TIMED_OUT = 7
UNKNOWN_TOPIC = 3
NOT_LEADER = 6
RETRIABLE = [2, 3, 5, 6, 7, 19, 20, 56]
FATAL = {
    10: RecordTooLargeError,
    31: ClusterAuthorizationError,
    43: UnsupportedForMessageFormatError,
    87: InvalidRecordError,
}


# ---- the way there and back ------------------------------------------------------------------------------------------


# Kafka: SenderTest.testSimple
def test_record_is_not_sent_or_its_offset_is_lost() -> None:
    rig = quick_rig(client_id="me", acks=1)
    future = rig.send(b"value", key=b"key", headers=[("h", b"1"), ("n", None)], timestamp_ms=77)
    sent = only_request(rig)
    assert (sent.node_id, sent.produced.client_id, sent.produced.acks, sent.produced.timeout_ms) == (1, "me", 1, 500)
    assert sent.produced.version == 12
    (record,) = read_records(sent.produced.records[TOPIC, 0])
    assert (record.key, record.value, record.timestamp) == (b"key", b"value", 77)
    assert record.headers == [("h", b"1"), ("n", None)]
    assert not future.done()
    rig.client.answer(sent, base_offset=42)
    rig.turn()
    assert future.result(0).offset == 42
    assert rig.sent_after_turn() == []
    assert not rig.client.under_way
    assert_whole(rig.pool)


@pytest.mark.parametrize(
    ("magic", "broker", "version"), [(1, (0, 12), 2), (1, (2, 2), 2), (2, (0, 3), 3), (2, (0, 9), 9)]
)
def test_version_is_not_one_that_both_sides_speak(magic: int, broker: tuple[int, int], version: int) -> None:
    rig = quick_rig(record_magic=magic)
    rig.client.versions[1] = broker
    future = rig.send(b"value", key=b"k", timestamp_ms=5)
    sent = only_request(rig)
    assert sent.produced.version == version
    assert sent.produced.records[TOPIC, 0][16] == magic
    assert [record.value for record in read_records(sent.produced.records[TOPIC, 0])] == [b"value"]
    rig.client.answer(sent)
    rig.turn()
    assert future.result(0).offset == 0
    assert_whole(rig.pool)


# Kafka: testUnsupportedVersionInProduceRequest
@pytest.mark.parametrize(("magic", "broker", "way_out"), [(1, (3, 12), "to 2"), (2, (0, 2), "to 1")])
def test_batch_the_broker_cannot_take_is_retried_for_ever(magic: int, broker: tuple[int, int], way_out: str) -> None:
    rig = quick_rig(record_magic=magic)
    rig.client.versions[1] = broker
    future = rig.send()
    rig.turn()
    assert not rig.client.sent
    with pytest.raises(UnsupportedVersionError, match=f"no records of magic {magic}: set record.magic {way_out}"):
        future.result(0)
    assert rig.sender.record_errors == 1
    assert_whole(rig.pool)


def test_partitions_of_one_node_go_in_several_requests() -> None:
    rig = quick_rig(leaders=(1, 2, 1, 3))
    for partition in range(4):
        rig.send(b"%d" % partition, partition)
    sent = {one.node_id: one.partitions for one in rig.sent_after_turn()}
    assert sent == {1: [0, 2], 2: [1], 3: [3]}
    rig.ack_all()
    assert_whole(rig.pool)


def test_answers_are_given_to_the_wrong_partition() -> None:
    rig = quick_rig(leaders=(1, 1, 1))
    futures = [rig.send(partition=partition) for partition in range(3)]
    sent = only_request(rig)
    answers = {(TOPIC, p): Answer(base_offset=100 * p) for p in (2, 0, 1)}  # in another order than asked
    rig.client.answer_with(sent, encode_answer(12, sent.correlation_id, answers))
    rig.turn()
    assert [future.result(0).offset for future in futures] == [0, 100, 200]


def test_acks_0_waits_for_an_answer() -> None:
    rig = quick_rig(acks=0)
    future = rig.send()
    sent = only_request(rig)
    assert (sent.produced.acks, sent.request.expects_response) == (0, False)
    assert not future.done()
    rig.client.answer_with(sent, None)
    rig.turn()
    assert future.result(0).offset == -1
    assert_whole(rig.pool)


@pytest.mark.parametrize("acks", [1, -1])
def test_acknowledged_record_does_not_wait_for_its_answer(acks: int) -> None:
    rig = quick_rig(acks=acks)
    rig.send()
    assert only_request(rig).request.expects_response


# ---- how long a turn waits -------------------------------------------------------------------------------------------


# Kafka: testNodeNotReady
def test_node_that_is_not_ready_costs_a_batch_its_place() -> None:
    rig = quick_rig(leaders=(1, 2))
    rig.client.unready.add(1)
    rig.client.delay = 0.05
    futures = [rig.send(partition=0), rig.send(partition=1)]
    sent = only_request(rig)
    assert sent.node_id == 2
    rig.sender.run_once()
    assert rig.client.waits[-1] == pytest.approx(0.05)  # the connection's back-off
    assert rig.queue(0).head is futures[0].batch
    rig.client.unready.clear()
    assert only_request(rig).node_id == 1
    rig.ack_all()
    assert_whole(rig.pool)


def test_idle_sender_wakes_up_for_nothing() -> None:
    rig = quick_rig()
    rig.sender.run_once()
    assert rig.client.waits == [float("inf")]


def test_sender_sleeps_past_linger_retry_or_expiry() -> None:
    rig = quick_rig(linger_ms=20, delivery_timeout_ms=600)
    rig.send()
    rig.sender.run_once()
    assert rig.client.waits[-1] == pytest.approx(0.02)
    rig.linger_over()
    rig.sender.run_once()  # in flight: only its expiry is left to come
    assert rig.client.waits[-1] == pytest.approx(0.58)
    rig.client.answer(rig.client.sent[0], REQUEST_TIMED_OUT)
    rig.turn()
    rig.sender.run_once()
    assert 0.08 <= rig.client.waits[-1] <= 0.12


@pytest.mark.parametrize(
    ("acks", "compression", "ahead"), [(-1, "none", True), (0, "none", False), (-1, "gzip", False)]
)
def test_half_full_batch_goes_ahead_of_its_time(acks: int, compression: str, ahead: bool) -> None:
    rig = quick_rig(leaders=(1, 1), max_in_flight_requests_per_connection=2, acks=acks, compression_type=compression)
    rig.client.ahead = 3
    rig.fill(batches=5)  # the last may yet take another record
    rig.send(partition=1)  # would go, were there room in flight
    sent = rig.sent_after_turn()
    # Full ones queue up behind the in-flight table, where answers start them and the Sender need not compress.
    assert [request.partitions for request in sent] == ([[0, 1], [0], [0], [0]] if ahead else [[0, 1], [0]])
    rig.send(partition=1)
    assert rig.sent_after_turn() == []
    assert not rig.queue(1).head.closed


def test_full_in_flight_table_makes_the_sender_spin() -> None:
    rig = quick_rig(max_in_flight_requests_per_connection=2)
    rig.fill(batches=4)
    assert len(rig.sent_after_turn()) == 2
    rig.sender.run_once()
    assert len(rig.client.sent) == 2
    assert rig.client.waits[-1] > 0.9  # until expiry, nothing shorter
    rig.ack_all()
    assert [sent.partitions for sent in rig.client.sent] == [[0]] * 4
    assert_whole(rig.pool)


def test_first_record_of_a_batch_does_not_wake_the_sender_or_each_does() -> None:
    rig = quick_rig(linger_ms=100)
    rig.send()
    woken = rig.client.wakeups
    assert woken > 0
    for _ in range(5):
        rig.send()
    assert rig.client.wakeups == woken


# ---- leaders ---------------------------------------------------------------------------------------------------------


def test_leaderless_partition_is_never_asked_about_or_loses_records() -> None:
    rig = quick_rig(leaders=(-1,))
    future = rig.send()
    rig.lead(-1)
    assert rig.sent_after_turn() == []
    assert rig.update_wanted
    rig.lead(2)
    sent = only_request(rig)
    assert sent.node_id == 2
    rig.client.answer(sent)
    rig.turn()
    assert future.result(0)
    assert_whole(rig.pool)


# Kafka: testWhenProduceResponseReturnsWithALeaderShipChangeErrorButNoNewLeaderInformation
def test_batch_goes_back_to_a_node_that_leads_no_more() -> None:
    rig = quick_rig(leaders=(1,), retry_backoff_ms=50)
    future = rig.send()
    sent = only_request(rig)
    rig.lead(1)
    assert not rig.update_wanted
    rig.client.answer(sent, NOT_LEADER)
    rig.turn()
    assert rig.update_wanted
    rig.lead(3)
    rig.clock.advance(0.1)
    again = only_request(rig)
    assert again.node_id == 3
    assert again.values() == [b"v"]
    rig.client.answer(again, base_offset=9)
    rig.turn()
    assert future.result(0).offset == 9
    assert_whole(rig.pool)


def test_new_partitions_get_no_queue_or_old_ones_a_new_one() -> None:
    rig = quick_rig(leaders=(1,))
    future = rig.send(partition=0)
    queue = rig.queue(0)
    rig.lead(1, 2, 3)
    assert [one.leader for one in rig.topic.queues] == [1, 2, 3]
    assert rig.queue(0) is queue
    rig.send(partition=2)
    rig.ack_all()
    assert future.done()


# Kafka: testMetadataTopicExpiry
def test_topic_in_use_is_forgotten_or_an_unused_one_kept() -> None:
    rig = quick_rig(metadata_max_idle_ms=5_000, linger_ms=0, delivery_timeout_ms=120_000)
    for _ in range(3):
        rig.send()
        rig.ack_all()
        rig.clock.advance(4)
        assert rig.metadata.begin_update(rig.clock.monotonic()) == (TOPIC,)
    rig.clock.advance(5)
    assert rig.metadata.begin_update(rig.clock.monotonic()) == ()


# ---- retries ---------------------------------------------------------------------------------------------------------


# Kafka: testRetries, testCanRetryWithoutIdempotence, testSenderShouldRetryWithBackoffOnRetriableError
@pytest.mark.parametrize("code", RETRIABLE)
def test_passing_error_fails_the_record_or_is_retried_at_once(code: int) -> None:
    rig = quick_rig(delivery_timeout_ms=10_000)
    called: list[Any] = []
    future = rig.send(callback=lambda *arguments: called.append(arguments))
    first = only_request(rig)
    rig.client.answer(first, code)
    assert rig.sent_after_turn() == []
    assert rig.sent_after_turn() == []  # backs off
    assert (future.done(), called, future.batch.attempts) == (False, [], 1)
    assert rig.bytes_in("closed") == SLAB
    rig.clock.advance(0.2)
    again = only_request(rig)
    assert again.produced.records == first.produced.records
    assert again.correlation_id != first.correlation_id
    rig.client.answer(again, base_offset=3)
    rig.turn()
    assert future.result(0).offset == 3
    assert len(called) == 1
    assert (rig.sender.record_retries, rig.sender.record_errors) == (1, 0)
    assert_whole(rig.pool)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_record_is_sent_more_or_less_often_than_retries_allows(retries: int) -> None:
    rig = quick_rig(retries=retries, delivery_timeout_ms=60_000)
    future = rig.send()
    for _ in range(retries + 1):
        rig.clock.advance(2)
        assert not future.done()
        rig.client.answer(only_request(rig), REQUEST_TIMED_OUT)
        rig.turn()
    with pytest.raises(KafkaError) as raised:
        future.result(0)
    assert raised.value.code == REQUEST_TIMED_OUT
    rig.clock.advance(2)
    assert rig.sent_after_turn() == []
    assert rig.sender.record_errors == 1
    assert_whole(rig.pool)


# Kafka: testClusterAuthorizationExceptionInProduceRequest, testUnsupportedForMessageFormatInProduceRequest
@pytest.mark.parametrize("code", [*FATAL, -1, 9_999])
def test_lasting_error_is_retried(code: int) -> None:
    rig = quick_rig()
    future = rig.send()
    rig.client.answer(only_request(rig), code)
    rig.turn()
    with pytest.raises(FATAL.get(code, UnknownServerError)):
        future.result(0)
    rig.clock.advance(0.5)
    assert rig.sent_after_turn() == []
    assert_whole(rig.pool)


# Kafka: test{Default,Custom}ErrorMessage
def test_brokers_words_are_lost() -> None:
    rig = quick_rig()
    future = rig.send()
    rig.client.answer(only_request(rig), 87, message="field 'x' is missing")
    rig.turn()
    with pytest.raises(InvalidRecordError, match=r"^field 'x' is missing$"):
        future.result(0)
    future = rig.send()
    rig.client.answer(only_request(rig), 87)
    rig.turn()
    with pytest.raises(InvalidRecordError, match=r"InvalidRecord \(error code 87\)"):
        future.result(0)


def test_one_partitions_error_fails_its_neighbours() -> None:
    rig = quick_rig(leaders=(1, 1, 1, 1))
    futures = [rig.send(partition=partition) for partition in range(4)]
    rig.client.answer(only_request(rig), 0, 10, REQUEST_TIMED_OUT, 0, base_offset=5)
    rig.turn()
    assert [future.done() for future in futures] == [True, True, False, True]
    assert isinstance(futures[1].exception(0), RecordTooLargeError)
    rig.clock.advance(0.2)
    again = only_request(rig)
    assert again.partitions == [2]
    rig.client.answer(again)
    rig.turn()
    assert_whole(rig.pool)


def test_answer_that_leaves_a_partition_out_loses_its_batch() -> None:
    rig = quick_rig(leaders=(1, 1), retries=1)
    futures = [rig.send(partition=0), rig.send(partition=1)]
    for _ in range(2):
        rig.clock.advance(0.2)
        sent = only_request(rig)
        rig.client.answer_with(
            sent, encode_answer(12, sent.correlation_id, {(TOPIC, 0): Answer(), ("other", 1): Answer()})
        )
        rig.turn()
    assert futures[0].done()
    with pytest.raises(CorruptMessageError, match="leaves out orders-1"):
        futures[1].result(0)
    assert_whole(rig.pool)


@pytest.mark.parametrize("response", [b"", b"\0" * 4, b"\xff" * 40, b"\0\0\0\1\0\xff\xff\xff\xff\x7f"])
def test_garbage_for_an_answer_loses_the_batch_or_the_sender(response: bytes) -> None:
    rig = quick_rig(retries=1)
    future = rig.send()
    rig.client.answer_with(only_request(rig), response)
    rig.turn()
    assert not future.done()
    rig.clock.advance(0.2)
    rig.client.answer(only_request(rig))
    rig.turn()
    assert future.result(0).offset == 0
    assert_whole(rig.pool)


def test_lost_connection_loses_batches_or_their_order() -> None:
    rig = quick_rig(delivery_timeout_ms=10_000)
    futures = [rig.send(b"%d" % n + b"x" * (SLAB - 200)) for n in range(4)]
    sent = rig.sent_after_turn()
    assert len(sent) == 4
    for one in sent:
        rig.client.fail(one, NetworkError("broker 1 went away"))
    rig.turn()
    assert list(rig.queue().batches) == [future.batch for future in futures]
    assert rig.update_wanted
    rig.clock.advance(0.2)
    rig.ack_all()
    assert [one.values()[0][:1] for one in rig.client.sent[4:]] == [b"0", b"1", b"2", b"3"]  # type: ignore[index]
    assert_whole(rig.pool)


# ---- order -----------------------------------------------------------------------------------------------------------


# Kafka: testSendInOrder
def test_second_batch_overtakes_the_first_where_order_was_asked_for() -> None:
    rig = quick_rig(leaders=(1,), max_in_flight_requests_per_connection=1, delivery_timeout_ms=10_000)
    first, second = rig.fill(batches=2)
    sent = only_request(rig)
    assert rig.queue().muted
    # The leader moves while the first is in flight: the new one must not get the second before the first is known.
    rig.lead(2)
    assert rig.sent_after_turn() == []
    rig.client.answer(sent, NOT_LEADER)
    rig.turn()
    assert not rig.queue().muted
    again = only_request(rig)  # at once: another one leads
    assert (again.node_id, again.produced.records) == (2, sent.produced.records)
    rig.client.answer(again)
    rig.turn()
    assert (first.done(), second.done()) == (True, False)
    rig.ack_all()
    assert second.done()
    assert_whole(rig.pool)


@pytest.mark.parametrize("refusal", [NOT_LEADER, UNKNOWN_TOPIC])
def test_batches_change_places_when_a_new_leader_refuses_the_first(refusal: int) -> None:
    rig = quick_rig(leaders=(1,), max_in_flight_requests_per_connection=5, delivery_timeout_ms=10_000)
    rig.lead(2)  # has yet to take anything
    first, second = rig.fill(batches=2)
    sent = only_request(rig)
    rig.client.answer(sent, refusal)
    rig.turn()
    rig.clock.advance(0.2)
    again = only_request(rig)
    assert again.produced.records == sent.produced.records
    rig.client.answer(again)
    rig.turn()
    assert (first.done(), second.done()) == (True, False)
    rig.ack_all()
    assert second.done()
    assert_whole(rig.pool)


def test_batches_overtake_one_that_was_refused_while_others_were_in_flight() -> None:
    rig = quick_rig(leaders=(1,), delivery_timeout_ms=10_000, enable_idempotence=False)
    futures = rig.fill(batches=3)
    sent = rig.sent_after_turn()
    assert len(sent) == 3
    rig.client.answer(sent[0], NOT_LEADER)
    rig.turn()
    rig.clock.advance(0.2)
    assert rig.sent_after_turn() == []  # two are still out: whether they were taken decides what goes next
    rig.client.answer(sent[1], NOT_LEADER)
    rig.client.answer(sent[2], NOT_LEADER)
    rig.turn()
    rig.clock.advance(0.2)
    again = only_request(rig)
    assert again.produced.records == sent[0].produced.records
    rig.client.answer(again)
    rig.turn()
    rig.ack_all()
    assert [future.done() for future in futures] == [True] * 3
    assert_whole(rig.pool)


def test_partitions_are_muted_without_need() -> None:
    rig = quick_rig(max_in_flight_requests_per_connection=5)
    rig.fill(batches=3)
    assert len(rig.sent_after_turn()) == 3
    assert not rig.queue().muted


# Kafka: testWhenFirstBatchExpireNoSendSecondBatchIfGuaranteeOrder
def test_second_batch_is_sent_while_the_expired_first_may_still_arrive() -> None:
    rig = quick_rig(max_in_flight_requests_per_connection=1)
    first = rig.send(b"first")
    sent = only_request(rig)
    rig.clock.advance(0.6)
    second = rig.send(b"second")
    rig.clock.advance(0.4)
    assert rig.sent_after_turn() == []
    assert isinstance(first.exception(0), TimeoutError)
    assert rig.sent_after_turn() == []
    assert not second.done()
    rig.client.answer(sent)
    rig.turn()
    rig.client.answer(only_request(rig))
    rig.turn()
    assert second.result(0)
    assert_whole(rig.pool)


def test_batch_that_cannot_be_sent_mutes_its_partition_for_ever() -> None:
    rig = quick_rig(max_in_flight_requests_per_connection=1)
    rig.client.versions[1] = (0, 2)
    rig.send()
    rig.turn()
    rig.client.versions.clear()
    future = rig.send()
    rig.client.answer(only_request(rig))
    rig.turn()
    assert future.result(0)
