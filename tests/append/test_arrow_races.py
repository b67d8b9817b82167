"""send_arrow between threads: other threads act on a batch while a bulk append has claimed it.

Each test acts a race out in one thread, at points where another thread may run: when the code reads the clock, and in
garbage collections.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import ClosedError, TimeoutError
from rigs.producer import SLAB, TOPIC, HookClock, InterruptingClock, Rig, assert_whole, collecting_everywhere
from tests.append.arrow_support import stored


def rows_of(partitions: list[int], size: int = 100) -> pa.RecordBatch:
    values = [b"%d-" % row + b"x" * size for row in range(len(partitions))]
    return pa.record_batch({"value": values, "partition": pa.array(partitions, pa.int32())})


def between_claims(rig: Rig, clock: HookClock, action: Callable[[], object]) -> None:
    """Run `action` when partition 0 is claimed and the walker opens the batch of partition 1."""

    def hook() -> None:
        if rig.queue(0).claimed:
            action()
        else:
            clock.hook = hook

    clock.hook = hook


def test_sender_leaves_a_claimed_batch_alone() -> None:
    clock = HookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=0)
    seen: list[object] = []

    def look() -> None:
        queue = rig.queue(0)
        seen.append(rig.accumulator.drain_one(queue))
        seen.append(rig.accumulator.drain([queue], clock.monotonic()))
        seen.append(rig.accumulator.ready(clock.monotonic()).queues_by_node)
        seen.append(rig.accumulator.ready(clock.monotonic()).next_check)

    between_claims(rig, clock, look)
    report = rig.producer.send_arrow(rows_of([0, 1, 0, 1]), TOPIC)
    assert seen == [None, [], {}, float("inf")]
    assert len(stored(rig, report)) == 4


def test_sender_notices_a_claim_after_it_found_the_batch_ready() -> None:
    clock = HookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=0)
    rig.send(b"before", partition=0)
    drained: list[object] = []

    def grasp() -> None:  # of a Sender that looked before the claim, and found the batch ready
        drained.append(rig.accumulator.drain_one(rig.queue(0)))

    between_claims(rig, clock, grasp)
    report = rig.producer.send_arrow(rows_of([0, 1, 0]), TOPIC)
    assert drained == [None]
    rig.ack_all()
    assert rig.log[TOPIC, 0][0].value == b"before"
    assert report.result(0).offset.tolist() == [1, 0, 2]
    assert_whole(rig.pool)


def test_record_sent_while_a_batch_is_claimed_goes_into_another_batch() -> None:
    clock = HookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=0)
    between: list[RecordFuture] = []
    between_claims(rig, clock, lambda: between.append(rig.send(b"between", partition=0)))
    report = rig.producer.send_arrow(rows_of([0, 1, 0, 0]), TOPIC)
    rig.ack_all()
    log = [record.value for record in rig.log[TOPIC, 0]]
    assert [value[:1] for value in log if value] == [b"0", b"2", b"3", b"b"]
    assert between[0].result(0).offset == 3
    assert report.result(0).offset.tolist() == [0, 0, 1, 2]
    assert_whole(rig.pool)


def test_bytes_of_a_claimed_batch_that_is_not_the_last_count_for_stickiness() -> None:
    """Otherwise the sticky partition would get more than its share (KIP-794)."""
    clock = HookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=10_000)
    between_claims(rig, clock, lambda: rig.send(b"between", partition=0))
    rig.producer.send_arrow(rows_of([0, 1, 0, 0]), TOPIC)
    queue = rig.queue(0)
    claimed, last = queue.batches
    assert claimed.closed
    assert not last.closed
    assert queue.filled == claimed.size
    rig.ack_all()
    assert_whole(rig.pool)


def test_batch_that_expires_while_claimed_keeps_its_slab() -> None:
    clock = HookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=1_000)
    free: list[int] = []

    def expire() -> None:
        clock.advance(1)
        rig.turn()
        free.append(rig.pool.free_bytes)

    between_claims(rig, clock, expire)
    report = rig.producer.send_arrow(rows_of([0, 1, 0, 1]), TOPIC)
    assert free == [rig.pool.total - 2 * SLAB]  # the slab of partition 0, still written to, and the slab of partition 1
    rig.ack_all()
    assert report.result(0, errors="return").error_code.tolist() == [7, 0, 7, 0]
    assert report.result(0, errors="return").offset.tolist() == [-1, 0, -1, 1]
    assert isinstance(report.exception(0), TimeoutError)
    assert [one.partition for one in report.ranges(0)] == [1]
    assert_whole(rig.pool)


@pytest.mark.parametrize("partitions", [[0, 1, 0, 1], [0, 1, 0] + [0] * 30])
def test_close_during_a_bulk_append_ends_it_and_loses_no_memory(partitions: list[int]) -> None:
    clock = HookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=0)

    def close() -> None:
        rig.accumulator.close()
        rig.accumulator.abort()

    between_claims(rig, clock, close)
    with pytest.raises(ClosedError) as raised:
        rig.producer.send_arrow(rows_of(partitions), TOPIC)
    assert raised.value.rows_queued == 1
    assert not rig.accumulator.incomplete
    assert_whole(rig.pool)


def test_interrupt_leaves_no_partition_claimed() -> None:
    clock = HookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=0)

    def interrupt() -> None:
        raise KeyboardInterrupt

    between_claims(rig, clock, interrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.producer.send_arrow(rows_of([0, 1, 0]), TOPIC)
    assert not rig.queue(0).claimed
    rig.ack_all()
    assert len(rig.log[TOPIC, 0]) == 1
    assert_whole(rig.pool)


def test_interrupt_at_the_wake_up_leaves_no_partition_claimed() -> None:
    calls: list[int] = []

    def wakeup() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    rig = Rig(leaders=(1, 1, 1), linger_ms=0, wakeup=wakeup)
    with pytest.raises(KeyboardInterrupt):
        rig.producer.send_arrow(rows_of([0, 1, 2]), TOPIC)
    assert [queue.claimed for queue in rig.topic.queues] == [False] * 3
    rig.ack_all()
    assert sum(map(len, rig.log.values())) == 3
    assert_whole(rig.pool)


@pytest.mark.parametrize("size", [10, 300, SLAB])
def test_senders_turn_at_any_point_tears_no_batch(size: int) -> None:
    clock = InterruptingClock()
    rig = Rig(leaders=(1, 1, 1), clock=clock, linger_ms=0, slabs=64)

    def turn() -> None:
        rig.turn()
        rig.ack_under_way()

    clock.action = turn
    report = rig.producer.send_arrow(rows_of([row % 3 for row in range(90)], size), TOPIC)
    clock.action = None
    found = stored(rig, report)
    assert [record.value[: record.value.index(b"-")] for record in found if record.value] == [
        b"%d" % r for r in range(90)
    ]


@pytest.mark.parametrize("phase", range(4))
def test_senders_turn_in_any_collection_sends_only_whole_batches(phase: int) -> None:
    # Kafka refuses a batch without records.
    rig = Rig(leaders=(1, 1, 1), linger_ms=0, slabs=64)

    def turn() -> None:
        rig.turn()
        rig.ack_under_way()

    with collecting_everywhere(turn):
        # A collection comes with every second new object: the number of objects here shifts it by one.
        before = [[number] for number in range(phase)]
        report = rig.producer.send_arrow(rows_of([row % 3 for row in range(60)], 200), TOPIC)
    found = stored(rig, report)
    assert len(before) == phase
    assert all(len(sent.values(partition)) > 0 for sent in rig.client.sent for partition in sent.partitions)
    assert [record.value[: record.value.index(b"-")] for record in found if record.value] == [
        b"%d" % r for r in range(60)
    ]
