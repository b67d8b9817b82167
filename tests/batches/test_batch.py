"""Batch and RecordFuture: one outcome, once; callbacks, waiting threads, and the slab's way back.

This file has the cases of Kafka's ProducerBatchTest that concern this stage. A comment names each case.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.errors import KafkaError, NetworkError, TimeoutError
from kafkabuf.record_metadata import RecordMetadata
from rigs.producer import PATIENCE, SLAB, TOPIC, Rig, assert_whole, collecting_everywhere
from tests.memory.pool_support import in_thread

GONE = NetworkError("gone")


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of all calls of sys.unraisablehook."""
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    return reported


# ---- the outcome -----------------------------------------------------------------------------------------------------


# Kafka: testBatchCannotAbortTwice, testBatchCannotCompleteTwice, testBatchAbort
@pytest.mark.parametrize("first", ["complete", "fail"])
@pytest.mark.parametrize("second", ["complete", "fail"])
def test_first_outcome_wins(first: str, second: str) -> None:
    rig = Rig()
    called: list[object] = []
    future = rig.send(callback=lambda metadata, error: called.append(error))
    batch = rig.drain_one()
    decide: dict[str, Callable[[], bool]] = {
        "complete": lambda: batch.complete(7, -1),
        "fail": lambda: batch.fail(GONE),
    }
    assert decide[first]()
    assert not decide[second]()
    assert not batch.complete(8, 8)
    assert called == [None if first == "complete" else GONE]
    assert future.done()
    if first == "complete":
        assert future.result(0).offset == 7
        assert future.exception(0) is None
    else:
        assert future.exception(0) is GONE
        with pytest.raises(NetworkError, match="gone"):
            future.result(0)
    assert_whole(rig.pool)


def test_one_of_racing_outcomes_wins() -> None:
    for _ in range(50):
        rig = Rig()
        called: list[object] = []
        rig.send(callback=lambda metadata, error: called.append(error))  # noqa: B023 - called within the turn
        batch = rig.drain_one()
        start = threading.Barrier(4)

        def decide(number: int, batch: Batch = batch, start: threading.Barrier = start) -> bool:
            start.wait(PATIENCE)
            return batch.complete(number, -1) if number % 2 else batch.fail(GONE)

        running = [in_thread(lambda number=number: decide(number)) for number in range(4)]  # type: ignore[misc]
        assert sum(future.result(PATIENCE) for future in running) == 1
        assert len(called) == 1
        assert_whole(rig.pool)


def test_each_record_gets_its_own_metadata() -> None:
    rig = Rig()
    futures = [
        rig.send(b"v", key=b"key", timestamp_ms=5),
        rig.send(None, key=b"", timestamp_ms=7),
        rig.send(b"value", timestamp_ms=6),
    ]
    rig.drain_one().complete(100, -1)
    assert [future.result() for future in futures] == [
        RecordMetadata(TOPIC, 0, 100, 5, 3, 1),
        RecordMetadata(TOPIC, 0, 101, 7, 0, -1),
        RecordMetadata(TOPIC, 0, 102, 6, -1, 5),
    ]


def test_metadata_made_without_its_constructor_is_whole_and_leaks_no_reference() -> None:
    rig = Rig()
    future = rig.send(b"v", key=b"key", timestamp_ms=2**40)
    rig.drain_one().complete(2**40, -1)
    with collecting_everywhere(lambda: [repr(item) for item in gc.get_objects() if type(item) is RecordMetadata]):
        metadata = future.result()
    assert (type(metadata), repr(metadata)) == (RecordMetadata, repr(RecordMetadata(TOPIC, 0, 2**40, 2**40, 3, 1)))
    before = sys.getrefcount(TOPIC), sys.getrefcount(RecordMetadata)
    for _ in range(100):
        assert future.result() == metadata
    assert (sys.getrefcount(TOPIC), sys.getrefcount(RecordMetadata)) == before


def test_log_append_time_replaces_the_timestamp() -> None:
    rig = Rig()
    future = rig.send(timestamp_ms=5)
    rig.drain_one().complete(100, 1_700_000_000_000)
    assert future.result().timestamp == 1_700_000_000_000


def test_unknown_offset_stays_unknown_for_every_record() -> None:
    rig = Rig()
    futures = [rig.send(), rig.send()]
    rig.drain_one().complete(-1, -1)
    assert [future.result().offset for future in futures] == [-1, -1]


# Kafka: testShouldNotAttemptAppendOnceRecordsBuilderIsClosedForAppends
def test_closed_batch_takes_no_record() -> None:
    rig = Rig()
    first = rig.send()
    batch = rig.drain_one()
    assert batch.closed
    assert rig.send().batch is not first.batch
    assert batch.count == 1


# ---- the slab --------------------------------------------------------------------------------------------------------


def test_slab_goes_back_after_its_last_reader() -> None:
    rig = Rig(linger_ms=0)
    future = rig.send()
    (sent,) = rig.sent_after_turn()
    assert rig.bytes_in("in_flight") == SLAB
    assert future.batch.fail(GONE)
    assert rig.bytes_in("in_flight") == SLAB
    assert sent.frame.to_bytes().endswith(sent.produced.records[TOPIC, 0] + b"\0\0\0")
    future.batch.end_read()
    assert_whole(rig.pool)


# Kafka: SenderTest.testNoDoubleDeallocation
def test_second_outcome_does_not_free_a_reused_slab() -> None:
    rig = Rig(slabs=1, linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=1_000)
    first = rig.send(b"first")
    rig.accumulator.expire(rig.clock.monotonic() + 1)
    second = rig.send(b"second")  # in the very same slab
    assert not first.batch.fail(GONE)
    assert not first.batch.complete(0, -1)
    assert rig.bytes_in("open") == SLAB
    rig.ack_all()
    assert second.result(0).offset == 0
    assert_whole(rig.pool)


def test_run_of_slabs_is_returned_whole() -> None:
    rig = Rig()
    future = rig.send(b"x" * 5 * SLAB)
    assert rig.bytes_in("free") == rig.pool.total - 6 * SLAB
    future.batch.fail(GONE)
    rig.accumulator.discard(future.batch)
    assert_whole(rig.pool)


# ---- callbacks -------------------------------------------------------------------------------------------------------


def test_callbacks_run_in_order_with_their_metadata() -> None:
    rig = Rig()
    called: list[tuple[int, RecordMetadata, KafkaError | None]] = []
    for number in range(5):
        rig.send(callback=lambda metadata, error, number=number: called.append((number, metadata, error)))
    rig.drain_one().complete(10, -1)
    assert [(number, metadata.offset, error) for number, metadata, error in called] == [
        (number, 10 + number, None) for number in range(5)
    ]


def test_callback_of_a_failed_record_gets_no_offset() -> None:
    rig = Rig()
    called: list[Any] = []
    rig.send(partition=0, callback=lambda *arguments: called.append(arguments))
    rig.drain_one().fail(GONE)
    ((metadata, error),) = called
    assert error is GONE
    assert metadata[:3] == (TOPIC, 0, -1)


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_other_callbacks_run_after_a_callback_that_raises(
    raised: BaseException, caplog: pytest.LogCaptureFixture, unraisable: list[Any]
) -> None:
    rig = Rig()
    called: list[int] = []

    def bad(metadata: RecordMetadata, error: KafkaError | None) -> None:
        raise raised

    futures = [rig.send(callback=lambda metadata, error: called.append(1))]
    futures.append(rig.send(callback=bad))
    futures.append(rig.send(callback=lambda metadata, error: called.append(3)))
    waiting = in_thread(lambda: futures[2].result(PATIENCE))
    with caplog.at_level(logging.ERROR):
        assert rig.drain_one().complete(0, -1)
    assert called == [1, 3]
    (logged,) = caplog.records
    assert "a callback raised for a record of orders-0" in logged.getMessage()
    assert logged.exc_info is None, "sys.unraisablehook reports the traceback already"
    assert [(entry.exc_value, entry.object) for entry in unraisable] == [(raised, bad)]
    assert unraisable[0].exc_traceback is not None
    assert waiting.result(PATIENCE).offset == 2
    assert not rig.accumulator.incomplete
    assert_whole(rig.pool)


def test_late_callback_runs_at_once_and_its_error_is_logged(
    caplog: pytest.LogCaptureFixture, unraisable: list[Any]
) -> None:
    rig = Rig()
    future = rig.send()
    rig.drain_one().complete(4, -1)
    seen: list[int] = []
    future.add_done_callback(lambda done: seen.append(done.result().offset))
    assert seen == [4]

    def bad(done: RecordFuture) -> None:
        raise ValueError("no")

    with caplog.at_level(logging.ERROR):
        future.add_done_callback(bad)  # the error is logged and not raised, as in concurrent.futures
    assert "a callback raised" in caplog.text
    assert len(unraisable) == 1


def test_done_callback_gets_its_own_future() -> None:
    rig = Rig()
    futures = [rig.send() for _ in range(3)]
    seen: list[RecordFuture] = []
    for future in futures:
        future.add_done_callback(seen.append)
    rig.drain_one().fail(GONE)
    assert seen == futures


def test_done_callback_must_be_callable() -> None:
    rig = Rig()
    future = rig.send()
    with pytest.raises(TypeError, match=r"fn must be callable with \(future\), found int: 5"):
        future.add_done_callback(5)  # type: ignore[arg-type]
    assert future.batch.unwatched == 1


def test_callback_added_by_a_callback_runs() -> None:
    rig = Rig()
    seen: list[str] = []
    first = rig.send()
    rig.send(callback=lambda metadata, error: first.add_done_callback(lambda _: seen.append("inner")))
    rig.drain_one().complete(0, -1)
    assert seen == ["inner"]


def test_callback_added_while_the_batch_ends_runs_once() -> None:
    # Making the list of callbacks may run the garbage collector, and with it the Sender's thread.
    rig = Rig()
    future = rig.send()
    batch = rig.drain_one()
    seen: list[int] = []
    note = seen.append
    with collecting_everywhere(lambda: batch.complete(3, -1)):
        future.add_done_callback(lambda done: note(1))
    assert batch.done
    assert seen == [1]


# ---- waiting ---------------------------------------------------------------------------------------------------------


def test_waiting_threads_wake_after_the_callbacks() -> None:
    rig = Rig()
    order: list[str] = []
    future = rig.send(callback=lambda metadata, error: order.append("callback"))

    def wait() -> None:
        future.result(PATIENCE)
        order.append("awake")

    running = [in_thread(wait) for _ in range(3)]
    rig.drain_one().complete(0, -1)
    for thread in running:
        thread.result(PATIENCE)
    assert order == ["callback", "awake", "awake", "awake"]


def test_thread_that_begins_to_wait_while_the_batch_ends_is_woken() -> None:
    # Making the list of sleepers may run the garbage collector, and with it the Sender's thread.
    rig = Rig()
    future = rig.send()
    batch = rig.drain_one()
    with collecting_everywhere(lambda: batch.complete(3, -1)):
        assert batch.wait(0)
    assert future.result(0).offset == 3


@pytest.mark.parametrize("timeout", [0, 0.0, -1, 0.001])
def test_result_waits_up_to_its_timeout(timeout: float) -> None:
    rig = Rig()
    future = rig.send()
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (False, True, False, False)
    with pytest.raises(TimeoutError, match=f"no acknowledgement for a record of orders-0 within {timeout} s"):
        future.result(timeout)
    with pytest.raises(TimeoutError):
        future.exception(timeout)
    rig.drain_one().complete(0, -1)
    assert future.result(timeout).offset == 0
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (True, False, False, False)


def test_future_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError, match=r"comes from KafkaProducer\.send"):
        RecordFuture()


def test_repr_names_partition_and_state() -> None:
    rig = Rig()
    future = rig.send()
    assert repr(future) == "RecordFuture(orders-0, pending)"
    batch = rig.drain_one()
    assert repr(batch) == f"Batch(orders-0, 1 records, {batch.size} bytes)"
    batch.fail(GONE)
    assert repr(future) == "RecordFuture(orders-0, failed)"
