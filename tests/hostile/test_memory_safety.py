"""Python code that misuses the objects behind a producer never makes them touch memory that they do not own."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf._pool import BufferPool
from kafkabuf.append._producer import TopicPolicy
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches._batch import Batch
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.batches.codec import Codec
from kafkabuf.errors import BufferExhaustedError, KafkaError, SerializationError
from kafkabuf.network._metrics import ProducerStats
from kafkabuf.record_metadata import BatchOutcome
from rigs.arrow_abi import ArrowSchema, _get_pointer
from rigs.producer import SLAB, TOPIC, Appender, Rig, assert_whole, collecting_everywhere
from tests.hostile.forked import in_a_child

# ---- batches and their queues ----------------------------------------------------------------------------------------


@in_a_child
@pytest.mark.parametrize(("slab", "count"), [(10**7, 1), (-1, 1), (0, 0), (0, 2), (2**62, 2**62)])
def test_batch_of_slabs_outside_the_pool_is_refused(slab: int, count: int) -> None:
    kind: Any = Batch
    with pytest.raises(ValueError, match="the pool has 1 slabs"):
        kind("t", 0, 0.0, BufferPool(1024, 1024), slab, count, 1, 2, None)


@in_a_child
@pytest.mark.parametrize("epochs", [[], [0], [0, 0, 0]])
def test_different_numbers_of_leaders_and_epochs_are_refused(epochs: list[int]) -> None:
    topic = TopicQueues("t", 2)
    with pytest.raises(ValueError, match="2 leaders and"):
        topic.follow([5, 5], epochs)
    assert [queue.leader for queue in topic.queues] == [-1, -1]


@in_a_child
def test_leaders_that_shrink_while_a_topic_reads_them_are_safe() -> None:
    topic = TopicQueues("t", 2)
    leaders: list[Any] = [0] * 1000

    class Shrinking:
        def __int__(self) -> int:
            leaders.clear()
            return 3

    leaders[0] = Shrinking()
    topic.follow(leaders, [1])
    assert [queue.leader for queue in topic.queues] == [3, -1]


@in_a_child
@pytest.mark.parametrize("partition", [0, 39])
def test_batch_of_another_accumulator_is_refused_and_unchanged(partition: int) -> None:
    ours, theirs = Rig((1,)), Rig((1,) * 40)
    future = theirs.send(b"x", partition)
    calls: list[Callable[[Batch], object]] = [
        ours.accumulator.holds,
        ours.accumulator.queue_of,
        ours.accumulator.discard,
        lambda batch: ours.accumulator.fail(batch, KafkaError()),
    ]
    for call in calls:
        with pytest.raises(KeyError, match="another accumulator"):
            call(future.batch)
    assert theirs.accumulator.holds(future.batch)
    theirs.ack_all()
    assert future.result(0).partition == partition
    assert_whole(theirs.pool)


@in_a_child
def test_batch_never_exceeds_its_slab() -> None:
    rig = Rig()
    pool = BufferPool(1024, 256, clock=rig.clock, poison=True)
    accumulator = RecordAccumulator(rig.config, pool, rig.clock)
    accumulator.topic_queues(TOPIC, [1])
    producer = Appender(accumulator, rig.config, rig.clock)
    behind = pool.allocate(256 * 3, 0)
    behind.release()
    futures = []
    with contextlib.suppress(BufferExhaustedError):
        while True:
            futures.append(producer.send(TOPIC, b"x" * 50))
    assert max(future.batch.size for future in futures) <= 256
    assert len({future.batch for future in futures}) == 4


def test_accumulator_is_initialized_once() -> None:
    """If `__init__` replaced the pool while a thread waits for memory, the slab would return to the wrong pool."""
    rig = Rig(slabs=2)
    held = [rig.pool.allocate(1, 0) for _ in range(2)]
    refused: list[str] = []

    def again() -> None:
        rig.pool.on_exhausted = None
        held.pop().release()
        with pytest.raises(ValueError, match="initialized once") as caught:
            rig.accumulator.__init__(rig.config, BufferPool(1024, 1024), rig.clock)  # type: ignore[misc]
        refused.append(str(caught.value))

    rig.pool.on_exhausted = again
    rig.send(b"x" * 900)
    assert len(refused) == 1
    held.pop().release()
    rig.ack_all()
    assert_whole(rig.pool)


@pytest.mark.parametrize("answer", [-1, -(2**40), 2**40])
def test_impossible_length_from_a_codec_leaves_the_batch_uncompressed(answer: int) -> None:
    rig = Rig(record_magic=1, enable_idempotence=False)
    rig.accumulator.use_codec(Codec(1, lambda source, target: answer))
    for _ in range(5):
        rig.send(b"x" * 100)
    assert rig.drain_one().size == 5 * (34 + 100)


# ---- producers whose methods were replaced ---------------------------------------------------------------------------


@in_a_child
def test_unopened_producer_that_claims_to_be_open_is_refused() -> None:
    class Forgetful(KafkaProducer):
        def check_open(self) -> int:
            return 0

    producer = Forgetful.__new__(Forgetful)
    core: Any = producer
    calls: list[Callable[[], object]] = [
        lambda: producer.send("t", b"x"),
        lambda: core.prepare("t", b"k", b"v", None, None),
        lambda: Appender.send_many(core, "t", [b"x"]),
        lambda: Appender.send_arrow(core, pa.table({"value": [b"v"]}), "t"),
    ]
    core.clock = Rig().clock
    for call in calls:
        with pytest.raises(TypeError, match="__init__ was not called"):
            call()


@in_a_child
def test_none_in_place_of_topic_queues_is_refused() -> None:
    class Empty(TopicPolicy):
        def await_topic(self, name: str, timeout: float) -> Any:
            return None

    rig = Rig()
    producer = rig.producer
    producer._open(rig.accumulator, Empty(), rig.config, rig.clock)
    for call in (lambda: producer.send("u", b"x"), lambda: producer.send_many("u", [b"x"])):
        for _ in range(2):
            with pytest.raises(TypeError, match="returned None"):
                call()


@in_a_child
def test_stats_count_when_a_subclass_replaces_new() -> None:
    class Replaced(ProducerStats):
        def new(self) -> None:
            return None

    stats = Replaced()
    stats.request(0, 7, 0.0)
    stats.retried("t", 1, 0.0)
    assert (stats.requests.total, stats.nodes[0].requests.total, stats.topics["t"].retries.total) == (7, 7, 1)


# ---- Arrow -----------------------------------------------------------------------------------------------------------


@in_a_child
def test_arrow_type_that_is_its_own_dictionary_is_named() -> None:
    batch = pa.record_batch({"value": pa.array(["a"]).dictionary_encode()})
    capsules = batch.__arrow_c_array__()
    schema = ArrowSchema.from_address(_get_pointer(capsules[0], b"arrow_schema"))
    dictionary = schema.children[0].contents.dictionary.contents
    truth = bytes(dictionary)
    dictionary.dictionary = ctypes.pointer(dictionary)

    class Endless:
        def __arrow_c_array__(self, requested_schema: object = None) -> object:
            return capsules

    with pytest.raises(SerializationError, match="dictionary<string>"):
        Rig().producer.send_arrow(Endless(), TOPIC)
    ctypes.memmove(ctypes.addressof(dictionary), truth, len(truth))  # pyarrow needs the true struct to release it


def ignore(metadata: object, error: object) -> None:
    """A callback."""


def spared(call: Callable[[], object], allocation: int, failures: int = 1) -> None:
    """Run a call whose allocation with that number fails, and so many in a row."""
    testcapi = pytest.importorskip(
        "_testcapi", reason="this interpreter has no _testcapi, which makes allocations fail"
    )
    # A collection meanwhile would give the lack of memory to a callback of hypothesis, which nobody can catch.
    gc.disable()
    testcapi.set_nomemory(allocation, allocation + failures)
    try:
        call()
    except MemoryError:
        pass
    finally:
        testcapi.remove_mem_hooks()
        gc.enable()


@pytest.mark.parametrize("bulk", [False, True])
def test_call_that_finds_no_memory_leaves_no_batch_behind(bulk: bool) -> None:
    partitions = list(range(12)) * 2  # more claims at a time than a small dict has entries
    for allocation in range(200):
        rig = Rig(leaders=[1] * 12, slabs=32, linger_ms=0)
        rig.send(b"first", 0)
        rig.turn()
        rig.ack_all()
        producer = rig.producer
        if bulk:
            values = [b"v" * (SLAB // 2)] * len(partitions)
            spared(lambda: producer.send_many(TOPIC, values, partitions=partitions), allocation)  # noqa: B023
        else:
            spared(lambda: producer.send(TOPIC, b"v" * (SLAB - 100), partition=0), allocation)  # noqa: B023
        later = rig.send(b"later", 0)
        for _ in range(20):
            rig.turn()
            rig.ack_all()
        assert later.done(), f"allocation {allocation}"
        assert not rig.accumulator.incomplete_batches()
        assert_whole(rig.pool)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_turn_that_finds_no_memory_sends_every_record_in_order(idempotent: bool, compression: str) -> None:
    for allocation in range(90):
        rig = Rig(linger_ms=0, enable_idempotence=idempotent, compression_type=compression)
        rig.send(b"first")
        rig.ack_all()
        futures = [rig.send(b"second" * 20)]
        spared(lambda: rig.sender.run_once(0), allocation)  # noqa: B023
        futures.append(rig.send(b"third"))
        for _ in range(20):  # ten seconds of the clock: a batch that is in no queue would wait for its time-out
            rig.turn()
            rig.ack_under_way()
            rig.clock.advance(0.5)
        assert [future.done() for future in futures] == [True, True], f"allocation {allocation}"
        values = [record.value for record in rig.log[TOPIC, 0]]
        assert values == [b"first", b"second" * 20, b"third"], f"allocation {allocation}"


def test_opaque_of_a_send_that_found_no_memory_several_times_in_a_row_stays_in_no_batch() -> None:
    """Taking the opaque back takes no memory."""
    for failures in (2, 3, 4, 6):
        for allocation in range(60):
            told: list[Any] = []
            rig = Rig(linger_ms=0, on_acknowledged=lambda outcome: told.extend(outcome.opaques))  # noqa: B023
            spared(lambda: rig.send(callback=ignore, opaque="first"), allocation, failures)  # noqa: B023
            queued = sum(batch.count for batch in rig.incomplete())
            rig.send(opaque="second")
            rig.ack_all()
            assert told == ["first", "second"][1 - queued :], f"{failures} failures from allocation {allocation} on"


def test_send_that_finds_no_memory_keeps_the_opaques_beside_their_records() -> None:
    told: list[BatchOutcome] = []
    rig = Rig(slabs=64, on_acknowledged=told.append)
    for number in range(1_200):
        value = b"%d" % number
        spared(partial(rig.send, value, callback=ignore, opaque=value), number % 12)
    rig.ack_all()
    arrived = [record.value for record in rig.log[TOPIC, 0]]
    assert 0 < len(arrived) < 1_200
    assert [opaque for outcome in told for opaque in outcome.opaques] == arrived


def test_record_behind_a_send_that_found_no_memory_wakes_the_sender() -> None:
    for allocation in range(40):
        woken: list[int] = []
        rig = Rig(wakeup=lambda: woken.append(1))  # noqa: B023
        spared(lambda: rig.send(b"v", callback=print), allocation)  # noqa: B023
        woken.clear()
        queued = rig.queue().head is not None and rig.queue().head.count > 0
        rig.send(b"later")
        assert woken or queued, f"allocation {allocation}"
        rig.ack_all()
        assert_whole(rig.pool)


def test_batch_that_a_send_without_memory_left_empty_is_not_sent() -> None:
    rig = Rig(linger_ms=0)
    batch = rig.send(b"v").batch
    rig.ack_all()
    empties = 0
    for allocation in range(40):
        spared(lambda: rig.send(b"v", callback=print), allocation)
        empties += any(batch.count == 0 for batch in rig.incomplete())
        assert all(record for sent in rig.sent_after_turn() for record in sent.produced.records.values())
        assert not any(batch.count == 0 for batch in rig.incomplete())
        rig.ack_all()
    assert batch.done
    assert_whole(rig.pool)


def test_finalizer_that_sends_does_not_disturb_purge() -> None:
    rig = Rig(leaders=[1] * 50, slabs=64, linger_ms=1_000)
    for number in range(20):
        rig.send(b"v", number)
    more = iter(range(20, 50))

    def send() -> None:
        if (number := next(more, None)) is not None:
            rig.send(b"v", number)

    with collecting_everywhere(send):
        waiting = rig.accumulator.waiting_batches()
    assert len(waiting) >= 20
    rig.ack_all()
