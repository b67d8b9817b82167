"""close(), flush() and result() in a frame above a bulk append of the same thread: a signal handler, a serializer.

The bulk append gives its claims back before its thread waits. Otherwise the thread would wait for itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import Lockable
from kafkabuf.errors import ClosedError
from rigs.producer import SLAB, TOPIC, HookClock, Rig, TurningClock, assert_whole
from tests.append.arrow_support import stored
from tests.append.test_arrow_races import between_claims, rows_of

ROWS = 60
AT = 40


class TurningHookClock(HookClock, TurningClock):
    """Runs a hook at each reading of the time. A wait runs the Sender's turns."""

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        return TurningClock.wait(self, lock, timeout)


def turning(**settings: Any) -> Rig:
    clock = TurningHookClock()
    rig = Rig(leaders=(1, 1), clock=clock, linger_ms=60_000, delivery_timeout_ms=120_000, **settings)

    def turn() -> None:
        rig.turn()
        rig.ack_under_way()

    clock.turn = turn
    return rig


def at_row(number: int, what: Callable[[], object]) -> Callable[[bytes], bytes]:
    """A serializer that calls `what` before it returns the value of that row."""

    def serialize(value: bytes) -> bytes:
        if int(value) == number:
            what()
        return value

    return serialize


# ---- turned by hand --------------------------------------------------------------------------------------------------


def test_flush_within_send_arrow_sends_the_rows_so_far() -> None:
    rig = turning()
    assert isinstance(rig.clock, HookClock)
    flushed: list[int] = []

    def flush() -> None:
        rig.accumulator.flush(None)
        flushed.append(sum(map(len, rig.log.values())))

    between_claims(rig, rig.clock, flush)
    report = rig.producer.send_arrow(rows_of([0, 1, 0, 1]), TOPIC)
    assert flushed == [1]
    rows = stored(rig, report)
    assert [row.value[:1] for row in rows if row.value] == [b"0", b"1", b"2", b"3"]


def test_flush_within_a_serializer_sends_the_records_so_far() -> None:
    flushed: list[int] = []

    def flush() -> None:
        rig.accumulator.flush(None)
        flushed.append(sum(map(len, rig.log.values())))

    rig = turning(value_serializer=at_row(5, flush))
    report = rig.producer.send_many(TOPIC, [b"%d" % row for row in range(10)], partitions=[0, 1] * 5)
    assert flushed == [5]
    assert [row.value for row in stored(rig, report)] == [b"%d" % row for row in range(10)]


def test_wait_within_a_serializer_ends_with_the_record_in_a_claimed_batch() -> None:
    offsets: list[int] = []

    def wait() -> None:
        assert before.batch.wait(10, rig.clock, before)
        offsets.append(before.result(0).offset)

    rig = turning(value_serializer=at_row(5, wait))
    before = rig.send(b"7", partition=0)
    rig.accumulator.flushes.add(rig)  # no lingering
    report = rig.producer.send_many(TOPIC, [b"%d" % row for row in range(10)], partitions=[0] * 10)
    assert offsets == [0]
    rig.ack_all()
    assert report.result(0).offset.tolist() == list(range(1, 11))
    assert_whole(rig.pool)


def test_interceptors_hear_of_a_record_whose_claim_was_given_back_meanwhile() -> None:
    heard: list[int] = []

    class Interceptor:
        def on_acknowledgement(self, metadata: Any, error: Any) -> None:
            heard.append(metadata.offset)

    class Flushes(bytes):
        """Its last reference goes when the record has been appended."""

        def __del__(self) -> None:
            rig.accumulator.flush(None)

    rig = turning(interceptor_classes=[Interceptor()], value_serializer=lambda value: Flushes(value))
    rig.producer.send_many(TOPIC, [b"%d" % row for row in range(4)], partitions=[0] * 4)
    rig.ack_all()
    assert heard == [0, 1, 2, 3]
    assert_whole(rig.pool)


def test_send_within_a_serializer_gets_the_memory_that_the_claims_hold() -> None:
    sent: list[Any] = []

    def serialize(value: bytes) -> bytes:
        if value == b"in":
            sent.append(rig.send(b"x", 0))
        return value

    rig: Rig = turning(slabs=2, value_serializer=serialize)
    values = [b"a" * (SLAB - 300), b"b" * (SLAB - 300), b"in"]
    rig.producer.send_many(TOPIC, values, partitions=[0, 1, 1])
    rig.ack_all()
    assert sent[0].result(0)
    assert_whole(rig.pool)


def test_nested_bulk_appends_give_back_all_their_claims() -> None:
    def inner() -> None:
        rig.producer.send_many(TOPIC, [b"-1", b"-2"], partitions=[1, 1])

    rig = turning(value_serializer=lambda value: steps.get(value, lambda: None)() or value)
    steps: dict[bytes, Callable[[], Any]] = {b"1": inner, b"-2": lambda: rig.accumulator.flush(None)}
    rig.producer.send_many(TOPIC, [b"0", b"1", b"2"], partitions=[0, 0, 0])
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"0", b"1", b"2"]
    assert [record.value for record in rig.log[TOPIC, 1]] == [b"-1", b"-2"]
    assert_whole(rig.pool)


# ---- a producer ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("t", partitions=2)
        yield running


def test_close_in_a_signal_handler_ends_a_send_many_that_it_interrupts(cluster: EmbeddedCluster) -> None:
    took: list[float] = []

    def handler(*_: object) -> None:
        started = time.monotonic()
        producer.close()
        took.append(time.monotonic() - started)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            linger_ms=0,
            request_timeout_ms=2_000,
            delivery_timeout_ms=3_000,
            value_serializer=at_row(AT, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        )
        with pytest.raises(ClosedError) as raised:
            producer.send_many("t", [b"%d" % row for row in range(ROWS)], partitions=[0, 1] * (ROWS // 2))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert took[0] < 2
    assert raised.value.rows_queued == raised.value.report.rows == AT
    assert not raised.value.report.result(0).error_code.any()
    assert_whole(producer.pool)


def test_send_arrow_ends_when_its_stream_closes_the_producer(cluster: EmbeddedCluster) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0)
    schema = pa.schema([("value", pa.binary())])

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            if number == 2:
                producer.close()
            yield pa.record_batch([[b"v"] * 10], schema=schema)

    with pytest.raises(ClosedError) as raised:
        producer.send_arrow(pa.RecordBatchReader.from_batches(schema, batches()), "t")
    assert raised.value.rows_queued == 20
    assert not raised.value.report.result(0).error_code.any()
