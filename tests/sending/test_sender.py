"""The Sender, turned by hand against a scripted broker: what it sends where, what it retries, what expires.

This file has the cases of Kafka's SenderTest that concern a producer without idempotence. A comment names each case.
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
from kafkabuf.sending._sender import RecoveryPolicy, UpkeepPolicy
from kafkabuf.sending.recovery import Recovery
from kafkabuf.sending.upkeep import Upkeep
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
def test_record_is_sent_and_gets_its_offset() -> None:
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
def test_request_uses_the_newest_common_version(magic: int, broker: tuple[int, int], version: int) -> None:
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
def test_batch_that_the_broker_does_not_support_fails(magic: int, broker: tuple[int, int], way_out: str) -> None:
    rig = quick_rig(record_magic=magic)
    rig.client.versions[1] = broker
    future = rig.send()
    rig.turn()
    assert not rig.client.sent
    with pytest.raises(UnsupportedVersionError, match=f"no records of magic {magic}: set record.magic {way_out}"):
        future.result(0)
    assert rig.sender.record_errors == 1
    assert_whole(rig.pool)


def test_partitions_of_one_node_share_a_request() -> None:
    rig = quick_rig(leaders=(1, 2, 1, 3))
    for partition in range(4):
        rig.send(b"%d" % partition, partition)
    sent = {request.node_id: request.partitions for request in rig.sent_after_turn()}
    assert sent == {1: [0, 2], 2: [1], 3: [3]}
    rig.ack_all()
    assert_whole(rig.pool)


def test_each_partition_gets_its_part_of_the_response() -> None:
    rig = quick_rig(leaders=(1, 1, 1))
    futures = [rig.send(partition=partition) for partition in range(3)]
    sent = only_request(rig)
    answers = {(TOPIC, p): Answer(base_offset=100 * p) for p in (2, 0, 1)}  # in another order than asked
    rig.client.answer_with(sent, encode_answer(12, sent.correlation_id, answers))
    rig.turn()
    assert [future.result(0).offset for future in futures] == [0, 100, 200]


def test_acks_0_expects_no_response() -> None:
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
def test_acks_1_and_all_expect_a_response(acks: int) -> None:
    rig = quick_rig(acks=acks)
    rig.send()
    assert only_request(rig).request.expects_response


# ---- how long a turn waits -------------------------------------------------------------------------------------------


# Kafka: testNodeNotReady
def test_batch_keeps_its_place_while_its_node_is_not_ready() -> None:
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


def test_idle_sender_sleeps_until_it_is_woken() -> None:
    rig = quick_rig()
    rig.sender.run_once()
    assert rig.client.waits == [float("inf")]


def test_sender_sleeps_until_the_next_linger_retry_or_expiry() -> None:
    rig = quick_rig(linger_ms=20, delivery_timeout_ms=600)
    rig.send()
    rig.sender.run_once()
    assert rig.client.waits[-1] == pytest.approx(0.02)
    rig.linger_over()
    rig.sender.run_once()  # the batch is in flight: its expiry is the next event
    assert rig.client.waits[-1] == pytest.approx(0.58)
    rig.client.answer(rig.client.sent[0], REQUEST_TIMED_OUT)
    rig.turn()
    rig.sender.run_once()
    assert 0.08 <= rig.client.waits[-1] <= 0.12


@pytest.mark.parametrize(
    ("acks", "compression", "ahead"), [(-1, "none", True), (0, "none", False), (-1, "gzip", False)]
)
def test_only_full_batches_are_queued_ahead(acks: int, compression: str, ahead: bool) -> None:
    rig = quick_rig(leaders=(1, 1), max_in_flight_requests_per_connection=2, acks=acks, compression_type=compression)
    rig.client.ahead = 3
    rig.fill(batches=5)  # the last batch is still open
    rig.send(partition=1)  # would go if the in-flight table had room
    sent = rig.sent_after_turn()
    # Full batches are queued behind the in-flight table, if responses can start them and the Sender does not compress.
    assert [request.partitions for request in sent] == ([[0, 1], [0], [0], [0]] if ahead else [[0, 1], [0]])
    rig.send(partition=1)
    assert rig.sent_after_turn() == []
    assert not rig.queue(1).head.closed


def test_sender_sleeps_while_the_in_flight_table_is_full() -> None:
    rig = quick_rig(max_in_flight_requests_per_connection=2)
    rig.fill(batches=4)
    assert len(rig.sent_after_turn()) == 2
    rig.sender.run_once()
    assert len(rig.client.sent) == 2
    assert rig.client.waits[-1] > 0.9  # until expiry, nothing shorter
    rig.ack_all()
    assert [sent.partitions for sent in rig.client.sent] == [[0]] * 4
    assert_whole(rig.pool)


def test_only_the_first_record_of_a_batch_wakes_the_sender() -> None:
    rig = quick_rig(linger_ms=100)
    rig.send()
    woken = rig.client.wakeups
    assert woken > 0
    for _ in range(5):
        rig.send()
    assert rig.client.wakeups == woken


# ---- leaders ---------------------------------------------------------------------------------------------------------


def test_record_of_a_partition_without_leader_waits_for_metadata() -> None:
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
def test_retry_goes_to_the_new_leader() -> None:
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


def test_new_partitions_get_queues_and_old_ones_keep_theirs() -> None:
    rig = quick_rig(leaders=(1,))
    future = rig.send(partition=0)
    queue = rig.queue(0)
    rig.lead(1, 2, 3)
    assert [queue.leader for queue in rig.topic.queues] == [1, 2, 3]
    assert rig.queue(0) is queue
    rig.send(partition=2)
    rig.ack_all()
    assert future.done()


# Kafka: testMetadataTopicExpiry
def test_metadata_keeps_a_topic_in_use_and_forgets_an_unused_topic() -> None:
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
def test_retriable_error_is_retried_after_a_back_off(code: int) -> None:
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
def test_record_is_sent_once_more_than_retries(retries: int) -> None:
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
def test_final_error_is_not_retried(code: int) -> None:
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
def test_error_has_the_brokers_message() -> None:
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


def test_error_of_one_partition_leaves_the_others_alone() -> None:
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


def test_batch_that_the_response_leaves_out_is_retried_and_then_fails() -> None:
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
def test_batch_is_retried_after_a_garbage_response(response: bytes) -> None:
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


def test_batches_of_a_lost_connection_are_retried_in_order() -> None:
    rig = quick_rig(delivery_timeout_ms=10_000)
    futures = [rig.send(b"%d" % n + b"x" * (SLAB - 200)) for n in range(4)]
    sent = rig.sent_after_turn()
    assert len(sent) == 4
    for request in sent:
        rig.client.fail(request, NetworkError("broker 1 went away"))
    rig.turn()
    assert list(rig.queue().batches) == [future.batch for future in futures]
    assert rig.update_wanted
    rig.clock.advance(0.2)
    rig.ack_all()
    assert [request.values()[0][:1] for request in rig.client.sent[4:]] == [b"0", b"1", b"2", b"3"]  # type: ignore[index]
    assert_whole(rig.pool)


# ---- order -----------------------------------------------------------------------------------------------------------


# Kafka: testSendInOrder
def test_one_request_in_flight_at_a_time_keeps_the_order() -> None:
    rig = quick_rig(leaders=(1,), max_in_flight_requests_per_connection=1, delivery_timeout_ms=10_000)
    first, second = rig.fill(batches=2)
    sent = only_request(rig)
    assert rig.queue().muted
    # The leader moves while the first batch is in flight: the new leader must not get the second before the first ends.
    rig.lead(2)
    assert rig.sent_after_turn() == []
    rig.client.answer(sent, NOT_LEADER)
    rig.turn()
    assert not rig.queue().muted
    again = only_request(rig)  # at once, because another node leads
    assert (again.node_id, again.produced.records) == (2, sent.produced.records)
    rig.client.answer(again)
    rig.turn()
    assert (first.done(), second.done()) == (True, False)
    rig.ack_all()
    assert second.done()
    assert_whole(rig.pool)


@pytest.mark.parametrize("refusal", [NOT_LEADER, UNKNOWN_TOPIC])
def test_batches_keep_their_order_when_a_new_leader_refuses_the_first(refusal: int) -> None:
    rig = quick_rig(leaders=(1,), max_in_flight_requests_per_connection=5, delivery_timeout_ms=10_000)
    rig.lead(2)  # node 2 has not taken a batch yet
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


def test_no_batch_overtakes_a_batch_that_was_refused_while_others_were_in_flight() -> None:
    rig = quick_rig(leaders=(1,), delivery_timeout_ms=10_000, enable_idempotence=False)
    futures = rig.fill(batches=3)
    sent = rig.sent_after_turn()
    assert len(sent) == 3
    rig.client.answer(sent[0], NOT_LEADER)
    rig.turn()
    rig.clock.advance(0.2)
    assert rig.sent_after_turn() == []  # two are in flight: their responses decide which batch goes next
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


def test_partition_of_a_proven_leader_is_not_muted() -> None:
    rig = quick_rig(max_in_flight_requests_per_connection=5)
    rig.fill(batches=3)
    assert len(rig.sent_after_turn()) == 3
    assert not rig.queue().muted


# Kafka: testWhenFirstBatchExpireNoSendSecondBatchIfGuaranteeOrder
def test_second_batch_waits_while_the_expired_first_may_still_arrive() -> None:
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


def test_partition_goes_on_after_a_batch_that_could_not_be_sent() -> None:
    rig = quick_rig(max_in_flight_requests_per_connection=1)
    rig.client.versions[1] = (0, 2)
    rig.send()
    rig.turn()
    rig.client.versions.clear()
    future = rig.send()
    rig.client.answer(only_request(rig))
    rig.turn()
    assert future.result(0)


# ---- the policies of a turn ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "contract"), [(Recovery, RecoveryPolicy), (Upkeep, UpkeepPolicy)])
def test_policy_defines_every_method_that_the_turn_calls(policy: type, contract: type) -> None:
    called = {name for name, value in vars(contract).items() if callable(value) and not name.startswith("__")}
    assert called
    assert called <= vars(policy).keys()
