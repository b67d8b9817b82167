"""The Sender in a transaction. See also test_transactions.py and test_recovery.py.

This file has cases of Kafka's SenderTest and RecordAccumulatorTest. A comment names each case.
"""

from __future__ import annotations

import pytest

from kafkabuf.errors import AbortableTransactionError, NetworkError, TimeoutError, TopicAuthorizationError
from kafkabuf.protocol.messages import END_TXN, PRODUCE
from kafkabuf.transactions.result import Result
from kafkabuf.transactions.states import State
from rigs.producer import assert_whole
from tests.transactions.idempotence_support import UNKNOWN_PRODUCER, numbers
from tests.transactions.rig import GIVEN_ID, TransactionalRig

TOO_LARGE, NOT_LEADER = 10, 6


# Kafka: testRecordsDrainedWhenTransactionCompleting
def test_commit_ends_lingering() -> None:
    rig = TransactionalRig(linger_ms=3_000).begun()
    future = rig.send()
    rig.turns()
    assert "produce" not in rig.asked, "batches linger during the transaction"
    before = rig.clock.monotonic()
    rig.manager.commit()
    assert future.result(0)
    assert rig.clock.monotonic() - before < 1
    assert_whole(rig.pool)


# Kafka: testTransactionalSplitBatchAndSend
@pytest.mark.parametrize("v2", [False, True])
def test_parts_of_a_batch_belong_to_its_transaction(v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    rig.hold(PRODUCE)
    futures = [rig.send(b"x" * 300), rig.send(b"y" * 300)]
    rig.turns()
    rig.fate(PRODUCE, TOO_LARGE)
    rig.let_go(PRODUCE)
    rig.manager.commit()
    assert [numbers(sent) for sent in rig.client.sent] == [(GIVEN_ID, 0, 0), (GIVEN_ID, 0, 0), (GIVEN_ID, 0, 1)]
    assert all(future.exception(0) is None for future in futures)
    assert rig.sender.batch_splits == 1
    rig.assert_usable()
    assert_whole(rig.pool)


# Kafka: testTransactionalUnknownProducerHandlingWhenRetentionLimitReached
@pytest.mark.parametrize(("log_start_offset", "lost"), [(1010, False), (1001, False), (1000, True), (10, True)])
def test_transaction_survives_retention_and_fails_after_a_loss_of_numbers(log_start_offset: int, lost: bool) -> None:
    rig = TransactionalRig().begun()
    rig.hold(PRODUCE)
    rig.send()
    rig.turns()
    rig.client.answer(rig.client.under_way[0], base_offset=1000, log_start_offset=10)
    rig.turns()
    assert rig.queue().last_acked_offset == 1000
    future = rig.send()
    rig.turns()
    (refused,) = rig.client.under_way
    assert numbers(refused) == (GIVEN_ID, 0, 1)
    rig.client.answer(refused, UNKNOWN_PRODUCER, base_offset=-1, log_start_offset=log_start_offset)
    rig.let_go(PRODUCE)
    if lost:  # records of the producer are still there, so the broker should know the producer
        with pytest.raises(AbortableTransactionError):
            rig.manager.commit()
        rig.manager.abort()
    else:
        rig.manager.commit()
        assert future.exception(0) is None
        assert [numbers(sent) for sent in rig.client.sent[1:]] == [(GIVEN_ID, 0, 1), (GIVEN_ID, 0, 0)]
        assert rig.asked.count("init") == 0
    rig.assert_usable()
    assert_whole(rig.pool)


# Kafka: testInitProducerIdWithMaxInFlightOne
def test_first_request_goes_once_a_node_is_ready() -> None:
    rig = TransactionalRig(max_in_flight_requests_per_connection=1)
    rig.cluster.id_node = None  # the client has no metadata yet
    polls = []

    def poll() -> None:
        polls.append(1)
        if len(polls) == 5:
            assert rig.asked == []
            rig.cluster.id_node = 1

    rig.cluster.on_poll = poll
    rig.manager.init()
    assert rig.asked == ["find", "init"]
    rig.assert_usable()


# Kafka: testUnresolvedSequencesAreNotFatal
def test_producer_stays_usable_after_a_batch_expired_in_flight() -> None:
    rig = TransactionalRig(request_timeout_ms=500, delivery_timeout_ms=1_500).begun()
    rig.send()
    rig.turns()  # the leader knows the producer now, and gets several batches at a time
    rig.hold(PRODUCE)
    first = rig.send()
    rig.turns()
    rig.clock.advance(1)
    rig.send()
    rig.turns()
    one, two = rig.client.under_way
    rig.client.answer(one, NOT_LEADER)
    rig.client.unready.add(1)
    rig.turns()
    rig.clock.advance(0.7)
    rig.turns()
    assert isinstance(first.exception(0), TimeoutError)
    assert rig.manager.state is State.ABORTABLE_ERROR
    with pytest.raises(AbortableTransactionError):
        rig.manager.commit()
    rig.client.unready.clear()
    rig.client.fail(two, NetworkError("gone"))
    rig.let_go(PRODUCE)
    rig.manager.abort()
    rig.assert_usable()
    assert_whole(rig.pool)


@pytest.mark.parametrize("v2", [False, True])
def test_close_while_a_commit_waits_aborts_a_transaction_that_has_lost_a_record(v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    delivered = rig.send()
    rig.turns()
    rig.hold(PRODUCE)
    lost = rig.send()
    rig.turns()
    commit = rig.manager._operations.waited_for = Result("commit_transaction")  # another thread waits for it
    rig.manager._commit(commit)
    rig.sender.close()
    (request,) = rig.client.under_way
    rig.client.answer(request, TopicAuthorizationError.code)
    while rig.sender.step():
        pass
    assert delivered.done()
    assert isinstance(lost.exception(0), TopicAuthorizationError)
    assert isinstance(commit.error, AbortableTransactionError)
    assert [entity.committed for entity in rig.entities(END_TXN)] == [False]
