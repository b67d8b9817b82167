"""Lines of the log name their producer: two producers in one process can be told apart."""

from __future__ import annotations

import gc
import logging
import threading
import time
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import KafkaError
from kafkabuf.interceptors import ProducerRecord
from kafkabuf.process.producer_log import client_id_here, log_as, producer_log
from rigs.producer import PATIENCE, Rig

DEAD = "127.0.0.1:1"


class Raising:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise ZeroDivisionError

    def close(self) -> None:
        raise ZeroDivisionError


class Reporter:
    def init(self, metrics: Any) -> None: ...

    def close(self) -> None:
        raise ZeroDivisionError


def names(caplog: pytest.LogCaptureFixture, text: str) -> list[Any]:
    """The client ids of the lines with this text. Each line begins with its client id, or has none."""
    found = []
    for record in list(caplog.records):
        name = getattr(record, "client_id", None)
        assert name is None or record.getMessage().startswith(f"[{name}] ")
        if text in record.getMessage():
            found.append(name)
    return found


def test_senders_thread_names_its_producer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kafkabuf")
    producers = [KafkaProducer(bootstrap_servers=DEAD, client_id=name) for name in ("orders", "100%s")]
    deadline = time.monotonic() + PATIENCE
    while set(names(caplog, DEAD)) != {"orders", "100%s"}:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for producer in producers:
        producer.close(0)
    assert None not in names(caplog, DEAD)


def test_users_thread_names_the_producer_that_it_calls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kafkabuf")
    settings = {"interceptor_classes": [Raising()], "metric_reporters": [Reporter()], "retry_backoff_ms": 5_000}
    producer = KafkaProducer(settings, bootstrap_servers=DEAD, client_id="orders", max_block_ms=1)
    assert names(caplog, "is above") == ["orders"]
    with pytest.raises(KafkaError):
        producer.send("t", b"v")
    producer.close(0)
    assert names(caplog, "on_send raised") == ["orders"]
    assert names(caplog, "a metric reporter raised") == ["orders"]
    assert names(caplog, "close raised") == ["orders"]
    assert client_id_here() is None


def test_transactions_name_their_producer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kafkabuf")
    producer = KafkaProducer(bootstrap_servers=DEAD, client_id="orders", transactional_id="t-1", max_block_ms=1)
    with pytest.raises(KafkaError):
        producer.init_transactions()
    producer.close(0)
    assert set(names(caplog, "transactional id t-1")) == {"orders"}


def test_producer_that_was_not_closed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"delivery_timeout_ms": 100, "request_timeout_ms": 50, "linger_ms": 0}
    producer = KafkaProducer(settings, bootstrap_servers=DEAD, client_id="forgotten")
    accumulator = producer.accumulator
    assert isinstance(accumulator, RecordAccumulator)
    accumulator.topic_queues("t", [1])  # as if metadata had come
    producer.send("t", b"v", partition=0)
    running = producer._running
    del producer, accumulator
    gc.collect()
    assert names(caplog, "was not closed") == ["forgotten"]
    assert running.wait(PATIENCE)


def test_compression_thread_names_the_senders_producer(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(compression_type="lz4", compression_thread_enable=True)
    failing = threading.Event()

    def fail() -> bool:
        failing.set()
        raise ZeroDivisionError

    rig.accumulator.compress_ahead = fail  # type: ignore[method-assign]
    with log_as("orders"):
        rig.accumulator.start_compression_thread("orders-compression")
    thread = rig.accumulator._compression_thread
    assert thread is not None
    thread.wake()
    assert failing.wait(PATIENCE)
    thread.stop()
    assert set(names(caplog, "compression ahead of the Sender failed")) == {"orders"}


def test_line_that_belongs_to_no_producer_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    log = producer_log("kafkabuf.producer")
    log.warning("100%")
    with log_as("a"):
        log.warning("100%")
        with log_as("b"):
            log.warning("%d%%", 100)
        log.warning("again")
    assert caplog.messages == ["100%", "[a] 100%", "[b] 100%", "[a] again"]


def test_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with log_as("a\nERROR forged"):
        producer_log("kafkabuf.producer").warning("text")
    assert caplog.messages == ["[a\\nERROR forged] text"]


def test_one_line_has_one_name(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        log = producer_log("kafkabuf.network")
    with log_as("a"):
        log.warning("text")
    assert caplog.messages == ["[a] text"]


def test_config_alone_names_its_client(caplog: pytest.LogCaptureFixture) -> None:
    ProducerConfig.from_mapping({"bootstrap_servers": DEAD, "client_id": "alone", "retry_backoff_ms": 5_000})
    assert names(caplog, "is above") == ["alone"]
