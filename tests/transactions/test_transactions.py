"""Transactions from init_transactions() on: which requests go when, and calls in the wrong state."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import confluent_kafka
import kafka.structs
import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    AbortableTransactionError,
    ClosedError,
    IllegalStateError,
    KafkaError,
    TransactionAbortedError,
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
from kafkabuf.transactions.groups import GroupMetadata, OffsetAndMetadata, group_of, offsets_of
from kafkabuf.transactions.result import Result
from kafkabuf.transactions.states import Move, State
from rigs.fake_client import Sent
from rigs.producer import TOPIC, assert_whole
from tests.transactions.idempotence_support import numbers
from tests.transactions.rig import GIVEN_ID, GROUP, STEP, TransactionalRig

OFFSETS = {
    ("in", 0): OffsetAndMetadata(5, "why", 7),
    ("in", 1): OffsetAndMetadata(6),
    ("other", 0): OffsetAndMetadata(1),
}
TRANSACTIONAL = 0x10
both = pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])


def is_transactional(sent: Sent, partition: int = 0) -> bool:
    (attributes,) = struct.unpack_from(">h", sent.produced.records[TOPIC, partition], 21)
    return bool(attributes & TRANSACTIONAL)


# ---- one transaction -------------------------------------------------------------------------------------------------


# Kafka: testBasicTransaction, testMaybeAddPartitionToTransaction, testHasOngoingTransactionSuccessfulCommit
def test_transaction_of_version_1_sends_the_requests_that_kafka_sends() -> None:
    rig = TransactionalRig()
    rig.manager.init()
    assert rig.asked == ["find", "init"]
    rig.forget()
    rig.manager.begin()
    assert rig.manager.has_ongoing_transaction
    future = rig.send()
    rig.manager.send_offsets(OFFSETS, GROUP)
    rig.manager.commit()
    assert rig.asked == ["offsets", "add", "find", "produce", "commit offsets", "end"] or rig.asked == [
        "add", "offsets", "produce", "find", "commit offsets", "end"
    ]  # fmt: skip
    assert future.result(0).offset == 0
    assert not rig.manager.has_ongoing_transaction
    assert not rig.manager.partitions
    (end,) = rig.entities(END_TXN)
    assert (end.transactional_id, end.producer_id, end.producer_epoch, end.committed) == ("t", GIVEN_ID, 0, True)
    assert end.__version__ == 4
    assert_whole(rig.pool)


# Kafka: testTransactionV2AddPartitionAndOffsets, testMaybeAddPartitionToTransactionInTransactionV2
# Kafka: testEpochUpdateAfterBumpFromEndTxnResponseInV2
def test_transaction_of_version_2_sends_no_needless_request() -> None:
    rig = TransactionalRig(v2=True).begun()
    rig.send()
    rig.manager.send_offsets(OFFSETS, GROUP)
    rig.manager.commit()
    assert sorted(rig.asked) == sorted(["find", "produce", "commit offsets", "end"])
    assert rig.asked[-1] == "end"
    assert rig.entities(END_TXN)[0].__version__ == 5
    assert rig.manager.producer_state.producer_epoch == 1
    rig.manager.begin()
    rig.send()
    rig.manager.commit()
    assert [numbers(sent) for sent in rig.client.sent] == [(GIVEN_ID, 0, 0), (GIVEN_ID, 1, 0)]


# Kafka: testProducerIdAndEpochUpdateAfterOverflowFromEndTxnResponseInV2
def test_producer_takes_the_id_that_replaces_a_used_up_id() -> None:
    rig = TransactionalRig(v2=True).begun()
    rig.cluster.after_end = (GIVEN_ID + 1, 0)
    for _ in range(2):
        rig.send()
        rig.manager.commit()
        rig.cluster.after_end = None
        rig.manager.begin()
    assert [numbers(sent) for sent in rig.client.sent] == [(GIVEN_ID, 0, 0), (GIVEN_ID + 1, 0, 0)]


@both
def test_produce_request_says_that_it_is_transactional(v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    rig.send()
    rig.manager.commit()
    (sent,) = rig.client.sent
    assert sent.produced.transactional_id == "t"
    assert is_transactional(sent)
    # From version 12 on the leader adds the partition. Only transactions of version 2 may use that.
    assert sent.produced.version == (12 if v2 else 11)


def test_sequence_goes_on_while_the_epoch_stays() -> None:
    rig = TransactionalRig().begun()
    for _ in range(3):
        rig.send()
        rig.manager.commit()
        rig.manager.begin()
    assert [numbers(sent) for sent in rig.client.sent] == [(GIVEN_ID, 0, 0), (GIVEN_ID, 0, 1), (GIVEN_ID, 0, 2)]


# Kafka: testTransactionManagerEnablesV2, testTransactionManagerDisablesV2
@pytest.mark.parametrize("before", [False, True], ids=["up", "down"])
def test_transaction_under_way_keeps_its_version(before: bool) -> None:
    rig = TransactionalRig(v2=before).begun()
    rig.send()
    rig.cluster.finalized_features = {"transaction.version": 1 if before else 2}
    rig.turns()
    rig.send(partition=1)
    rig.manager.commit()
    assert rig.entities(END_TXN)[-1].__version__ == (5 if before else 4)
    assert {sent.produced.version for sent in rig.client.sent} == {12 if before else 11}
    # The next transaction needs a new epoch: a late request of version 1 must not join it.
    epochs = rig.manager.producer_state.producer_epoch
    assert epochs == 1
    rig.forget()
    rig.manager.begin()
    rig.send()
    rig.manager.commit()
    assert rig.entities(END_TXN)[-1].__version__ == (4 if before else 5)
    assert ("add" in rig.asked) is before


# Kafka: testHasOngoingTransactionSuccessfulAbort
@both
def test_abort_ends_every_record(v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    sent = rig.send()
    rig.turns()
    unsent = rig.fill(1, 3)
    assert rig.manager.has_ongoing_transaction
    rig.manager.abort()
    assert not rig.manager.has_ongoing_transaction
    assert sent.exception(0) is None
    assert all(isinstance(future.exception(0), TransactionAbortedError) for future in unsent)
    assert not rig.entities(END_TXN)[0].committed
    assert rig.queue(1).next_sequence == 0
    assert_whole(rig.pool)
    rig.assert_usable()


@both
def test_empty_transaction_costs_no_request(v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    rig.manager.commit()
    rig.manager.begin()
    rig.manager.abort()
    assert rig.asked == []
    rig.assert_usable()


# ---- partitions ------------------------------------------------------------------------------------------------------


# Kafka: testNoDrainWhenPartitionsPending, testIsSendToPartitionAllowedWithPartitionNotAdded
# Kafka: testAddPartitionToTransactionRetainsRetryBackoffWhenPartitionsAlreadyAdded
def test_partition_gets_no_record_before_the_coordinator_knows_of_it() -> None:
    rig = TransactionalRig().begun()
    rig.hold(ADD_PARTITIONS_TO_TXN)
    rig.send(partition=0)
    rig.turns()
    assert rig.asked == ["add"]
    rig.let_go(ADD_PARTITIONS_TO_TXN)
    rig.turns(2)
    assert rig.asked == ["add", "produce"]
    assert rig.manager.send_allowed(TOPIC, 0)
    assert not rig.manager.send_allowed(TOPIC, 1)
    # A partition waits for its own request only.
    rig.hold(ADD_PARTITIONS_TO_TXN)
    rig.send(partition=1)
    rig.send(partition=0)
    rig.turns()
    assert rig.asked == ["add", "produce", "add", "produce"]
    assert rig.client.sent[-1].partitions == [0]


# Kafka: testRaiseErrorWhenNoPartitionsPendingOnDrain, testMultipleAddPartitionsPerForOneProduce
def test_partitions_are_added_in_one_request() -> None:
    rig = TransactionalRig().begun()
    for partition in range(3):
        rig.send(partition=partition)
    rig.turns()
    (added,) = rig.entities(ADD_PARTITIONS_TO_TXN)
    assert sorted(added.v3_and_below_topics[0].partitions) == [0, 1, 2]
    for partition in range(3):
        rig.send(partition=partition)
    rig.manager.commit()
    assert rig.asked.count("add") == 1


# Kafka: testFlushPendingPartitionsOnCommit, testCommitTransactionWithUnsentProduceRequest
# Kafka: SenderTest.testRecordsFlushedImmediatelyOnTransactionCompletion
@both
def test_commit_sends_lingering_records_at_once(v2: bool) -> None:
    rig = TransactionalRig(v2=v2, linger_ms=9_000, delivery_timeout_ms=60_000).begun()
    futures = [rig.send(partition=partition) for partition in range(3)]
    rig.turns()
    assert "produce" not in rig.asked
    started = rig.clock.monotonic()
    rig.manager.commit()
    assert rig.clock.monotonic() - started < 0.1
    assert all(future.exception(0) is None for future in futures)
    assert rig.asked[-1] == "end"


# Kafka: testEndTxnNotSentIfIncompleteBatches, testCommitTransactionWithInFlightProduceRequest
# Kafka: SenderTest.testAwaitPendingRecordsBeforeCommittingTransaction
@both
def test_transaction_ends_after_its_records_are_acknowledged(v2: bool) -> None:
    rig = TransactionalRig(v2=v2, max_block_ms=100).begun()
    rig.hold(PRODUCE)
    future = rig.send()
    rig.turns()
    with pytest.raises(TimeoutError):
        rig.manager.commit()
    assert rig.asked[-1] == "produce"
    assert not future.done()
    rig.let_go(PRODUCE)
    rig.manager.commit()
    assert rig.asked[-1] == "end"


# Kafka: testAddPartitionToTransactionOverridesRetryBackoffForConcurrentTransactions
# Kafka: testAddPartitionToTransactionRetainsRetryBackoffForRegularRetriableError
@pytest.mark.parametrize(
    ("code", "added_before", "pause"),
    [(51, False, 0.002), (51, True, 0.1), (14, False, 0.1)],
    ids=["first", "later", "another error"],
)
def test_first_partitions_of_a_transaction_are_added_after_a_short_back_off(
    code: int, added_before: bool, pause: float
) -> None:
    rig = TransactionalRig().begun()
    if added_before:
        rig.send(partition=1)
        rig.turns()
    rig.fate(ADD_PARTITIONS_TO_TXN, code)
    rig.send(partition=0)
    started = rig.clock.monotonic()
    rig.manager.commit()
    assert rig.clock.monotonic() - started == pytest.approx(pause, rel=0.3, abs=STEP)


# ---- offsets ---------------------------------------------------------------------------------------------------------


# Kafka: testSendOffsetsWithGroupMetadata
@both
def test_offsets_are_committed_with_their_group_metadata(v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    rig.manager.send_offsets(OFFSETS, GROUP)
    (commit,) = rig.entities(TXN_OFFSET_COMMIT)
    assert commit.__version__ == (5 if v2 else 4)
    assert (commit.group_id, commit.generation_id, commit.member_id, commit.group_instance_id) == (
        "readers", 5, "member-1", "instance-1",
    )  # fmt: skip
    committed = {
        (topic.name, partition.partition_index): (
            partition.committed_offset,
            partition.committed_metadata,
            partition.committed_leader_epoch,
        )
        for topic in commit.topics
        for partition in topic.partitions
    }
    assert committed == {("in", 0): (5, "why", 7), ("in", 1): (6, "", -1), ("other", 0): (1, "", -1)}
    assert [request.group_id for request in rig.entities(ADD_OFFSETS_TO_TXN)] == ([] if v2 else ["readers"])
    rig.manager.commit()
    assert rig.asked[-1] == "end"


def test_each_group_has_its_coordinator_looked_up() -> None:
    rig = TransactionalRig().begun()
    rig.manager.send_offsets(OFFSETS, GROUP)
    rig.manager.send_offsets(OFFSETS, GROUP)
    assert [request.coordinator_keys for request in rig.entities(FIND_COORDINATOR)] == [("readers",)]
    rig.manager.send_offsets(OFFSETS, GroupMetadata("others"))
    assert [request.coordinator_keys for request in rig.entities(FIND_COORDINATOR)] == [("readers",), ("others",)]


class Place(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True)
class TheirPlace:
    topic: str
    partition: int
    offset: int = -1001


def test_offsets_of_other_libraries_are_understood() -> None:
    mine = OffsetAndMetadata(7, "m", 3)
    theirs = SimpleNamespace(offset=7, metadata="m", leader_epoch=3)
    plain = SimpleNamespace(offset=7, metadata=None, leader_epoch=None)
    offsets = {("a", 0): mine, Place("a", 1): theirs, TheirPlace("a", 2): 7, ("a", 3): plain}
    assert offsets_of(offsets) == {
        ("a", 0): mine, ("a", 1): mine, ("a", 2): OffsetAndMetadata(7), ("a", 3): OffsetAndMetadata(7)
    }  # fmt: skip
    group = SimpleNamespace(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    assert group_of(group) == GroupMetadata("g", 1, "m")
    assert group_of("g") == GroupMetadata("g")
    assert group_of(("g", 2)) == GroupMetadata("g", 2)
    assert group_of(("g", 1, "m", "i")) == GroupMetadata("g", 1, "m", "i")
    their_group = kafka.structs.ConsumerGroupMetadata("g", 1, "m", "i")
    assert group_of(their_group) == GroupMetadata("g", 1, "m", "i")


def test_group_metadata_of_confluent_kafka_is_taken() -> None:
    with closing(confluent_kafka.Consumer({"bootstrap.servers": "localhost:9", "group.id": "g"})) as consumer:
        assert group_of(consumer.consumer_group_metadata()) == GroupMetadata("g", -1, "")
    written = b"CGMDv2:" + (7).to_bytes(4, sys.byteorder) + b"group\0member\0"
    assert group_of(written + b"\0instance\0") == GroupMetadata("group", 7, "member", "instance")
    assert group_of(written + b"\1") == GroupMetadata("group", 7, "member")


@pytest.mark.parametrize("end", range(17))
def test_group_metadata_in_bytes_of_another_form_is_refused(end: int) -> None:
    written = b"CGMDv2:" + (7).to_bytes(4, sys.byteorder) + b"g\0m\0\1"
    bad = written[:end] if end < len(written) else b"CGMDv9:" + written[7:]
    with pytest.raises(ValueError, match="confluent-kafka's consumer_group_metadata"):
        group_of(bad)


@pytest.mark.parametrize(
    "offsets",
    [None, [("a", 0)], {"a": 1}, {("a", "0"): 1}, {("a", -1): 1}, {("a", 0): -1}, {("a", 0): "1"}, {("a", 0): True},
     {(b"a", 0): 1}, {("a", 0, 1): 1}],
)  # fmt: skip
def test_invalid_offsets_are_refused(offsets: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="offset"):
        offsets_of(offsets)


@pytest.mark.parametrize(
    "group",
    [None, "", 5, object(), SimpleNamespace(group_id="g"), (), ("g", "m"), ("g", 1, None), ("g", 1, "m", 5),
     ("g", 1, "m", None, "more"), (None, 1, "m"), kafka.structs.ConsumerGroupMetadata(group_id=None)],
)  # fmt: skip
def test_invalid_group_is_refused(group: Any) -> None:
    with pytest.raises(TypeError, match="group"):
        group_of(group)


# ---- calls in the wrong state ----------------------------------------------------------------------------------------

Call = Callable[[TransactionalRig], object]
CALLS: dict[str, Call] = {
    "init_transactions": lambda rig: rig.manager.init(),
    "begin_transaction": lambda rig: rig.manager.begin(),
    "send_offsets_to_transaction": lambda rig: rig.manager.send_offsets(OFFSETS, GROUP),
    "commit_transaction": lambda rig: rig.manager.commit(),
    "abort_transaction": lambda rig: rig.manager.abort(),
    "send": lambda rig: rig.send(),
}
LEGAL = {
    State.UNINITIALIZED: {"init_transactions"},
    State.READY: {"begin_transaction"},
    State.IN_TRANSACTION: {"send", "send_offsets_to_transaction", "commit_transaction", "abort_transaction"},
}


# Kafka: testFailIfNotReadyForSend{NoProducerId,NoOngoingTransaction,AfterAbortableError,AfterFatalError}
# Kafka: testNotReadyForSend{BeforeInitTransactions,BeforeBeginTransaction,AfterAbortableError,AfterFatalError}
# Kafka: testInitializeTransactionsTwiceRaisesError, testForegroundInvalidStateTransitionIsRecoverable
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", LEGAL)
def test_call_in_the_wrong_state_is_refused_and_does_no_harm(state: State, call: str) -> None:
    if call in LEGAL[state]:
        return
    rig = TransactionalRig()
    if state is not State.UNINITIALIZED:
        rig.manager.init()
    if state is State.IN_TRANSACTION:
        rig.manager.begin()
    rig.forget()
    with pytest.raises(IllegalStateError, match=call):
        CALLS[call](rig)
    assert rig.manager.state is state
    rig.turns()
    assert rig.asked == []
    if state is State.IN_TRANSACTION:
        rig.manager.commit()
    if state is State.UNINITIALIZED:
        rig.manager.init()
    rig.assert_usable()


def test_batch_that_is_being_committed_takes_no_record() -> None:
    rig = TransactionalRig(max_block_ms=100, linger_ms=9_000, delivery_timeout_ms=60_000).begun()
    rig.send()
    rig.hold(ADD_PARTITIONS_TO_TXN)
    with pytest.raises(TimeoutError):
        rig.manager.commit()
    with pytest.raises(IllegalStateError, match="committing"):
        rig.send()  # the open batch had room
    rig.let_go(ADD_PARTITIONS_TO_TXN)
    rig.manager.commit()
    assert sum(len(sent.values()) for sent in rig.client.sent) == 1


@pytest.mark.parametrize("bulk", ["send_many", "send_arrow"])
def test_bulk_append_outside_a_transaction_is_refused(bulk: str) -> None:
    import pyarrow as pa

    def append() -> Any:
        if bulk == "send_many":
            return rig.producer.send_many(TOPIC, [b"a", b"b"])
        return rig.producer.send_arrow(pa.table({"value": pa.array([b"a", b"b"])}), TOPIC)

    rig = TransactionalRig()
    for state in (rig.manager.init, rig.manager.begin):
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            append()
        state()
    report = append()
    rig.manager.commit()
    assert report.exception(0) is None
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        append()
    assert_whole(rig.pool)


# Kafka: testBackgroundInvalidStateTransitionIsFatal
def test_error_between_transactions_is_raised_by_every_call() -> None:
    rig = TransactionalRig()
    rig.manager.init()
    rig.manager.fail(KafkaError("no such thing"))
    for name, call in CALLS.items():
        with pytest.raises(KafkaError, match="no such thing"):
            call(rig)
        assert rig.manager.state is State.FATAL_ERROR, name


# ---- in an error -----------------------------------------------------------------------------------------------------


def broken(rig: TransactionalRig, fatal: bool) -> None:
    error = KafkaError("some reason")
    (rig.manager.fail if fatal else rig.manager.abort_with)(error)


# Kafka: testIsSendToPartitionAllowedWith{PendingPartition,InFlightPartitionAdd}After{Abortable,Fatal}Error
# Kafka: testIsSendToPartitionAllowedWithAddedPartitionAfter{Abortable,Fatal}Error
# Kafka: testHasOngoingTransaction{AbortableError,FatalError}
@pytest.mark.parametrize("fatal", [False, True], ids=["abortable", "fatal"])
@pytest.mark.parametrize("how_far", ["pending", "in flight", "added"])
def test_partition_gets_no_record_after_an_error(how_far: str, fatal: bool) -> None:
    rig = TransactionalRig().begun()
    if how_far != "added":
        rig.hold(ADD_PARTITIONS_TO_TXN)
    rig.send()
    if how_far != "pending":
        rig.turns()
    broken(rig, fatal)
    assert rig.manager.send_allowed(TOPIC, 0) is (how_far == "added" and not fatal)
    assert rig.manager.has_ongoing_transaction is not fatal
    rig.let_go(ADD_PARTITIONS_TO_TXN)
    rig.forget()
    rig.turns()
    assert "produce" not in rig.asked
    assert not rig.incomplete()


# Kafka: resendFailedProduceRequestAfterAbortableError, testAbortResendsProduceRequestIfRetried
# Kafka: testRecoveryFromAbortableErrorProduceRequestInRetry
@pytest.mark.parametrize("abort_at_once", [False, True])
def test_batch_that_was_tried_once_is_retried_in_an_aborted_transaction(abort_at_once: bool) -> None:
    rig = TransactionalRig().begun()
    rig.fate(PRODUCE, 6)
    future = rig.send()
    rig.until(lambda: rig.sender.record_retries > 0)
    rig.lead(1, 1, 3)
    unsent = rig.fill(2)[0]
    if abort_at_once:
        rig.manager.abort()
    else:
        broken(rig, fatal=False)
        with pytest.raises(AbortableTransactionError):
            rig.send()
        rig.until(future.done)
        rig.manager.abort()
    assert future.exception(0) is None  # the broker might have taken it the first time
    assert unsent.exception(0) is not None
    assert rig.asked[-1] == "end"
    rig.assert_usable()


# Kafka: testAbortableErrorWhileAbortInProgress, testCancelUnsentAddPartitionsAndProduceOnAbort
# Kafka: SenderTest.testTransactionAbortedExceptionOnAbortWithoutError
def test_abort_goes_on_after_an_error() -> None:
    rig = TransactionalRig(max_block_ms=100).begun()
    rig.hold(PRODUCE)
    future = rig.send()
    rig.turns()
    unsent = rig.send(partition=1)
    with pytest.raises(TimeoutError):
        rig.manager.abort()
    rig.fate(PRODUCE, 45)
    rig.let_go(PRODUCE)
    rig.manager.abort()
    error = future.exception(0)
    assert error is not None
    assert error.code == 45
    assert isinstance(unsent.exception(0), TransactionAbortedError)
    assert rig.asked.count("add") == 1
    rig.assert_usable()
    assert numbers(rig.client.sent[-1]) == (GIVEN_ID, 1, 0)


# Kafka: shouldNotSendAbortTxnRequestWhenOnly{AddPartitions,AddOffsets}RequestFailed
# Kafka: testRecoveryFromAbortableErrorTransactionNotStarted
@pytest.mark.parametrize("api_key", [ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN])
def test_transaction_that_the_coordinator_never_had_is_aborted_without_a_request(api_key: int) -> None:
    rig = TransactionalRig().begun()
    rig.fate(api_key, 29 if api_key == ADD_PARTITIONS_TO_TXN else 30)
    if api_key == ADD_PARTITIONS_TO_TXN:
        rig.send()
    with pytest.raises(AbortableTransactionError):
        rig.manager.send_offsets(OFFSETS, GROUP) if api_key == ADD_OFFSETS_TO_TXN else rig.manager.commit()
    rig.forget()
    rig.manager.abort()
    assert rig.asked == []
    rig.assert_usable()


# Kafka: testAbortResendsAddPartitionErrorIfRetried
def test_abort_adds_again_a_partition_that_may_have_been_added() -> None:
    rig = TransactionalRig().begun()
    rig.fate(ADD_PARTITIONS_TO_TXN, 14)
    future = rig.send()
    rig.until(lambda: rig.asked == ["add"] and not rig.cluster.waiting and not rig.cluster._completions)
    rig.manager.abort()
    assert rig.asked == ["add", "add", "end"]
    assert isinstance(future.exception(0), TransactionAbortedError)


# Kafka: shouldFailAbortIfAddOffsetsFailsWithFatalError
def test_abort_after_a_fatal_error_raises() -> None:
    rig = TransactionalRig(max_block_ms=100).begun()
    rig.hold(ADD_OFFSETS_TO_TXN)
    with pytest.raises(TimeoutError):
        rig.manager.send_offsets(OFFSETS, GROUP)
    rig.fate(ADD_OFFSETS_TO_TXN, 38)
    rig.let_go(ADD_OFFSETS_TO_TXN)
    with pytest.raises(KafkaError):
        rig.manager.send_offsets(OFFSETS, GROUP)
    with pytest.raises(KafkaError):
        rig.manager.abort()
    assert rig.manager.state is State.FATAL_ERROR


# Kafka: testBumpTransactionalEpochOnRecoverable{AddPartition,AddOffsets}RequestError
@pytest.mark.parametrize("code", [49, 59])
@pytest.mark.parametrize("api_key", [ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN])
def test_coordinator_that_has_forgotten_the_producer_is_asked_for_a_new_epoch(api_key: int, code: int) -> None:
    rig = TransactionalRig().begun()
    rig.fate(api_key, code)
    rig.send()
    with pytest.raises(AbortableTransactionError):
        rig.manager.send_offsets(OFFSETS, GROUP) if api_key == ADD_OFFSETS_TO_TXN else rig.manager.commit()
    rig.manager.abort()
    bump = rig.entities(INIT_PRODUCER_ID)[-1]
    assert (bump.producer_id, bump.producer_epoch) == (GIVEN_ID, 0)
    assert rig.manager.producer_state.producer_epoch == 1
    rig.assert_usable()


# ---- waiting threads -------------------------------------------------------------------------------------------------


def test_every_waiting_thread_is_woken() -> None:
    result = Result("commit_transaction")
    seen: list[bool] = []
    threads = [threading.Thread(target=lambda: seen.append(result.wait(30, ManualClock()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    result.end()
    for thread in threads:
        thread.join(30)
    assert seen == [True] * 3
    result.end(KafkaError("later"))
    assert result.error is None


def test_close_fails_the_operation_under_way() -> None:
    rig = TransactionalRig(max_block_ms=100)
    rig.hold(INIT_PRODUCER_ID)
    with pytest.raises(TimeoutError):
        rig.manager.init()
    rig.sender._end()
    with pytest.raises((ClosedError, KafkaError), match="closed"):
        rig.manager.init()


@pytest.mark.parametrize("move", list(Move))
def test_move_from_a_state_that_the_table_does_not_name_is_an_error(move: Move) -> None:
    rig = TransactionalRig()
    for state in set(State) - set(move.sources):
        rig.manager.state = state
        with pytest.raises(AssertionError, match="does not start from"):
            rig.manager._make(move)
        assert rig.manager.state is state
