"""compat.confluent: produce() never waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException

from kafkabuf import errors
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat.confluent import Message, Producer
from kafkabuf.compat.confluent import lines as confluent_lines
from kafkabuf.protocol.messages import METADATA, PRODUCE
from tests.compat import TOPIC
from tests.compat.reports import PATIENCE, Reports


def test_records_of_an_unknown_topic_keep_their_order(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    cluster.set_latency(1.0, METADATA)
    producer, reports = new(), Reports()
    started = time.monotonic()
    values = [str(n).encode() for n in range(200)]
    for number, value in enumerate(values):
        producer.produce("not-known-yet", value, partition=0, on_delivery=reports if number % 2 else None)
    assert time.monotonic() - started < 1.0
    assert len(producer) == 200
    assert producer.flush(PATIENCE) == 0
    assert reports.values == values[1::2]
    assert [message.offset() for _, message in reports.calls] == list(range(1, 200, 2))


def test_a_call_that_interrupts_a_moving_line_sends_no_record_twice(alone: Callable[..., Producer]) -> None:
    class Interrupted:
        def _send(self, message: Message, on_delivery: Any) -> None:
            sent.append(message.value())
            lines.move()  # as a signal handler's poll() does
            lines.expire()

        def _fail(self, message: Message, on_delivery: Any, error: errors.KafkaError) -> None:
            raise error

    sent: list[bytes] = []
    queue, producer, reports = Interrupted(), alone(), Reports()
    for value in (b"1", b"2", b"3"):
        producer.produce(TOPIC, value, on_delivery=reports)
    producer.purge()
    producer.poll(0)
    lines = confluent_lines.Lines(queue, producer._producer, PATIENCE, PATIENCE)
    for _, message in reports.calls:
        lines.add(message, None)
    lines._is_described = lambda topic: True  # type: ignore[method-assign]
    lines.move()
    assert sent == [b"1", b"2", b"3"]
    assert not lines.by_topic


def test_a_record_that_waits_for_its_topic_keeps_its_bytes(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    cluster.set_latency(1.0, METADATA)
    producer, reports, value = new(), Reports(), bytearray(b"before")
    producer.produce("reused-buffer", value, on_delivery=reports)
    value[:] = b"behind"
    assert producer.flush(PATIENCE) == 0
    assert reports.values == [b"before"]


def test_records_without_a_broker_time_out(alone: Callable[..., Producer]) -> None:
    producer, reports = alone({"message.timeout.ms": 50}), Reports()
    producer.produce(TOPIC, b"v", on_delivery=reports)
    producer.produce(TOPIC, b"unreported")
    assert producer.flush(PATIENCE) == 0
    ((error, message),) = reports.calls
    assert error.code() == KafkaError._MSG_TIMED_OUT
    assert "Message timed out" in error.str()
    assert message.partition() is None
    assert producer.held == 0


def test_a_topic_that_does_not_exist_fails_its_records() -> None:
    with EmbeddedCluster(auto_create_topics=False) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "topic.metadata.propagation.max.ms": 100}
        with Producer(settings) as producer:
            reports = Reports()
            producer.produce("nowhere", b"v", on_delivery=reports)
            assert producer.flush(PATIENCE) == 0
            assert reports.calls[0][0].code() == KafkaError._UNKNOWN_TOPIC


def test_a_partition_that_does_not_exist_is_refused(new: Callable[..., Producer]) -> None:
    producer, reports = new(), Reports()
    producer.produce(TOPIC, b"v", partition=9, on_delivery=reports)  # the topic is not known yet
    assert producer.flush(PATIENCE) == 0
    assert reports.calls[0][0].code() == KafkaError._UNKNOWN_PARTITION
    with pytest.raises(KafkaException) as raised:
        producer.produce(TOPIC, b"v", partition=9)
    assert raised.value.args[0].code() == KafkaError._UNKNOWN_PARTITION
    assert producer.held == 0


def test_a_full_queue_raises_buffer_error(alone: Callable[..., Producer], new: Callable[..., Producer]) -> None:
    producer, reports = alone({"queue.buffering.max.messages": 2}), Reports()
    for _ in range(2):
        producer.produce(TOPIC, b"v", on_delivery=reports)
    with pytest.raises(BufferError, match="Queue full"):
        producer.produce(TOPIC, b"v")
    assert len(producer) == 2
    producer.purge()
    producer.poll(0)
    assert [error.code() for error, _ in reports.calls] == [KafkaError._PURGE_QUEUE] * 2
    producer.produce(TOPIC, b"v")


@pytest.mark.parametrize("bad", [5, memoryview(b"abcd")[::2], np.array([object()])], ids=["int", "gaps", "objects"])
@pytest.mark.parametrize("field", ["value", "key"])
def test_record_that_cannot_be_sent_takes_no_place_while_its_topic_is_unknown(
    alone: Callable[..., Producer], field: str, bad: Any
) -> None:
    producer = alone({"queue.buffering.max.messages": 2})
    for _ in range(3):
        with pytest.raises(TypeError, match=f"the {field}"):
            producer.produce(TOPIC, **{field: bad})
    assert len(producer) == producer.held == 0


@pytest.mark.parametrize("number", [{"partition": 0.5}, {"timestamp": 1.5}])
def test_no_digit_of_a_number_is_cut_off(alone: Callable[..., Producer], number: dict[str, Any]) -> None:
    producer = alone()
    with pytest.raises(TypeError, match="integer"):
        producer.produce(TOPIC, b"v", **number)
    assert len(producer) == producer.held == 0


def test_memory_of_the_caller_may_change_while_the_topic_is_unknown(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    cluster.set_latency(1.0, METADATA)
    producer, memory = new(), bytearray(b"before")
    producer.produce("known-later", memory, memory, headers={"name": memory})
    memory[:] = b"after that"
    assert producer.flush(PATIENCE) == 0
    (found,) = cluster.messages("known-later")
    assert (found.key, found.value, found.headers) == (b"before", b"before", [("name", b"before")])


def test_full_memory_raises_buffer_error_at_once(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    producer = new(queue__buffering__max__kbytes=1, message__max__bytes=16_384, batch__size=16_384)
    producer.produce(TOPIC, b"known")
    producer.flush(PATIENCE)
    cluster.delay_next(PRODUCE, 3, times=100)
    started = time.monotonic()

    def fill() -> None:
        for _ in range(100):
            producer.produce(TOPIC, b"x" * 8_000)

    with pytest.raises(BufferError, match="Queue full"):
        fill()
    assert time.monotonic() - started < 2.7
    cluster.clear_faults()
    assert producer.flush(PATIENCE) == 0


@pytest.mark.parametrize("known", [False, True])
def test_a_record_that_is_too_large_is_refused(new: Callable[..., Producer], known: bool) -> None:
    producer = new(message__max__bytes=1000)
    if known:
        producer.produce(TOPIC, b"v")
        producer.flush(PATIENCE)
    with pytest.raises(KafkaException) as raised:
        producer.produce(TOPIC, b"x" * 1000)
    assert raised.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert producer.flush(PATIENCE) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": 5},
        {"topic": None},
        {"value": 7},
        {"key": 1.5},
        {"headers": ("a", "b")},
        {"headers": ["x"]},
        {"headers": {"a": 1}},
        {"partition": "1"},
    ],
)
def test_a_wrong_argument_raises_type_error(new: Callable[..., Producer], arguments: dict[str, Any]) -> None:
    producer = new()
    producer.produce(TOPIC, b"known")
    producer.flush(PATIENCE)
    with pytest.raises(TypeError):
        producer.produce(**{"topic": TOPIC, "value": b"v", **arguments})
    with pytest.raises(TypeError):
        producer.produce(**{"topic": TOPIC, "value": b"v", "on_delivery": Reports(), **arguments})
    assert producer.held == 0


def test_produce_batch_queues_what_it_can(alone: Callable[..., Producer], new: Callable[..., Producer]) -> None:
    producer = alone({"queue.buffering.max.messages": 2, "message.max.bytes": 1000})
    messages: list[Any] = [{"value": "a"}, {"value": b"x" * 2000}, {"key": b"k"}, {}]
    assert producer.produce_batch(TOPIC, messages) == 2
    codes = [message["_error"].code() if "_error" in message else None for message in messages]
    assert codes == [None, KafkaError.MSG_SIZE_TOO_LARGE, None, KafkaError._QUEUE_FULL]
    reports, own = Reports(), Reports()
    working = new()
    assert (
        working.produce_batch(TOPIC, [{"value": b"1", "callback": own}, {"value": b"2"}], 0, on_delivery=reports) == 2
    )
    working.flush(PATIENCE)
    assert (own.values, reports.values) == ([b"1"], [b"2"])
