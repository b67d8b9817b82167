"""Records, batches and partitions leave no memory behind, counted in blocks of Python's allocator and in slabs."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.errors import NetworkError
from rigs.fake_client import Sent
from rigs.producer import TOPIC, Rig, assert_whole

RECORDS = 300_000
RETRIABLE, LASTING = 7, 87
# Blocks that the interpreter itself may take or free: caches, free lists.
NOISE = 300


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def stalled() -> Rig:
    """A producer whose broker never answers, with room for all the records of a test."""
    return Rig(slabs=40, batch_size=1 << 18, buffer_memory=40 << 18, linger_ms=0)


def test_dropped_futures_cost_no_memory() -> None:
    rig = stalled()
    rig.send(b"0123456789")
    before = blocks()
    for _ in range(RECORDS):
        rig.producer.send(TOPIC, b"0123456789", partition=0)
    rig.turn()
    batches = len(rig.accumulator.incomplete)
    assert 10 < batches < 40
    assert blocks() - before < 40 * batches + NOISE
    assert rig.pool.accounting()["free"] > 0


def test_rows_of_a_dropped_report_cost_no_memory() -> None:
    rig = stalled()
    rows = pa.record_batch({"value": pa.array([b"0123456789"] * 10_000)})
    rig.producer.send_arrow(rows, TOPIC)
    before = blocks()
    for _ in range(RECORDS // 10_000):
        rig.producer.send_arrow(rows, TOPIC)
    assert blocks() - before < 100 * len(rig.accumulator.incomplete) + NOISE


def acknowledge(rig: Rig, sent: Sent) -> None:
    rig.client.answer(sent)


def refuse(rig: Rig, sent: Sent) -> None:
    rig.client.answer(sent, LASTING)


def retry(rig: Rig, sent: Sent) -> None:
    rig.client.answer(sent, RETRIABLE if rig.client.in_flight(1) and rig.incomplete()[0].attempts < 2 else 0)


def lose(rig: Rig, sent: Sent) -> None:
    """The first request's connection breaks; the broker acknowledges the retry."""
    if rig.incomplete()[0].attempts < 2:
        rig.client.fail(sent, NetworkError("cut"))
    else:
        rig.client.answer(sent)


def expire(rig: Rig, sent: Sent) -> None:
    rig.clock.advance(rig.config.delivery_timeout_ms / 1000)
    rig.turn()
    rig.client.answer(sent)


@pytest.mark.parametrize("ending", [acknowledge, refuse, retry, lose, expire])
def test_ended_batch_leaves_nothing_behind(
    ending: Callable[[Rig, Sent], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "kafkabuf")  # pytest keeps every record of a log
    rig = Rig(slabs=4, linger_ms=0)
    called: list[Any] = []

    def send_and_end_one_record() -> None:
        future = rig.send(b"x" * 800, callback=lambda metadata, error: called.append(error))
        for _ in range(10):
            rig.turn()
            if future.done() and not rig.client.under_way:
                break
            for sent in list(rig.client.under_way):
                ending(rig, sent)
            rig.clock.advance(2)
        rig.turn()
        assert future.done()
        assert len(called) == 1
        for kept in (rig.client.sent, rig.client.waits, rig.client.pauses, called):  # the fake's own memory
            kept.clear()

    for _ in range(200):
        send_and_end_one_record()
    before = blocks()
    for _ in range(2_000):
        send_and_end_one_record()
    assert blocks() - before < NOISE
    assert_whole(rig.pool)


def test_turn_costs_the_same_with_many_idle_partitions() -> None:
    """CPU time of this thread, the best of many turns: a look at 20,000 queues would take fifty times as long."""

    def best_turn(partitions: int) -> int:
        rig = Rig(leaders=[1] * partitions, slabs=32, linger_ms=0)
        for partition in range(partitions):  # each queue is used once: an unused queue might cost less
            rig.send(partition=partition)
            if partition % 32 == 31:
                rig.ack_all()
        rig.ack_all()
        rig.client.sent.clear()
        turns = []
        for _ in range(50):
            rig.send(partition=partitions // 2)
            started = time.thread_time_ns()
            rig.turn()
            turns.append(time.thread_time_ns() - started)
            rig.ack_all()
        return min(turns)

    assert best_turn(20_000) < 5 * best_turn(10)
