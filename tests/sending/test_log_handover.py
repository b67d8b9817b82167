"""A log handler that sends to Kafka may hold its lock while it waits for the Sender, which logs too."""

from __future__ import annotations

import logging
import threading

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster

PATIENCE = 60.0


class ToKafka(logging.Handler):
    """Sends each line. Its lock is held meanwhile, and first a line of the Sender must wait for the lock."""

    def __init__(self, producer: KafkaProducer[bytes, bytes]) -> None:
        super().__init__(logging.DEBUG)
        self._producer = producer
        self.offsets: list[int] = []
        self.errors: list[Exception] = []
        self._inside = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._inside, "now", False) or record.name != "app":
            return
        self._inside.now = True
        try:
            self.offsets.append(self._producer.send("logs", record.getMessage().encode()).result(PATIENCE).offset)
        except Exception as error:
            self.errors.append(error)
        finally:
            self._inside.now = False


def test_handler_that_waits_for_its_record_does_not_wait_for_lines_of_the_sender() -> None:
    root = logging.getLogger()
    level = root.level
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("logs")
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=20_000) as producer:
            handler = ToKafka(producer)
            root.addHandler(handler)
            root.setLevel(logging.DEBUG)
            try:
                logging.getLogger("app").debug("first")
                logging.getLogger("app").debug("second")
            finally:
                root.removeHandler(handler)
                root.setLevel(level)
    assert handler.errors == []
    assert len(handler.offsets) == 2


class ToOther(logging.Handler):
    """Hands each line to another logging library, which has a lock of its own, as an intercepting handler does."""

    def __init__(self, library: OtherLibrary) -> None:
        super().__init__(logging.DEBUG)
        self._library = library

    def emit(self, record: logging.LogRecord) -> None:
        self._library.log(record.getMessage())


class OtherLibrary:
    """Sends the lines of the program to Kafka, under its lock, and drops those that it gets while it sends."""

    def __init__(self, producer: KafkaProducer[bytes, bytes]) -> None:
        self._producer = producer
        self._lock = threading.RLock()
        self._is_sending = False
        self.offsets: list[int] = []

    def log(self, text: str) -> None:
        with self._lock:
            if self._is_sending or text.startswith("["):
                return
            self._is_sending = True
            try:
                self.offsets.append(self._producer.send("logs", text.encode()).result(PATIENCE).offset)
            finally:
                self._is_sending = False


def test_lock_of_another_logging_library_does_not_hold_the_sender_up() -> None:
    root = logging.getLogger()
    level = root.level
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("logs")
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=20_000) as producer:
            library = OtherLibrary(producer)
            handler = ToOther(library)
            root.addHandler(handler)
            root.setLevel(logging.DEBUG)
            try:
                library.log("first")  # raises after max.block.ms where the Sender waits for the library's lock
                library.log("second")
            finally:
                root.removeHandler(handler)
                root.setLevel(level)
    assert library.offsets == [0, 1]
