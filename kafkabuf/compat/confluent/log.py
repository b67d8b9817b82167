"""The setting `logger`: an object whose log() gets the lines of one producer, as librdkafka's producers write them."""

from __future__ import annotations

import logging
import threading  # its local() is of a greenlet where a program is patched  # noqa: TID251
import weakref
from contextlib import suppress
from typing import Any

from kafkabuf.compat.confluent.opened import Opened
from kafkabuf.process.producer_log import prefix

# The threads of kafkabuf have names that begin so.
_THREADS = "kafkabuf-"


class Forwarding(logging.Handler):
    """Hands the lines of a producer's Sender to log(level, format, *arguments) of the user's logger, until `end`.

    Also the lines of the user's threads that name no other producer. An error of the user's logger never reaches
    the thread that has logged.
    """

    def __init__(self, logger: Any, producer: Opened) -> None:
        super().__init__()
        self._log = logger.log
        self._name = producer.config.client_id
        self._producer = weakref.ref(producer)
        self._writing = threading.local()  # the user's logger may be one of kafkabuf's, which calls this handler again
        self._source = logging.getLogger("kafkabuf")
        self._source.addHandler(self)

    def createLock(self) -> None:
        """None: a handler of the user's logger may produce, under a lock of its own."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        if not self._is_own(record):
            return False
        self._write(record)
        return True

    def _is_own(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("kafkabuf.broker") or getattr(record, "client_id", self._name) != self._name:
            return False
        producer = self._producer()
        if producer is not None and producer._running.runs_in(getattr(record, "logged_in", None)):
            return True
        return not str(record.threadName).startswith(_THREADS)

    def write(self, level: int, facility: str, text: str) -> None:
        """A line of the constructor."""
        self._write(logging.LogRecord(facility, level, "", 0, text, (), None))

    def _write(self, record: logging.LogRecord) -> None:
        if getattr(self._writing, "now", False):
            return
        self._writing.now = True
        try:
            self._log(record.levelno, "%s [%s] %s", record.name, self._name, self._text_of(record))
        except Exception:
            with suppress(Exception):
                self.handleError(record)
        finally:
            self._writing.now = False

    def _text_of(self, record: logging.LogRecord) -> str:
        return self.format(record).removeprefix(prefix(self._name))

    def end(self) -> None:
        self._source.removeHandler(self)
