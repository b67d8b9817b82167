"""A partition whose sequence broke: new epochs, new numbers for batches, and lost numbers.

This file has the cases of Kafka's TransactionManagerTest on the sequences and epochs of idempotent producers, and cases
that Kafka does not test. The cases of SenderTest are in test_sender_epochs.py.
"""

from __future__ import annotations

import pytest

from kafkabuf.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    NetworkError,
    TimeoutError,
)
from rigs.producer import PRODUCER_ID, SLAB, assert_whole, only_request
from tests.transactions.idempotence_support import (
    INVALID_EPOCH,
    LARGEST,
    NOT_LEADER,
    OUT_OF_ORDER,
    UNKNOWN_PRODUCER,
    SequencedBrokers,
    SequencedPartition,
    accept,
    idempotent,
    numbers,
    of_epoch,
    refuse,
    send_each,
)

TIMED_OUT, INVALID_RECORD, AUTHORIZATION = 7, 87, 31
LAST_EPOCH = 2**15 - 1


# ---- new epochs ------------------------------------------------------------------------------------------------------


# Kafka: testBumpEpochAndResetSequenceNumbersAfterUnknownProducerId
def test_batches_in_flight_get_new_numbers_if_the_broker_forgot_the_producer() -> None:
    rig = idempotent()
    futures = send_each(rig, 5)
    sent = list(rig.client.under_way)
    accept(rig, sent[0])
    refuse(rig, sent[1], UNKNOWN_PRODUCER)
    again = only_request(rig)
    assert numbers(again) == (PRODUCER_ID, 1, 0)
    assert [batch.base_sequence for batch in rig.queue().in_sequence] == [0, 1, 2, 3]
    assert [numbers(request) for request in sent[2:]] == [
        (PRODUCER_ID, 0, n) for n in (2, 3, 4)
    ]  # as they were written
    for request in sent[2:]:
        refuse(rig, request, UNKNOWN_PRODUCER)  # this concerns the old numbers: no further epoch is needed
    rig.ack_all()
    assert of_epoch(rig, 1) == [0, 1, 2, 3]
    assert rig.state.producer_epoch == 1
    assert [future.exception(0) for future in futures] == [None] * 5
    assert_whole(rig.pool)


# Kafka: testHealthyPartitionRetriesDuringEpochBump, testFailedInflightBatchAfterEpochBump,
# testBatchFailureAfterProducerReset
def test_healthy_partition_keeps_its_epoch_until_its_batches_have_an_outcome() -> None:
    rig = idempotent(leaders=(1, 1))
    send_each(rig, 2, partition=0)
    send_each(rig, 2, partition=1)
    first, broken, other, healthy = rig.client.under_way
    accept(rig, first)
    accept(rig, other)
    refuse(rig, broken, UNKNOWN_PRODUCER)
    assert numbers(only_request(rig)) == (PRODUCER_ID, 1, 0)
    waiting = rig.send(b"new", partition=1)
    assert rig.sent_after_turn() == []  # it would get the new epoch, and overtake the batch of the old epoch
    refuse(rig, healthy, NOT_LEADER)
    again = only_request(rig)
    assert again.partitions == [1]
    assert again.produced.records == healthy.produced.records
    accept(rig, again)
    fresh = only_request(rig)
    assert numbers(fresh, 1) == (PRODUCER_ID, 1, 0)
    rig.ack_all()
    assert waiting.done()
    assert rig.state.producer_epoch == 1
    assert_whole(rig.pool)


def test_partition_of_an_older_epoch_needs_no_further_epoch() -> None:
    rig = idempotent(leaders=(1, 1))
    send_each(rig, 1, partition=0)
    send_each(rig, 1, partition=1)
    one, other = rig.client.under_way
    refuse(rig, one, OUT_OF_ORDER)
    rig.turn()
    assert rig.state.producer_epoch == 1
    refuse(rig, other, OUT_OF_ORDER)  # its partition has not had epoch 1 yet
    again = rig.sent_after_turn()
    assert numbers(again[-1], 1) == (PRODUCER_ID, 1, 0)
    assert rig.state.producer_epoch == 1
    rig.ack_all()
    assert_whole(rig.pool)


# Kafka: testProducerIdReset, testBatchCompletedAfterProducerReset
def test_producer_id_without_epochs_left_is_replaced() -> None:
    rig = idempotent(leaders=(1, 1))
    rig.state.set_producer_id_and_epoch(PRODUCER_ID, LAST_EPOCH)
    send_each(rig, 1, partition=0)
    send_each(rig, 1, partition=1)
    broken, healthy = rig.client.under_way
    rig.client.gives_ids = False
    refuse(rig, broken, OUT_OF_ORDER)
    assert rig.sent_after_turn() == []
    assert (rig.state.has_producer_id, len(rig.client.asked)) == (False, 1)
    rig.send(b"later", partition=1)
    accept(rig, healthy)  # under the old id, which does not concern the new id
    assert rig.sent_after_turn() == []
    rig.client.give_id(5)
    rig.turn()
    rig.turn()
    (again,) = rig.client.under_way
    assert numbers(again, 0) == (5, 0, 0)
    assert numbers(again, 1) == (5, 0, 0)
    rig.ack_all()
    assert_whole(rig.pool)


def test_new_producer_id_finds_its_leaders_unproven() -> None:
    rig = idempotent()
    rig.state.set_producer_id_and_epoch(5, 0)
    send_each(rig, 3)
    (first,) = rig.client.under_way  # a leader without any state would take any first number
    accept(rig, first)
    rig.send(b"x" * SLAB)
    assert [numbers(request) for request in rig.sent_after_turn()] == [(5, 0, 1), (5, 0, 3)]
    rig.ack_all()
    assert_whole(rig.pool)


@pytest.mark.parametrize("renumbered", [False, True])
def test_fenced_epoch_fails_a_batch_unless_it_has_a_new_epoch(renumbered: bool) -> None:
    rig = idempotent()
    futures = send_each(rig, 2)
    first, second = rig.client.under_way
    if renumbered:
        refuse(rig, first, OUT_OF_ORDER)
        rig.turn()
        refuse(rig, second, INVALID_EPOCH)  # the old one
        rig.ack_all()
        assert [future.exception(0) for future in futures] == [None, None]
    else:
        refuse(rig, first, INVALID_EPOCH)
        assert isinstance(futures[0].exception(0), InvalidProducerEpochError)
        refuse(rig, second, OUT_OF_ORDER)
        rig.ack_all()
        assert futures[1].exception(0) is None
    assert rig.state.producer_epoch == 1
    assert_whole(rig.pool)


def test_success_under_old_numbers_leaves_no_gap_in_the_new_numbers() -> None:
    rig = idempotent()
    futures = send_each(rig, 4)
    sent = list(rig.client.under_way)
    refuse(rig, sent[0], OUT_OF_ORDER)
    again = only_request(rig)
    assert numbers(again) == (PRODUCER_ID, 1, 0)
    accept(rig, sent[1])  # a broker without any state takes any first number
    assert rig.sent_after_turn() == []
    accept(rig, again)
    new = rig.send(b"new")
    assert rig.sent_after_turn() == []  # the batches before it have yet to go under their new numbers
    refuse(rig, sent[2], OUT_OF_ORDER)
    third = only_request(rig)
    assert numbers(third) == (PRODUCER_ID, 1, 1)
    accept(rig, third)
    accept(rig, sent[3])
    last = only_request(rig)
    assert numbers(last) == (PRODUCER_ID, 1, 2)
    accept(rig, last)
    assert all(future.done() for future in [*futures, new])
    assert rig.queue().last_acked == rig.queue().next_sequence - 1 == 2
    assert_whole(rig.pool)


# ---- numbers that were lost ------------------------------------------------------------------------------------------


# Kafka: testBumpEpochAfterTimeoutWithoutPendingInflightRequests,
# testEpochBumpAfterLastInFlightBatchFailsIdempotentProducer
@pytest.mark.parametrize("batches", [1, 3])
def test_batches_that_all_expired_are_followed_by_a_new_epoch(batches: int) -> None:
    rig = idempotent(delivery_timeout_ms=1_000)
    send_each(rig, batches)
    old = list(rig.client.under_way)
    rig.clock.advance(1)
    new = rig.send()
    sent = only_request(rig)
    assert numbers(sent) == (PRODUCER_ID, 1, 0)
    assert not rig.state.has_unresolved_sequences
    for request in old:
        accept(rig, request)  # late, and of another epoch
    assert rig.queue().last_acked == -1
    accept(rig, sent)
    assert new.result(0)
    assert rig.queue().last_acked == 0
    assert_whole(rig.pool)


# Kafka: testNoProducerIdResetAfterLastInFlightBatchSucceeds
def test_epoch_stays_if_the_lost_numbers_turn_out_to_be_used() -> None:
    rig = idempotent(delivery_timeout_ms=1_000)
    futures = send_each(rig, 2)
    rig.clock.advance(0.7)
    futures += send_each(rig, 1)
    sent = list(rig.client.under_way)
    rig.clock.advance(0.4)
    rig.turn()  # the first two expire
    assert [future.done() for future in futures] == [True, True, False]
    assert rig.state.has_unresolved_sequences
    rig.send(b"new")
    assert rig.sent_after_turn() == []
    accept(rig, sent[2])
    assert numbers(only_request(rig)) == (PRODUCER_ID, 0, 3)
    assert not rig.state.has_unresolved_sequences
    for request in sent[:2]:
        accept(rig, request)
    rig.ack_all()
    assert_whole(rig.pool)


# Kafka: testDuplicateSequenceAfterProducerReset
def test_expired_batch_does_not_block_batches_of_the_new_epoch() -> None:
    rig = idempotent(delivery_timeout_ms=1_000)
    first = rig.send(b"first")
    rig.client.fail(only_request(rig), NetworkError("timed out"))
    rig.turn()
    rig.clock.advance(0.2)
    repeated = only_request(rig)
    rig.clock.advance(0.8)
    rig.turn()
    assert isinstance(first.exception(0), TimeoutError)
    second = rig.send(b"second")
    (sent,) = rig.sent_after_turn()
    assert numbers(sent) == (PRODUCER_ID, 1, 0)
    rig.client.fail(repeated, NetworkError("timed out"))
    rig.client.fail(sent, NetworkError("timed out"))
    rig.turn()
    assert not second.done()
    rig.clock.advance(0.2)
    assert only_request(rig).produced.records == sent.produced.records
    rig.ack_all()
    assert_whole(rig.pool)


@pytest.mark.parametrize("code", [NOT_LEADER, TIMED_OUT, OUT_OF_ORDER])
def test_batch_without_retries_left_is_followed_by_a_new_epoch(code: int) -> None:
    rig = idempotent(retries=1)
    first = rig.send()
    refuse(rig, only_request(rig), code)
    refuse(rig, only_request(rig), code)
    assert isinstance(first.exception(0), KafkaError)
    second = rig.send()
    rig.turn()
    (sent,) = rig.client.under_way
    assert numbers(sent)[2] == 0
    assert rig.state.producer_epoch >= 1
    rig.ack_all()
    assert second.result(0)
    assert_whole(rig.pool)


def test_batch_in_doubt_keeps_its_numbers_if_a_later_batch_failed() -> None:
    """The broker may have the batch in doubt: under another number it would append the batch twice."""
    rig = idempotent()
    brokers = SequencedBrokers(rig)
    doubtful, bad, good = send_each(rig, 3)
    sent = list(rig.client.under_way)
    brokers.answer(sent[0], after=TIMED_OUT)
    rig.client.answer(sent[1], INVALID_RECORD)
    brokers.answer(sent[2])
    rig.turn()
    rig.clock.advance(0.2)
    assert isinstance(bad.exception(0), InvalidRecordError)
    assert numbers(only_request(rig)) == (PRODUCER_ID, 0, 0)
    brokers.finish()
    assert (doubtful.result(0).offset, good.result(0).offset) == (0, 1)
    assert brokers.log() == [b"0", b"2"]
    assert rig.state.producer_epoch == 1
    assert_whole(rig.pool)


# ---- numbers and what is written -------------------------------------------------------------------------------------


# Kafka: testSequenceNumberOverflow
def test_number_after_the_largest_is_zero() -> None:
    rig = idempotent()
    brokers = SequencedBrokers(rig)
    rig.state.start_sequences_at_beginning(rig.queue(), LARGEST - 1)
    rig.queue().proven = True
    known = brokers.partitions[0] = SequencedPartition()
    known.epochs[PRODUCER_ID] = 0
    known.recent[PRODUCER_ID] = [(LARGEST - 2, LARGEST - 2, 0)]
    known.log.append(b"before")
    futures = []
    for number in range(4):
        futures += [rig.send(b"%d" % number), rig.send(b"%d." % number), rig.send(b"%d.." % number)]
        rig.turn()
    sent = list(rig.client.under_way)
    assert [numbers(request)[2] for request in sent] == [LARGEST - 1, 1, 4, 7]
    brokers.answer(sent[0], after=TIMED_OUT)
    for request in sent[1:]:
        rig.client.fail(request, NetworkError("gone"))
    rig.turn()
    brokers.finish()
    assert [future.result(0).offset for future in futures] == list(range(1, 13))
    assert rig.queue().last_acked == 9
    assert rig.state.producer_epoch == 0
    assert_whole(rig.pool)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_batch_under_new_numbers_keeps_its_records(compression: str) -> None:
    rig = idempotent(compression_type=compression)
    for number in range(20):
        rig.send(b"%d" % number * 20, headers=[("h", b"1")], timestamp_ms=number)
    first = only_request(rig)
    rig.client.answer(first, OUT_OF_ORDER)
    rig.turn()
    rig.clock.advance(0.2)
    again = only_request(rig)
    assert (numbers(first), numbers(again)) == ((PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0))
    before, after = first.produced.records, again.produced.records
    for key in before:
        assert before[key][61:] == after[key][61:]  # the records as they were
    assert again.values() == first.values()  # both CRCs are right
    rig.ack_all()
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)
