"""A lack of memory in a transaction: each step is made again, and nobody waits for a time-out."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from kafkabuf.errors import AbortableTransactionError, KafkaError, TopicAuthorizationError
from kafkabuf.process.threads import Event, new_waiter
from kafkabuf.protocol.messages import FIND_COORDINATOR, PRODUCE
from kafkabuf.transactions.requests import EndTxn
from kafkabuf.transactions.result import Result
from kafkabuf.transactions.states import State
from rigs.producer import only_request
from tests.transactions.idempotence_support import idempotent, numbers
from tests.transactions.rig import TransactionalRig, TurningClock

TOPIC_AUTHORIZATION_FAILED = 29


def make_scarce(patch: pytest.MonkeyPatch, target: Any, name: str, lacking: int = 1) -> list[int]:
    """Let the first calls of a method find no memory. Returns a list that has an item for each call."""
    method: Callable[..., Any] = getattr(target, name)
    calls: list[int] = []

    def scarce(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) <= lacking:
            raise MemoryError
        return method(*arguments, **named)

    patch.setattr(target, name, scarce, raising=False)
    return calls


def surviving(rig: TransactionalRig) -> TransactionalRig:
    """Let the rig's turns survive a lack of memory, as the Sender's thread does."""

    def turn() -> None:
        try:
            rig.sender.run_once()
        except MemoryError:
            rig.clock.advance(0.001)

    assert isinstance(rig.clock, TurningClock)
    rig.clock.turn = turn
    return rig


class ScarceWaiters(deque[Any]):
    """Waiters that cannot be given away the first time."""

    lacking = True

    def _want_memory(self) -> None:
        if self.lacking:
            self.lacking = False
            raise MemoryError

    def __iter__(self) -> Any:
        self._want_memory()
        return super().__iter__()

    def popleft(self) -> Any:
        self._want_memory()
        return super().popleft()


def test_outcome_is_told_again_to_threads_that_there_was_no_memory_to_wake() -> None:
    result, waiter = Result("commit_transaction"), new_waiter()
    result._waiters = ScarceWaiters([waiter])
    with pytest.raises(MemoryError):
        result.end()
    assert not waiter.acquire(blocking=False)
    result.end()
    assert waiter.acquire(blocking=False)


def test_waiting_threads_are_kept_where_giving_them_away_needs_no_memory() -> None:
    # CPython's list.pop may have to move a list that shrinks.
    assert type(Event()._waiters) is deque
    assert type(Result("init")._waiters) is deque


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("lacking", [1, 2, 5])
def test_operations_end_though_their_outcome_finds_no_memory(
    lacking: int, v2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = surviving(TransactionalRig(v2=v2))
    for operation in (rig.manager.init, rig.manager.commit, rig.manager.abort):
        if operation != rig.manager.init:
            rig.manager.begin()
            rig.send()
        with monkeypatch.context() as patched:
            calls = make_scarce(patched, Result, "end", lacking)
            operation(timeout=4.0)
            assert len(calls) > lacking
    rig.assert_usable()


def test_transaction_that_ended_is_not_ended_again_within_the_next_transaction() -> None:
    rig = TransactionalRig().begun()
    rig.send()
    rig.manager.commit()
    ended = Result("commit_transaction")
    ended.end()
    rig.manager.begin()
    rig.send()
    rig.turns()
    partitions = set(rig.manager.partitions)
    rig.manager.on_ended(EndTxn(rig.manager, ended, committed=True))  # as after a MemoryError in Result.end
    assert rig.manager.state is State.IN_TRANSACTION
    assert rig.manager.partitions == partitions != set()


def test_request_for_which_there_is_no_memory_goes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = surviving(TransactionalRig().begun())
    rig.send()
    rig.turns()
    calls = make_scarce(monkeypatch, rig.cluster, "send_entity", 3)
    rig.manager.commit(timeout=4.0)
    assert len(calls) == 4
    assert rig.asked.count("end") == 1
    rig.assert_usable()


def test_request_that_was_put_back_without_memory_stays_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TransactionalRig().begun()
    rig.send()
    rig.turns()
    result = Result("commit_transaction")
    request = EndTxn(rig.manager, result, committed=True)
    queue = rig.manager.queue
    queue.push(request)
    entry = queue.take_first()
    make_scarce(monkeypatch, heapq, "heappush")
    queue.put_back(entry)
    assert list(queue) == [request]
    with pytest.raises(MemoryError):
        queue.restore()
    queue.restore()
    assert queue.first is request


@pytest.mark.parametrize("name", ["failure", "_explained"])
def test_caller_learns_a_fatal_error_though_its_first_telling_finds_no_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = surviving(TransactionalRig())
    rig.cluster.newest[FIND_COORDINATOR] = -1
    make_scarce(monkeypatch, rig.manager, name)
    with pytest.raises(KafkaError, match="too old"):
        rig.manager.init(timeout=4.0)


def test_caller_learns_that_a_request_cannot_be_written_though_its_first_telling_finds_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = surviving(TransactionalRig().begun())
    rig.send()
    rig.turns()

    def cannot_be_written(self: EndTxn) -> None:
        raise ValueError("no such field")

    monkeypatch.setattr(EndTxn, "values", cannot_be_written)
    make_scarce(monkeypatch, rig.manager, "failure")
    with pytest.raises(KafkaError, match="cannot be written"):
        rig.manager.commit(timeout=4.0)


@pytest.mark.parametrize("v2", [False, True])
def test_failed_batch_for_whose_count_there_is_no_memory_still_fails_the_transaction(
    v2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = surviving(TransactionalRig(v2=v2).begun())
    make_scarce(monkeypatch, rig.manager, "on_failure")
    rig.fate(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
    future = rig.send()
    with pytest.raises(AbortableTransactionError):
        rig.manager.commit(timeout=4.0)
    assert isinstance(future.exception(0), TopicAuthorizationError)
    rig.manager.abort(timeout=4.0)
    rig.assert_usable()


@pytest.mark.parametrize("name", ["request_idempotent_epoch_bump_for_partition", "failed"])
def test_partition_goes_on_after_a_failed_batch_for_whose_count_there_was_no_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = idempotent()
    first = rig.send(b"one")
    make_scarce(monkeypatch, rig.state, name)
    rig.client.answer(only_request(rig), TOPIC_AUTHORIZATION_FAILED)
    for _ in range(3):
        try:
            rig.turn()
        except MemoryError:
            pass
    assert isinstance(first.exception(0), TopicAuthorizationError)
    second = rig.send(b"two")
    assert numbers(only_request(rig))[2] == 0  # under a new epoch
    rig.ack_all()
    assert second.result(0).offset >= 0


def test_producer_id_is_requested_again_after_a_request_that_found_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = idempotent()
    rig.state.set_producer_id_and_epoch(-1, -1)
    make_scarce(monkeypatch, rig.client, "send_entity")
    future = rig.send(b"value")
    with pytest.raises(MemoryError):
        rig.turn()
    rig.turn()
    rig.turn()
    rig.ack_all()
    assert future.result(0).offset >= 0
