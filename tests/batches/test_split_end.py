"""Splitting with short memory, expiry, failures and close: no slab is lost, and every future ends."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.batches.compression import DECOMPRESS
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ClosedError, KafkaError, NetworkError, RecordTooLargeError, TimeoutError
from rigs.fake_client import Sent
from rigs.producer import PATIENCE, SLAB, Rig, assert_whole, only_request, quick_rig
from tests.batches.split_support import TOO_LARGE, Topic, offset_of, refuse
from tests.memory.pool_support import in_thread, until


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_split_needs_no_memory(compression: str) -> None:
    """There is one slab for batches. A batch that must be split holds it, and a thread waits for it."""
    scratch = {"none": 0, "zstd": 3}[compression]
    rig = quick_rig(slabs=1 + scratch, compression_type=compression, leaders=(1, 1), clock=ManualClock())
    topic = Topic(rig, 100)
    sent = [b"%02d" % n + b"." * 20 for n in range(20)]
    futures = [rig.send(value) for value in sent]
    waiting = in_thread(lambda: rig.send(b"waited", partition=1))
    until(lambda: rig.pool.waiting == 1)
    for _ in range(200):
        rig.turn()
        rig.pool.check()
        if futures[-1].done():
            break
        assert rig.bytes_in("free") == 0
        topic.answer_under_way()
    assert [offset_of(future) for future in futures] == list(range(20))
    waiting.result(PATIENCE)
    topic.serve()
    assert (topic.values(0), topic.values(1)) == (sent, [b"waited"])
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


def half_way(rig: Rig, records: int = 8) -> tuple[list[RecordFuture], Sent]:
    """A batch whose first half is delivered, whose third quarter is in flight, and whose rest is queued."""
    futures = [rig.send(b"%02d" % n) for n in range(records)]
    refuse(rig, only_request(rig))
    rig.client.answer(only_request(rig), base_offset=100)
    rig.turn()
    refuse(rig, only_request(rig))
    return futures, only_request(rig)


# Kafka: testExpiredBatchDoesNotSplitOnMessageTooLargeError
@pytest.mark.parametrize("ending", ["too large", "delivered", "disconnected"])
def test_expiry_fails_all_parts_and_keeps_the_slab_that_a_socket_reads(ending: str) -> None:
    rig = quick_rig(leaders=(1, 1))
    rig.clock.advance(0.2)
    futures, sent = half_way(rig)
    called: list[Any] = []
    for future in futures[4:]:
        future.add_done_callback(called.append)
    young = rig.send(b"young")
    before = sent.frame.to_bytes()
    rig.clock.advance(1)
    rig.turn()
    assert [future.done() for future in futures] == [True] * 8
    assert called == futures[4:]
    assert [offset_of(future) for future in futures[:4]] == [100, 101, 102, 103]
    for future in futures[4:]:
        with pytest.raises(TimeoutError, match=r"4 record\(s\).*timeout.ms \(1000 ms\).*the last attempt failed"):
            future.result(0)
    assert rig.sender.record_errors == 4 + young.done()
    assert (rig.bytes_in("in_flight"), sent.frame.to_bytes()) == (SLAB, before)
    if ending == "disconnected":
        rig.client.fail(sent, NetworkError("gone"))
    else:
        rig.client.answer(sent, TOO_LARGE if ending == "too large" else 0)
    rig.turn()
    assert sent.frame.to_bytes() != before  # the pool has poisoned the slab: it was given back
    assert called == futures[4:]
    rig.ack_all()
    assert_whole(rig.pool)


def test_deadline_of_parts_counts_from_the_first_record() -> None:
    rig = quick_rig()
    future = [rig.send(b"%d" % n) for n in range(4)][-1]
    rig.clock.advance(0.9)
    refuse(rig, only_request(rig))
    rig.client.unready.add(1)
    rig.clock.advance(0.0999)
    rig.turn()
    assert not future.done()
    rig.clock.advance(0.0002)
    rig.turn()
    assert isinstance(future.exception(0), TimeoutError)
    assert_whole(rig.pool)


@pytest.mark.parametrize("in_the_queue", [True, False])
def test_forced_close_fails_all_parts(in_the_queue: bool) -> None:
    rig = quick_rig()
    futures, sent = half_way(rig)
    if in_the_queue:
        rig.client.fail(sent, NetworkError("gone"))
        rig.turn()
    rig.sender.close(force=True)
    rig.sender.run()
    assert [type(future.exception(0)) for future in futures] == [type(None)] * 4 + [ClosedError] * 4
    assert not rig.accumulator.incomplete
    assert_whole(rig.pool)


def test_forced_close_splits_no_batch() -> None:
    rig = quick_rig()
    futures = [rig.send(b"%d" % n) for n in range(4)]
    sent = only_request(rig)
    rig.sender.close(force=True)
    refuse(rig, sent)
    assert [type(future.exception(0)) for future in futures] == [RecordTooLargeError] * 4
    assert_whole(rig.pool)


def test_close_sends_all_parts() -> None:
    rig = quick_rig()
    topic = Topic(rig, 100)
    futures = [rig.send(b"%d" % n + b"." * 30) for n in range(8)]
    rig.accumulator.close()
    rig.sender.close()
    rig.client.on_poll = topic.answer_under_way
    rig.sender.run()
    assert [offset_of(future) for future in futures] == list(range(8))
    assert_whole(rig.pool)


# At 0 the first split fails, at 1 the split of a part.
@pytest.mark.parametrize("after", [0, 1])
def test_failing_split_fails_its_records(after: int, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    zstd = DECOMPRESS[4]
    failures = [False] * after + [True]

    def decompress(frame: memoryview, target: memoryview) -> int:
        if failures.pop(0):
            raise ValueError("broken")
        return zstd(frame, target)

    monkeypatch.setitem(DECOMPRESS, 4, decompress)
    rig = quick_rig(compression_type="zstd", batch_size=4 * SLAB)
    futures = [rig.send(b"." * 50) for _ in range(40)]
    with caplog.at_level(logging.ERROR):
        for _ in range(after + 1):
            refuse(rig, only_request(rig))
    assert "could not be split" in caplog.text
    assert [type(future.exception(0)) for future in futures] == [RecordTooLargeError] * 40
    assert rig.sender.record_errors == 40
    assert rig.sent_after_turn() == []
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


def test_rest_is_delivered_after_a_part_that_failed() -> None:
    rig = quick_rig()
    futures = [rig.send(b"%d" % n) for n in range(4)]
    refuse(rig, only_request(rig))
    rig.client.answer(only_request(rig), 87)
    rig.turn()
    rig.client.answer(only_request(rig), base_offset=7)
    rig.turn()
    errors = [future.exception(0) for future in futures]
    assert [isinstance(error, KafkaError) for error in errors] == [True, True, False, False]
    assert [offset_of(future) for future in futures[2:]] == [7, 8]
    assert rig.sender.record_errors == 2
    assert_whole(rig.pool)
