"""AIOKafkaProducer while records wait for memory or metadata: the loop runs, and records keep their order."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.aio import AIOKafkaProducer, AIORecordFuture
from kafkabuf.aio._core import TURN
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    IllegalStateError,
    InvalidPartitionsError,
    InvalidTopicError,
    SerializationError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.protocol.messages import METADATA, PRODUCE
from rigs.producer import PATIENCE, assert_whole
from tests.aio.support import SLAB, SLABS, VALUE, Heartbeat, fill, held_up, read_back, run, small, until, waiting

pytest_plugins = ["tests.aio.fixtures"]


# ---- the loop is never blocked ---------------------------------------------------------------------------------------


def test_loop_runs_while_a_record_waits_for_memory(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster) as producer, Heartbeat() as heart:
            await producer.send_and_wait("still", b"v", partition=0)
            async with held_up(aio_cluster):
                sent = await fill(producer, "still")
                late = asyncio.create_task(producer.send("still", VALUE, partition=0))
                await until(waiting(producer))
                await heart.goes_on()
                assert not late.done()
            sent.append(await late)
            offsets = [(await future).offset for future in sent]
            assert offsets == list(range(1, SLABS + 2))
            await until(lambda: producer._started.pool.accounting()["free"] == SLABS * SLAB)
            assert_whole(producer._started.pool)

    run(test())


def test_loop_that_goes_on_in_another_thread_runs_while_a_record_waits_for_memory(
    aio_cluster: EmbeddedCluster,
) -> None:
    """And a call in the thread where the loop began waits as any other: a thread of the pool may get its ident."""
    loop = asyncio.new_event_loop()
    producer = small(aio_cluster, max_block_ms=200)

    async def begin() -> None:
        await producer.start()
        await producer.send_and_wait("moved", b"v", partition=0)

    async def go_on() -> None:
        async with Heartbeat() as heart, held_up(aio_cluster):
            await fill(producer, "moved")
            late = asyncio.create_task(producer.send("moved", VALUE, partition=0))
            await until(waiting(producer))
            await heart.goes_on()
            with pytest.raises(BufferExhaustedError):
                await late
            await asyncio.to_thread(began_here.set)
            await asyncio.to_thread(refused.wait, PATIENCE)
        await producer.stop()

    began_here, refused = threading.Event(), threading.Event()
    loop.run_until_complete(asyncio.wait_for(begin(), PATIENCE))
    with ThreadPoolExecutor() as elsewhere:
        ended = elsewhere.submit(loop.run_until_complete, asyncio.wait_for(go_on(), PATIENCE))
        try:
            assert began_here.wait(PATIENCE)
            with pytest.raises(BufferExhaustedError):
                producer._started.send_many("moved", [VALUE])
        finally:
            refused.set()
        ended.result(PATIENCE)
    loop.close()


@pytest.mark.parametrize("partition", [None, 7])
def test_loop_runs_while_a_record_waits_for_metadata(aio_cluster: EmbeddedCluster, partition: int | None) -> None:
    async def test() -> None:
        topic = f"unknown-{partition}"
        async with small(aio_cluster, metadata_max_age_ms=600_000) as producer, Heartbeat() as heart:
            if partition is not None:
                await producer.send_and_wait(topic, b"v")
                aio_cluster._call(lambda c: c.catalogue.add_partitions(topic, 8))
            async with held_up(aio_cluster):
                task = asyncio.create_task(producer.send(topic, b"v", partition=partition))
                await heart.goes_on()
                assert not task.done()
            assert (await (await task)).topic == topic

    run(test())


def test_sends_that_never_wait_give_other_tasks_their_turn(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster, buffer_memory=32 << 20) as producer, Heartbeat() as heart:
            await producer.send_and_wait("turns", b"v")
            before = heart.beats
            for _ in range(4 * TURN):
                await producer.send("turns", b"v")
            assert 3 <= heart.beats - before <= 5

    run(test())


# ---- order, cancellation, time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("detour", [False, True])
def test_records_of_a_topic_keep_their_order(aio_cluster: EmbeddedCluster, detour: bool) -> None:
    """One task starts all sends; some wait for metadata, some for memory, the others for their turn."""
    serializer = (lambda value: value) if detour else None
    topic = f"order-{detour}"

    async def test() -> None:
        async with small(aio_cluster, value_serializer=serializer) as producer:
            count = 3 * TURN
            sends = [producer.send(topic, b"%d" % n + b"x" * (n * 37 % 800), partition=0) for n in range(count)]
            futures = await asyncio.gather(*sends)
            assert [(await future).offset for future in futures] == list(range(count))
            assert not producer._lines
        found = await read_back(aio_cluster, topic, count)
        assert [int(record.value.rstrip(b"x")) for record in found] == list(range(count))

    run(test())


@pytest.mark.parametrize("detour", [False, True])
def test_no_record_overtakes_a_record_whose_memory_has_come(aio_cluster: EmbeddedCluster, detour: bool) -> None:
    """A second task sends when the first record's memory has come, and the loop has not woken the first task yet."""
    serializer = (lambda value: value) if detour else None
    topic = f"overtaking-{detour}"

    async def test() -> None:
        async with small(aio_cluster, value_serializer=serializer) as producer:
            await producer.send_and_wait(topic, b"v", partition=0)
            pool = producer._started.pool
            async with held_up(aio_cluster):
                await fill(producer, topic)
                first = asyncio.create_task(producer.send(topic, VALUE, partition=0))
                await until(waiting(producer))
            while pool.waiting or pool.free_bytes < 4 * SLAB:  # not awaited: the loop does not run meanwhile
                time.sleep(0.001)
            second = await producer.send(topic, VALUE, partition=0)
            assert (await (await first)).offset < (await second).offset

    run(test())


def test_missing_topic_does_not_hold_up_others(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster, max_block_ms=60_000) as producer:
            await producer.send_and_wait("there", b"v")
            aio_cluster.fail_next(METADATA, UnknownTopicOrPartitionError.code, 10_000, "missing")
            missing = asyncio.create_task(producer.send("missing", b"v"))
            await until(lambda: "missing" in producer._lines)
            await producer.send_and_wait("there", b"v")
            assert not missing.done()
            missing.cancel()

    run(test())


def test_cancelled_send_queues_nothing_and_keeps_no_memory(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster) as producer:
            await producer.send_and_wait("cancelled", b"v", partition=0)
            async with held_up(aio_cluster):
                sent = await fill(producer, "cancelled")
                tasks = [
                    asyncio.create_task(producer.send("cancelled", b"%d" % n + VALUE, partition=0)) for n in range(3)
                ]
                await until(waiting(producer))
                tasks[0].cancel()
                tasks[1].cancel()
                await asyncio.sleep(0)
            sent.append(await tasks[2])
            assert [(await future).offset for future in sent] == list(range(1, SLABS + 2))
            pool = producer._started.pool
            await until(lambda: pool.accounting()["free"] == pool.total)
            assert_whole(pool)
            assert not producer._lines
        found = await read_back(aio_cluster, "cancelled", SLABS + 2)
        assert [record.value for record in found] == [b"v", *[VALUE] * SLABS, b"2" + VALUE]

    run(test())


def test_memory_that_is_no_longer_needed_is_released(aio_cluster: EmbeddedCluster) -> None:
    """A record waits for memory; send_many(), which waits in front of it, opens a batch with room for both."""

    async def test() -> None:
        async with small(aio_cluster) as producer:
            await producer.send_and_wait("room", b"v", partition=0)
            pool = producer._started.pool
            async with held_up(aio_cluster):
                await fill(producer, "room")
                bulk = asyncio.create_task(producer.send_many("room", [b"x" * 100], partitions=[0]))
                await until(lambda: pool.waiting == 1)
                record = asyncio.create_task(producer.send("room", b"x" * 100, partition=0))
                await until(lambda: pool.waiting == 2)
            (row,) = (await (await bulk).result()).offset
            assert {row, (await (await record)).offset} == {SLABS + 1, SLABS + 2}
            await until(lambda: pool.accounting()["free"] == pool.total)
            assert_whole(pool)

    run(test())


def test_max_block_ms_bounds_the_wait(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster, max_block_ms=50) as producer:
            await producer.send_and_wait("blocked", b"v", partition=0)
            async with held_up(aio_cluster):
                await fill(producer, "blocked")
                sends = [producer.send("blocked", VALUE, partition=0) for _ in range(3)]
                errors = await asyncio.gather(*sends, return_exceptions=True)
                assert [type(error) for error in errors] == [BufferExhaustedError] * 3
                waited = [int(str(error).partition("within ")[2].partition(" ms")[0]) for error in errors[1:]]
                assert max(waited) < 40, "the time in line must count, too"
                sends = [producer.send("never-heard-of", VALUE) for _ in range(3)]
                for error in await asyncio.gather(*sends, return_exceptions=True):
                    assert isinstance(error, TimeoutError)
                assert not producer._lines

    run(test())


def test_wrong_record_is_refused_and_leaves_the_line(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster, max_block_ms=200) as producer:
            for _ in range(2):  # on both paths: the topic is known the second time
                for wrong, error in (
                    ({"topic": "no topic"}, InvalidTopicError),
                    ({"topic": "wrong", "partition": "one"}, InvalidPartitionsError),
                    ({"topic": "wrong", "partition": 3}, InvalidPartitionsError),
                    ({"topic": "wrong", "value": "text"}, SerializationError),
                ):
                    with pytest.raises(error):
                        await producer.send(**wrong)
            assert not producer._lines
            assert (await producer.send_and_wait("wrong", b"right", partition=0)).offset == 0

    run(test())


# ---- beginning and end -----------------------------------------------------------------------------------------------


def test_stop_ends_waiting_sends(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        producer = small(aio_cluster)
        await producer.start()
        await producer.send_and_wait("stopped", b"v", partition=0)
        async with held_up(aio_cluster):
            sent = await fill(producer, "stopped")
            topics = ["stopped", "stopped", "unheard-of-yet", "unheard-of-yet"]
            tasks = [asyncio.create_task(producer.send(topic, VALUE, partition=0)) for topic in topics]
            await until(waiting(producer))
            stopping = [asyncio.create_task(producer.stop(0)) for _ in range(2)]
            errors = await asyncio.gather(*tasks, *sent, return_exceptions=True)
            assert [type(error) for error in errors] == [ClosedError] * (4 + SLABS)
            await asyncio.gather(*stopping)
        assert_whole(producer._started.pool)
        await producer.stop()
        for late in (producer.send("stopped", b"v"), producer.flush()):
            with pytest.raises(ClosedError):
                await late
        assert not producer._lines

    run(test())


def test_stop_sends_all_buffered_records_and_takes_no_more(
    aio_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with small(aio_cluster, linger_ms=60_000) as producer:
            futures = [await producer.send("kept", b"v", partition=0) for _ in range(50)]
            close, refused = producer._started.close, threading.Event()
            monkeypatch.setattr(producer._started, "close", lambda timeout: refused.wait(PATIENCE) and close(timeout))
            stopping = asyncio.create_task(producer.stop())
            await asyncio.sleep(0)
            with pytest.raises(ClosedError):
                await producer.send("kept", b"v", partition=0)
            refused.set()
            await stopping
        assert [future.result().offset for future in futures] == list(range(50))

    run(test())


def test_record_that_outlives_its_loop_does_not_stop_the_sender(aio_cluster: EmbeddedCluster) -> None:
    """The loop was closed without stop(): records in flight end, and there is no loop to wake."""
    producer = small(aio_cluster)

    async def test() -> AIORecordFuture:
        await producer.start()
        await producer.send_and_wait("outlives", b"v")
        aio_cluster.delay_next(PRODUCE, 0.1)
        future = await producer.send("outlives", b"v", partition=0)
        waiter = asyncio.create_task(asyncio.wait_for(asyncio.shield(future), 60))
        await asyncio.sleep(0)
        waiter.cancel()
        return future

    future = asyncio.run(test())
    assert future._record.result(PATIENCE).topic == "outlives"
    assert producer._started.send("outlives", b"v").result(PATIENCE)
    producer._started.close()


def test_second_loop_is_refused(aio_cluster: EmbeddedCluster) -> None:
    producer = small(aio_cluster)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: producer.send("t", b"v"),
        lambda: producer.flush(),
        lambda: producer.send_arrow(pa.record_batch({"value": [b"v"]}), "t"),
        lambda: producer.begin_transaction(),
    ]

    async def refused(match: str) -> None:
        for call in calls:
            with pytest.raises(IllegalStateError, match=match):
                await call()
        for ask in (producer.metrics, producer.purge):
            with pytest.raises(IllegalStateError, match=match):
                ask()

    async def first() -> None:
        await refused("has not been started")
        await producer.stop()
        await producer.start()
        with pytest.raises(IllegalStateError, match=r"start\(\) is called once"):
            await producer.start()
        await asyncio.to_thread(asyncio.run, refused("was started in another event loop"))
        await producer.stop()

    run(first())


def test_start_may_be_called_again_after_an_error(aio_cluster: EmbeddedCluster) -> None:
    with pytest.raises(ConfigError, match="linger_msec"):
        AIOKafkaProducer(bootstrap_servers="localhost:9092", linger_msec=1)  # type: ignore[call-overload]

    async def test() -> None:
        producer = AIOKafkaProducer({"bootstrap.servers": "no-such-host.invalid:9092", "linger.ms": 1})
        for _ in range(2):
            with pytest.raises(ConfigError, match="no-such-host"):
                await producer.start()
        copy = pickle.loads(pickle.dumps(small(aio_cluster, client_id="copied")))
        async with copy:
            assert copy.config.client_id == "copied"
            assert (await copy.send_and_wait("copied", b"v")).offset == 0

    run(test())


def test_error_of_a_record_that_has_waited_for_memory_holds_none(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        producer = small(aio_cluster, batch_size=16 * 1024, buffer_memory=16 * 1024, transactional_id="held")
        async with producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await (await producer.send("held", b"first", partition=0))
            pool = producer._started.pool
            hold = pool.allocate(16 * 1024, 0)
            task = asyncio.create_task(producer.send("held", b"second" * 1_000, partition=0))
            await until(waiting(producer))
            await producer.abort_transaction()  # the record that waits belongs to no transaction now
            hold.release()
            (error,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(error, IllegalStateError)
            assert pool.accounting()["open"] == 0

    run(test())
