"""delivery.timeout.ms, the memory of expired batches, and the Sender's end.

This file has the cases of Kafka's SenderTest that concern a producer without idempotence. A comment names each case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ClosedError, NetworkError, TimeoutError
from rigs.producer import PATIENCE, SLAB, Rig, assert_whole, only_request, quick_rig
from tests.memory.pool_support import in_thread, until

REQUEST_TIMED_OUT = 7

# ---- expiry and memory -----------------------------------------------------------------------------------------------


# Kafka: testNoBufferReuseWhenBatchExpires (KAFKA-19012, CVE-2026-35554), testInflightBatchesExpireOnDeliveryTimeout
@pytest.mark.parametrize("ending", ["acknowledged", "retriable", "disconnected", "closed"])
def test_slab_of_an_expired_batch_is_not_reused_while_a_socket_reads_it(ending: str) -> None:
    rig = quick_rig(slabs=2, max_block_ms=0)
    future = rig.send(b"first")
    sent = only_request(rig)
    before = sent.frame.to_bytes()
    rig.clock.advance(1)
    rig.turn()
    with pytest.raises(TimeoutError, match=r"delivery\.timeout\.ms"):
        future.result(0)
    assert rig.bytes_in("in_flight") == SLAB
    other = rig.send(b"another topic's secret")
    with pytest.raises(TimeoutError):  # there are two slabs only
        rig.fill(batches=2)
    assert sent.frame.to_bytes() == before  # a slow socket still reads the same bytes
    if ending == "acknowledged":
        rig.client.answer(sent)
    elif ending == "retriable":
        rig.client.answer(sent, REQUEST_TIMED_OUT)
    else:
        rig.client.fail(sent, NetworkError("gone") if ending == "disconnected" else ClosedError("closed"))
    rig.client.unready.add(1)
    rig.turn()
    assert rig.bytes_in("in_flight") == 0
    assert sent.frame.to_bytes() != before  # the pool has poisoned the slab: it was given back only now
    assert isinstance(future.exception(0), TimeoutError)
    assert len(rig.client.sent) == 1  # Kafka: testExpiredBatchDoesNotRetry
    rig.client.unready.clear()
    rig.ack_all()
    assert other.done()
    assert rig.sender.record_errors >= 1
    assert_whole(rig.pool)


# Kafka: testExpiredBatchesInMultiplePartitions, testResetNextBatchExpiry
def test_each_partition_expires_at_its_time() -> None:
    rig = quick_rig(leaders=(1, 2))
    rig.client.unready |= {1, 2}
    old = [rig.send(partition=0), rig.send(partition=1)]
    rig.clock.advance(0.5)
    young = rig.send(partition=1, value=b"x" * SLAB)
    rig.clock.advance(0.5)
    rig.turn()
    assert [future.done() for future in old] == [True, True]
    assert not young.done()
    rig.sender.run_once()
    assert rig.client.waits[-1] == pytest.approx(0.5)
    rig.clock.advance(0.5)
    rig.turn()
    assert young.done()
    assert rig.sender.record_errors == 3
    assert_whole(rig.pool)


# Kafka: testExpiredBatchDoesNotSplitOnMessageTooLargeError
def test_late_response_does_not_change_an_expired_batch() -> None:
    rig = quick_rig()
    called: list[Any] = []
    future = rig.send(callback=lambda metadata, error: called.append(error))
    sent = only_request(rig)
    rig.clock.advance(1)
    rig.turn()
    rig.client.answer(sent, base_offset=5)
    rig.turn()
    assert len(called) == 1
    assert isinstance(future.exception(0), TimeoutError)
    assert_whole(rig.pool)


def test_retried_batch_expires_at_its_delivery_timeout() -> None:
    rig = quick_rig(retry_backoff_ms=10)
    future = rig.send()
    for _ in range(120):
        for sent in list(rig.client.under_way):
            rig.client.answer(sent, REQUEST_TIMED_OUT)
        rig.turn()
        rig.clock.advance(0.01)
        if future.done():
            break
    assert 0.9 < rig.clock.monotonic() - future.batch.created <= 1.03
    with pytest.raises(TimeoutError, match=r"delivery.timeout.ms \(1000 ms\), [1-9]\d* attempts"):
        future.result(0)
    for sent in list(rig.client.under_way):
        rig.client.answer(sent)
    rig.turn()
    assert_whole(rig.pool)


# Kafka: testAppendInExpiryCallback
def test_callback_of_an_expired_batch_may_send() -> None:
    rig = quick_rig(slabs=3, max_block_ms=0)
    later: list[RecordFuture] = []
    rig.send(callback=lambda metadata, error: later.append(rig.send(b"again", partition=0)))
    rig.send(b"x" * SLAB, callback=lambda metadata, error: later.append(rig.send(b"once more", partition=0)))
    rig.client.unready.add(1)
    rig.clock.advance(1)
    rig.turn()
    assert len(later) == 2
    rig.client.unready.clear()
    rig.ack_all()
    assert all(future.result(0) for future in later)
    assert_whole(rig.pool)


# Kafka: testTooLargeBatchesAreSafelyRemoved
def test_batch_too_large_for_the_topic_holds_up_no_other_batch() -> None:
    rig = quick_rig()
    futures = rig.fill(batches=3)
    for code in (10, 0, 10):
        sent = rig.client.under_way[0] if rig.client.under_way else rig.sent_after_turn()[0]
        rig.client.answer(sent, code)
        rig.turn()
    assert [future.exception(0) is None for future in futures] == [False, True, False]
    assert_whole(rig.pool)


def test_thread_that_waits_for_memory_gets_the_slab_of_a_batch_that_ends() -> None:
    rig = quick_rig(slabs=1, clock=ManualClock(), linger_ms=500, leaders=(1, 1), delivery_timeout_ms=10_000)
    rig.send(partition=0)
    waiting = in_thread(lambda: rig.send(b"waited", partition=1))
    until(lambda: rig.pool.waiting == 1)
    rig.client.answer(only_request(rig))  # the batch does not linger, because a thread waits
    rig.turn()
    assert not waiting.result(PATIENCE).done()
    rig.accumulator.abort()
    assert_whole(rig.pool)


# ---- the end ---------------------------------------------------------------------------------------------------------


def run_sender(rig: Rig, *polls: Callable[[], object]) -> None:
    """Call Sender.run(). Each poll calls the next of `polls`; the last of them is called again and again."""
    steps = list(polls)

    def poll() -> None:
        (steps.pop(0) if len(steps) > 1 else steps[0])()

    rig.client.on_poll = poll
    rig.sender.run()


def answer_all(rig: Rig) -> Callable[[], None]:
    def answer() -> None:
        for sent in list(rig.client.under_way):
            rig.client.answer(sent)

    return answer


def test_close_sends_all_records_without_lingering() -> None:
    rig = quick_rig(linger_ms=60_000, delivery_timeout_ms=120_000)
    future = rig.send()

    def close() -> None:
        assert not rig.client.sent
        rig.accumulator.close()
        rig.sender.close()

    run_sender(rig, close, answer_all(rig))
    assert future.result(0)
    assert rig.clock.monotonic() == future.batch.created
    assert_whole(rig.pool)


def test_forced_close_fails_all_records_at_once() -> None:
    rig = quick_rig(leaders=(1, 1))
    called: list[Any] = []
    in_flight = rig.send(partition=0, callback=lambda metadata, error: called.append(error))

    def force() -> None:
        queued = rig.send(partition=1, callback=lambda metadata, error: called.append(error))
        assert not queued.done()
        rig.accumulator.close()
        rig.sender.close(force=True)

    run_sender(rig, force)
    assert len(rig.client.sent) == 1
    assert isinstance(in_flight.exception(0), ClosedError)
    assert [type(error) for error in called] == [ClosedError, ClosedError]
    assert not rig.accumulator.incomplete
    assert_whole(rig.pool)
    with pytest.raises(ClosedError):
        rig.send()


def test_forced_close_retries_no_batch() -> None:
    rig = quick_rig()
    future = rig.send()
    sent = only_request(rig)
    rig.sender.close(force=True)
    rig.client.answer(sent, REQUEST_TIMED_OUT)
    rig.turn()
    assert future.done()
    assert_whole(rig.pool)


def test_sender_goes_on_after_a_turn_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    rig = quick_rig()
    future = rig.send()

    def fail() -> None:
        raise RuntimeError("a bug")

    rig.sender.close()
    with caplog.at_level(logging.ERROR):
        run_sender(rig, fail, answer_all(rig))
    assert "the Sender's turn failed" in caplog.text
    assert future.result(0)
    assert_whole(rig.pool)
