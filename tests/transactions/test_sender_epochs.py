"""Producer ids, epochs and retries under them: the Sender turned by hand against a scripted broker.

This file has the cases of Kafka's SenderTest on idempotence. A comment names each case. test_idempotence.py tests plain
numbering, and test_idempotence_random.py all rules together.
"""

from __future__ import annotations

import pytest

from kafkabuf.errors import ClosedError, ClusterAuthorizationError, RecordTooLargeError, TimeoutError
from rigs.fake_client import Sent
from rigs.producer import PRODUCER_ID, assert_whole, only_request
from tests.transactions.idempotence_support import (
    DUPLICATE,
    NOT_LEADER,
    OUT_OF_ORDER,
    UNKNOWN_PRODUCER,
    IdempotentRig,
    accept,
    idempotent,
    numbers,
    refuse,
    send_each,
)

REQUEST_TIMED_OUT, TOO_LARGE, LEADER_NOT_AVAILABLE, UNAUTHORIZED = 7, 10, 5, 31
LAST_EPOCH = 2**15 - 1


def without_id(**settings: object) -> IdempotentRig:
    """A Rig without a producer id. The test gives it one."""
    rig = idempotent(**settings)
    rig.state.set_producer_id_and_epoch(-1, -1)
    rig.client.gives_ids = False
    return rig


def at_last_epoch(**settings: object) -> IdempotentRig:
    rig = idempotent(**settings)
    rig.state.set_producer_id_and_epoch(PRODUCER_ID, LAST_EPOCH)
    for queue in rig.topic.queues:
        rig.state.start_sequences_at_beginning(queue)
        queue.proven = True
    return rig


def sent_alone(rig: IdempotentRig, partition: int = 0) -> Sent:
    """Send a record. Returns its request."""
    rig.send(partition=partition)
    return only_request(rig)


# ---- getting an id ---------------------------------------------------------------------------------------------------


# Kafka: testInitProducerIdRequest
def test_batch_waits_for_a_producer_id() -> None:
    rig = without_id()
    future = rig.send()
    assert rig.sent_after_turn() == []
    assert len(rig.client.asked) == 1
    rig.client.give_id(343434)
    assert (rig.state.producer_id, rig.state.producer_epoch) != (343434, 0)
    rig.turn()
    assert (rig.state.producer_id, rig.state.producer_epoch) == (343434, 0)
    rig.ack_all()
    assert numbers(rig.client.sent[0]) == (343434, 0, 0)
    assert future.result(0)
    assert len(rig.client.asked) == 1


# Kafka: testIdempotentInitProducerIdWithMaxInFlightOne
def test_producer_id_is_requested_once_a_node_is_ready() -> None:
    rig = without_id(max_in_flight_requests_per_connection=1)
    rig.client.id_node = None
    future = rig.send()
    assert rig.sent_after_turn() == []
    assert rig.client.asked == []
    rig.client.id_node = 1
    rig.clock.advance(0.2)
    rig.turn()
    rig.client.give_id(5)
    rig.ack_all()
    assert future.result(0)
    assert_whole(rig.pool)


# Kafka: testClusterAuthorizationExceptionInInitProducerIdRequest
def test_records_go_once_the_missing_right_is_given() -> None:
    rig = without_id()
    refused = rig.send()
    rig.turn()
    rig.client.give_id(error_code=UNAUTHORIZED)
    rig.turn()
    with pytest.raises(ClusterAuthorizationError):
        refused.result(0)
    rig.clock.advance(1)
    granted = rig.send()
    rig.turn()
    rig.client.give_id(343434)
    rig.ack_all()
    assert granted.result(0)
    assert numbers(rig.client.sent[0]) == (343434, 0, 0)
    assert_whole(rig.pool)


# Kafka: testCancelInFlightRequestAfterFatalError
def test_fatal_error_fails_the_other_requests() -> None:
    rig = idempotent(leaders=(1, 1))
    futures = [rig.send(partition=0)]
    first = only_request(rig)
    futures.append(rig.send(partition=1))
    second = only_request(rig)
    refuse(rig, first, UNAUTHORIZED)
    rig.turn()
    for future in futures:
        assert isinstance(future.exception(0), ClusterAuthorizationError)
    accept(rig, second)  # a late response
    assert isinstance(futures[1].exception(0), ClusterAuthorizationError)
    assert_whole(rig.pool)


# Kafka: testFailIfNotReadyForSendIdempotentProducer{,FatalError}
def test_record_after_a_fatal_error_fails_at_once() -> None:
    rig = without_id()
    early = rig.send()  # send() needs no producer id
    rig.turn()
    rig.client.give_id(5)
    rig.ack_all()
    assert early.result(0)
    refused = rig.send()
    refuse(rig, only_request(rig), UNAUTHORIZED)
    late = rig.send()
    rig.turn()
    assert isinstance(refused.exception(0), ClusterAuthorizationError)
    assert isinstance(late.exception(0), ClusterAuthorizationError)
    assert len(rig.client.sent) == 2
    assert_whole(rig.pool)


# ---- several in flight -----------------------------------------------------------------------------------------------


# Kafka: testIdempotenceWithMultipleInflightsRetriedInOrder
def test_repeated_batches_go_one_at_a_time_in_order() -> None:
    rig = idempotent()
    futures = send_each(rig, 3)
    first, second, third = rig.client.sent
    refuse(rig, first, LEADER_NOT_AVAILABLE)
    futures += send_each(rig, 1)
    again = rig.client.under_way[-1]
    assert again.produced.records == first.produced.records
    for behind in (second, third):
        refuse(rig, behind, OUT_OF_ORDER)
    assert list(rig.client.under_way) == [again], "one batch at a time until the broker acknowledges it"
    assert rig.queue().last_acked == -1
    accept(rig, again)
    for offset, before in enumerate((second, third), 1):
        again = only_request(rig) if not rig.client.under_way else rig.client.under_way[0]
        assert again.produced.records == before.produced.records
        assert rig.queue().last_acked == offset - 1
        accept(rig, again, base_offset=offset)
    rig.ack_all()
    assert [numbers(sent)[1:] for sent in rig.client.sent] == [(0, n) for n in (0, 1, 2, 0, 1, 2, 3)]
    assert [future.result(0).offset for future in futures[:3]] == [0, 1, 2]
    assert futures[3].done()
    assert_whole(rig.pool)


# Kafka: testIdempotenceWithMultipleInflightsWhereFirstFailsFatallyAndSequenceOfFutureBatchesIsAdjusted
def test_batch_behind_a_failed_batch_gets_a_new_number() -> None:
    rig = idempotent()
    futures = send_each(rig, 2)
    first, second = rig.client.sent
    refuse(rig, first, TOO_LARGE)
    assert isinstance(futures[0].exception(0), RecordTooLargeError)
    refuse(rig, second, OUT_OF_ORDER)
    rig.turn()
    (again,) = rig.client.under_way
    assert numbers(again) == (PRODUCER_ID, 1, 0)
    accept(rig, again)
    assert futures[1].result(0).offset == 0
    assert rig.queue().last_acked == 0
    assert_whole(rig.pool)


# Kafka: testCorrectHandlingOfOutOfOrderResponses
def test_responses_out_of_order_keep_the_order_of_batches() -> None:
    rig = idempotent()
    futures = send_each(rig, 2)
    first, second = rig.client.sent
    rig.client.answer(second, OUT_OF_ORDER)
    rig.turn()
    rig.client.answer(first, NOT_LEADER)
    rig.turn()
    assert [batch.base_sequence for batch in rig.queue().batches] == [0, 1]
    assert rig.queue().last_acked == -1
    rig.clock.advance(0.2)
    again = only_request(rig)
    assert rig.sent_after_turn() == []
    accept(rig, again)
    assert (rig.queue().last_acked, futures[0].result(0).offset) == (0, 0)
    (later,) = rig.client.under_way or rig.sent_after_turn()
    accept(rig, later, base_offset=1)
    assert [numbers(sent)[2] for sent in rig.client.sent] == [0, 1, 0, 1]
    assert (rig.queue().last_acked, futures[1].result(0).offset) == (1, 1)
    assert rig.state.producer_epoch == 0
    assert_whole(rig.pool)


# Kafka: testCorrectHandlingOfOutOfOrderResponsesWhenSecondSucceeds
def test_late_first_batch_does_not_set_back_the_last_acknowledged_number() -> None:
    rig = idempotent()
    futures = send_each(rig, 2)
    first, second = rig.client.sent
    accept(rig, second, base_offset=1)
    assert (futures[1].result(0).offset, futures[0].done(), rig.queue().last_acked) == (1, False, 1)
    refuse(rig, first, REQUEST_TIMED_OUT)
    rig.turn()
    (again,) = rig.client.under_way
    assert numbers(again) == (PRODUCER_ID, 0, 0)
    accept(rig, again)
    assert (futures[0].result(0).offset, rig.queue().last_acked) == (0, 1)
    assert_whole(rig.pool)


# Kafka: testCorrectHandlingOfDuplicateSequenceError
def test_duplicate_succeeds_without_an_offset() -> None:
    rig = idempotent()
    futures = send_each(rig, 2)
    first, second = rig.client.sent
    accept(rig, second, base_offset=1000)
    refuse(rig, first, DUPLICATE)
    assert [future.result(0).offset for future in futures] == [-1, 1000]
    assert rig.queue().last_acked == 1
    assert not rig.client.under_way
    assert_whole(rig.pool)


# ---- new epochs ------------------------------------------------------------------------------------------------------


# Kafka: testEpochBumpOnOutOfOrderSequenceForNextBatch, testBumpEpochWhenOutOfOrderSequenceReceived
@pytest.mark.parametrize("before", [0, 2])
def test_next_batch_refused_as_out_of_order_goes_under_a_new_epoch(before: int) -> None:
    rig = idempotent()
    if before:
        for _ in range(before):
            rig.send()
        accept(rig, only_request(rig))
    future = rig.send()
    second = only_request(rig)
    assert numbers(second) == (PRODUCER_ID, 0, before)
    refuse(rig, second, OUT_OF_ORDER)
    assert not future.done()
    rig.turn()
    (again,) = rig.client.under_way
    assert numbers(again) == (PRODUCER_ID, 1, 0)
    assert (rig.queue().next_sequence, rig.queue().last_acked) == (1, -1)
    accept(rig, again)
    assert future.done()


# Kafka: testEpochBumpOnOutOfOrderSequenceForNextBatchWhenThereIsNoBatchInFlight
def test_partition_with_nothing_in_flight_takes_the_new_epoch_with_its_next_batch() -> None:
    rig = idempotent(leaders=(1, 1))
    for partition in (0, 1):
        accept(rig, sent_alone(rig, partition))
    refuse(rig, sent_alone(rig, 0), OUT_OF_ORDER)
    rig.turn()
    assert rig.state.producer_epoch == 1
    assert not rig.state.is_stale(rig.queue(0))
    assert rig.state.is_stale(rig.queue(1))
    assert (rig.queue(1).next_sequence, rig.queue(1).last_acked) == (1, 0)
    (again,) = rig.client.under_way
    assert numbers(again, 0) == (PRODUCER_ID, 1, 0)
    accept(rig, again)
    assert rig.queue(0).last_acked == 0
    last = sent_alone(rig, 1)
    assert numbers(last, 1) == (PRODUCER_ID, 1, 0)
    assert not rig.state.is_stale(rig.queue(1))
    accept(rig, last)
    assert rig.queue(1).last_acked == 0
    assert_whole(rig.pool)


# Kafka: testEpochBumpOnOutOfOrderSequenceForNextBatchWhenBatchInFlightFails
def test_partition_keeps_its_epoch_while_a_batch_is_in_flight() -> None:
    rig = idempotent(leaders=(1, 1), retries=1)
    for partition in (0, 1):
        accept(rig, sent_alone(rig, partition))
    zero, one = sent_alone(rig, 0), sent_alone(rig, 1)
    refuse(rig, zero, OUT_OF_ORDER)
    rig.turn()
    assert rig.state.producer_epoch == 1
    assert rig.state.is_stale(rig.queue(1))
    assert rig.queue(1).next_sequence == 2
    refuse(rig, one, NOT_LEADER)
    rig.turn()
    again = {tuple(sent.partitions): sent for sent in rig.client.under_way}
    assert numbers(again[0,], 0) == (PRODUCER_ID, 1, 0)
    assert numbers(again[1,], 1) == (PRODUCER_ID, 0, 1), "the broker may have taken it under these numbers"
    accept(rig, again[0,])
    refuse(rig, again[1,], NOT_LEADER)  # no retry is left
    future = rig.send(partition=1)
    rig.turn()
    (last,) = rig.client.under_way
    assert numbers(last, 1) == (PRODUCER_ID, rig.state.producer_epoch, 0)
    assert not rig.state.is_stale(rig.queue(1))
    accept(rig, last)
    assert future.done()
    rig.send(partition=0)
    rig.ack_all()
    assert_whole(rig.pool)


# Kafka: testBatchesDrainedWithOldProducerIdShouldSucceedOnSubsequentRetry
def test_batch_of_an_older_epoch_keeps_its_numbers_between_its_attempts() -> None:
    rig = idempotent(leaders=(1, 1))
    rig.send(partition=0)
    future = rig.send(partition=1)
    both = only_request(rig)
    refuse(rig, both, OUT_OF_ORDER, NOT_LEADER)
    rig.turn()
    assert rig.state.producer_epoch == 1
    for _ in range(2):
        sent = next(request for request in rig.client.under_way if 1 in request.partitions)
        assert numbers(sent, 1) == (PRODUCER_ID, 0, 0)
        assert not future.done()
        rig.client.answer(sent, *(NOT_LEADER if partition == 1 else 0 for partition in sent.partitions))
        rig.turn()
        rig.clock.advance(0.5)
        rig.turn()
    rig.ack_all()
    assert future.done()
    last = sent_alone(rig, 1)
    assert numbers(last, 1) == (PRODUCER_ID, 1, 0)


# Kafka: testIdempotentSplitBatchAndSend
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_parts_divide_the_numbers_of_their_batch(compression: str) -> None:
    rig = idempotent(compression_type=compression)
    futures = [rig.send(b"x" * 400), rig.send(b"y" * 400)]
    whole = only_request(rig)
    assert numbers(whole) == (PRODUCER_ID, 0, 0)
    refuse(rig, whole, TOO_LARGE)
    rig.turn()
    for offset in range(2):
        assert rig.queue().next_sequence == 2
        (part,) = rig.client.under_way or rig.sent_after_turn()
        assert numbers(part)[2] == offset
        assert not futures[offset].done()
        accept(rig, part, base_offset=offset)
        assert futures[offset].result(0).offset == offset
        assert rig.queue().last_acked == offset
    assert rig.sender.batch_splits == 1
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


# ---- ids used up -----------------------------------------------------------------------------------------------------


# Kafka: testResetOfProducerStateShouldAllowQueuedBatchesToDrain, testRetryWhenProducerIdChanges
def test_batch_goes_under_a_new_id_when_the_id_has_no_epoch_left() -> None:
    rig = at_last_epoch(leaders=(1, 1))
    rig.client.gives_ids = False
    failed, moved = rig.send(partition=0), rig.send(partition=1)
    both = only_request(rig)
    assert numbers(both, 0) == (PRODUCER_ID, LAST_EPOCH, 0)
    refuse(rig, both, OUT_OF_ORDER, NOT_LEADER)
    assert rig.sent_after_turn() == [], "there is no producer id"
    rig.client.give_id(PRODUCER_ID + 1)
    rig.turn()
    rig.turn()
    assert (rig.state.producer_id, rig.state.producer_epoch) == (PRODUCER_ID + 1, 0)
    assert not moved.done()
    rig.ack_all()
    assert failed.done()
    assert moved.done()
    last = sent_alone(rig, 1)
    assert numbers(last, 1)[:2] == (PRODUCER_ID + 1, 0)


# Kafka: testCloseWithProducerIdReset, testForceCloseWithProducerIdReset
@pytest.mark.parametrize("force", [False, True])
def test_close_without_a_producer_id_ends_every_batch(force: bool) -> None:
    rig = at_last_epoch(leaders=(1, 1))
    rig.client.gives_ids = not force
    futures = [rig.send(partition=0), rig.send(partition=1)]
    refuse(rig, only_request(rig), OUT_OF_ORDER, NOT_LEADER)
    rig.accumulator.close()
    rig.sender.close(force=force)
    polls = []

    def poll() -> None:
        polls.append(1)
        assert len(polls) < 100, "hangs"
        rig.clock.advance(0.2)
        rig.ack_under_way()

    rig.client.on_poll = poll
    rig.sender.run()
    assert all(future.done() for future in futures)
    assert [isinstance(future.exception(0), ClosedError) for future in futures] == [force, force]
    assert_whole(rig.pool)


# ---- expiry ----------------------------------------------------------------------------------------------------------


# Kafka: testExpiryOfUnsentBatchesShouldNotCauseUnresolvedSequences
def test_batch_that_was_never_sent_leaves_no_gap() -> None:
    rig = idempotent()
    rig.client.unready.add(1)
    future = rig.send()
    rig.turn()
    rig.clock.advance(10)
    rig.turn()
    assert isinstance(future.exception(0), TimeoutError)
    assert not rig.state.has_unresolved_sequences
    rig.client.unready.clear()
    assert numbers(sent_alone(rig)) == (PRODUCER_ID, 0, 0)


def test_new_batch_waits_while_a_number_may_be_lost() -> None:
    rig = idempotent(delivery_timeout_ms=15_000)
    rig.send()
    rig.turn()
    rig.clock.advance(10)
    rig.send()
    rig.turn()
    first, second = rig.client.sent
    rig.clock.advance(6)
    rig.turn()  # the first batch expires in flight: the broker may have taken it
    rig.send()
    assert rig.sent_after_turn() == []
    accept(rig, second)
    rig.turn()
    (third,) = rig.client.under_way[1:]
    assert numbers(third) == (PRODUCER_ID, 0, 2)
    accept(rig, first)  # a late response to an expired batch
    rig.ack_all()
    assert_whole(rig.pool)


def expired_with_one_behind(code: int) -> tuple[IdempotentRig, Sent]:
    """The first of two batches has expired, and the broker may have it. A third waits. Returns the repeated second."""
    rig = idempotent(delivery_timeout_ms=15_000)
    first = rig.send()
    rig.turn()
    rig.clock.advance(10)
    rig.send()
    rig.turn()
    one, two = rig.client.sent
    rig.client.fail(two, TimeoutError("gone"))
    rig.turn()
    rig.client.answer(one, code)
    rig.client.unready.add(1)
    rig.turn()
    rig.clock.advance(6)
    rig.turn()
    assert isinstance(first.exception(0), TimeoutError)
    assert rig.state.has_unresolved_sequences
    rig.send()
    rig.client.unready.clear()
    again = only_request(rig)
    assert numbers(again) == (PRODUCER_ID, 0, 1)
    assert rig.sent_after_turn() == [], "the third batch waits until the next number is certain"
    return rig, again


# Kafka: testExpiryOfFirstBatchShouldNotCauseUnresolvedSequencesIfFutureBatchesSucceed
def test_numbers_go_on_after_a_lost_number_turned_out_to_be_used() -> None:
    rig, again = expired_with_one_behind(REQUEST_TIMED_OUT)
    rig.client.answer(again, base_offset=1)
    rig.turn()
    rig.turn()
    assert not rig.state.has_unresolved_sequences
    (third,) = rig.client.under_way
    assert numbers(third) == (PRODUCER_ID, 0, 2)
    rig.ack_all()
    assert_whole(rig.pool)


# Kafka: testExpiryOfFirstBatchShouldCauseEpochBumpIfFutureBatchesFail
def test_partition_goes_on_under_a_new_epoch_after_a_gap() -> None:
    rig, again = expired_with_one_behind(NOT_LEADER)
    refuse(rig, again, OUT_OF_ORDER)
    rig.turn()
    assert rig.state.producer_epoch == 1
    assert not rig.state.has_unresolved_sequences
    rig.ack_all()
    assert [numbers(sent)[1:] for sent in rig.client.sent[-2:]] == [(1, 0), (1, 1)]
    assert_whole(rig.pool)


# Kafka: testExpiryOfAllSentBatchesShouldCauseUnresolvedSequences
def test_gap_at_the_end_begins_a_new_epoch() -> None:
    rig = idempotent()
    future = rig.send()
    first = only_request(rig)
    rig.client.answer(first, NOT_LEADER)
    rig.client.unready.add(1)
    rig.turn()
    rig.clock.advance(15)
    rig.turn()
    assert isinstance(future.exception(0), TimeoutError)
    rig.turn()
    assert (rig.state.producer_epoch, rig.state.has_unresolved_sequences) == (1, False)
    rig.client.unready.clear()
    assert numbers(sent_alone(rig)) == (PRODUCER_ID, 1, 0)


# ---- brokers that forget ---------------------------------------------------------------------------------------------


# Kafka: testIdempotentUnknownProducerHandlingWhenRetentionLimitReached,
# testShouldRaiseOutOfOrderSequenceExceptionToUserIfLogWasNotTruncated
@pytest.mark.parametrize("log_start_offset", [1010, 10])
def test_broker_that_forgot_the_producer_gets_a_new_epoch(log_start_offset: int) -> None:
    rig = idempotent()
    first = rig.send()
    accept(rig, only_request(rig), base_offset=1000, log_start_offset=10)
    assert (first.result(0).offset, rig.queue().last_acked) == (1000, 0)
    futures = [rig.send(), rig.send()]
    second = only_request(rig)
    assert numbers(second) == (PRODUCER_ID, 0, 1)
    refuse(rig, second, UNKNOWN_PRODUCER, base_offset=-1, log_start_offset=log_start_offset)
    assert not futures[0].done()
    rig.turn()
    (again,) = rig.client.under_way
    assert numbers(again) == (PRODUCER_ID, 1, 0)
    assert (rig.queue().next_sequence, rig.queue().last_acked) == (2, -1)
    accept(rig, again, base_offset=1011)
    assert (futures[1].result(0).offset, rig.queue().last_acked) == (1012, 1)
    assert_whole(rig.pool)


# Kafka: testUnknownProducerErrorShouldBeRetriedWhenLogStartOffsetIsUnknown
def test_broker_that_does_not_name_its_log_start_gets_the_same_numbers_again() -> None:
    rig = idempotent()
    accept(rig, sent_alone(rig), base_offset=1000)
    future = rig.send()
    refuse(rig, only_request(rig), UNKNOWN_PRODUCER, base_offset=-1, log_start_offset=-1)
    assert (rig.queue().last_acked, rig.queue().next_sequence) == (0, 2)
    rig.turn()
    (again,) = rig.client.under_way
    assert numbers(again) == (PRODUCER_ID, 0, 1)
    accept(rig, again, base_offset=1011)
    assert (future.result(0).offset, rig.queue().last_acked) == (1011, 1)


# Kafka: testUnknownProducerErrorShouldBeRetriedForFutureBatchesWhenFirstFails
def test_batch_behind_a_forgotten_batch_goes_under_the_same_new_epoch() -> None:
    rig = idempotent()
    accept(rig, sent_alone(rig), base_offset=1000)
    futures = send_each(rig, 2)
    second, third = rig.client.sent[1:]
    refuse(rig, second, UNKNOWN_PRODUCER, base_offset=-1, log_start_offset=1010)
    refuse(rig, third, UNKNOWN_PRODUCER, base_offset=-1, log_start_offset=1010)
    rig.turn()
    assert rig.state.producer_epoch == 1
    (again,) = rig.client.under_way
    assert numbers(again) == (PRODUCER_ID, 1, 0)
    accept(rig, again, base_offset=1011)
    (later,) = rig.client.under_way or rig.sent_after_turn()
    assert numbers(later) == (PRODUCER_ID, 1, 1)
    accept(rig, later, base_offset=1012)
    assert [future.result(0).offset for future in futures] == [1011, 1012]
    assert rig.state.producer_epoch == 1
    assert_whole(rig.pool)
