"""RecordAccumulator between threads: one thread plays each race, at the points where another thread may run."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ClosedError
from rigs.producer import PATIENCE, HookClock, Rig, assert_whole, collecting_everywhere
from tests.memory.pool_support import in_thread


def test_no_batch_is_opened_while_the_producer_closes() -> None:
    clock = HookClock()
    rig = Rig(clock=clock)

    def close() -> None:
        rig.accumulator.close()
        rig.accumulator.abort()

    clock.at_call(0, close)  # open_batch has looked at `closed` and has its slab
    with pytest.raises(ClosedError):
        rig.send()
    assert not rig.accumulator.incomplete
    assert_whole(rig.pool)


def test_interrupt_while_a_batch_is_opened_gives_its_slab_back() -> None:
    clock = HookClock()
    rig = Rig(clock=clock)

    def interrupt() -> None:
        raise KeyboardInterrupt

    clock.at_call(0, interrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.send()
    assert_whole(rig.pool)
    assert rig.send()


def test_batches_of_two_threads_get_different_numbers() -> None:
    clock = HookClock()
    rig = Rig(clock=clock)
    other: list[RecordFuture] = []
    clock.at_call(0, lambda: other.append(rig.send(b"other")))  # the first thread has its slab but not yet its batch
    mine = rig.send(b"mine")
    assert [batch.number for batch in rig.queue().batches] == [0, 1]
    assert list(rig.queue().batches) == [other[0].batch, mine.batch]
    rig.ack_all()
    assert_whole(rig.pool)


def test_topic_grown_by_two_threads_has_each_partition_once() -> None:
    topic = TopicQueues("t", 1)
    with collecting_everywhere(lambda: topic.grow(6)):
        topic.grow(8)
    assert [queue.partition for queue in topic.queues] == list(range(8))


def test_batch_may_be_opened_while_the_sender_looks_for_ready_queues() -> None:
    rig = Rig(leaders=range(64), slabs=64, linger_ms=0)
    rig.send(partition=0)
    rig.send(partition=1)
    unused = iter(range(2, 64))
    with collecting_everywhere(lambda: rig.send(partition=next(unused, 63))):
        ready = rig.accumulator.ready(rig.clock.monotonic())
    assert {0, 1} <= set(ready.queues_by_node)
    assert len(rig.accumulator.active) > 2


def test_topic_may_be_made_during_a_metadata_update(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    names = iter(f"new-{number}" for number in range(10))
    make = rig.accumulator.topic_queues

    def topic_queues(name: str, leaders: list[int], epochs: list[int], topic_id: UUID | None) -> TopicQueues:
        make(next(names), [1])
        return make(name, leaders, epochs, topic_id)

    monkeypatch.setattr(rig.accumulator, "topic_queues", topic_queues)
    rig.lead(2)
    assert rig.queue().leader == 2


# Kafka: RecordAccumulatorTest.testStressfulSituation
def test_records_of_several_threads_arrive_once_and_in_order() -> None:
    rig = Rig(leaders=[1] * 3, slabs=8, clock=ManualClock(), linger_ms=0)
    total, threads = 2_000, 4
    futures: list[RecordFuture] = []

    def append(number: int) -> None:
        mine = [rig.send(b"%d-%d" % (number, i), partition=i % 3) for i in range(total)]
        futures.extend(mine)

    running = [in_thread(lambda number=number: append(number)) for number in range(threads)]  # type: ignore[misc]
    values: list[bytes | None] = []
    deadline = threading.Event()
    while not all(future.done() for future in running) or rig.accumulator.incomplete:
        rig.turn()
        for sent in list(rig.client.under_way):
            for partition in sent.partitions:
                values += sent.values(partition)
            rig.client.answer(sent)
        deadline.wait(0.0005)
    rig.turn()
    for future in running:
        future.result(PATIENCE)
    assert sorted(v for v in values if v) == sorted(b"%d-%d" % (n, i) for n in range(threads) for i in range(total))
    assert all(future.done() for future in futures)
    for number in range(threads):  # the records of each thread are in order within a partition
        mine = [int(v.split(b"-")[1]) for v in values if v and v.startswith(b"%d-" % number)]
        for partition in range(3):
            assert [i for i in mine if i % 3 == partition] == list(range(partition, total, 3))
    assert_whole(rig.pool)
