"""How transactions go on after a time-out, lost batches, a lost epoch, or close() without an end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafkabuf.errors import (
    AbortableTransactionError,
    ClosedError,
    FatalTransactionError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TimeoutError,
)
from kafkabuf.protocol.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from kafkabuf.transactions.groups import OffsetAndMetadata
from kafkabuf.transactions.manager import TransactionManager
from kafkabuf.transactions.states import State
from rigs.producer import TOPIC, assert_whole
from tests.transactions.idempotence_support import numbers
from tests.transactions.rig import GIVEN_ID, GROUP, LOST, NAMES, TransactionalRig, TurningClock

OFFSETS = {("in", 0): OffsetAndMetadata(5)}
LOADING, NO_COORDINATOR, FENCED, CONCURRENT = 14, 15, 90, 51
both = pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])
Call = Callable[[TransactionManager], object]
INIT: Call = TransactionManager.init
COMMIT: Call = TransactionManager.commit
ABORT: Call = TransactionManager.abort


def send_offsets(manager: TransactionManager) -> None:
    manager.send_offsets(OFFSETS, GROUP)


# ---- time-outs -------------------------------------------------------------------------------------------------------


# Kafka: testRetry{AbortTransaction,CommitTransaction,InitTransactions}AfterTimeout
@pytest.mark.parametrize(
    ("call", "held"),
    [(INIT, FIND_COORDINATOR), (INIT, INIT_PRODUCER_ID), (COMMIT, ADD_PARTITIONS_TO_TXN), (COMMIT, PRODUCE),
     (COMMIT, END_TXN), (ABORT, END_TXN), (send_offsets, ADD_OFFSETS_TO_TXN), (send_offsets, TXN_OFFSET_COMMIT)],
)  # fmt: skip
def test_call_that_timed_out_is_done_once_when_it_is_repeated(call: Call, held: int) -> None:
    rig = TransactionalRig(max_block_ms=100)
    if call is not INIT:
        rig.begun()
        rig.send()
    if call is ABORT:
        rig.turns()
    rig.hold(held)
    for _ in range(3):
        started = rig.clock.monotonic()
        with pytest.raises(TimeoutError, match=r"call it again.*") as raised:
            call(rig.manager)
        assert "max.block.ms" in str(raised.value)
        assert 0.1 <= rig.clock.monotonic() - started < 0.2
    rig.let_go(held)
    call(rig.manager)
    assert rig.asked.count(NAMES[held]) == 1
    assert rig.manager.state is (State.IN_TRANSACTION if call is send_offsets else State.READY)
    if call is send_offsets:
        rig.manager.commit()
    rig.assert_usable()


# Programs abort in an `except` block after any error.
@pytest.mark.parametrize(
    ("v2", "api_key", "fate"),
    [*((v2, *how) for v2 in (False, True) for how in (
        (FIND_COORDINATOR, NO_COORDINATOR), (FIND_COORDINATOR, LOST),
        (TXN_OFFSET_COMMIT, LOADING), (TXN_OFFSET_COMMIT, LOST),
    )), (False, ADD_OFFSETS_TO_TXN, CONCURRENT)],
)  # fmt: skip
def test_abort_gives_up_offsets_that_timed_out(v2: bool, api_key: int, fate: int | KafkaError) -> None:
    rig = TransactionalRig(v2=v2, max_block_ms=1_000).begun()
    future = rig.send()
    rig.turns()
    rig.fate(api_key, *[fate] * 12)
    with pytest.raises(TimeoutError):
        send_offsets(rig.manager)
    if api_key == ADD_OFFSETS_TO_TXN:  # the abort needs the coordinator of the transaction itself
        rig.cluster.fates.clear()
    rig.manager.abort()
    assert rig.asked.count("end") == 1
    assert future.result(0).topic == TOPIC
    rig.cluster.fates.clear()
    rig.assert_usable()


def test_commit_of_offsets_that_was_given_up_cannot_join_the_next_transaction() -> None:
    rig = TransactionalRig(max_block_ms=300).begun()
    rig.fate(TXN_OFFSET_COMMIT, *[LOST] * 12)
    with pytest.raises(TimeoutError):
        send_offsets(rig.manager)
    rig.manager.abort()
    assert rig.asked[-2:] == ["end", "init"]
    assert rig.cluster.epoch == 1
    rig.assert_usable()


@pytest.mark.parametrize("api_key", [TXN_OFFSET_COMMIT, END_TXN])
@pytest.mark.parametrize(("seconds", "named"), [(3.0, True), (1.0, False)])
def test_fencing_after_transaction_timeout_names_the_setting(api_key: int, seconds: float, named: bool) -> None:
    rig = TransactionalRig(transaction_timeout_ms=2_000).begun()
    rig.send()
    rig.turns()
    rig.clock.advance(seconds)
    rig.fate(api_key, FENCED)
    if api_key == END_TXN:
        send_offsets(rig.manager)
    with pytest.raises(ProducerFencedError) as raised:
        (COMMIT if api_key == END_TXN else send_offsets)(rig.manager)
    assert (f"open for {seconds:.1f} s" in str(raised.value)) is named
    assert ("transaction.timeout.ms (2000 ms)" in str(raised.value)) is named


# Kafka: testRetry{AbortTransactionAfterCommit,CommitTransactionAfterAbort}Timeout
@pytest.mark.parametrize(("first", "second"), [(COMMIT, ABORT), (ABORT, COMMIT), (COMMIT, send_offsets)])
def test_another_call_is_refused_while_a_call_that_timed_out_goes_on(first: Call, second: Call) -> None:
    rig = TransactionalRig(max_block_ms=100).begun()
    rig.send()
    rig.turns()
    rig.hold(END_TXN)
    with pytest.raises(TimeoutError):
        first(rig.manager)
    for refused in (second, TransactionManager.begin):
        with pytest.raises(IllegalStateError, match="call it again"):
            refused(rig.manager)
    rig.let_go(END_TXN)
    first(rig.manager)
    (end,) = rig.entities(END_TXN)
    assert end.committed is (first is COMMIT)
    rig.assert_usable()


# Kafka: testRetry{Abort,Commit}Transaction
@pytest.mark.parametrize("call", [COMMIT, ABORT])
@pytest.mark.parametrize("fate", [LOST, 16])
@both
def test_end_whose_response_was_lost_is_repeated_unchanged(call: Call, fate: int | KafkaError, v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    rig.send()
    rig.turns()
    rig.fate(END_TXN, fate)
    call(rig.manager)
    first, second = rig.entities(END_TXN)
    assert first == second
    rig.assert_usable()


@both
def test_other_offsets_are_refused_while_those_that_timed_out_are_under_way(v2: bool) -> None:
    rig = TransactionalRig(v2=v2, max_block_ms=100).begun()
    rig.hold(TXN_OFFSET_COMMIT)
    with pytest.raises(TimeoutError):
        rig.manager.send_offsets(OFFSETS, GROUP)
    with pytest.raises(IllegalStateError, match="same"):
        rig.manager.send_offsets({("in", 0): OffsetAndMetadata(6)}, GROUP)
    rig.let_go(TXN_OFFSET_COMMIT)
    rig.manager.send_offsets(OFFSETS, GROUP)
    rig.manager.send_offsets({("in", 0): OffsetAndMetadata(6)}, GROUP)
    offsets = [request.topics[0].partitions[0].committed_offset for request in rig.entities(TXN_OFFSET_COMMIT)]
    assert offsets == [5, 6]


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt, which would end pytest."""


@pytest.mark.parametrize(("call", "held"), [(INIT, INIT_PRODUCER_ID), (COMMIT, END_TXN), (ABORT, END_TXN)])
def test_interrupted_call_is_done_once_when_it_is_repeated(call: Call, held: int) -> None:
    rig = TransactionalRig()
    future = None
    if call is not INIT:
        rig.begun()
        future = rig.send()
        rig.turns()
    rig.hold(held)
    clock = rig.clock
    assert isinstance(clock, TurningClock)
    turns = 0

    def interrupt() -> None:
        nonlocal turns
        turns += 1
        if turns == 5:
            raise Interrupted
        rig.sender.run_once()

    clock.turn = interrupt
    with pytest.raises(Interrupted):
        call(rig.manager)
    clock.turn = rig.sender.run_once
    assert rig.manager.state in (State.INITIALIZING, State.COMMITTING, State.ABORTING)
    rig.let_go(held)
    call(rig.manager)
    assert future is None or future.exception(0) is None
    assert rig.asked.count(NAMES[held]) == 1
    rig.assert_usable()


@pytest.mark.parametrize("call", [COMMIT, TransactionManager.begin])
def test_interrupted_call_that_has_ended_holds_up_no_other_call(call: Call) -> None:
    rig = TransactionalRig(max_block_ms=100).begun()
    rig.send()
    rig.hold(END_TXN)
    with pytest.raises(TimeoutError):
        rig.manager.commit()
    rig.let_go(END_TXN)
    rig.until_state(State.READY)
    call(rig.manager)
    if call is COMMIT:
        rig.manager.begin()
    rig.send()
    rig.manager.commit()
    assert rig.asked.count("end") == 2


def test_coordinator_gets_the_transaction_timeout_that_was_set() -> None:
    rig = TransactionalRig(transaction_timeout_ms=12_345)
    rig.manager.init()
    (asked,) = rig.entities(INIT_PRODUCER_ID)
    assert asked.transaction_timeout.total_seconds() == 12.345
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("t", -1, -1)


# ---- batches that expired --------------------------------------------------------------------------------------------


# Kafka: testTransitionToAbortableErrorOn{,Multiple}BatchExpiry, testDropCommitOnBatchExpiry
# Kafka: testBumpTransactionalEpochOnTimeout, testMaybeResolveSequencesTransactionalProducer
@pytest.mark.parametrize("sent", [False, True], ids=["unsent", "in flight"])
@pytest.mark.parametrize("partitions", [1, 3])
@both
def test_transaction_with_an_expired_batch_cannot_be_committed(partitions: int, sent: bool, v2: bool) -> None:
    rig = TransactionalRig(v2=v2, delivery_timeout_ms=600, request_timeout_ms=500).begun()
    if sent:
        rig.hold(PRODUCE)
    else:
        rig.cluster.unready |= {1, 3}
    futures = [rig.send(partition=partition) for partition in range(partitions)]
    rig.turns()
    with pytest.raises(AbortableTransactionError) as raised:
        rig.manager.commit()
    assert isinstance(raised.value.__cause__, TimeoutError)
    assert all(isinstance(future.exception(0), TimeoutError) for future in futures)
    assert "end" not in rig.asked
    epoch = rig.manager.producer_state.producer_epoch
    rig.forget()
    rig.manager.abort()
    rig.cluster.unready.clear()
    rig.let_go(PRODUCE)
    rig.turns()
    # The brokers may have the batches that expired in flight: their numbers may not be used again.
    bumped = rig.manager.producer_state.producer_epoch == epoch + 1
    assert bumped or not sent
    assert rig.asked == ["end", *["init"] * (sent and not v2)]
    rig.assert_usable()
    assert numbers(rig.client.sent[-1])[2] == 0
    assert_whole(rig.pool)


# Kafka: testTransitionToFatalErrorWhenRetriedBatchIsExpired
def test_batch_that_expired_in_retry_begins_a_new_epoch() -> None:
    rig = TransactionalRig(delivery_timeout_ms=600, request_timeout_ms=500).begun()
    rig.fate(PRODUCE, *[7] * 50)
    future = rig.send()
    with pytest.raises(AbortableTransactionError):
        rig.manager.commit()
    assert isinstance(future.exception(0), TimeoutError)
    rig.cluster.fates[PRODUCE].clear()
    rig.manager.abort()
    assert rig.manager.producer_state.producer_epoch == 1
    rig.assert_usable()
    assert numbers(rig.client.sent[-1]) == (GIVEN_ID, 1, 0)


# Kafka: SenderTest.testReceiveFailedBatchTwiceWithTransactions
def test_late_response_to_an_expired_batch_leaves_the_next_transaction_alone() -> None:
    rig = TransactionalRig(delivery_timeout_ms=600, request_timeout_ms=500).begun()
    rig.hold(PRODUCE)
    rig.send()
    with pytest.raises(AbortableTransactionError):
        rig.manager.commit()
    rig.manager.abort()
    rig.manager.begin()
    rig.fate(PRODUCE, 45)  # the late response
    rig.let_go(PRODUCE)
    rig.turns()
    assert rig.manager.state is State.IN_TRANSACTION
    rig.send()
    rig.manager.commit()
    assert_whole(rig.pool)


# ---- a new epoch -----------------------------------------------------------------------------------------------------


def fail_a_batch(rig: TransactionalRig, code: int = 29) -> None:
    rig.fate(PRODUCE, code)
    rig.send()
    rig.until_state(State.ABORTABLE_ERROR)


# Kafka: testNeedToTriggerEpochBumpFromClientDuringCoordinatorDisconnect
@pytest.mark.parametrize("fate", [LOST, 14, 16, 51])
def test_new_epoch_is_requested_until_the_coordinator_gives_it(fate: int | KafkaError) -> None:
    rig = TransactionalRig().begun()
    fail_a_batch(rig)
    rig.fate(INIT_PRODUCER_ID, fate, fate)
    rig.manager.abort()
    assert [name for name in rig.asked if name != "find"][-4:] == ["end", "init", "init", "init"]
    asked = rig.entities(INIT_PRODUCER_ID)
    assert {(request.producer_id, request.producer_epoch) for request in asked} == {(GIVEN_ID, 0)}
    rig.assert_usable()


def test_producer_fenced_while_its_epoch_is_raised_is_unusable() -> None:
    rig = TransactionalRig().begun()
    fail_a_batch(rig, 47)
    rig.fate(INIT_PRODUCER_ID, 90)
    with pytest.raises(ProducerFencedError):
        rig.manager.abort()
    with pytest.raises(FatalTransactionError):
        rig.manager.begin()


def test_lost_numbers_are_fatal_if_the_broker_cannot_raise_epochs() -> None:
    rig = TransactionalRig()
    rig.cluster.newest[INIT_PRODUCER_ID] = 2  # Kafka 2.4
    rig.begun()
    rig.send()
    rig.manager.commit()
    rig.manager.begin()
    fail_a_batch(rig)
    with pytest.raises(FatalTransactionError, match="too old"):
        rig.manager.abort()


def test_abort_that_failed_can_be_repeated() -> None:
    rig = TransactionalRig().begun()
    rig.send()
    rig.turns()
    rig.fate(END_TXN, 120)
    with pytest.raises(AbortableTransactionError):
        rig.manager.abort()
    rig.manager.abort()
    rig.assert_usable()


# ---- close -----------------------------------------------------------------------------------------------------------


def close_and_run(rig: TransactionalRig, *, force: bool = False) -> None:
    rig.sender.close(force=force)
    rig.sender.run()


# Kafka: SenderTest.testIncompleteTransactionAbortOnShutdown, SenderTest.testTransactionalRequestsSentOnShutdown
# Kafka: testSenderShutdownWithPendingTransactions
@both
def test_close_aborts_an_open_transaction(v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    future = rig.send()
    close_and_run(rig)
    assert rig.asked[-1] == "end"
    assert not rig.entities(END_TXN)[-1].committed
    assert future.done()
    assert_whole(rig.pool)


def test_close_finishes_a_commit_that_is_under_way() -> None:
    rig = TransactionalRig(max_block_ms=100).begun()
    future = rig.send()
    rig.hold(END_TXN)
    with pytest.raises(TimeoutError):
        rig.manager.commit()
    rig.let_go(END_TXN)
    close_and_run(rig)
    (end,) = rig.entities(END_TXN)
    assert end.committed
    assert future.exception(0) is None
    rig.manager.commit()  # the repeated call reports the success


# Kafka: SenderTest.testSenderShouldCloseWhenTransactionManagerInErrorState
@pytest.mark.parametrize("fatal", [False, True])
def test_close_after_an_error_ends(fatal: bool) -> None:
    rig = TransactionalRig().begun()
    future = rig.send()
    rig.turns()
    (rig.manager.fail if fatal else rig.manager.abort_with)(KafkaError("some reason"))
    unsent = rig.accumulator.incomplete
    close_and_run(rig)
    assert not unsent
    assert future.done()
    assert ("end" in rig.asked) is not fatal


# Kafka: SenderTest.testForceShutdownWithIncompleteTransaction
def test_forced_close_does_not_wait_for_the_coordinator() -> None:
    rig = TransactionalRig().begun()
    future = rig.send()
    rig.hold(ADD_PARTITIONS_TO_TXN, END_TXN)
    rig.turns()
    close_and_run(rig, force=True)
    assert isinstance(future.exception(0), ClosedError)
    assert "end" not in rig.asked
    assert_whole(rig.pool)


@pytest.mark.parametrize("held", [END_TXN, ADD_PARTITIONS_TO_TXN])
def test_close_waits_a_limited_time_for_a_coordinator_that_is_gone(held: int) -> None:
    rig = TransactionalRig(delivery_timeout_ms=2_000, request_timeout_ms=500).begun()
    rig.send()
    rig.turns()
    rig.hold(held)
    rig.send(partition=1)
    started = rig.clock.monotonic()
    close_and_run(rig)
    assert rig.clock.monotonic() - started < 5
    assert_whole(rig.pool)


# Kafka: SenderTest.senderThreadShouldNotGetStuckWhenThrottledAndAddingPartitionsToTxn
def test_sender_goes_on_when_the_coordinator_is_ready_again() -> None:
    rig = TransactionalRig(max_in_flight_requests_per_connection=1).begun()
    rig.hold(PRODUCE)
    rig.send(partition=0)
    rig.turns()
    rig.cluster.unready.add(2)
    rig.cluster.delay = 0.3
    rig.send(partition=2)
    rig.turns()
    assert rig.asked == ["add", "produce"]
    rig.cluster.unready.clear()
    rig.let_go(PRODUCE)
    rig.manager.commit()
    assert rig.asked[-1] == "end"
    assert rig.asked.count("add") == 2


def test_request_under_way_is_not_sent_twice() -> None:
    rig = TransactionalRig().begun()
    rig.hold(ADD_PARTITIONS_TO_TXN)
    rig.send()
    rig.turns(10)
    assert rig.asked == ["add"]
    assert rig.manager.run(rig.clock.monotonic(), has_incomplete=True) == float("inf")
    assert TOPIC not in {topic for topic, _ in rig.manager.partitions}
