"""An error in a Sender's turn affects no other batch, and no later batch of its partition."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kafkabuf.batches import accumulator
from kafkabuf.clock import ManualClock
from kafkabuf.errors import AuthenticationError, KafkaError, PurgedError, TimeoutError
from rigs.producer import PATIENCE, TOPIC, HookClock, Rig, assert_whole, quick_rig
from tests.append.test_arrow_races import rows_of
from tests.instructions import Instructions
from tests.memory.pool_support import in_thread
from tests.sending.test_expiry import run_sender

NOT_LEADER = 6
FOREVER = float("inf")


def breaks_once(call: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
    """A function whose call number `at`, counted from 0, raises. Its other calls go to `call`."""
    calls = iter(range(10_000))

    def broken(*args: Any, **more: Any) -> Any:
        if next(calls) == at:
            raise RuntimeError("a bug")
        return call(*args, **more)

    return broken


# ---- other threads ---------------------------------------------------------------------------------------------------


def test_batches_that_are_added_meanwhile_do_not_disturb_expiry() -> None:
    rig = quick_rig(leaders=[1] * 200, slabs=256)
    rig.client.unready.add(1)
    expired = [rig.send(partition=0), rig.send(partition=1)]
    rig.clock.advance(1)
    free = iter(range(2, 200))
    with Instructions([accumulator]).interrupted(lambda: rig.send(partition=next(free, 199))):
        rig.turn()
    assert [future.done() for future in expired] == [True, True]
    assert len(rig.accumulator.incomplete) > 2
    rig.accumulator.abort()
    assert_whole(rig.pool)


def test_bulk_append_may_give_back_a_batch_while_it_expires() -> None:
    go_on, waits = threading.Event(), threading.Event()

    def serialize(value: bytes) -> bytes:
        if value == b"second":
            waits.set()
            assert go_on.wait(PATIENCE)
        return value

    rig = quick_rig(clock=ManualClock(), value_serializer=serialize)
    appending = in_thread(lambda: rig.producer.send_many(TOPIC, [b"first", b"second"], partitions=[0, 0]))
    assert waits.wait(PATIENCE)
    (batch,) = rig.incomplete()
    assert batch.claimed

    def give_back(_: object = None) -> None:
        go_on.set()
        appending.exception(PATIENCE)

    def check() -> None:
        if not batch.done and batch not in rig.queue().batches:
            give_back()

    rig.clock.advance(1)
    with Instructions([accumulator]).interrupted(check):
        rig.turn()
    give_back()
    report = appending.result(PATIENCE)
    rig.ack_all()
    assert set(report.result(0, errors="return").error_code.tolist()) <= {0, 7}
    assert_whole(rig.pool)


def test_claims_are_given_back_after_an_error_with_another_claim() -> None:
    clock = HookClock()
    rig = Rig(leaders=(1, 1, 1), clock=clock, linger_ms=0)

    def spoil() -> None:  # imitates a bug in the producer: a batch has left its queue without an outcome
        clock.hook = spoil
        for batch in list(rig.queue(1).batches):
            if batch.claimed:
                clock.hook = None
                rig.accumulator.discard(batch)

    clock.hook = spoil
    with pytest.raises(IndexError):
        rig.producer.send_arrow(rows_of([0, 1, 2]), TOPIC)
    assert [batch.claimed for batch in rig.incomplete()] == [False, False, False]


# ---- a failed batch is a counted batch -------------------------------------------------------------------------------


def test_partition_goes_on_after_a_turn_that_broke_down_while_it_failed_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = quick_rig(leaders=(1, 1))
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.turn()
    rig.clock.advance(1)
    monkeypatch.setattr(rig.accumulator, "give_up", breaks_once(rig.accumulator.give_up, at=1))
    with pytest.raises(RuntimeError):
        rig.turn()
    for sent in list(rig.client.under_way):
        rig.client.answer(sent)
    later = rig.send(partition=0)
    rig.ack_all()
    assert later.result(0)
    assert [rig.queue(partition).in_sequence for partition in (0, 1)] == [[], []]
    assert_whole(rig.pool)


def test_batch_that_fails_is_counted_before_its_callbacks_run() -> None:
    rig = quick_rig()
    seen: list[Any] = []
    rig.send(callback=lambda *_: seen.append((list(rig.queue().in_sequence), rig.sender.record_errors)))
    rig.turn()
    rig.clock.advance(1)
    rig.turn()
    assert seen == [([], 1)]


# ---- an error affects no other batch ---------------------------------------------------------------------------------


def test_error_with_one_response_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig(leaders=(1, 2), delivery_timeout_ms=10_000)
    futures = [rig.send(partition=0), rig.send(partition=1)]
    rig.turn()
    for sent in list(rig.client.under_way):
        rig.client.answer(sent, NOT_LEADER if sent.node_id == 1 else 0)
    monkeypatch.setattr(rig.sender.recovery, "retry_or_fail", breaks_once(rig.sender.recovery.retry_or_fail))
    rig.turn()
    assert [future.done() for future in futures] == [False, True]
    rig.ack_all()
    assert futures[0].result(0)
    assert_whole(rig.pool)


def test_error_with_one_batch_of_a_response_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = quick_rig(leaders=(1, 1, 1), delivery_timeout_ms=10_000)
    futures = [rig.send(partition=partition) for partition in range(3)]
    (sent,) = rig.sent_after_turn()
    first, *rest = sent.partitions
    rig.client.answer(sent, NOT_LEADER, 0, 0)
    monkeypatch.setattr(rig.sender.recovery, "retry_or_fail", breaks_once(rig.sender.recovery.retry_or_fail))
    rig.turn()
    assert [futures[partition].done() for partition in (first, *rest)] == [False, True, True]
    before = len(rig.client.sent)
    rig.ack_all()
    assert [request.partitions for request in rig.client.sent[before:]] == [[first]]
    assert futures[first].result(0)
    assert_whole(rig.pool)


def test_batch_fails_if_its_response_can_never_be_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()
    future = rig.send()
    (sent,) = rig.sent_after_turn()
    rig.client.answer(sent, NOT_LEADER)

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.sender.recovery, "retry_or_fail", broken)
    rig.turn()
    assert "a bug" in str(future.exception(0))
    assert rig.queue().in_sequence == []
    assert_whole(rig.pool)


@pytest.mark.parametrize("idempotent", [True, False])
def test_request_that_cannot_be_made_loses_no_batch(monkeypatch: pytest.MonkeyPatch, idempotent: bool) -> None:
    rig = quick_rig(leaders=(1, 1), enable_idempotence=idempotent, delivery_timeout_ms=10_000)
    futures = [rig.send(b"%d" % partition, partition) for partition in (0, 1)]
    monkeypatch.setattr(rig.client, "send", breaks_once(rig.client.send))
    rig.turn()
    futures += [rig.send(b"later", 0)]
    rig.ack_all()
    assert [future.exception(0) for future in futures] == [None] * 3
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"0", b"later"]
    assert [queue.in_flight for queue in rig.topic.queues] == [0, 0]
    assert_whole(rig.pool)


def test_failed_request_whose_frame_may_be_on_its_way_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig(delivery_timeout_ms=10_000)
    future = rig.send()

    def send(node_id: int, request: Any) -> None:
        monkeypatch.undo()
        request.build(1)
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.client, "send", send)
    rig.turn()
    assert [node for node, _ in rig.client.broken] == [1]
    rig.ack_all()
    assert future.result(0)
    assert_whole(rig.pool)


def test_failure_to_report_a_topic_as_used_loses_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()
    future = rig.send()
    monkeypatch.setattr(rig.metadata, "add_topic", breaks_once(rig.metadata.add_topic))
    rig.turn()
    rig.ack_all()
    assert future.result(0)
    assert_whole(rig.pool)


def test_error_at_one_node_does_not_delay_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig(leaders=(1, 2))
    futures = [rig.send(partition=0), rig.send(partition=1)]
    ready = rig.client.ready

    def check(node_id: int) -> bool:
        if node_id == 1:
            raise RuntimeError("a bug")
        return ready(node_id)

    monkeypatch.setattr(rig.client, "ready", check)
    rig.sender.run_once()
    assert rig.client.waits == [pytest.approx(0.1)]  # the Sender waits for retry.backoff.ms and does not spin
    for sent in list(rig.client.under_way):
        rig.client.answer(sent)
    rig.turn()
    assert [future.done() for future in futures] == [False, True]
    rig.accumulator.abort()


def test_error_while_batches_are_drained_loses_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig(leaders=(1, 1), compression_type="gzip", slabs=64, delivery_timeout_ms=10_000)
    futures = [rig.send(b"x" * 500, partition) for partition in (0, 1)]
    state = rig.accumulator.producer_state
    assert state is not None
    monkeypatch.setattr(state, "send_allowed", breaks_once(lambda *_: True, at=3))
    rig.turn()
    rig.ack_all()
    assert [future.exception(0) for future in futures] == [None, None]
    assert [[record.value for record in rig.log[TOPIC, partition]] for partition in (0, 1)] == [[b"x" * 500]] * 2


def test_end_runs_the_remaining_steps_if_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()
    future = rig.send()
    rig.turn()
    monkeypatch.setattr(rig.metadata, "close", breaks_once(rig.metadata.close))
    rig.sender.close(force=True)
    rig.sender.run()
    assert future.done()
    assert_whole(rig.pool)


# ---- close ends though nothing wakes the poll ------------------------------------------------------------------------


def ending(rig: Rig, *polls: Callable[[], object]) -> None:
    """Close, and run to the end. Each poll calls the next of `polls`; after these no poll may wait for ever."""
    steps = list(polls)

    def poll() -> None:
        if steps:
            steps.pop(0)()
        elif rig.client.waits[-1] == FOREVER:
            raise SystemExit("sleeps for ever")

    rig.accumulator.close()
    rig.sender.close()
    run_sender(rig, poll)
    assert not rig.accumulator.incomplete
    assert_whole(rig.pool)


def test_close_ends_once_the_last_batch_expires() -> None:
    rig = quick_rig()
    future = rig.send()
    rig.client.unready.add(1)
    ending(rig, lambda: rig.clock.advance(1))
    assert isinstance(future.exception(0), TimeoutError)


def test_close_ends_after_a_purge() -> None:
    rig = quick_rig()
    future = rig.send()
    rig.client.unready.add(1)
    ending(rig, lambda: rig.sender.purge(in_flight=True))
    assert isinstance(future.exception(0), PurgedError)


def test_close_ends_though_a_node_refuses_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = quick_rig()
    future = rig.send()
    rig.client.unready.add(1)

    def refuse(node_id: int) -> float:
        raise AuthenticationError("wrong password")

    monkeypatch.setattr(rig.client, "connection_delay", refuse)
    ending(rig)
    assert isinstance(future.exception(0), AuthenticationError)


def test_close_ends_though_no_broker_gives_a_producer_id() -> None:
    rig = quick_rig()
    rig.client.gives_ids = False
    state = rig.accumulator.producer_state
    assert state is not None
    state.set_producer_id_and_epoch(-1, -1)
    future = rig.send()
    ending(rig, lambda: rig.client.give_id(error_code=31))
    assert isinstance(future.exception(0), KafkaError)
