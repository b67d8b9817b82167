"""compat.confluent: delivery reports come in poll() and flush(), as confluent-kafka gives them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from kafkabuf import errors
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat.confluent import Message, Producer
from kafkabuf.compat.confluent._confluent import unpickled
from kafkabuf.protocol.messages import PRODUCE
from kafkabuf.testing import MockProducer
from tests.compat import TOPIC
from tests.compat.reports import PATIENCE, Reports


def test_poll_calls_the_callback_in_its_own_thread(new: Callable[..., Producer]) -> None:
    producer, reports = new(), Reports()
    producer.produce(TOPIC, "vålue", "k", 2, reports, timestamp=1_600_000_000_000, headers={"h": "1", "n": None})
    assert len(producer) == 1
    time.sleep(0.2)
    assert not reports.calls
    assert producer.poll(PATIENCE) == 1
    assert reports.threads == {threading.get_ident()}
    ((error, message),) = reports.calls
    assert error is None
    assert message.error() is None
    assert (message.topic(), message.partition()) == (TOPIC, 2)
    assert message.offset() is not None
    assert (message.key(), message.value()) == (b"k", "vålue".encode())
    assert message.headers() == [("h", b"1"), ("n", None)]
    assert message.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1_600_000_000_000)
    assert 0 < message.latency() < PATIENCE  # type: ignore[operator]
    assert len(message) == 6
    assert (producer.poll(0), len(producer), bool(producer)) == (0, 0, True)


@pytest.mark.parametrize("how", ["callback", "on_delivery", "setting", "dr_cb"])
def test_a_callback_can_be_given_in_four_ways(new: Callable[..., Producer], how: str) -> None:
    reports = Reports()
    producer = new(on_delivery=reports) if how == "setting" else new(dr_cb=reports) if how == "dr_cb" else new()
    given: dict[str, Any] = {how: reports} if how in ("callback", "on_delivery") else {}
    producer.produce(TOPIC, b"v", **given)
    assert producer.flush(PATIENCE) == 0
    assert reports.values == [b"v"]


def test_flush_serves_callbacks_and_those_that_they_cause(new: Callable[..., Producer]) -> None:
    producer, reports = new(), Reports()

    def again(error: Any, message: Message) -> None:
        reports(error, message)
        if len(reports.calls) < 5:
            producer.produce(TOPIC, b"again", on_delivery=again)

    producer.produce(TOPIC, b"first", on_delivery=again)
    assert producer.flush() == 0
    assert reports.values == [b"first"] + [b"again"] * 4


def test_flush_returns_what_remains(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    producer = new()
    producer.produce(TOPIC, b"known")
    producer.flush(PATIENCE)
    cluster.delay_next(PRODUCE, 4)
    for _ in range(3):
        producer.produce(TOPIC, b"v", partition=0)
    started = time.monotonic()
    assert producer.flush(0.1) == 3
    assert time.monotonic() - started < 3.5
    cluster.clear_faults()


def test_an_error_of_a_callback_reaches_the_caller_and_the_next_poll_goes_on(new: Callable[..., Producer]) -> None:
    producer, reports = new(), Reports()

    def raising(error: Any, message: Message) -> None:
        raise ZeroDivisionError("in the callback")

    producer.produce(TOPIC, b"1", partition=0, on_delivery=raising)
    producer.produce(TOPIC, b"2", partition=0, on_delivery=reports)
    with pytest.raises(ZeroDivisionError, match="in the callback"):
        producer.flush(PATIENCE)
    producer.flush(PATIENCE)
    assert reports.values == [b"2"]


class Dropped:
    """A callback that runs code when its last reference goes."""

    def __init__(self, calls: list[bytes], at_the_end: Callable[[], object]) -> None:
        self._calls = calls
        self._at_the_end = at_the_end

    def __call__(self, error: Any, message: Message) -> None:
        self._calls.append(message.value())

    def __del__(self) -> None:
        self._at_the_end()


def test_a_callback_may_poll_when_it_is_dropped(new: Callable[..., Producer]) -> None:
    producer, calls = new(), list[bytes]()
    values = [str(n).encode() for n in range(100)]
    for value in values:
        producer.produce(TOPIC, value, partition=0, on_delivery=Dropped(calls, lambda: producer.poll(0)))
    producer._producer.flush(PATIENCE)
    producer.poll(PATIENCE)
    assert producer.flush(PATIENCE) == 0
    assert calls == values
    assert producer.held == 0


def test_a_delivered_message_is_no_callback() -> None:
    message = unpickled("t", 0, 0, None, b"v", None, 0, -1, None, 0.0)
    future = MockProducer().send("t", b"v")
    with pytest.raises(TypeError, match="a Message is no callback"):
        message(future)


@pytest.mark.processes
def test_threads_may_poll_while_callbacks_are_dropped(cluster: EmbeddedCluster) -> None:
    subprocess.run([sys.executable, "-c", POLLING, cluster.bootstrap_servers], check=True, timeout=60)


POLLING = """
import sys, threading
from kafkabuf.compat.confluent import Producer

class Owned:
    def __del__(self):
        open("/dev/null").close()

def callback_of(owned, value):
    return lambda error, message, owned=owned: calls.append(value)

sys.setswitchinterval(1e-6)
producer, calls, over = Producer({"bootstrap.servers": sys.argv[1]}), [], threading.Event()

def poll():
    while not over.is_set():
        producer.poll(0.01)

threads = [threading.Thread(target=poll) for _ in range(4)]
for thread in threads:
    thread.start()
for value in range(20_000):
    producer.produce("polled", b"v", on_delivery=callback_of(Owned(), value))
assert producer.flush(20) == 0
over.set()
for thread in threads:
    thread.join()
assert sorted(calls) == list(range(20_000)), len(calls)
assert producer.held == 0
"""


def test_only_failures_are_reported_if_the_setting_says_so(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    reports = Reports()
    producer = new(on_delivery=reports, delivery__report__only__error=True)
    producer.produce(TOPIC, b"well", partition=0)
    assert producer.flush(PATIENCE) == 0
    cluster.fail_next(PRODUCE, errors.RecordListTooLargeError.code)
    producer.produce(TOPIC, b"badly", partition=0)
    assert producer.flush(PATIENCE) == 0
    assert reports.values == [b"badly"]
    assert producer.held == 0


def test_a_failed_record_has_confluents_error(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    producer, reports = new(), Reports()
    cluster.fail_next(PRODUCE, errors.RecordListTooLargeError.code)
    producer.produce(TOPIC, b"v", partition=0, on_delivery=reports)
    producer.flush(PATIENCE)
    ((error, message),) = reports.calls
    assert type(error) is KafkaError
    assert error.code() == errors.RecordListTooLargeError.code
    assert not error.retriable()
    assert message.error() is error
    assert message.value() == b"v"
    assert message.offset() is None


def test_poll_waits_for_a_report_of_another_thread(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    producer, reports = new(), Reports()
    producer.produce(TOPIC, b"known")
    producer.flush()
    cluster.delay_next(PRODUCE, 0.3)
    producer.produce(TOPIC, b"v", partition=0, on_delivery=reports)
    started = time.monotonic()
    assert producer.poll(0.01) == 0
    assert producer.poll() == 1
    assert 0.2 < time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("headers", [[(b"a", b"b")], {b"a": "b"}, [("a", b"b")]])
def test_names_of_headers_may_be_bytes(new: Callable[..., Producer], headers: Any) -> None:
    producer, reports = new(), Reports()
    producer.produce(TOPIC, b"v", headers=headers, on_delivery=reports)
    assert producer.flush(PATIENCE) == 0
    assert reports.calls[0][1].headers() == [("a", b"b")]


def test_arguments_have_confluents_order(new: Callable[..., Producer]) -> None:
    producer, callback, other = new(), Reports(), Reports()
    producer.produce(TOPIC, b"v", b"k", 3, callback, other, 1_600_000_000_000, [("h", "1")])
    assert producer.flush(PATIENCE) == 0
    ((_, message),) = callback.calls
    assert (message.topic(), message.value(), message.key(), message.partition()) == (TOPIC, b"v", b"k", 3)
    assert (message.timestamp()[1], message.headers()) == (1_600_000_000_000, [("h", b"1")])
    assert not other.calls


def test_a_record_keeps_its_timestamp_unless_the_broker_sets_it(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    cluster.create_topic("broker-time", 1, configs={"message.timestamp.type": "LogAppendTime"})
    producer, reports = new(), Reports()
    now = time.time() * 1000
    producer.produce(TOPIC, b"v", on_delivery=reports)
    producer.produce("broker-time", b"v", timestamp=1_600_000_000_000, on_delivery=reports)
    assert producer.flush(PATIENCE) == 0
    found = {message.topic(): message.timestamp() for _, message in reports.calls}
    assert found[TOPIC][0] == confluent_kafka.TIMESTAMP_CREATE_TIME
    assert found["broker-time"][0] == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
    assert all(now - 1 <= at <= now + PATIENCE * 1000 for _, at in found.values())


def test_reports_of_a_partition_keep_the_order(new: Callable[..., Producer]) -> None:
    producer, reports = new(), Reports()
    for number in range(3000):
        producer.produce(TOPIC, str(number), partition=number % 2, on_delivery=reports)
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0
    for partition in (0, 1):
        values = [int(message.value()) for _, message in reports.calls if message.partition() == partition]
        assert values == list(range(partition, 3000, 2))


def test_len_counts_reports_that_poll_has_not_served(new: Callable[..., Producer]) -> None:
    producer, reports = new(), Reports()
    producer.produce(TOPIC, b"known")
    producer.flush(PATIENCE)
    for _ in range(3):
        producer.produce(TOPIC, b"v", partition=0, on_delivery=reports)
    producer._producer.flush(PATIENCE)
    assert (len(producer), reports.calls) == (3, [])
    assert producer.poll(0) == 3
    assert len(producer) == 0


def test_a_message_pickles_with_its_outcome(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    producer, reports = new(), Reports()
    producer.produce(TOPIC, b"v", b"k", 1, headers={"h": b"1"}, on_delivery=reports)
    assert producer.flush(PATIENCE) == 0
    cluster.fail_next(PRODUCE, errors.RecordListTooLargeError.code)
    producer.produce(TOPIC, b"v", partition=0, on_delivery=reports)
    assert producer.flush(PATIENCE) == 0
    for _, message in reports.calls:
        copy = pickle.loads(pickle.dumps(message))
        for method in ("topic", "partition", "offset", "key", "value", "headers", "timestamp", "latency"):
            assert getattr(copy, method)() == getattr(message, method)(), method
        assert str(copy.error()) == str(message.error())
    with pytest.raises(TypeError):
        pickle.dumps(producer)
