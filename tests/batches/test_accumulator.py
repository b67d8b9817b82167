"""RecordAccumulator: when and in which order batches go, are retried and expire.

This file has the cases of Kafka's RecordAccumulatorTest that concern this stage. A comment names each case.
"""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest

from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.batches._drain import Ready, Room
from kafkabuf.clock import ManualClock
from kafkabuf.errors import BufferExhaustedError, ClosedError, NetworkError, RecordTooLargeError, TimeoutError
from rigs.producer import PATIENCE, SLAB, TOPIC, Rig, assert_whole
from tests.memory.pool_support import in_thread, until


def ready(rig: Rig) -> Ready:
    return rig.accumulator.ready(rig.clock.monotonic())


def ready_partitions(rig: Rig, node: int = 1) -> list[int]:
    return [queue.partition for queue in ready(rig).queues_by_node.get(node, [])]


def drain(rig: Rig, node: int = 1) -> list[Batch]:
    queues = ready(rig).queues_by_node.get(node, [])
    return rig.accumulator.drain(queues, rig.clock.monotonic())


def acknowledge(batches: list[Batch]) -> None:
    for batch in batches:
        assert batch.complete(0, -1)


# ---- appending and readiness -----------------------------------------------------------------------------------------


# Kafka: testFull
def test_full_batch_goes_without_lingering() -> None:
    rig = Rig(linger_ms=1_000)
    futures = [rig.send(b"v" * 100)]
    while len(rig.queue().batches) == 1:
        assert ready_partitions(rig) == []
        assert ready(rig).next_check == pytest.approx(1.0)
        futures.append(rig.send(b"v" * 100))
    assert rig.queue().head.closed
    assert ready_partitions(rig) == [0]
    (batch,) = drain(rig)
    assert batch.size <= SLAB < batch.size + 110
    assert batch.count == len(futures) - 1
    assert [queue.partition for queue in rig.accumulator.active] == [0]
    assert ready_partitions(rig) == []  # the batch behind it still lingers
    acknowledge([batch])
    rig.accumulator.abort()
    assert_whole(rig.pool)


# Kafka: testLinger
def test_batch_is_ready_when_it_has_lingered() -> None:
    rig = Rig(linger_ms=50)
    rig.send()
    assert ready_partitions(rig) == []
    assert ready(rig).next_check == pytest.approx(0.05)
    rig.clock.advance(0.049)
    assert ready_partitions(rig) == []
    rig.clock.advance(0.002)
    assert ready_partitions(rig) == [0]
    (batch,) = drain(rig)
    assert batch.count == 1
    assert not rig.accumulator.active
    acknowledge([batch])
    assert_whole(rig.pool)


def test_node_gets_as_many_queues_as_it_has_room_for() -> None:
    rig = Rig([1, 2, 1, 2, 1, 2], linger_ms=0)
    for partition in range(6):
        rig.fill(partition)
    found = rig.accumulator.ready(rig.clock.monotonic(), {1: Room(SLAB // 2, 0)}).queues_by_node
    assert {node: [queue.partition for queue in queues] for node, queues in found.items()} == {1: [0], 2: [1, 3, 5]}


def test_node_without_room_still_has_a_queue_that_waits_for_it() -> None:
    rig = Rig([1, 2, 1], linger_ms=0)
    for partition in range(3):
        rig.send(partition=partition)
    found = rig.accumulator.ready(rig.clock.monotonic(), {1: Room(0, 0)}).queues_by_node
    assert {node: len(queues) for node, queues in found.items()} == {1: 1, 2: 1}


def test_full_batches_alone_go_behind_a_full_in_flight_table() -> None:
    rig = Rig([1] * 4, linger_ms=0)
    rig.send(partition=0)
    for partition in (1, 2, 3):
        rig.fill(partition)
    rig.send(b"x" * 500, partition=2)  # the batch before it is closed
    rig.send(b"x" * 500, partition=3)
    found = rig.accumulator.ready(rig.clock.monotonic(), {1: Room(0, 10 * SLAB)}).queues_by_node
    assert [queue.partition for queue in found[1]] == [0, 2, 3]


def test_linger_counts_from_the_first_record_of_a_batch() -> None:
    rig = Rig(linger_ms=50)
    for _ in range(5):
        rig.send()
        rig.clock.advance(0.01)
    assert ready_partitions(rig) == [0]
    assert drain(rig)[0].count == 5


# Kafka: testAppendLarge{,OldMessageFormat}{Compressed,NonCompressed}
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("magic", [1, 2])
def test_large_record_arrives_unaltered(magic: int, compression: str) -> None:
    rig = Rig(record_magic=magic, compression_type=compression, linger_ms=0)
    value = bytes(random.Random(5).randbytes(2 * SLAB))
    future = rig.send(value, key=b"key", timestamp_ms=0)
    assert ready_partitions(rig) == [0]
    rig.ack_all()
    (record,) = rig.log[TOPIC, 0]
    assert (record.offset, record.timestamp, record.key, record.value) == (0, 0, b"key", value)
    assert future.result(0).offset == 0
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


# Kafka: testSplitFrequency
@pytest.mark.parametrize("compressible", [0, 1, 30, 70, 100])
def test_compressed_batches_are_at_most_batch_size(compressible: int) -> None:
    # Kafka guesses the compression ratio and splits a batch after a wrong guess. Here the plain records fit already.
    rig = Rig(compression_type="gzip", slabs=64, linger_ms=0)
    dice = random.Random(compressible)
    for _ in range(500):
        rig.send(b"x" * 100 if dice.randrange(100) < compressible else dice.randbytes(100))
        for batch in drain(rig):
            assert batch.size <= SLAB
            acknowledge([batch])
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("size", [SLAB - 60, SLAB, 3 * SLAB, 7 * SLAB + 1])
def test_large_record_gets_its_own_batch_and_its_memory_comes_back(magic: int, size: int) -> None:
    rig = Rig(record_magic=magic, linger_ms=0)
    rig.send(b"before")
    large = rig.send(b"L" * size)
    rig.send(b"after")
    counts = []
    while batches := drain(rig):
        counts += [batch.count for batch in batches]
        acknowledge(batches)
    assert counts == [1, 1, 1]
    assert large.batch.size > size
    assert_whole(rig.pool)


def test_batch_size_of_zero_gives_each_record_a_batch() -> None:
    rig = Rig(batch_size=0, linger_ms=1_000)
    futures = [rig.send() for _ in range(3)]
    assert len({future.batch for future in futures}) == 3
    assert all(future.batch.count == 1 for future in futures)


# Kafka: testNextReadyCheckDelay
def test_next_check_is_the_end_of_the_next_linger() -> None:
    rig = Rig(leaders=(1, 1, 2), linger_ms=10)
    rig.send(partition=0)
    rig.clock.advance(0.005)
    assert ready(rig).next_check == pytest.approx(0.005)
    rig.send(partition=1)
    assert ready(rig).next_check == pytest.approx(0.005)
    rig.clock.advance(0.005)
    rig.send(partition=2)
    assert ready_partitions(rig) == [0]
    assert ready(rig).next_check == pytest.approx(0.005)
    rig.fill(partition=1, batches=2)
    assert ready_partitions(rig) == [0, 1]
    assert ready(rig).next_check == pytest.approx(0.01)


def test_topic_of_a_partition_without_leader_is_reported() -> None:
    rig = Rig(leaders=(1, -1), linger_ms=0)
    rig.send(partition=0)
    rig.send(partition=1)
    ready_now = ready(rig)
    assert [queue.partition for queue in ready_now.queues_by_node[1]] == [0]
    assert set(ready_now.queues_by_node) == {1}
    assert ready_now.leaderless_topics == {TOPIC}
    rig.lead(1, 2)
    ready_now = ready(rig)
    assert set(ready_now.queues_by_node) == {1, 2}
    assert not ready_now.leaderless_topics


def test_only_partitions_that_hold_a_batch_are_active() -> None:
    rig = Rig(leaders=[1] * 5_000, linger_ms=0)
    rig.send(partition=4_321)
    assert [queue.partition for queue in rig.accumulator.active] == [4_321]
    acknowledge(drain(rig))
    assert not rig.accumulator.active


def test_record_of_max_request_size_is_sent_and_a_larger_record_is_refused() -> None:
    value = b"x" * 1_000
    with pytest.raises(
        RecordTooLargeError, match=r"needs up to \d+ bytes, more than max\.request\.size \(1000\)"
    ) as raised:
        Rig(max_request_size=1_000).send(value)
    needed = int(str(raised.value).split()[5])
    Rig(max_request_size=needed).send(value)
    with pytest.raises(RecordTooLargeError):
        Rig(max_request_size=needed - 1).send(value)
    reports = [Rig(max_request_size=size).producer.send_many(TOPIC, [value]) for size in (needed, needed - 1)]
    assert [len(report.too_large) for report in reports] == [0, 1]


# ---- draining --------------------------------------------------------------------------------------------------------


# Kafka: testPartialDrain
def test_drained_batches_stay_within_max_request_size() -> None:
    rig = Rig(leaders=[1] * 4, linger_ms=0, max_request_size=2 * SLAB)
    for partition in range(4):
        rig.send(b"x" * (SLAB - 200), partition)
    sizes = []
    while batches := drain(rig):
        sizes.append([batch.partition for batch in batches])
        assert sum(batch.size for batch in batches) <= 2 * SLAB
        acknowledge(batches)
    assert sizes == [[0, 1], [2, 3]]
    assert_whole(rig.pool)


def test_batch_larger_than_max_request_size_is_drained_alone() -> None:
    # Each record is within max.request.size, but the batch is not. The batch goes in a request of its own.
    rig = Rig(leaders=[1] * 2, linger_ms=0, max_request_size=600, batch_size=SLAB)
    for partition in (0, 1):
        for _ in range(8):
            rig.send(b"x" * 100, partition)
    drained = drain(rig)
    assert [batch.partition for batch in drained] == [0]
    assert drained[0].size > 600
    assert [batch.partition for batch in drain(rig)] == [1]


# Kafka: testDrainBatches
def test_partitions_are_drained_in_turn() -> None:
    rig = Rig(leaders=[1] * 3, linger_ms=0, max_request_size=SLAB)
    for partition in range(3):
        rig.fill(partition, batches=3)
    turns = []
    while batches := drain(rig):
        turns.append([batch.partition for batch in batches])
        acknowledge(batches)
    assert turns == [[0], [1], [2]] * 3
    assert_whole(rig.pool)


# Kafka: testDrainWithANodeThatDoesntHostAnyPartitions
def test_node_without_partitions_gets_no_batch() -> None:
    rig = Rig(leaders=(1,), linger_ms=0)
    rig.send()
    assert drain(rig, node=2) == []
    assert len(drain(rig, node=1)) == 1


def test_request_holds_one_batch_of_a_partition() -> None:
    rig = Rig(linger_ms=0)
    rig.fill(batches=3)
    assert len(drain(rig)) == 1


# Kafka: testMutedPartitions
def test_muted_partition_is_not_drained() -> None:
    rig = Rig(leaders=(1, 1), linger_ms=0)
    rig.send(partition=0)
    rig.send(partition=1)
    rig.queue(0).muted = True
    assert ready_partitions(rig) == [1]
    assert ready(rig).next_check == float("inf")
    assert [batch.partition for batch in rig.accumulator.drain(rig.topic.queues, rig.clock.monotonic())] == [1]
    rig.queue(0).muted = False
    assert ready_partitions(rig) == [0]


def test_drain_skips_an_empty_queue() -> None:
    rig = Rig(leaders=(1, 1), linger_ms=0)
    rig.send(partition=1)
    assert [batch.partition for batch in rig.accumulator.drain(rig.topic.queues, rig.clock.monotonic())] == [1]


# ---- retries ---------------------------------------------------------------------------------------------------------


# Kafka: testRetryBackoff, testExponentialRetryBackoff
def test_retry_backs_off_exponentially() -> None:
    rig = Rig(linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    future = rig.send()
    expected = 0.1
    for attempt in range(6):
        (batch,) = drain(rig)
        assert batch is future.batch
        assert batch.attempts == attempt
        now = rig.clock.monotonic()
        rig.sender.recovery.requeue(batch)
        delay = batch.retry_at - now
        assert min(0.8 * expected, 1.0) <= delay <= min(1.2 * expected, 1.0)
        assert ready_partitions(rig) == []
        assert ready(rig).next_check == pytest.approx(delay)
        rig.clock.advance(delay - 0.001)
        assert drain(rig) == []
        rig.clock.advance(0.001)
        expected *= 2
    assert rig.bytes_in("closed") == SLAB


# Kafka: testReadyAndDrainWhenABatchIsBeingRetried
def test_batch_waits_behind_a_retried_batch() -> None:
    rig = Rig(leaders=(1, 1), linger_ms=0, retry_backoff_ms=100, enable_idempotence=False)
    first = rig.send(partition=0)
    (batch,) = drain(rig)
    rig.send(partition=0)
    rig.sender.recovery.requeue(batch)
    rig.send(partition=1)
    assert [batch.partition for batch in drain(rig)] == [1]  # a neighbour need not wait
    assert rig.queue(0).head is first.batch
    rig.clock.advance(0.2)
    assert [batch.count for batch in drain(rig)] == [1]
    assert drain(rig)[0] is not first.batch


def test_retried_batches_keep_their_order() -> None:
    rig = Rig(linger_ms=0, enable_idempotence=False)
    futures = rig.fill(batches=5)
    in_flight = [drain(rig)[0] for _ in range(4)]
    for place in (2, 0, 3, 1):
        rig.sender.recovery.requeue(in_flight[place])
    assert list(rig.queue().batches) == [future.batch for future in futures]
    assert rig.send(b"small").batch is futures[4].batch  # and the open one is still the last
    rig.clock.advance(1)
    drained = [drain(rig)[0] for _ in range(5)]
    assert drained == [future.batch for future in futures]


def test_retried_batch_takes_no_further_record() -> None:
    rig = Rig(linger_ms=0)
    first = rig.send()
    (batch,) = drain(rig)
    rig.sender.recovery.requeue(batch)
    assert rig.send().batch is not first.batch
    assert batch.count == 1


# ---- expiry ----------------------------------------------------------------------------------------------------------


# Kafka: testExpiredBatchSingle, testExpiredBatchesRetry, testSoonToExpireBatchesArePickedUpForExpiry,
# ProducerBatchTest.testBatchExpiration{,AfterReenqueue}
@pytest.mark.parametrize("retried", [False, True])
def test_batch_expires_at_its_delivery_timeout(retried: bool) -> None:
    rig = Rig(linger_ms=10, request_timeout_ms=100, delivery_timeout_ms=1_000, retry_backoff_ms=5_000)
    future = rig.send()
    rig.send(b"second")
    if retried:
        rig.clock.advance(0.010)
        (batch,) = drain(rig)
        rig.sender.recovery.requeue(batch)
        rig.clock.advance(-0.010)
    now = rig.clock.monotonic()
    assert rig.accumulator.time_to_expiry(now) == pytest.approx(1.0)
    assert rig.accumulator.expire(now - 0.002) == []  # a clock may go back
    assert rig.accumulator.expire(now + 0.999) == []
    rig.clock.advance(1.0)
    (expired,) = rig.accumulator.expire(now + 1.0)
    assert expired is future.batch
    assert not rig.accumulator.active
    assert not rig.accumulator.incomplete
    assert rig.accumulator.time_to_expiry(now) == float("inf")
    attempts = ", 1 attempts failed" if retried else ""
    text = rf"^2 record\(s\) of orders-0 were not .* \(1000 ms\){attempts}; the Sender has not come to orders-0"
    with pytest.raises(TimeoutError, match=text):
        future.result(0)
    assert_whole(rig.pool)


# Kafka: testExpiredBatchSingleMaxValue
def test_largest_delivery_timeout_does_not_overflow() -> None:
    rig = Rig(delivery_timeout_ms=2**31 - 1)
    rig.send()
    assert rig.accumulator.expire(rig.clock.monotonic() + 10**6) == []


# Kafka: testExpiredBatches
def test_only_old_batches_expire() -> None:
    rig = Rig(leaders=(1, 1), request_timeout_ms=100, delivery_timeout_ms=1_000)
    old = rig.send(partition=0)
    rig.clock.advance(0.5)
    young = rig.send(partition=1)
    assert rig.accumulator.expire(rig.clock.monotonic() + 0.6) == [old.batch]
    assert not young.done()
    assert rig.send(partition=0).batch is not old.batch
    assert rig.bytes_in("open") == 2 * SLAB


def test_callback_of_an_expired_batch_can_send() -> None:
    # Kafka: SenderTest.testAppendInExpiryCallback; the slab is back before the callback runs
    rig = Rig(slabs=1, max_block_ms=0, request_timeout_ms=100, delivery_timeout_ms=1_000)
    again: list[RecordFuture] = []
    first = rig.send(callback=lambda metadata, error: again.append(rig.send(b"again")))
    rig.clock.advance(1)
    assert rig.accumulator.expire(rig.clock.monotonic()) == [first.batch]
    (future,) = again
    assert not future.done()
    assert rig.incomplete() == [future.batch]


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_lingering_batches_go_while_a_thread_waits_for_memory() -> None:
    seen: list[list[int]] = []
    rig = Rig(slabs=2, linger_ms=10_000, max_block_ms=100, leaders=(1, 1, 1), wakeup=lambda: check())

    def check() -> None:
        if rig.pool.free_bytes == 0:
            seen.append(ready_partitions(rig))

    rig.send(partition=0)
    rig.send(partition=1)
    seen.clear()
    assert ready_partitions(rig) == []
    with pytest.raises(BufferExhaustedError):
        rig.send(partition=2)
    # A Sender that woke too early would find nothing to do and sleep for ten seconds.
    assert [0, 1] in seen
    assert ready_partitions(rig) == []
    rig.accumulator.abort()
    assert_whole(rig.pool)


def test_every_record_that_waited_for_memory_is_sent() -> None:
    clock = ManualClock()
    rig = Rig(slabs=2, clock=clock, leaders=(1, 1), linger_ms=0)
    rig.fill(partition=0, batches=2)
    waiting = [in_thread(lambda: rig.send(b"waited", partition=1)) for _ in range(2)]
    until(lambda: rig.pool.waiting == 2)
    acknowledge(drain(rig))
    first = waiting[0].result(PATIENCE)
    acknowledge(drain(rig, 1))  # the rest of partition 0, and the records that were sent meanwhile
    second = waiting[1].result(PATIENCE)
    rig.accumulator.abort()
    assert first.done()
    assert second.done()
    assert_whole(rig.pool)


def test_records_that_waited_for_one_partition_share_a_batch() -> None:
    clock = ManualClock()
    rig = Rig(slabs=2, clock=clock, leaders=(1, 1), linger_ms=0)
    large = rig.send(b"x" * (2 * SLAB - 200), partition=0)
    waiting = [in_thread(lambda: rig.send(b"waited", partition=1)) for _ in range(2)]
    until(lambda: rig.pool.waiting == 2)
    acknowledge(drain(rig))
    assert large.done()
    futures = [future.result(PATIENCE) for future in waiting]
    assert futures[0].batch is futures[1].batch
    assert rig.pool.free_bytes == SLAB  # the slab that the second thread did not need went back
    rig.accumulator.abort()
    assert_whole(rig.pool)


def test_close_wakes_a_thread_that_waits_for_memory() -> None:
    rig = Rig(slabs=1, clock=ManualClock(), leaders=(1, 1), linger_ms=10_000)
    rig.send(partition=0)
    waiting = in_thread(lambda: rig.send(partition=1))
    until(lambda: rig.pool.waiting == 1)
    rig.accumulator.close()
    assert isinstance(waiting.exception(PATIENCE), ClosedError)
    assert ready_partitions(rig) == [0]  # the batch that was queued before goes without lingering
    with pytest.raises(ClosedError):
        rig.send(partition=1)
    rig.accumulator.abort()
    assert_whole(rig.pool)


# ---- flush and abort -------------------------------------------------------------------------------------------------


# Kafka: testFlush, testAwaitFlushComplete
def test_flush_sends_lingering_batches_and_waits_for_their_outcomes() -> None:
    rig = Rig(leaders=[1] * 3, clock=ManualClock(), linger_ms=10_000)
    futures = [rig.send(partition=partition) for partition in range(3)]
    assert ready_partitions(rig) == []
    flushing = in_thread(lambda: rig.accumulator.flush(None))
    until(lambda: ready_partitions(rig) == [0, 1, 2])
    batches = drain(rig)
    late = rig.send(partition=0)  # flush() does not wait for a record that was sent after it began
    acknowledge(batches[:2])
    assert not flushing.done()
    acknowledge(batches[2:])
    flushing.result(PATIENCE)
    assert all(future.done() for future in futures)
    assert not late.done()
    assert ready_partitions(rig) == []  # lingers again


def test_batches_linger_again_after_a_flush_that_timed_out() -> None:
    rig = Rig(linger_ms=10_000)
    rig.send()
    with pytest.raises(TimeoutError, match="1 batches not acknowledged within 1"):
        rig.accumulator.flush(1)
    assert ready_partitions(rig) == []
    with pytest.raises(TimeoutError):
        rig.accumulator.flush(0)


def test_flush_does_not_wait_for_failed_batches() -> None:
    rig = Rig()
    rig.send().batch.fail(NetworkError("gone"))
    rig.accumulator.flush(0)


# Kafka: testAbortIncompleteBatches, testAbortUnsentBatches
def test_abort_fails_every_batch_and_keeps_slabs_in_flight() -> None:
    rig = Rig(leaders=(1, 1), linger_ms=0)
    outcomes: list[str] = []
    for partition, name in ((0, "in flight"), (0, "in flight"), (1, "in flight")):
        rig.send(partition=partition, callback=lambda metadata, error, name=name: outcomes.append(name))
    rig.turn()
    for partition in (0, 1):
        rig.send(partition=partition, callback=lambda metadata, error: outcomes.append(type(error).__name__))
    assert rig.bytes_in("in_flight") == 2 * SLAB
    rig.accumulator.abort()
    assert outcomes == ["in flight"] * 3 + ["ClosedError"] * 2
    assert not rig.accumulator.incomplete
    assert not rig.accumulator.active
    assert rig.pool.accounting()["free"] == rig.pool.total - 2 * SLAB  # a slab stays while a socket reads it
    for sent in list(rig.client.under_way):
        rig.client.answer(sent)
    rig.turn()
    assert_whole(rig.pool)


# ---- sticky partitions -----------------------------------------------------------------------------------------------


# Kafka: testUniformBuiltInPartitioner, BuiltInPartitionerTest.testStickyPartitioning
def test_sticky_partition_changes_between_full_batches() -> None:
    rig = Rig(leaders=[1] * 4, slabs=512, linger_ms=10_000)
    order = [rig.send(b"v" * 100, partition=None).batch for _ in range(2_000)]
    batches = list(dict.fromkeys(order))
    assert sum(batch.count for batch in batches) == 2_000
    assert all(batch is following or batch.size > SLAB - 150 for batch, following in pairwise(order))
    counts = [sum(batch.count for batch in batches if batch.partition == p) for p in range(4)]
    assert min(counts) > 300


# Kafka: BuiltInPartitionerTest.unavailablePartitionsTest
def test_records_without_key_go_to_partitions_with_a_leader() -> None:
    rig = Rig(leaders=(-1, 1, -1, 1), slabs=512, linger_ms=10_000)
    used = {rig.send(b"v" * 100, partition=None).batch.partition for _ in range(1_000)}
    assert {1, 3} <= used
    first = rig.topic.queues[0].head
    assert first is None or first.count < 10  # before leaders were known


# Kafka: testBuiltInPartitionerFractionalBatches
def test_sticky_partition_stays_while_its_batch_lingers() -> None:
    rig = Rig(leaders=[1] * 4, slabs=64, linger_ms=10)
    for _ in range(10):
        for _ in range(SLAB * 2 // 3 // 40):
            rig.send(b"v" * 32, partition=None)
        rig.linger_over()
        (batch,) = drain(rig)
        assert SLAB / 2 < batch.size < SLAB
        acknowledge([batch])
    assert_whole(rig.pool)


# Kafka: testStickyBatchSizeMoreThatZero
def test_batch_size_of_zero_spreads_records_over_all_partitions() -> None:
    rig = Rig(batch_size=0, leaders=[1] * 3, slabs=64, linger_ms=1_000)
    assert {rig.send(partition=None).batch.partition for _ in range(40)} == {0, 1, 2}


def test_callback_that_needs_memory_is_refused_at_once() -> None:
    rig = Rig(slabs=2)
    rig.fill(batches=2)
    rig.accumulator.nonwaiting_allocators[threading.get_ident()] = rig.accumulator.refuse_callback
    before = rig.clock.monotonic()
    with pytest.raises(BufferExhaustedError, match=r"a callback's send\(\) cannot wait"):
        rig.fill()
    assert rig.clock.monotonic() == before
    rig.ack_all()
    assert rig.send(b"v").batch is not None
    rig.ack_all()
    assert_whole(rig.pool)
