"""Any request to a coordinator that is gone has it looked up again, until a named node takes requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import (
    AbortableTransactionError,
    AuthenticationError,
    CoordinatorNotAvailableError,
    KafkaError,
    SaslAuthenticationError,
    TimeoutError,
)
from kafkabuf.protocol.messages import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from kafkabuf.transactions.groups import OffsetAndMetadata, group_of, offsets_of
from kafkabuf.transactions.manager import TransactionManager
from kafkabuf.transactions.requests import TxnOffsetCommit
from kafkabuf.transactions.result import Result
from kafkabuf.transactions.states import State
from tests.transactions.rig import COORDINATOR, GROUP, LOST, TransactionalRig

OFFSETS = {("in", 0): OffsetAndMetadata(5)}
OTHER = 3  # the node that becomes the coordinator
both = pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])
Call = Callable[[TransactionManager], object]
INIT: Call = TransactionManager.init
COMMIT: Call = TransactionManager.commit
ABORT: Call = TransactionManager.abort


def send_offsets(manager: TransactionManager) -> None:
    manager.send_offsets(OFFSETS, GROUP)


every_call = pytest.mark.parametrize(
    "call", [INIT, COMMIT, ABORT, send_offsets], ids=["init", "commit", "abort", "offsets"]
)


def ready_for(call: Call, *, v2: bool = False, **settings: int) -> TransactionalRig:
    rig = TransactionalRig(v2=v2, **settings)
    if call is not INIT:
        rig.begun()
        rig.send()
        rig.turns()
        rig.forget()
    return rig


# ---- no connection ---------------------------------------------------------------------------------------------------


@every_call
@both
def test_coordinator_that_cannot_be_connected_to_is_looked_up_again(call: Call, v2: bool) -> None:
    rig = ready_for(call, v2=v2)
    rig.lose(COORDINATOR)
    rig.cluster.coordinators = [COORDINATOR] * 3 * (call is INIT) + [OTHER]
    started = rig.clock.monotonic()
    call(rig.manager)
    assert rig.cluster.asked[-1].node_id == OTHER
    assert rig.clock.monotonic() - started < 0.5
    if call is send_offsets:
        rig.manager.commit()
    rig.assert_usable()


@both
def test_coordinator_whose_connection_failed_while_no_request_waited_is_looked_up_again(v2: bool) -> None:
    """Another attempt to connect may be under way, for a partition that the node leads. It may take as long."""
    rig = ready_for(COMMIT, v2=v2)
    rig.cluster.unready.add(COORDINATOR)
    rig.cluster.failed[COORDINATOR] = LOST
    rig.cluster.coordinators = [OTHER]
    started = rig.clock.monotonic()
    rig.manager.commit()
    assert rig.cluster.asked[-1].node_id == OTHER
    assert rig.clock.monotonic() - started < 0.5


def test_offsets_whose_transaction_failed_meanwhile_ask_for_an_abort() -> None:
    rig = TransactionalRig(v2=False).begun()
    result = Result("send_offsets_to_transaction")
    commit = TxnOffsetCommit(rig.manager, result, OFFSETS, GROUP)
    rig.manager.abort_with(LOST)  # a record failed while AddOffsetsToTxn was under way
    rig.manager.on_offsets_added(commit)
    assert isinstance(result.error, AbortableTransactionError)


@every_call
def test_lookup_that_names_a_dead_node_is_repeated_after_a_back_off(call: Call) -> None:
    rig = ready_for(call)
    rig.lose(COORDINATOR)
    started = rig.clock.monotonic()
    with pytest.raises(TimeoutError):
        call(rig.manager)
    seconds = rig.clock.monotonic() - started
    assert 5 <= rig.asked.count("find") <= 2 + seconds / 0.1, "not once in a retry.backoff.ms"
    rig.cluster.coordinators = [OTHER]
    call(rig.manager)
    assert rig.cluster.asked[-1].node_id == OTHER


def test_dead_coordinator_that_came_back_is_used_again() -> None:
    rig = ready_for(COMMIT, max_block_ms=500)
    rig.lose(COORDINATOR)
    with pytest.raises(TimeoutError):
        rig.manager.commit()
    rig.restore(COORDINATOR)
    rig.manager.commit()
    rig.forget()
    rig.assert_usable()
    assert "find" not in rig.asked, "the coordinator is known"


def test_failed_lookups_do_not_delay_later_lookups() -> None:
    rig = ready_for(COMMIT, retry_backoff_max_ms=1_000)
    rig.lose(COORDINATOR)
    with pytest.raises(TimeoutError):
        rig.manager.commit()
    rig.cluster.coordinators = [OTHER]
    rig.manager.commit()
    rig.lose(OTHER)
    rig.restore(COORDINATOR)
    rig.cluster.coordinators = [COORDINATOR]
    rig.manager.begin()
    rig.send()
    started = rig.clock.monotonic()
    rig.manager.commit()
    assert rig.clock.monotonic() - started < 0.2


@pytest.mark.parametrize("code", [14, 15, 16, 51])
def test_coordinator_that_is_not_ready_is_asked_again_after_a_constant_back_off(code: int) -> None:
    rig = ready_for(COMMIT, retry_backoff_max_ms=1_000)
    rig.fate(END_TXN, *[code] * 10)
    started = rig.clock.monotonic()
    rig.manager.commit()
    assert rig.clock.monotonic() - started < 1.6, "retry.backoff.ms each time, give or take a fifth"


def test_abort_ends_though_the_coordinator_is_lost_while_the_epoch_is_raised() -> None:
    rig = ready_for(ABORT)
    rig.fate(END_TXN, 0)
    rig.manager.abort_with(KafkaError("a batch was lost"), bump=True)
    rig.hold(INIT_PRODUCER_ID)
    with pytest.raises(TimeoutError):
        rig.manager.abort()
    rig.lose(COORDINATOR)
    rig.cluster.coordinators = [COORDINATOR, OTHER]
    rig.fate(INIT_PRODUCER_ID, LOST)
    rig.let_go(INIT_PRODUCER_ID)
    rig.manager.abort()
    rig.assert_usable()


def test_another_broker_is_asked_after_a_broker_named_the_dead_node() -> None:
    """A broker that is cut off from the controller never learns of another coordinator."""
    rig = ready_for(COMMIT, max_block_ms=300)
    rig.lose(COORDINATOR)
    rig.cluster.avoided.clear()
    with pytest.raises(TimeoutError):
        rig.manager.commit()
    assert set(rig.cluster.avoided[1:]) == {rig.cluster.id_node}
    rig.cluster.coordinators = [OTHER]
    rig.manager.commit()
    rig.cluster.avoided.clear()
    rig.fate(END_TXN, 16)
    rig.assert_usable()
    assert rig.cluster.avoided == [None]


@pytest.mark.parametrize("code", [13, 14, 15, 16, 51])
def test_batch_goes_again_soon_to_a_leader_that_finds_no_coordinator(code: int) -> None:
    rig = TransactionalRig(v2=True, retry_backoff_max_ms=1_000)
    rig.begun()
    rig.fate(PRODUCE, *[code] * 10)
    rig.send()
    started = rig.clock.monotonic()
    rig.manager.commit()
    assert 1 <= rig.clock.monotonic() - started < 2.8, "twice retry.backoff.ms each time, give or take a fifth"


@pytest.mark.parametrize("fate", [LOST, 13, 15, 16, 51])
@both
def test_coordinator_that_a_leader_cannot_reach_is_looked_up_again(fate: int | KafkaError, v2: bool) -> None:
    rig = TransactionalRig(v2=v2).begun()
    rig.fate(PRODUCE, fate)
    rig.cluster.coordinators = [OTHER]
    rig.send()
    rig.manager.commit()
    assert rig.asked[-3:] == ["produce", "find", "end"]
    assert rig.cluster.asked[-1].node_id == OTHER
    rig.forget()
    rig.assert_usable()
    assert "find" not in rig.asked


def test_other_errors_of_a_leader_are_retried_with_a_growing_back_off() -> None:
    rig = TransactionalRig(v2=True, retry_backoff_max_ms=1_000)
    rig.begun()
    rig.fate(PRODUCE, *[7] * 6)
    rig.send()
    started = rig.clock.monotonic()
    rig.manager.commit()
    assert rig.clock.monotonic() - started > 2.5


@pytest.mark.parametrize("named", [-1, -2])
def test_lookup_that_names_no_node_is_repeated(named: int) -> None:
    rig = TransactionalRig()
    rig.cluster.coordinators = [named, COORDINATOR]
    rig.manager.init()
    assert rig.cluster.asked[-1].node_id == COORDINATOR


def test_call_fails_if_every_broker_refuses_the_client() -> None:
    rig = TransactionalRig()
    refusal = SaslAuthenticationError("wrong password")

    def no_connection_error() -> None:
        raise refusal

    rig.cluster.id_node = None
    rig.cluster.connection_error = no_connection_error  # type: ignore[method-assign]
    with pytest.raises(KafkaError, match="wrong password") as raised:
        rig.manager.init()
    assert isinstance(raised.value.__cause__, AuthenticationError)


class Unwritable(TransactionalRig):
    """A rig whose client cannot encode an offset commit."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        send = self.cluster.send_entity

        def refuse(node_id: int, entity: Any, context: Any = None) -> None:
            if entity.__api_key__ == TXN_OFFSET_COMMIT:
                raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
            send(node_id, entity, context)

        self.cluster.send_entity = refuse  # type: ignore[method-assign]


def test_request_that_cannot_be_encoded_fails_its_caller_and_the_producer_goes_on() -> None:
    rig = Unwritable().begun()
    with pytest.raises(AbortableTransactionError, match=r"cannot be written: .*surrogates"):
        send_offsets(rig.manager)
    rig.manager.abort()
    rig.assert_usable()


@pytest.mark.parametrize(
    ("offsets", "group"),
    [
        ({("in", 0): 1 << 63}, "g"), ({("in", 1 << 31): 1}, "g"), ({("\ud800", 0): 1}, "g"), ({("in", 0): 1}, "\ud800"),
        ({("in", 0): 1}, ("g", 1 << 31)), ({("in", 0): OffsetAndMetadata(1, "\ud800")}, "g"),
        ({("in", 0): OffsetAndMetadata(1, b"x")}, "g"),  # type: ignore[arg-type]
        ({("in", 0): OffsetAndMetadata(1, "", 1 << 31)}, "g"), ({("in", 0): 1}, ("g", 1, "\ud800")),
    ],
)  # fmt: skip
def test_offsets_that_cannot_be_encoded_are_refused_at_once(offsets: Any, group: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        (offsets_of(offsets), group_of(group))


# ---- the text of time-outs -------------------------------------------------------------------------------------------


@every_call
def test_time_out_says_why_the_coordinator_cannot_be_reached(call: Call) -> None:
    rig = ready_for(call)
    rig.lose(COORDINATOR)
    with pytest.raises(
        TimeoutError, match=r"Connection refused.*bootstrap\.servers \(localhost:9\).*security\.protocol"
    ):
        call(rig.manager)


def test_time_out_says_that_no_broker_can_be_reached() -> None:
    rig = TransactionalRig()
    rig.lose(COORDINATOR)
    rig.cluster.id_node = None
    with pytest.raises(TimeoutError, match=r"FindCoordinator, attempt 1, .*transaction coordinator of 't'.*refused"):
        rig.manager.init()


@pytest.mark.parametrize(
    ("code", "text"),
    [(15, r"replication\.factor"), (51, "earlier transaction"), (14, r"raise max\.block\.ms")],
)
def test_time_out_names_the_error_of_the_coordinator(code: int, text: str) -> None:
    rig = ready_for(COMMIT)
    rig.fate(END_TXN, *[code] * 200)
    with pytest.raises(TimeoutError, match=rf"(EndTxn|FindCoordinator), attempt \d+.*Last error: .*{text}"):
        rig.manager.commit()


def test_time_out_names_the_broker_that_has_not_answered() -> None:
    rig = ready_for(send_offsets)
    rig.hold(TXN_OFFSET_COMMIT)
    with pytest.raises(
        TimeoutError, match=r"Broker 2 has not responded yet to TxnOffsetCommit, attempt 1, sent 5\.0 s ago"
    ):
        send_offsets(rig.manager)


def test_time_out_says_that_records_have_no_outcome_yet() -> None:
    rig = ready_for(COMMIT)
    rig.lose(1)
    rig.cluster.errors.clear()
    rig.send(partition=1)
    with pytest.raises(TimeoutError, match=r"First 1 batch.*delivery\.timeout\.ms"):
        rig.manager.commit()


def test_time_out_does_not_name_an_error_that_is_over() -> None:
    rig = ready_for(COMMIT)
    rig.fate(END_TXN, LOST)
    rig.manager.commit()
    rig.manager.begin()
    rig.send()
    rig.hold(ADD_PARTITIONS_TO_TXN)
    with pytest.raises(TimeoutError) as raised:
        rig.manager.commit()
    assert "Last error" not in str(raised.value)


# ---- close -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["dead", "loading", "nobody"])
def test_close_gives_up_a_hopeless_abort_with_a_warning(trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = ready_for(COMMIT, delivery_timeout_ms=120_000)
    if trouble == "loading":
        rig.fate(END_TXN, *[14] * 10_000)
    else:
        rig.lose(COORDINATOR)
        rig.cluster.id_node = None if trouble == "nobody" else rig.cluster.id_node
    started = rig.clock.monotonic()
    rig.sender.close()
    with caplog.at_level(logging.WARNING):
        rig.sender.run()
    assert rig.clock.monotonic() - started < 2, "request.timeout.ms is 500"
    (text,) = [record.getMessage() for record in caplog.records if "close()" in record.getMessage()]
    assert "transaction.timeout.ms" in text
    assert "Last error" in text


def test_close_aborts_after_a_request_that_was_refused_for_longer_than_an_abort_may_take() -> None:
    rig = ready_for(COMMIT)
    rig.manager.queue.note_trouble(CoordinatorNotAvailableError("of an earlier request"))
    rig.clock.advance(10)
    rig.sender.close()
    rig.sender.run()
    (end,) = rig.entities(END_TXN)
    assert not end.committed


def test_close_aborts_with_a_coordinator_that_moved() -> None:
    rig = ready_for(COMMIT)
    rig.lose(COORDINATOR)
    rig.cluster.coordinators = [COORDINATOR, COORDINATOR, OTHER]
    rig.sender.close()
    rig.sender.run()
    (end,) = rig.entities(END_TXN)
    assert not end.committed


def test_close_commits_as_long_as_there_is_time() -> None:
    rig = ready_for(COMMIT, max_block_ms=100)
    rig.lose(COORDINATOR)
    with pytest.raises(TimeoutError):
        rig.manager.commit()
    rig.sender.close()
    deadline = rig.clock.monotonic() + 5
    rig.cluster.coordinators = [COORDINATOR]
    rig.client.on_poll = lambda: rig.clock.monotonic() > deadline and rig.cluster.coordinators.__setitem__(0, OTHER)
    rig.sender.run()
    assert rig.entities(END_TXN)[-1].committed
    assert rig.manager.state is not State.COMMITTING
    assert FIND_COORDINATOR in rig.cluster.history


def test_close_aborts_without_the_offsets_that_it_would_discard() -> None:
    rig = ready_for(send_offsets, max_block_ms=100)
    rig.fate(TXN_OFFSET_COMMIT, *[3] * 10_000)
    with pytest.raises(TimeoutError, match="create the topic"):
        send_offsets(rig.manager)
    rig.sender.close()
    rig.sender.run()
    (end,) = rig.entities(END_TXN)
    assert not end.committed
    with pytest.raises(KafkaError, match="aborted"):
        send_offsets(rig.manager)


# ---- with an embedded cluster ----------------------------------------------------------------------------------------


def coordinator_of(cluster: EmbeddedCluster, key: str, topic: str = "__transaction_state") -> int:
    return cluster._call(lambda inside: inside.internal_topics.coordinator(topic, key))


@pytest.mark.parametrize("trouble", ["killed", "paused", "isolated"])
@pytest.mark.parametrize("version", [2, 0], ids=["V2", "V1"])
def test_transaction_ends_after_the_coordinator_died(trouble: str, version: int) -> None:
    with (
        EmbeddedCluster(
            brokers=3, min_insync_replicas=2, broker_session_timeout_ms=200, transaction_version=version
        ) as cluster,
        KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            transactional_id="moved",
            linger_ms=0,
            request_timeout_ms=400,
            delivery_timeout_ms=10_000,
            retry_backoff_ms=10,
            max_block_ms=10_000,
        ) as producer,
    ):
        cluster.create_topic("t", 3)
        cluster.create_topic("in")
        groups = [f"g{number}" for number in range(99)]
        moved = coordinator_of(cluster, "moved")
        group = next(group for group in groups if coordinator_of(cluster, group, "__consumer_offsets") == moved)
        producer.init_transactions()
        commit_one(producer, group)
        victim = coordinator_of(cluster, "moved")
        trouble_of = {"killed": cluster.kill_node, "paused": cluster.pause_node, "isolated": isolate(cluster)}
        trouble_of[trouble](victim)
        started = time.monotonic()
        commit_one(producer, group)
        assert time.monotonic() - started < 5
        assert coordinator_of(cluster, "moved") != victim


def isolate(cluster: EmbeddedCluster) -> Callable[[int], None]:
    return lambda node: cluster.isolate_node(node, from_clients=True)


def commit_one(producer: KafkaProducer, group: str) -> None:
    producer.begin_transaction()
    future = producer.send("t", b"v")
    producer.send_offsets_to_transaction({("in", 0): 5}, group)
    producer.commit_transaction()
    assert future.done()
