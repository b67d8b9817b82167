"""AIOKafkaProducer: records, their outcomes in the event loop, the user's objects, bulk appends and transactions."""

from __future__ import annotations

import asyncio
import builtins
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIORecordFuture
from kafkabuf.batches._batch import Batch
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import (
    AbortableTransactionError,
    ConfigError,
    PurgedError,
    RecordTooLargeError,
    SerializationError,
)
from kafkabuf.formats import Avro
from kafkabuf.interceptors import ProducerRecord
from kafkabuf.record_metadata import BatchOutcome, RecordMetadata
from rigs.producer import PATIENCE
from tests.aio.support import SLABS, VALUE, Heartbeat, held_up, read_back, run, small, until, waiting

pytest_plugins = ["tests.aio.fixtures"]


async def outcome(future: AIORecordFuture) -> RecordMetadata:
    return await future


# ---- records and their outcome ---------------------------------------------------------------------------------------


def test_record_is_stored_where_its_metadata_says(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster) as producer:
            futures = [
                await producer.send("back", b"%d" % n, b"k%d" % n, [("h", b"%d" % n)], timestamp_ms=1_000 + n)
                for n in range(100)
            ]
            found = [await future for future in futures]
            assert await producer.send_and_wait("back", b"last", partition=2)
        by_offset = {(r.partition, r.offset): r for r in await read_back(aio_cluster, "back", 101)}
        for n, metadata in enumerate(found):
            assert isinstance(metadata, RecordMetadata)
            record = by_offset[metadata.partition, metadata.offset]
            assert (record.value, record.key, record.timestamp) == (b"%d" % n, b"k%d" % n, 1_000 + n)
            assert record.headers == (("h", b"%d" % n),)

    run(test())


def test_object_of_a_record_comes_back_with_its_batch_whatever_way_the_record_took(
    aio_cluster: EmbeddedCluster,
) -> None:
    outcomes: list[BatchOutcome] = []

    async def test() -> None:
        # The first record waits for metadata; with a serializer every record takes the longer way.
        for settings in ({}, {"value_serializer": lambda text: text}):
            async with small(aio_cluster, on_acknowledged=outcomes.append, linger_ms=0, **settings) as producer:
                await producer.send("told", b"first", partition=0, opaque="first")
                await producer.send_and_wait("told", b"last", partition=0, opaque="last")
        async with small(aio_cluster) as producer:
            with pytest.raises(ConfigError, match="on_acknowledged"):
                await producer.send("told", b"v", opaque="mine")

    run(test())
    assert [opaque for outcome in outcomes for opaque in outcome.opaques] == ["first", "last"] * 2


def test_future_of_a_record_behaves_like_asyncios(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        called: list[Any] = []
        async with small(aio_cluster, linger_ms=60_000) as producer:
            future = await producer.send("futures", b"v")
            future.add_done_callback(lambda done: called.append((done, threading.current_thread())))
            assert not future.done()
            assert asyncio.isfuture(future)
            for ask in (future.result, future.exception):
                with pytest.raises(asyncio.InvalidStateError, match="await it"):
                    ask()
            several = asyncio.gather(future, future)
            await producer.flush()
            assert tuple(await several) == (await future, future.result())
            assert future.exception() is None
            future.add_done_callback(lambda done: called.append((done, threading.current_thread())))
            await asyncio.sleep(0.01)
        assert called == [(future, threading.current_thread())] * 2

    run(test())


def test_cancelled_future_does_not_stop_its_record(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        called: list[Any] = []
        async with small(aio_cluster, linger_ms=60_000) as producer:
            futures = [await producer.send("given-up", b"v", partition=0) for _ in range(4)]
            futures[0].add_done_callback(called.append)
            futures[0].add_done_callback(print)
            assert futures[0].remove_done_callback(print) == 1
            for wait in (asyncio.wait_for(futures[0], 0.01), asyncio.wait_for(asyncio.gather(*futures[1:3]), 0.01)):
                with pytest.raises(builtins.TimeoutError):
                    await wait
            futures[0].cancel()  # from Python 3.12 on wait_for() cancels the task that waits, and not the future
            await asyncio.sleep(0)  # the loop calls the callbacks
            assert [future.cancelled() for future in futures] == [True, True, True, False]
            assert called == futures[:1]
            for ask in (futures[0].result, futures[0].exception):
                with pytest.raises(asyncio.CancelledError):
                    ask()
            done, pending = await asyncio.wait(futures, timeout=0.01)  # type: ignore[type-var]
            assert (done, pending) == (set(futures[:3]), {futures[3]})
            flushing = asyncio.create_task(producer.flush())
            assert (await asyncio.shield(futures[3])).offset == 3
            await flushing
            assert not futures[3].cancel()
            with pytest.raises(asyncio.CancelledError):
                await futures[0]
        assert len(await read_back(aio_cluster, "given-up", 4)) == 4

    run(test())


def test_loop_is_woken_once_for_all_batches_that_ended(
    aio_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No work per record: the loop is woken once for all batches that end together, and only awaited batches cost."""
    sleepers: list[Batch] = []

    async def test() -> None:
        async with small(aio_cluster, buffer_memory=1 << 20) as producer:
            await producer.send_and_wait("woken", b"v")
            loop = asyncio.get_running_loop()
            calls: list[Any] = []
            original = loop.call_soon_threadsafe
            futures = []

            def counted(callback: Callable[..., Any], *arguments: Any) -> Any:
                calls.append(callback)
                return original(callback, *arguments)

            async with held_up(aio_cluster):
                for n in range(5_000):
                    futures.append(await producer.send("woken", b"%d" % n, partition=0))
                ends = producer._ends
                tasks = [asyncio.create_task(outcome(future)) for future in futures]
                await asyncio.sleep(0)
                sleepers.extend(ends._awaited)
                # The loop is busy while all batches end.
                monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
            until_ended = time.monotonic() + PATIENCE
            while not all(future.done() for future in futures) and time.monotonic() < until_ended:
                time.sleep(0.001)
            assert calls.count(ends._wake_waiters) == 1
            assert [m.offset for m in await asyncio.gather(*tasks)] == list(
                range(futures[0].result().offset, futures[0].result().offset + 5_000)
            )

    run(test())
    assert 0 < len(sleepers) < 200


def test_error_of_a_record_reaches_the_task_that_awaits_it(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster, linger_ms=60_000) as producer:
            future = await producer.send("purged", b"v")
            waiter = asyncio.create_task(outcome(future))
            await asyncio.sleep(0)
            producer.purge()
            with pytest.raises(PurgedError):
                await waiter
            assert isinstance(future.exception(), PurgedError)
            with pytest.raises(PurgedError):
                future.result()
            await until(lambda: producer.metrics()["producer-metrics"]["record-error-total"] == 1)

    run(test())


def test_each_record_of_a_split_batch_wakes_its_waiter(aio_cluster: EmbeddedCluster) -> None:
    aio_cluster.create_topic("split", partitions=1, configs={"max.message.bytes": "400"})

    async def test() -> None:
        async with small(aio_cluster, linger_ms=60_000) as producer:
            futures = [await producer.send("split", b"%d" % n + b"x" * 50) for n in range(12)]
            tasks = [asyncio.create_task(outcome(future)) for future in futures]
            await asyncio.sleep(0)
            assert len(producer._ends._awaited) == 1
            done: list[bool] = []
            for future in futures:
                future.add_done_callback(lambda ended: done.append(ended.done()))
            await producer.flush()
            assert [metadata.offset for metadata in await asyncio.gather(*tasks)] == list(range(12))
            assert producer._started._sender.batch_splits > 0
            await until(lambda: len(done) == 12)
            assert all(done)

    run(test())


def test_cancelled_waiter_leaves_the_outcome_to_others(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster, linger_ms=60_000) as producer:
            future = await producer.send("shared", b"v")
            first, second = asyncio.create_task(outcome(future)), asyncio.create_task(outcome(future))
            await asyncio.sleep(0)
            first.cancel()
            await producer.flush()
            assert (await second) == (await future)
            assert first.cancelled()

    run(test())


# ---- the user's serializers, partitioner and interceptors ------------------------------------------------------------


class Counting:
    """Serializer, partitioner and interceptor; the producer must call each once for each record."""

    def __init__(self) -> None:
        self.serialized = self.placed = self.seen = 0
        self.ended: list[BaseException | None] = []

    def serialize(self, value: Any) -> bytes:
        self.serialized += 1
        return json.dumps(value).encode()

    def partition(self, topic: str, key: Any, value: Any, partitions: int) -> int:
        self.placed += 1
        return 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.seen += 1
        return record._replace(headers=[("seen", b"%d" % self.seen)])

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        self.ended.append(error)


def test_users_objects_are_called_once_for_each_record(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        users = Counting()
        settings = {"interceptor_classes": [users], "partitioner_class": users.partition}
        async with small(aio_cluster, value_serializer=users.serialize, **settings) as producer:
            async with held_up(aio_cluster):
                tasks = [asyncio.create_task(producer.send("users", "x" * 900)) for _ in range(SLABS + 3)]
                await asyncio.sleep(0.01)
                tasks.append(asyncio.create_task(producer.send("users", "x" * 900)))
                await asyncio.sleep(0)
                tasks.pop().cancel()
            await asyncio.gather(*[await task for task in tasks])
            with pytest.raises(SerializationError):
                await producer.send("users", object())
        done = SLABS + 3
        assert (users.placed, users.serialized, users.seen) == (done, done + 1, done + 2)
        kinds = [type(error) for error in users.ended]
        assert sorted(kinds, key=repr) == [*[type(None)] * done, asyncio.CancelledError, SerializationError]
        found = await read_back(aio_cluster, "users", done)
        assert [record.headers for record in found] == [(("seen", b"%d" % (n + 1)),) for n in range(done)]

    run(test())


# ---- bulk ------------------------------------------------------------------------------------------------------------


def test_send_arrow_makes_keys_and_values_of_columns(aio_cluster: EmbeddedCluster) -> None:
    rows = pa.table({"id": [1, 2], "name": ["Ada", "Grace"]})
    value, key = Avro(), Avro('"long"')

    async def test() -> None:
        async with small(aio_cluster) as producer:
            report = await producer.send_arrow(rows, "formats", value_format=value, key_format=key, key="id")
            await report.result()
        found = await read_back(aio_cluster, "formats", 2)
        assert {record.value for record in found} == {*value.encode(rows)}
        assert {record.key for record in found} == {*key.encode(rows.select(["id"]))}

    run(test())


def test_bulk_appends_and_their_reports_never_block_the_loop(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with small(aio_cluster) as producer, Heartbeat() as heart:
            await producer.partitions_for("bulk")
            async with held_up(aio_cluster):
                rows = pa.record_batch(
                    {"value": [VALUE] * 3 * SLABS, "partition": pa.array([0] * 3 * SLABS, pa.int32())}
                )
                sending = asyncio.create_task(producer.send_arrow(rows, "bulk"))
                await until(waiting(producer))
                await heart.goes_on()
            report = await sending
            asked = asyncio.gather(report.result(), report.ranges(), report.failures(), report.exception())
            result, (one,), failures, error = await asked
            assert result.offset.tolist() == list(range(3 * SLABS))
            assert (one.first_offset, one.last_offset, failures, error) == (0, 3 * SLABS - 1, (), None)
            assert report.done()
            assert report.rows == 3 * SLABS
            many = await producer.send_many("bulk", [b"v", b"x" * 2_000_000])
            with pytest.raises(RecordTooLargeError, match="1 of 2 rows failed") as raised:
                await many.result()
            assert raised.value.report is many.report
            assert [failure.first_row for failure in many.too_large] == [1]
            assert (await many.result(errors="return")).error_code.tolist() == [0, 10]

    run(test())


# ---- transactions ----------------------------------------------------------------------------------------------------


def test_transaction_commits_or_aborts_as_a_whole(aio_cluster: EmbeddedCluster) -> None:
    async def transact(value: bytes, then: Callable[[], object]) -> None:
        async with producer.transaction():
            await producer.send("txn", value, partition=0)
            if asyncio.iscoroutine(going_on := then()):
                await going_on

    async def test() -> None:
        async with producer:
            await producer.init_transactions()
            await transact(b"committed", lambda: producer.send_offsets_to_transaction({("txn", 1): 5}, "group"))
            with pytest.raises(ZeroDivisionError):
                await transact(b"raised", lambda: 1 // 0)
            with pytest.raises(builtins.TimeoutError):
                await asyncio.wait_for(transact(b"cancelled", lambda: asyncio.sleep(60)), 0.1)
            with pytest.raises(AbortableTransactionError):
                await transact(b"purged", producer.purge)
            await transact(b"last", lambda: None)
        found = await read_back(aio_cluster, "txn", 2, isolation_level="read_committed")
        assert [record.value for record in found] == [b"committed", b"last"]

    # So long a linger.ms that the Sender has not taken the record that is purged; flush and commit do not wait for it.
    producer = small(aio_cluster, transactional_id="aio", linger_ms=60_000)
    run(test())


def slow_down(step: str, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let calls of a method wait. Returns what is set when a call waits, and what lets the calls go on."""
    entered, goes_on = threading.Event(), threading.Event()
    original = getattr(KafkaProducer, step)

    def slow(producer: KafkaProducer) -> None:
        entered.set()
        assert goes_on.wait(PATIENCE)
        original(producer)

    monkeypatch.setattr(KafkaProducer, step, slow)
    return entered, goes_on


@pytest.mark.parametrize("step", ["begin_transaction", "commit_transaction", "abort_transaction"])
def test_task_cancelled_in_a_step_of_its_transaction_leaves_the_next_transaction_possible(
    aio_cluster: EmbeddedCluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def transact(value: bytes) -> None:
        async with producer.transaction():
            await producer.send(step, value, partition=0)
            assert value != b"first" or step != "abort_transaction"

    async def test() -> None:
        async with producer:
            await producer.init_transactions()
            entered, goes_on = slow_down(step, monkeypatch)
            task = asyncio.create_task(transact(b"first"))
            await asyncio.to_thread(entered.wait, PATIENCE)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await transact(b"second")
        found = await read_back(aio_cluster, step, 1 + (step == "commit_transaction"), isolation_level="read_committed")
        assert [record.value for record in found] == [b"first", b"second"][step != "commit_transaction" :]

    producer = small(aio_cluster, transactional_id=f"cancelled {step}")
    run(test())


def test_second_cancellation_does_not_wait_for_the_commit(
    aio_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def transact() -> None:
        async with producer.transaction():
            await producer.send("twice", b"v", partition=0)

    async def test() -> None:
        async with producer:
            await producer.init_transactions()
            entered, goes_on = slow_down("commit_transaction", monkeypatch)
            task = asyncio.create_task(transact())
            await asyncio.to_thread(entered.wait, PATIENCE)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            goes_on.set()

    producer = small(aio_cluster, transactional_id="cancelled twice")
    run(test())


def test_abort_that_fails_keeps_the_first_error(aio_cluster: EmbeddedCluster) -> None:
    async def aborted_twice() -> None:
        async with producer.transaction():
            await producer.abort_transaction()
            raise ZeroDivisionError

    async def test() -> None:
        async with producer:
            await producer.init_transactions()
            with pytest.raises(ZeroDivisionError) as raised:
                await aborted_twice()
            assert "abort_transaction() failed, too" in raised.value.__notes__[0]

    producer = small(aio_cluster, transactional_id="aio-failing")
    run(test())


def test_stop_iteration_in_a_thread_becomes_a_runtime_error(aio_cluster: EmbeddedCluster) -> None:
    """An asyncio future cannot hold a StopIteration: the task that awaits the call would wait for ever."""

    class Exhausted:
        def __arrow_c_array__(self, requested_schema: object = None) -> object:
            raise StopIteration

    async def test() -> None:
        async with small(aio_cluster) as producer:
            with pytest.raises(RuntimeError, match=r"send_arrow\(\) raised StopIteration"):
                await producer.send_arrow(Exhausted())

    run(test())
