"""A transactional producer after the coordinators' errors: it retries, looks up, aborts, or can only be closed."""

from __future__ import annotations

import pytest

from kafkabuf.errors import (
    AbortableTransactionError,
    CommitFailedError,
    FatalTransactionError,
    FencedInstanceIdError,
    GroupAuthorizationError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
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
from kafkabuf.transactions.states import State
from tests.transactions.rig import GROUP, LOST, NAMES, TransactionalRig

OFFSETS = {("in", 0): OffsetAndMetadata(5), ("in", 1): OffsetAndMetadata(6)}
UNKNOWN_TOPIC, TIMED_OUT, LOADING, NO_COORDINATOR, NOT_COORDINATOR = 3, 7, 14, 15, 16
CONCURRENT = 51


def provoke(rig: TransactionalRig, api_key: int) -> None:
    """Have the producer send a request of this API in a transaction, and wait for its end."""
    if api_key == INIT_PRODUCER_ID:
        rig.manager.init()
        return
    rig.manager.init()
    rig.manager.begin()
    if api_key in (ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, FIND_COORDINATOR):
        rig.manager.send_offsets(OFFSETS, GROUP)
    else:
        rig.send()
        rig.manager.commit()


def with_fate(api_key: int, *fates: int | KafkaError, v2: bool = False) -> TransactionalRig:
    rig = TransactionalRig(v2=v2)
    rig.fate(api_key, *fates)
    return rig


# ---- retries ---------------------------------------------------------------------------------------------------------

AGAIN = [
    *((api_key, code) for api_key in (INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN)
      for code in (LOADING, CONCURRENT)),
    *((TXN_OFFSET_COMMIT, code) for code in (LOADING, UNKNOWN_TOPIC)),
    (ADD_PARTITIONS_TO_TXN, UNKNOWN_TOPIC),
]  # fmt: skip


# Kafka: testRetriableErrors, testHandlingOfUnknownTopicPartitionErrorOnAddPartitions,
# testHandlingOf{UnknownTopicPartition,CoordinatorLoading}ErrorOnTxnOffsetCommit
@pytest.mark.parametrize(("api_key", "code"), AGAIN)
def test_retriable_error_is_retried(api_key: int, code: int) -> None:
    rig = with_fate(api_key, code, code)
    provoke(rig, api_key)
    assert rig.asked.count(NAMES[api_key]) == 3
    assert rig.asked.count("find") == (2 if api_key in (ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT) else 1)
    assert rig.manager.state in (State.READY, State.IN_TRANSACTION)


# Kafka: testLookupCoordinatorOnNotCoordinatorError, testLookupCoordinatorOnDisconnectAfterSend,
# testHandlingOfNetworkExceptionOnTxnOffsetCommit
@pytest.mark.parametrize("fate", [NOT_COORDINATOR, NO_COORDINATOR, LOST])
@pytest.mark.parametrize(
    "api_key", [INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN]
)
def test_coordinator_that_has_moved_is_looked_up_again(api_key: int, fate: int | KafkaError) -> None:
    rig = with_fate(api_key, fate)
    provoke(rig, api_key)
    names = rig.asked
    first = names.index(NAMES[api_key])
    assert names[first : first + 3] == [NAMES[api_key], "find", NAMES[api_key]]


def test_group_coordinator_that_times_out_is_looked_up_again() -> None:
    rig = with_fate(TXN_OFFSET_COMMIT, TIMED_OUT)
    provoke(rig, TXN_OFFSET_COMMIT)
    assert rig.asked[-3:] == ["commit offsets", "find", "commit offsets"]


# Kafka: testCoordinatorNotAvailable, testDisconnectAndRetry
@pytest.mark.parametrize("fate", [NO_COORDINATOR, LOADING, LOST])
def test_failed_lookup_of_the_coordinator_is_repeated(fate: int | KafkaError) -> None:
    rig = with_fate(FIND_COORDINATOR, fate, fate)
    rig.manager.init()
    assert rig.asked == ["find", "find", "find", "init"]


# Kafka: testLookupCoordinatorOnDisconnectBeforeSend
def test_wait_for_an_unreachable_coordinator_ends_after_max_block_ms() -> None:
    rig = TransactionalRig()
    rig.cluster.unready.add(2)
    rig.cluster.delay = 0.5
    with pytest.raises(TimeoutError, match=r"max\.block\.ms"):
        rig.manager.init()
    rig.cluster.unready.clear()
    rig.manager.init()
    assert rig.manager.state is State.READY


# ---- the transaction must be aborted ---------------------------------------------------------------------------------

ABORTABLE: list[tuple[int, int, type[KafkaError]]] = [
    *((api_key, 120, TransactionAbortableError)
      for api_key in (INIT_PRODUCER_ID, FIND_COORDINATOR, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT,
                      END_TXN)),
    (FIND_COORDINATOR, 30, GroupAuthorizationError),
    (ADD_PARTITIONS_TO_TXN, 29, TopicAuthorizationError),
    (ADD_OFFSETS_TO_TXN, 30, GroupAuthorizationError),
    (TXN_OFFSET_COMMIT, 30, GroupAuthorizationError),
    (TXN_OFFSET_COMMIT, 82, FencedInstanceIdError),
    (TXN_OFFSET_COMMIT, 25, CommitFailedError),
    (TXN_OFFSET_COMMIT, 22, CommitFailedError),
]  # fmt: skip


# Kafka: testTransactionAbortableExceptionIn{InitProducerId,AddPartitions,FindCoordinator,EndTxn,AddOffsetsToTxn},
# testTransactionAbortableExceptionInTxnOffsetCommit, testGroupAuthorizationFailureIn{FindCoordinator,TxnOffsetCommit},
# testTopicAuthorizationFailureInAddPartitions, testFencedInstanceIdInTxnOffsetCommitByGroupMetadata,
# test{UnknownMemberId,IllegalGeneration}InTxnOffsetCommitByGroupMetadata
@pytest.mark.parametrize(("api_key", "code", "kind"), ABORTABLE)
@pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])
def test_producer_stays_usable_after_an_abortable_error(
    api_key: int, code: int, kind: type[KafkaError], v2: bool
) -> None:
    if v2 and api_key in (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN):
        api_key = {ADD_PARTITIONS_TO_TXN: PRODUCE, ADD_OFFSETS_TO_TXN: TXN_OFFSET_COMMIT}[api_key]
    # The first FindCoordinator looks up the transaction's coordinator, and must succeed.
    passes = [0] if api_key == FIND_COORDINATOR else []
    rig = with_fate(api_key, *passes, code, v2=v2)
    with pytest.raises(AbortableTransactionError) as raised:
        provoke(rig, api_key)
    assert isinstance(raised.value.__cause__, kind)
    assert rig.manager.state is State.ABORTABLE_ERROR
    for refused in (rig.manager.begin, rig.manager.commit, lambda: rig.manager.send_offsets(OFFSETS, GROUP), rig.send):
        with pytest.raises(AbortableTransactionError, match="abort_transaction") as again:
            refused()
        assert isinstance(again.value.__cause__, kind)
        assert again.value is not raised.value
    rig.manager.abort()
    rig.assert_usable()


def test_producer_stays_usable_after_an_abortable_error_of_the_lookup() -> None:
    rig = with_fate(FIND_COORDINATOR, 120)
    with pytest.raises(AbortableTransactionError):
        rig.manager.init()
    rig.manager.abort()
    rig.assert_usable()


# Kafka: testCommitWithTopicAuthorizationFailureInAddPartitionsInFlight
# Kafka: testRecoveryFromAbortableErrorTransactionStarted
# Kafka: shouldNotAddPartitionsToTransactionWhenTopicAuthorizationFailed
def test_transaction_can_be_aborted_after_a_partition_without_permission() -> None:
    rig = TransactionalRig().begun()
    good = rig.send(partition=0)
    rig.turns()
    rig.fate(ADD_PARTITIONS_TO_TXN, 29)
    bad = rig.send(partition=1)
    with pytest.raises(AbortableTransactionError) as raised:
        rig.manager.commit()
    assert isinstance(raised.value.__cause__, TopicAuthorizationError)
    assert good.exception(0) is None
    assert isinstance(bad.exception(0), KafkaError)
    assert ("orders", 1) not in rig.manager.partitions
    assert "end" not in rig.asked
    rig.manager.abort()
    assert rig.asked.count("end") == 1
    assert not rig.entities(END_TXN)[0].committed
    rig.assert_usable()


# Kafka: testFindCoordinatorAllowedInAbortableErrorState
def test_coordinator_is_looked_up_while_the_transaction_waits_for_its_abort() -> None:
    rig = TransactionalRig().begun()
    rig.hold(FIND_COORDINATOR)
    rig.fate(ADD_PARTITIONS_TO_TXN, NOT_COORDINATOR)
    rig.send()
    rig.until(lambda: "find" in rig.asked)
    rig.manager.abort_with(KafkaError("some reason"))
    rig.let_go(FIND_COORDINATOR)
    rig.turns()
    rig.manager.abort()
    assert rig.manager.state is State.READY
    rig.assert_usable()


# ---- the end ---------------------------------------------------------------------------------------------------------

FATAL: list[tuple[int, int, type[KafkaError]]] = [
    *((api_key, code, ProducerFencedError)
      for api_key in (INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN)
      for code in (47, 90)),
    *((api_key, 53, TransactionalIdAuthorizationError)
      for api_key in (FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT,
                      END_TXN)),
    *((api_key, 48, InvalidTxnStateError) for api_key in (ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN)),
    (TXN_OFFSET_COMMIT, 43, UnsupportedForMessageFormatError),
]  # fmt: skip


# Kafka: testProducerFencedExceptionInInitProducerId, testProducerFencedIn{AddPartitionToTxn,AddOffSetsToTxn},
# testInvalidProducerEpochConvertToProducerFencedIn{InitProducerId,AddPartitionToTxn,AddOffSetsToTxn,EndTxn},
# testHandlingOf{ProducerFenced,InvalidProducerEpoch}ErrorOnTxnOffsetCommit,
# testTransactionalIdAuthorizationFailureIn{FindCoordinator,InitProducerId,AddPartitions,AddOffsetsToTxn},
# testTransactionalIdAuthorizationFailureInTxnOffsetCommit,
# testInvalidTxnState{FailureInAddOffsetsToTxn,InAddPartitions},
# testHandlingOf{TransactionalIdAuthorizationFailed,UnsupportedForMessageFormat}ErrorOnTxnOffsetCommit,
# testUnsupportedForMessageFormatInTxnOffsetCommit, testHasOngoingTransactionFatalError
@pytest.mark.parametrize(("api_key", "code", "kind"), FATAL)
def test_fatal_error_ends_the_producer(api_key: int, code: int, kind: type[KafkaError]) -> None:
    rig = with_fate(api_key, code)
    with pytest.raises(FatalTransactionError) as raised:
        provoke(rig, api_key)
    assert isinstance(raised.value, kind) or isinstance(raised.value.__cause__, kind)
    assert rig.manager.state is State.FATAL_ERROR
    assert not rig.manager.has_ongoing_transaction
    rig.forget()
    for refused in (rig.manager.init, rig.manager.begin, rig.manager.commit, rig.manager.abort, rig.send):
        with pytest.raises(FatalTransactionError) as again:
            refused()
        assert type(again.value) is type(raised.value)
        assert again.value is not raised.value
    rig.turns()
    assert rig.asked == []
    assert not rig.incomplete()


# Kafka: testUnsupported{FindCoordinator,InitTransactions}
# Kafka: testSendOffsetWithGroupMetadataFailAsAutoDowngradeTxnCommitNotEnabled
@pytest.mark.parametrize(("api_key", "newest"), [(FIND_COORDINATOR, 0), (INIT_PRODUCER_ID, -1), (TXN_OFFSET_COMMIT, 2)])
def test_broker_that_is_too_old_is_a_fatal_error(api_key: int, newest: int) -> None:
    rig = TransactionalRig()
    rig.cluster.newest[api_key] = newest
    with pytest.raises(FatalTransactionError, match="too old") as raised:
        provoke(rig, api_key)
    assert isinstance(raised.value.__cause__, UnsupportedVersionError)
    assert rig.manager.state is State.FATAL_ERROR


# Kafka: testFatalErrorWhenProduceResponseWithInvalidPidMapping
# Kafka: testNoFailedBatchHandlingWhenTxnManagerIsInFatalError
@pytest.mark.parametrize("code", [49, 53, 90])
def test_fatal_error_of_a_leader_ends_the_producer(code: int) -> None:
    rig = TransactionalRig().begun()
    rig.hold(PRODUCE)
    futures = [rig.send(partition=partition) for partition in range(3)]
    rig.turns()
    rig.fate(PRODUCE, code)
    rig.let_go(PRODUCE)
    rig.until(lambda: not rig.incomplete())
    assert rig.manager.state is State.FATAL_ERROR
    assert all(isinstance(future.exception(0), KafkaError) for future in futures[:2])
    with pytest.raises(FatalTransactionError):
        rig.manager.abort()


# ---- batches ---------------------------------------------------------------------------------------------------------


# Kafka: testInvalidProducerEpochFromProduce, testAllowAbortOnProduceFailure, testDisallowCommitOnProduceFailure
# Kafka: testBumpTransactionalEpochOn{AbortableError,UnknownProducerIdError}, testAllowDrainInAbortableErrorState
# Kafka: testAbortTransactionAnd{ReuseSequenceNumberOnError,ResetSequenceNumberOnUnknownProducerId}
# Kafka: SenderTest.testInvalidTxnStateIsAnAbortableError
# Kafka: SenderTest.testTransactionAbortableExceptionIsAnAbortableError
@pytest.mark.parametrize("code", [29, 45, 47, 48, 59, 87, 120])
@pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])
def test_failed_batch_ends_its_transaction_and_its_epoch(code: int, v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    first = rig.send()
    rig.turns()
    assert first.exception(0) is None
    epoch = rig.manager.producer_state.producer_epoch
    rig.fate(PRODUCE, code)
    failed = rig.send()
    with pytest.raises(AbortableTransactionError) as raised:
        rig.manager.commit()
    error = failed.exception(0)
    assert error is not None
    assert error.code == code
    assert raised.value.__cause__ is error
    if code == 47:
        assert "Either a newer producer has the transactional id" in str(error)
    rig.manager.abort()
    assert rig.manager.producer_state.producer_epoch == epoch + 1
    assert rig.asked.count("init") == (0 if v2 else 1)
    rig.assert_usable()
    assert rig.queue().next_sequence == 1
