"""Callers pass objects that lie, use producers that never opened, and wait in a callback for their own record."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.append.report import BulkReport
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import (
    ClosedError,
    ConfigError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    RecordTooLargeError,
    TimeoutError,
)
from kafkabuf.testing import MockProducer
from rigs.producer import TOPIC, HookClock, Rig, assert_whole

PATIENCE = 10.0


class Unstable:
    """`__index__` returns these numbers in turn; `calls` counts its calls."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = list(numbers)
        self.calls = 0

    def __index__(self) -> int:
        self.calls += 1
        return self._numbers[min(self.calls, len(self._numbers)) - 1]


# ---- None where a name belongs ---------------------------------------------------------------------------------------


def test_none_as_the_first_topic_is_refused() -> None:
    rig = Rig()
    none: Any = None
    for call in (lambda: rig.producer.send(none, b"v"), lambda: rig.producer.send_many(none, [b"v"])):
        with pytest.raises(InvalidTopicError, match="a topic's name must be a str, found NoneType"):
            call()
    with pytest.raises(InvalidTopicError, match="no topic"):
        rig.producer.send_arrow(pa.table({"value": [b"v"]}), None)


def test_none_as_the_first_topic_of_a_mock_is_refused() -> None:
    none: Any = None
    with pytest.raises(InvalidTopicError):
        MockProducer().send(none, b"v")


def test_none_as_the_first_topic_of_an_asyncio_producer_is_refused() -> None:
    async def body(servers: str) -> None:
        none: Any = None
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for call in (producer.send(none, b"v"), producer.send_many(none, [b"v"]), producer.partitions_for(none)):
                with pytest.raises(InvalidTopicError):
                    await call

    with EmbeddedCluster() as cluster:
        asyncio.run(body(cluster.bootstrap_servers))


# ---- a topic whose number of partitions changes under a bulk append --------------------------------------------------


@pytest.mark.parametrize("how", ["send_arrow", "send_many"])
def test_partitions_added_meanwhile_take_rows_without_keys(how: str) -> None:
    clock = HookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=0, slabs=400)
    # At the second batch the walker's tables already have the size of the old partition count.
    clock.at_call(1, lambda: rig.accumulator.topic_queues(TOPIC, [-1] * 255 + [1]))
    values = [b"%03d" % row + b"x" * 400 for row in range(100)]
    if how == "send_arrow":
        report = rig.producer.send_arrow(pa.record_batch({"value": values}), TOPIC)
    else:
        report = rig.producer.send_many(TOPIC, values)
    assert clock.hook is None
    assert 255 in {portion.batch.partition for portion in report.portions}, "the new partition is never used"
    rig.accumulator.topic_queues(TOPIC, [1] * 256)
    rig.ack_all()
    assert report.exception(0) is None
    got = sorted(bytes(record.value or b"") for log in rig.log.values() for record in log)
    assert got == values
    assert_whole(rig.pool)


@pytest.mark.parametrize("how", ["send_arrow", "send_many"])
def test_rows_go_to_the_remaining_partitions_of_a_topic_that_loses_some(how: str) -> None:
    clock = HookClock()
    rig = Rig(leaders=[1] * 64, clock=clock, linger_ms=0, slabs=400)
    clock.at_call(20, lambda: rig.accumulator.topic_queues(TOPIC, [1, 1]))
    values = [b"%03d" % row + b"x" * 400 for row in range(300)]
    keys = [None if row % 2 else b"%d" % row for row in range(300)]
    if how == "send_arrow":
        report = rig.producer.send_arrow(pa.record_batch({"value": values, "key": pa.array(keys, pa.binary())}), TOPIC)
    else:
        report = rig.producer.send_many(TOPIC, values, keys)
    assert clock.hook is None
    assert report.rows == len(values)
    rig.ack_all()
    assert report.done()
    assert_whole(rig.pool)


def test_partition_is_converted_to_an_integer_once() -> None:
    rig = Rig(leaders=(1, 1))
    for call in (
        lambda partition: rig.producer.send(TOPIC, b"v", partition=partition),
        lambda partition: rig.producer.send_many(TOPIC, [b"v"], partitions=[partition]),
    ):
        unstable = Unstable(1, 2**40, -7)
        call(unstable)
        assert unstable.calls == 1
        unstable = Unstable(7, 0)
        with pytest.raises(InvalidPartitionsError, match="partition 7 of topic 'orders' does not exist"):
            call(unstable)
        assert unstable.calls == 1


def test_partitioners_return_value_is_converted_once() -> None:
    unstable = Unstable(0, 1)
    producer = MockProducer({"t": 2}, partitioner_class=lambda *_: unstable)
    assert producer.send("t", b"v").result(0).partition == 0
    assert unstable.calls == 1


# ---- sequences and columns that lie ----------------------------------------------------------------------------------


def test_error_of_a_sequences_class_property_reaches_the_caller() -> None:
    def refuse(_: object) -> object:
        raise RuntimeError("of the caller's")

    broken = type("Broken", (), {"__class__": property(refuse)})
    with pytest.raises(RuntimeError, match="of the caller's"):
        Rig().producer.send_many(TOPIC, broken())


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("value", [-(2**63), -(2**63) + 1, -(2**63) + 1_000_000, -(2**62), -1_000_001, -1])
def test_arrow_time_before_1970_is_refused_however_far(unit: str, value: int) -> None:
    # From a buffer, since pyarrow's constructor reads the smallest value as a null.
    stamps = pa.Array.from_buffers(pa.timestamp(unit), 1, [None, pa.py_buffer(np.array([value], np.int64))])
    rig = Rig()
    with pytest.raises(InvalidTimestampError, match="row 0"):
        rig.producer.send_arrow(pa.record_batch({"value": [b"v"], "timestamp": stamps}), TOPIC)
    assert_whole(rig.pool)


@pytest.mark.parametrize(("unit", "most"), [("s", (2**63 - 1) // 1000), ("ms", 2**63 - 1), ("us", 2**63 - 1)])
def test_latest_arrow_time_is_accepted_and_a_later_time_refused(unit: str, most: int) -> None:
    def send(value: int) -> BulkReport:
        stamps = pa.Array.from_buffers(pa.timestamp(unit), 1, [None, pa.py_buffer(np.array([value], np.int64))])
        return rig.producer.send_arrow(pa.record_batch({"value": [b"v"], "timestamp": stamps}), TOPIC)

    rig = Rig()
    per_ms = {"s": 1000, "ms": 1, "us": 1}[unit]
    divisor = 1000 if unit == "us" else 1
    report = send(most)
    rig.ack_all()
    assert report.result(0).timestamp.tolist() == [most * per_ms // divisor]
    if unit == "s":
        with pytest.raises(InvalidTimestampError):
            send(most + 1)


def test_numpys_not_a_time_is_refused() -> None:
    stamps = np.array(["NaT"], "datetime64[us]").view(np.int64)
    column = pa.Array.from_buffers(pa.timestamp("us"), 1, [None, pa.py_buffer(stamps)])
    with pytest.raises(InvalidTimestampError):
        Rig().producer.send_arrow(pa.record_batch({"value": [b"v"], "timestamp": column}), TOPIC)


def test_value_of_almost_2_to_the_31_bytes_is_refused() -> None:
    # The call touches neither the pages of the value nor those of the arena.
    most = 2**31 - 1
    rig = Rig(batch_size=most, buffer_memory=2 * most, max_request_size=most)
    with mmap.mmap(-1, most - 4096) as value, pytest.raises(RecordTooLargeError, match=r"max\.request\.size"):
        rig.send(value)  # type: ignore[arg-type]


# ---- producers that never opened -------------------------------------------------------------------------------------


def unopened() -> Iterator[KafkaProducer]:
    class Forgetful(KafkaProducer):
        def __init__(self, *settings: Any) -> None:
            if settings:
                with contextlib.suppress(ConfigError):
                    super().__init__(*settings)

    class Unconfigurable:
        def on_send(self, record: Any) -> Any: ...

        def configure(self, config: Any) -> None:
            raise RuntimeError("no")

    yield KafkaProducer.__new__(KafkaProducer)
    yield Forgetful()
    yield Forgetful({"bootstrap.servers": "localhost:9", "no.such": 1})
    yield Forgetful({"bootstrap.servers": "localhost:9", "interceptor.classes": [Unconfigurable()]})


@pytest.mark.parametrize("producer", list(unopened()), ids=["new", "forgetful", "no config", "failed"])
def test_producer_that_never_opened_refuses_every_call(producer: KafkaProducer) -> None:
    table = pa.table({"value": ["v"]})
    calls: list[Callable[[], object]] = [
        lambda: producer.send(TOPIC, b"v"),
        lambda: producer.send_many(TOPIC, [b"v"]),
        lambda: producer.send_arrow(table, TOPIC),
        lambda: producer.prepare(TOPIC, None, None, None, None),
        lambda: producer.partitions_for(TOPIC),
        lambda: producer.flush(),
        lambda: producer.purge(),
        lambda: producer.metrics(),
        lambda: producer.init_transactions(),
        lambda: producer.begin_transaction(),
        lambda: producer.commit_transaction(),
        lambda: producer.abort_transaction(),
        lambda: producer.send_offsets_to_transaction({}, "group"),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="the producer is not open"):
            call()
    producer.close()
    with producer:
        pass


def test_producer_whose_thread_cannot_start_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[KafkaProducer] = []

    class Kept(KafkaProducer):
        def __init__(self) -> None:
            made.append(self)
            super().__init__(bootstrap_servers="localhost:9")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Kept()
    with pytest.raises(ClosedError, match="could not be started"):
        made[0].send(TOPIC, b"v")
    made[0].close()


# ---- a callback that waits for its own thread ------------------------------------------------------------------------

WAITS: list[Callable[[Any], object]] = [
    lambda future: future.result(),
    lambda future: future.result(PATIENCE),
    lambda future: future.exception(),
    lambda future: future.batch.wait(),
]
REPORT_WAITS: list[Callable[[BulkReport], object]] = [
    lambda report: report.wait(),
    lambda report: report.result(),
    lambda report: report.exception(PATIENCE),
    lambda report: report.failures(),
    lambda report: report.ranges(),
]


def refusal_of(wait: Callable[[], object]) -> str:
    try:
        wait()
    except KafkaError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def test_callback_that_waits_for_a_pending_record_is_refused() -> None:
    refusals: list[str] = []
    polled: list[type] = []
    done = threading.Event()

    with EmbeddedCluster() as cluster, KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:

        def callback(_: Any, error: BaseException | None) -> None:
            pending = producer.send("waited", b"pending")
            report = producer.send_many("waited", [b"pending"])
            refusals.extend(refusal_of(lambda wait=wait: wait(pending)) for wait in WAITS)  # type: ignore[misc]
            refusals.extend(refusal_of(lambda wait=wait: wait(report)) for wait in REPORT_WAITS)  # type: ignore[misc]
            try:
                pending.result(0)
            except TimeoutError as late:
                polled.append(type(late))
            done.set()

        producer.partitions_for("waited")
        first = producer.send("waited", b"first", callback=callback)
        assert done.wait(PATIENCE)
        assert len(refusals) == len(WAITS) + len(REPORT_WAITS)
        for text in refusals:
            assert text.startswith("KafkaError: a callback cannot wait for a record")
        assert polled == [TimeoutError], "a call with time-out 0 does not wait, and is allowed"
        assert first.result(PATIENCE).offset == 0
        producer.flush(PATIENCE)


def test_callback_may_wait_for_another_producers_record() -> None:
    with EmbeddedCluster() as cluster, KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as first:
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as second:
            offsets: list[int] = []
            future = first.send("a", b"v", callback=lambda *_: offsets.append(second.send("b", b"v").result(10).offset))
            future.result(PATIENCE)
            first.flush(PATIENCE)
            assert offsets == [0]


def test_callback_of_a_mock_that_waits_for_a_pending_record_is_refused() -> None:
    producer = MockProducer(auto_complete=False)
    refusals: list[str] = []
    for end in (producer.complete_next, lambda: producer.error_next(KafkaError("no")), producer.flush, producer.purge):
        pending: list[RecordFuture] = []
        callback = lambda *_: refusals.append(refusal_of(lambda: pending[0].result()))  # noqa: B023, E731
        producer.send("t", b"v", callback=callback)
        pending.append(producer.send("t", b"v"))
        end()
        producer.flush()
    assert len(refusals) == 4
    assert all("would wait for itself" in text for text in refusals)


def test_record_of_a_mock_may_be_awaited_outside_callbacks() -> None:
    producer = MockProducer(auto_complete=False)
    nested = producer.send("t", b"v", callback=lambda *_: producer.complete_next())
    future = producer.send("t", b"v")
    producer.complete_next()
    assert (nested.result(0).offset, future.result(0).offset) == (0, 1)
    last = producer.send("t", b"v")
    waiting = threading.Timer(0.01, producer.complete_next)
    waiting.start()
    assert last.result(PATIENCE).offset == 2
    waiting.join()


# ---- the collector takes producers with pending records --------------------------------------------------------------


@pytest.mark.parametrize("how", ["callback", "add_done_callback", "both"])
def test_mock_in_a_cycle_with_its_pending_callbacks_is_collected(how: str) -> None:
    class Service:
        def __init__(self) -> None:
            self.producer = MockProducer({"t": 1}, auto_complete=False)

        def done(self, *_: Any) -> None: ...

        def go(self) -> None:
            for _ in range(3):
                future = self.producer.send("t", b"v", callback=None if how == "add_done_callback" else self.done)
                if how != "callback":
                    future.add_done_callback(self.done)

    service = Service()
    service.go()
    watched: list[weakref.ref[Any]] = [weakref.ref(service), weakref.ref(service.producer)]
    gc.collect()
    assert len(service.producer._pending) == 3
    del service
    gc.collect()
    assert [reference() for reference in watched] == [None, None]


def test_pending_record_of_a_mock_keeps_its_callback_after_a_collection() -> None:
    called: list[object] = []
    producer = MockProducer({"t": 1}, auto_complete=False)
    future = producer.send("t", b"v", callback=lambda *_, mock=producer: called.append(mock))
    del producer
    gc.collect()
    assert not future.done()
    assert future.batch.complete(5, -1)
    assert future.result(0).offset == 5
    assert len(called) == 1


def test_done_callback_gets_the_future_itself() -> None:
    rig = Rig()
    seen: list[RecordFuture] = []
    future = rig.send()
    future.add_done_callback(seen.append)
    rig.ack_all()
    future.add_done_callback(seen.append)
    assert seen == [future, future]
