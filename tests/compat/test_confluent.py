"""compat.confluent: a program written for confluent-kafka runs after a change of one import."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kafkabuf import errors
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.compat import confluent, confluent_lines, confluent_settings
from kafkabuf.compat._confluent import unpickled
from kafkabuf.compat.confluent import Message, Producer
from kafkabuf.compat.confluent_arguments import group_in
from kafkabuf.compat.confluent_errors import LOCAL, OwnKafkaError, OwnKafkaException, _names, call_error, record_error
from kafkabuf.protocol.messages import INIT_PRODUCER_ID, METADATA, PRODUCE
from kafkabuf.testing import MockProducer
from tests.compat import TOPIC
from tests.network.test_reconnect import closed_port

PATIENCE = 20


def dead_address() -> str:
    """Where no broker listens."""
    host, port = closed_port()
    return f"{host}:{port}"


@pytest.fixture
def new(cluster: EmbeddedCluster) -> Iterator[Callable[..., Producer]]:
    opened: list[Producer] = []

    def open_(**settings: Any) -> Producer:
        named = {name.replace("__", "."): value for name, value in settings.items()}
        opened.append(Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1} | named))
        return opened[-1]

    yield open_
    cluster.clear_faults()
    for producer in opened:
        producer._producer.close(0)


@pytest.fixture
def alone() -> Iterator[Callable[..., Producer]]:
    """Producers whose broker does not answer."""
    opened: list[Producer] = []

    def open_(settings: dict[str, Any] | None = None) -> Producer:
        opened.append(Producer({"bootstrap.servers": dead_address()} | (settings or {})))
        return opened[-1]

    yield open_
    for producer in opened:
        producer._producer.close(0)


class Reports:
    """A delivery callback that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Message]] = []
        self.threads: set[int] = set()

    def __call__(self, error: Any, message: Message) -> None:
        self.calls.append((error, message))
        self.threads.add(threading.get_ident())

    @property
    def values(self) -> list[Any]:
        return [message.value() for _, message in self.calls]


# ---- delivery reports ------------------------------------------------------------------------------------------------


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
    cluster.delay_next(PRODUCE, 2)
    for _ in range(3):
        producer.produce(TOPIC, b"v", partition=0)
    started = time.monotonic()
    assert producer.flush(0.1) == 3
    assert time.monotonic() - started < 1.5
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


# ---- produce() never waits -------------------------------------------------------------------------------------------


def test_records_of_an_unknown_topic_keep_their_order(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    cluster.set_latency(0.2, METADATA)
    producer, reports = new(), Reports()
    started = time.monotonic()
    values = [str(n).encode() for n in range(200)]
    for number, value in enumerate(values):
        producer.produce("not-known-yet", value, partition=0, on_delivery=reports if number % 2 else None)
    assert time.monotonic() - started < 0.2
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
    lines = confluent_lines.Lines(queue, producer._producer._metadata, PATIENCE, PATIENCE)
    for _, message in reports.calls:
        lines.add(message, None)
    lines._is_described = lambda topic: True  # type: ignore[method-assign]
    lines.move()
    assert sent == [b"1", b"2", b"3"]
    assert not lines.by_topic


def test_a_record_that_waits_for_its_topic_keeps_its_bytes(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    cluster.set_latency(0.2, METADATA)
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


def test_full_memory_raises_buffer_error_at_once(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    producer = new(queue__buffering__max__kbytes=1, message__max__bytes=16_384, batch__size=16_384)
    producer.produce(TOPIC, b"known")
    producer.flush(PATIENCE)
    cluster.delay_next(PRODUCE, 1, times=100)
    started = time.monotonic()

    def fill() -> None:
        for _ in range(100):
            producer.produce(TOPIC, b"x" * 8_000)

    with pytest.raises(BufferError, match="Queue full"):
        fill()
    assert time.monotonic() - started < 0.9
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


# ---- life ------------------------------------------------------------------------------------------------------------


def test_a_closed_producer_refuses_calls(new: Callable[..., Producer]) -> None:
    reports = Reports()
    with new() as producer:
        producer.produce(TOPIC, b"v", on_delivery=reports)
    assert reports.values == [b"v"]
    assert producer.close()
    assert len(producer) == 0
    for call in (lambda: producer.produce(TOPIC), producer.poll, producer.flush, producer.purge, producer.list_topics):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()

    class Unopened(Producer):
        def __init__(self) -> None: ...

    with pytest.raises(RuntimeError, match="Producer has been closed"):
        Unopened().produce(TOPIC)
    assert len(Unopened()) == 0
    assert Unopened().close()


def test_a_second_init_is_refused(new: Callable[..., Producer]) -> None:
    producer = new()
    with pytest.raises(RuntimeError, match="already"):
        producer.__init__({})  # type: ignore[misc]
    producer.produce(TOPIC, b"v")
    assert producer.flush(PATIENCE) == 0


def test_the_constructor_waits_for_no_name() -> None:
    started = time.monotonic()
    for settings in (
        {},
        {"bootstrap.servers": "no-such-host.invalid"},
        {"metadata.broker.list": "no-such-host.invalid:1"},
    ):
        producer = Producer(settings)
        producer._producer.close(0)
    assert time.monotonic() - started < 5


def test_a_message_comes_from_a_report_only() -> None:
    with pytest.raises(TypeError):
        Message()


def test_error_cb_hears_of_brokers_that_cannot_be_reached() -> None:
    heard: list[Any] = []
    producer = Producer({"bootstrap.servers": dead_address(), "error_cb": heard.append})
    producer.produce(TOPIC, b"v")
    deadline = time.monotonic() + PATIENCE
    while not heard and time.monotonic() < deadline:
        producer.poll(0.05)
    assert heard[0].code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    producer._producer.close(0)


class Lines:
    """A logger that has only what confluent-kafka calls."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def log(self, level: int, form: str, *arguments: str) -> None:
        self.texts.append(f"{level} {form % arguments}")


def test_the_users_logger_gets_the_lines_until_the_producer_closes() -> None:
    lines = Lines()
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "client.id": "named"}, logger=lines)
    logging.getLogger("kafkabuf.network").warning("%s", "seen")
    logging.getLogger("kafkabuf.broker").warning("of a broker")
    assert lines.texts[0].startswith("20 INIT [named]")
    assert "30 kafkabuf.network [named] seen" in lines.texts
    producer.close()
    logging.getLogger("kafkabuf.network").warning("late")
    assert not [text for text in lines.texts if "late" in text or "of a broker" in text]


def test_the_users_logger_gets_no_lines_of_another_producer() -> None:
    mine, others = Lines(), Lines()
    address = dead_address()
    producer = Producer({"bootstrap.servers": "", "logger": mine})
    failing = Producer({"bootstrap.servers": address, "logger": others})
    failing.produce(TOPIC, b"v")
    deadline = time.monotonic() + PATIENCE
    while not [text for text in others.texts if address in text]:
        assert time.monotonic() < deadline
        failing.poll(0.05)
    assert not [text for text in mine.texts if address in text]
    for each in (producer, failing):
        each.purge()
        each.close()


def test_a_logger_that_fails_stops_no_producer(new: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def log(self, *arguments: Any) -> None:
            calls.append(threading.current_thread().name)
            raise ZeroDivisionError

    calls: list[str] = []
    monkeypatch.setattr(logging, "raiseExceptions", False)
    settings = {"bootstrap.servers": dead_address(), "client.id": "failing", "message.timeout.ms": 100}
    failing = Producer(settings, logger=Failing())
    deadline = time.monotonic() + PATIENCE
    while "kafkabuf-failing" not in calls and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "kafkabuf-failing" in calls
    for producer in (failing, new()):
        producer.produce(TOPIC, b"v")
        assert producer.flush(PATIENCE) == 0
    failing.close()


def test_the_users_logger_may_be_a_child_of_kafkabufs() -> None:
    logger = logging.getLogger("kafkabuf.user")
    producer = Producer({"bootstrap.servers": ""}, logger=logger)
    logger.warning("once")
    producer.close()


@pytest.mark.parametrize("logger", [3, logging, object()])
def test_a_logger_that_cannot_log_is_refused(logger: Any) -> None:
    before = list(logging.getLogger("kafkabuf").handlers)
    if logger is logging:
        Producer(logger=logger).close()  # its functions do
    else:
        with pytest.raises(TypeError, match="logger"):
            Producer(logger=logger)
    assert logging.getLogger("kafkabuf").handlers == before


def test_settings_of_consumers_are_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    expected = [f"Configuration property {name} is a consumer property" for name in sorted(settings)]
    peers, own = Lines(), Lines()
    for module, lines in ((confluent_kafka, peers), (confluent, own)):
        producer = module.Producer(settings | {"logger": lines})
        producer.poll(0.1)
        warned = sorted(text.split("[thrd:app]: ")[-1].split("] ")[-1] for text in lines.texts if "consumer" in text)
        assert [text[: len(start)] for text, start in zip(warned, expected, strict=True)] == expected
    Producer(settings).close()
    warned = [text for text in caplog.messages if "consumer" in text]
    assert [text[: len(start)] for text, start in zip(warned, expected, strict=True)] == expected


def test_error_cb_hears_that_all_brokers_are_down_without_a_record() -> None:
    heard: list[Any] = []
    producer = Producer({"bootstrap.servers": dead_address(), "error_cb": heard.append})
    deadline = time.monotonic() + PATIENCE
    while len(heard) < 2 and time.monotonic() < deadline:
        producer.poll(0.1)
    assert [error.code() for error in heard[:2]] == [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN]
    assert not any(error.fatal() for error in heard)
    while len(heard) < 6 and time.monotonic() < deadline:
        producer.poll(0.1)
    assert [error.code() for error in heard].count(KafkaError._ALL_BROKERS_DOWN) == 1
    producer.close()


def test_an_error_of_error_cb_comes_out_of_poll() -> None:
    def raising(error: Any) -> None:
        raise ZeroDivisionError(error.str())

    producer = Producer({"bootstrap.servers": dead_address(), "error_cb": raising})
    with pytest.raises(ZeroDivisionError):
        producer.poll(PATIENCE)
    producer._producer.close(0)


def test_stats_cb_gets_json_in_poll(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    texts: list[str] = []
    producer = new(stats_cb=texts.append, statistics__interval__ms=20, client__id="counted")
    producer.produce(TOPIC, b"v" * 100)
    assert producer.flush(PATIENCE) == 0
    texts.clear()
    assert producer.poll(PATIENCE) == 1
    found = json.loads(texts[0])
    assert found["name"].startswith("counted#producer-")
    assert (found["client_id"], found["type"], found["txmsgs"], found["msg_cnt"]) == ("counted", "producer", 1, 0)
    assert found["txmsg_bytes"] >= 100
    assert found["topics"][TOPIC]["txmsgs"] == 1
    leader = next(broker for broker in found["brokers"].values() if broker["nodeid"] >= 0)
    assert (leader["state"], leader["nodename"]) == ("UP", cluster.bootstrap_servers)
    assert leader["tx"] > 0


def test_statistics_of_a_producer_without_servers_name_no_broker() -> None:
    texts: list[str] = []
    producer = Producer({"bootstrap.servers": None, "statistics.interval.ms": 10, "stats_cb": texts.append})
    producer.poll(PATIENCE)
    assert json.loads(texts[0])["brokers"] == {}
    producer.close()


def test_poll_is_interrupted_by_a_signal(alone: Callable[..., Producer]) -> None:
    producer = alone()
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        producer.poll()


def test_purge_fails_records_in_flight(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    producer, reports = new(), Reports()
    producer.produce(TOPIC, b"known")
    producer.flush(PATIENCE)
    cluster.delay_next(PRODUCE, 2)
    cluster.clear_requests()
    producer.produce(TOPIC, b"v", partition=0, on_delivery=reports)
    cluster.wait_for_request(PRODUCE)
    producer.purge()
    assert producer.poll(PATIENCE) == 1
    assert reports.calls[0][0].code() in (KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE)
    assert len(producer) == 0


class Service:
    """A program's object, whose callback refers to the producer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.producer = Producer(settings)

    def on_delivery(self, error: Any, message: Message) -> None: ...


def ended(name: str) -> bool:
    """Whether a producer's thread ends, though nobody polls."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        gc.collect()
        if name not in [thread.name for thread in threading.enumerate()]:
            return True
        time.sleep(0.01)
    return False


def test_a_dropped_producer_sends_its_records_and_ends(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("dropped", 1)
    service = Service({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "dropped"})
    service.producer.produce("dropped", b"known")
    service.producer.flush(PATIENCE)
    service.producer.produce("dropped", b"v", on_delivery=service.on_delivery)
    face = weakref.ref(service.producer)
    del service
    assert ended("kafkabuf-dropped")
    assert face() is None
    assert cluster.end_offset("dropped", 0) == 2


def test_a_dropped_producer_without_a_broker_ends() -> None:
    service = Service({"bootstrap.servers": dead_address(), "client.id": "dropped-alone"})
    service.producer.produce(TOPIC, b"v", on_delivery=service.on_delivery)
    del service
    assert ended("kafkabuf-dropped-alone")


FORKING = """
import os, sys
from kafkabuf.compat.confluent import KafkaException, Producer

producer, reports = Producer({"bootstrap.servers": sys.argv[1]}), []
transactional = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "forked"})

def produce(value):
    producer.produce("forked", value, on_delivery=lambda error, message: reports.append((error, message.value())))

def in_child():
    assert len(producer) == 0
    produce(b"child")
    assert producer.flush(20) == 0 and reports[-1] == (None, b"child"), reports
    try:
        transactional.init_transactions(1)
    except KafkaException as error:
        return "fork" in str(error)

produce(b"known")
assert producer.flush(20) == 0
produce(b"parent")
child = os.fork()
if child == 0:
    os._exit(0 if in_child() else 1)
assert os.waitpid(child, 0)[1] == 0
assert producer.flush(20) == 0
assert reports == [(None, b"known"), (None, b"parent")], reports
"""


@pytest.mark.processes
def test_a_forked_child_has_a_producer_of_its_own(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("forked", 1)
    subprocess.run([sys.executable, "-c", FORKING, cluster.bootstrap_servers], check=True, timeout=60)
    assert cluster.end_offset("forked", 0) == 3


def test_credentials_can_be_replaced() -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with EmbeddedCluster(security=Security(users={"new": "secret"})) as cluster:
        given = {"bootstrap.servers": cluster.bootstrap_servers, "sasl.username": "old", "sasl.password": "wrong"}
        cluster.pause_node(1)  # no connection authenticates with the old name
        producer, reports = Producer(settings | given), Reports()
        producer.set_sasl_credentials("new", "secret")
        producer.produce("t", b"v", on_delivery=reports)
        cluster.resume_node(1)
        assert producer.flush(PATIENCE) == 0
        assert reports.calls[0][0] is None
        with pytest.raises(TypeError):
            producer.set_sasl_credentials(None, "x")  # type: ignore[arg-type]
        producer.close()


# ---- the cluster -----------------------------------------------------------------------------------------------------


def test_list_topics_has_the_shape_of_confluents(new: Callable[..., Producer], cluster: EmbeddedCluster) -> None:
    cluster.create_topic("listed", 3)
    found = new().list_topics(timeout=PATIENCE)
    peers: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=PATIENCE)
    assert found.cluster_id == peers.cluster_id
    assert found.controller_id == peers.controller_id
    assert {n: (b.id, b.host, b.port) for n, b in found.brokers.items()} == {
        n: (b.id, b.host, b.port) for n, b in peers.brokers.items()
    }
    mine, theirs = found.topics["listed"], peers.topics["listed"]
    assert (mine.topic, mine.error) == (theirs.topic, theirs.error) == ("listed", None)
    assert {n: (p.id, p.leader, p.replicas, p.isrs, p.error) for n, p in mine.partitions.items()} == {
        n: (p.id, p.leader, p.replicas, p.isrs, p.error) for n, p in theirs.partitions.items()
    }
    missing = new().list_topics("missing", PATIENCE).topics
    assert list(missing) == ["missing"]
    assert missing["missing"].error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert "missing" not in cluster.topics()


def test_list_topics_says_that_no_broker_can_be_reached(alone: Callable[..., Producer]) -> None:
    with pytest.raises(KafkaException) as raised:
        alone().list_topics(timeout=0.1)
    assert raised.value.args[0].code() == KafkaError._TRANSPORT


# ---- keys stay where they are ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "partitioner",
    [None, "consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random", "random"],
)
def test_every_key_goes_where_confluent_sends_it(
    new: Callable[..., Producer], cluster: EmbeddedCluster, partitioner: str | None
) -> None:
    chosen = {} if partitioner is None else {"partitioner": partitioner}
    keys = [f"user-{n}".encode() for n in range(60)]
    if partitioner not in (None, "consistent_random"):  # these two let an empty key go anywhere
        keys.append(b"")
    found: list[list[int | None]] = []
    peer: Any = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, **chosen})
    for producer in (new(**chosen), peer):
        reports = Reports()
        for key in keys:
            producer.produce(TOPIC, b"v", key, on_delivery=reports)
        assert producer.flush(PATIENCE) == 0
        partitions = {message.key(): message.partition() for _, message in reports.calls}
        found.append([partitions[key] for key in keys])
    if partitioner == "random":
        assert all(partition in range(4) for partition in found[0])
    else:
        assert found[0] == found[1]


# ---- transactions ----------------------------------------------------------------------------------------------------


def test_transactions_commit_offsets_of_confluents_consumer(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + PATIENCE
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    producer, reports = new(transactional__id="tx"), Reports()
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(TOPIC, b"v", partition=0, on_delivery=reports)
    positions = [confluent_kafka.TopicPartition(TOPIC, 0, 5), confluent_kafka.TopicPartition(TOPIC, 1)]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE)
    producer.commit_transaction(PATIENCE)
    assert reports.values == [b"v"]
    (committed,) = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], PATIENCE)
    assert committed.offset == 5
    consumer.close()
    producer.begin_transaction()
    producer.produce(TOPIC, b"v", partition=0)
    producer.abort_transaction(PATIENCE)


def test_a_commit_waits_for_records_whose_topic_is_not_known_yet(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    producer, reports = new(transactional__id="waiting"), Reports()
    producer.init_transactions(PATIENCE)
    cluster.set_latency(0.2, METADATA)
    producer.begin_transaction()
    producer.produce("known-at-the-commit", b"v", partition=0, on_delivery=reports)
    producer.commit_transaction(PATIENCE)
    assert [error for error, _ in reports.calls] == [None]
    assert cluster.end_offset("known-at-the-commit", 0) == 2  # the record, and the end of the transaction


def test_a_transaction_that_has_lost_a_record_can_only_be_aborted() -> None:
    with EmbeddedCluster(auto_create_topics=False) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "topic.metadata.propagation.max.ms": 100}
        with Producer(settings | {"transactional.id": "losing"}) as producer:
            producer.init_transactions(PATIENCE)
            producer.begin_transaction()
            producer.produce("nowhere", b"v")
            with pytest.raises(KafkaException) as raised:
                producer.commit_transaction(PATIENCE)
            assert raised.value.args[0].txn_requires_abort()
            producer.abort_transaction(PATIENCE)
            producer.begin_transaction()
            producer.commit_transaction(PATIENCE)


@pytest.mark.parametrize("reports", [None, Reports()])
def test_a_record_outside_a_transaction_is_refused_though_its_topic_is_not_known(
    new: Callable[..., Producer], cluster: EmbeddedCluster, reports: Reports | None
) -> None:
    producer, topic = new(transactional__id="outside"), f"outside-{reports is None}"

    def refused() -> None:
        with pytest.raises(KafkaException) as raised:
            producer.produce(topic, b"v", on_delivery=reports)
        assert raised.value.args[0].code() == KafkaError._STATE
        assert (producer.held, len(producer)) == (0, 0)

    refused()
    producer.init_transactions(PATIENCE)
    refused()
    producer.begin_transaction()
    producer.commit_transaction(PATIENCE)
    if topic in cluster.topics():
        assert sum(cluster.end_offset(topic, partition) for partition in range(4)) == 0


def test_a_record_outside_a_transaction_is_refused_while_others_wait_for_its_topic(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    producer, reports = new(transactional__id="late"), Reports()
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    cluster.set_latency(30, METADATA)
    producer.produce("late-topic", b"v", on_delivery=reports)
    producer._producer._transaction_manager().commit(PATIENCE)  # another thread commits
    with pytest.raises(KafkaException) as raised:
        producer.produce("late-topic", b"v", on_delivery=reports)
    assert raised.value.args[0].code() == KafkaError._STATE
    producer.begin_transaction()
    producer.poll(0)
    assert [error.code() for error, _ in reports.calls] == [KafkaError._PURGE_QUEUE]
    cluster.clear_faults()
    producer.commit_transaction(PATIENCE)


def test_repr_names_the_cluster_and_no_secret() -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "client.id": "named", "sasl.password": "secret"})
    assert repr(producer) == "Producer('named' to 127.0.0.1:1, open)"
    producer.close()
    assert repr(producer) == "Producer(not open)"


def test_group_metadata_is_read_whole() -> None:
    written = b"CGMDv2:" + (7).to_bytes(4, sys.byteorder) + b"group\0member\0\0instance\0"
    found = group_in(written)
    assert (found.group_id, found.generation_id, found.member_id, found.group_instance_id) == (
        "group",
        7,
        "member",
        "instance",
    )
    with pytest.raises(ValueError, match="does not know"):
        group_in(b"CGMDv9:")


def test_errors_of_transactions_have_confluents_flags(
    new: Callable[..., Producer], cluster: EmbeddedCluster, alone: Callable[..., Producer]
) -> None:
    def error_of(call: Callable[[], object]) -> Any:
        with pytest.raises(KafkaException) as raised:
            call()
        return raised.value.args[0]

    waiting = alone({"transactional.id": "t"})
    late = error_of(lambda: waiting.init_transactions(0.05))
    assert (late.code(), late.retriable(), late.fatal()) == (KafkaError._TIMED_OUT, True, False)
    conflict = error_of(waiting.begin_transaction)
    assert (conflict.code(), conflict.retriable()) == (KafkaError._CONFLICT, True)
    plain = new()
    for call in (plain.begin_transaction, plain.init_transactions, plain.commit_transaction, plain.abort_transaction):
        assert error_of(call).code() == KafkaError._NOT_CONFIGURED

    first, second = new(transactional__id="fenced"), new(transactional__id="fenced")
    first.init_transactions()
    first.begin_transaction()
    first.produce(TOPIC, b"v", partition=0)
    first.flush(PATIENCE)
    second.init_transactions()
    fenced = error_of(first.commit_transaction)
    assert (fenced.code(), fenced.fatal(), fenced.txn_requires_abort()) == (KafkaError._FENCED, True, False)

    third = new(transactional__id="fenced")
    second.begin_transaction()
    third.init_transactions()
    second.produce(TOPIC, b"v", partition=0)
    fenced = error_of(second.commit_transaction)
    assert (fenced.code(), fenced.fatal(), fenced.txn_requires_abort()) == (KafkaError._FENCED, True, False)

    second = third
    second.begin_transaction()
    cluster.fail_next(PRODUCE, errors.RecordListTooLargeError.code)
    second.produce(TOPIC, b"v", partition=0)
    second.flush(PATIENCE)
    aborted = error_of(second.commit_transaction)
    assert (aborted.fatal(), aborted.txn_requires_abort()) == (False, True)
    second.abort_transaction()


# ---- settings --------------------------------------------------------------------------------------------------------


def own_settings(settings: dict[str, Any]) -> dict[str, Any]:
    return confluent_settings.translated(settings).own


def test_settings_have_their_meaning() -> None:
    found = own_settings(
        {
            "bootstrap.servers": "a,b:1",
            "request.required.acks": "all",
            "queue.buffering.max.ms": "7.4",
            "message.timeout.ms": 0,
            "compression.codec": "gzip",
            "compression.level": 5,
            "max.in.flight": 10,
            "message.send.max.retries": 3,
            "ssl.ca.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "connections.max.idle.ms": 0,
            "socket.send.buffer.bytes": 0,
            "debug": "all",
            "default.topic.config": {"partitioner": "murmur2"},
        }
    )
    expected = {
        "bootstrap_servers": "a:9092,b:1",
        "acks": "all",
        "linger_ms": 7,
        "delivery_timeout_ms": 2**31 - 1,
        "compression_type": "gzip",
        "compression_gzip_level": 5,
        "max_in_flight_requests_per_connection": 10,
        "enable_idempotence": False,
        "retries": 3,
        "ssl_truststore_location": "ca.pem",
        "ssl_endpoint_identification_algorithm": "",
        "connections_max_idle_ms": -1,
        "send_buffer_bytes": -1,
        "partitioner_class": "murmur2",
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("timeout", [1, 10, 100, 1000])
@pytest.mark.parametrize("linger", [0, 0.5, 5, 900])
def test_any_time_out_of_records_goes_with_any_linger(timeout: int, linger: float) -> None:
    Producer({"message.timeout.ms": timeout, "linger.ms": linger, "socket.timeout.ms": 10})._producer.close(0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"should.fail": False}, 'No such configuration property: "should.fail"'),
        ({"partitioner": "murmur"}, 'Invalid value for configuration property "partitioner": murmur'),
        ({"linger.ms": "x"}, "linger.ms"),
        ({"enable.ssl.certificate.verification": "false"}, "ssl.ca.location"),
        ({"acks": 7}, "acks"),
        ({"ssl.key.location": "/nowhere"}, "cannot be read"),
    ],
)
def test_a_wrong_setting_raises_kafka_exception(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaException, match=text) as raised:
        Producer(settings)
    assert raised.value.args[0].code() == KafkaError._INVALID_ARG


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("error_cb", TypeError),
        ("stats_cb", TypeError),
        ("oauth_cb", TypeError),
        ("throttle_cb", ValueError),
        ("on_delivery", KafkaException),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused_as_confluent_does(name: str, kind: type[Exception]) -> None:
    for module in (confluent, confluent_kafka):
        with pytest.raises(kind, match="callable"):
            module.Producer({name: 1})


def test_none_means_the_default() -> None:
    names = [*confluent_settings._SAME, *confluent_settings._NO_EFFECT, *confluent_settings._CALLBACKS, "linger.ms"]
    names += confluent_settings._CONSUMERS
    assert own_settings(dict.fromkeys([*names, "message.timeout.ms", "partitioner", "logger"])) == own_settings({})


def test_settings_may_be_keywords_which_win() -> None:
    producer = Producer({"client.id": "a", "acks": "all"}, **{"client.id": "b"})
    assert producer._producer.config.client_id == "b"
    producer.close()


def test_no_more_memory_is_reserved_than_the_machine_has() -> None:
    Producer({"queue.buffering.max.kbytes": 2**31 - 1}).close()


@pytest.mark.parametrize("arguments", [(), ("x",), ({}, {})])
def test_settings_come_in_a_dict(arguments: Any) -> None:
    with pytest.raises(TypeError, match="expected configuration dict"):
        Producer(*arguments)


def test_every_setting_of_the_documentation_of_librdkafka_is_known_or_refused() -> None:
    """These are the settings of a producer; librdkafka's own check says whether they exist."""
    names = [
        *confluent_settings._SAME,
        *confluent_settings._FILES,
        *confluent_settings._BUFFERS,
        *confluent_settings._NO_EFFECT,
        *confluent_settings._REFUSED,
        *confluent_settings._CONSUMERS,
    ]
    unknown = []
    for name in names:
        try:
            confluent_kafka.Producer({name: "\0"})
        except KafkaException as error:
            if "No such configuration property" in str(error):
                unknown.append(name)
        except Exception:
            pass
    assert unknown == []


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_own_error_has_the_names_and_codes_of_confluents() -> None:
    for name, code in LOCAL.items():
        assert getattr(KafkaError, name) == code
    for code, name in _names().items():
        if hasattr(KafkaError, name):
            assert getattr(KafkaError, name) == getattr(OwnKafkaError, name) == code
        peer = KafkaError(code)
        assert peer.name() == name or code > 100, (peer.name(), name)


@pytest.mark.parametrize("flags", [{}, {"fatal": True}, {"retriable": True}, {"txn_requires_abort": True}])
def test_own_error_behaves_as_confluents(flags: dict[str, bool]) -> None:
    own, peer = OwnKafkaError(-192, "text", **flags), KafkaError(-192, "text", **flags)
    for method in ("code", "name", "str", "fatal", "retriable", "txn_requires_abort"):
        assert getattr(own, method)() == getattr(peer, method)(), method
    assert own == OwnKafkaError(-192)
    assert own == -192
    assert own != -191
    assert (str(own), bool(own)) == (str(peer), bool(peer))
    assert OwnKafkaException(own).args == (own,)


def test_every_error_of_kafkabuf_has_a_code() -> None:
    pending = [errors.KafkaError]
    while pending:
        own = pending.pop()
        pending += [child for child in own.__subclasses__() if child.__module__ == "kafkabuf.errors"]
        assert call_error(own("text")).code() != 0
        assert "text" in record_error(own("text")).str()


def test_error_classes_are_confluents_own() -> None:
    assert confluent.KafkaError is KafkaError
    assert confluent.KafkaException is KafkaException


@pytest.mark.processes
def test_without_confluent_kafka_errors_are_of_the_same_shape() -> None:
    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from kafkabuf.compat.confluent import KafkaError, KafkaException, Producer\n"
        "try: Producer({'should.fail': 1})\n"
        "except KafkaException as error: assert error.args[0].code() == KafkaError._INVALID_ARG, error\n"
        "else: raise SystemExit('no error')\n"
        "seen = []\n"
        "producer = Producer({'message.timeout.ms': 10})\n"
        "producer.produce('t', 'v', on_delivery=lambda error, message: seen.append(error))\n"
        "assert producer.flush() == 0\n"
        "assert seen[0].code() == KafkaError._MSG_TIMED_OUT == -192 and seen[0].name() == '_MSG_TIMED_OUT'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.processes
def test_a_producer_without_errors_never_imports_confluent_kafka(cluster: EmbeddedCluster) -> None:
    code = (
        "import sys\n"
        "from kafkabuf.compat.confluent import Producer\n"
        "seen = []\n"
        f"producer = Producer({{'bootstrap.servers': '{cluster.bootstrap_servers}'}})\n"
        f"producer.produce('{TOPIC}', 'v', on_delivery=lambda error, message: seen.append(error))\n"
        "assert producer.flush(20) == 0 and seen == [None]\n"
        "assert 'confluent_kafka' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_idempotence_is_on_unless_a_setting_contradicts_it(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    for settings, expected in (({}, True), ({"acks": 1}, False), ({"max.in.flight": 100}, False)):
        cluster.clear_requests()
        producer = new(**settings)
        producer.produce(TOPIC, b"v")
        assert producer.flush(PATIENCE) == 0
        assert bool(cluster.requests(INIT_PRODUCER_ID)) is expected
