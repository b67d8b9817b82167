"""The Sender's thread waits for no log handler, since a handler may wait for the Sender.

A handler that sends each line to Kafka holds its lock while send() waits for metadata or memory. If the Sender logs a
line in this time, it would wait for the lock, and the handler for the Sender. So the Sender takes the locks of the
handlers only where they are free. Otherwise a thread of its own waits for them and hands the line over, with the lines
that follow, in order.

A handler of another library may have a lock of its own, which nobody sees here (loguru's, behind an intercepting
handler). So the Sender itself calls only handlers of classes that are known to write and not to wait for it. The thread
calls the others, and the Sender waits for a moment, so that its lines appear at once where no lock is held.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from kafkabuf.process.threads import Event, Local, Lock, new_thread

PATIENCE = 0.2  # seconds that the Sender gives a handler of an unknown class
_WRITING = ("logging", "logging.handlers", "_pytest.logging")  # modules whose handlers write, and do not send to Kafka
LONGEST = 1000  # lines that wait; the newest are dropped beyond that
_here = Local()


def never_wait() -> None:
    """From now on the calling thread waits for no handler of kafkabuf's loggers."""
    _here.never_waits = True


class Handover:
    """The `callHandlers` of one logger."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __call__(self, record: logging.LogRecord) -> None:
        if not getattr(_here, "never_waits", False):
            type(self._logger).callHandlers(self._logger, record)
        elif _queue:
            _hand_over(_Line(self._logger, record))
        elif not _only_write(self._logger):
            line = _Line(self._logger, record)
            _hand_over(line)
            if line.ended.wait(PATIENCE) and line.error is not None:
                raise line.error  # ProducerLog tells it once
        elif not self._call_unless_busy(record):
            _hand_over(_Line(self._logger, record))

    def _call_unless_busy(self, record: logging.LogRecord) -> bool:
        """Call the handlers with their locks held. False: another thread holds one of the locks."""
        locks = _locks(self._logger)
        held = 0  # the number of locks held; a list would need memory, and its failure would leave a lock held
        try:
            for lock in locks:
                if not lock.acquire(blocking=False):
                    return False
                held += 1
            type(self._logger).callHandlers(self._logger, record)
            return True
        finally:
            while held:
                held -= 1
                locks[held].release()


class _Line:
    """A line that the thread hands to its handlers."""

    def __init__(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        self.logger = logger
        self.record = record
        self.ended = Event()
        self.error: BaseException | None = None


_queue: deque[_Line] = deque()
_lock = Lock()
_running = False


def _handlers(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    """All handlers that get the logger's records."""
    while logger is not None:
        yield from tuple(logger.handlers)
        logger = logger.parent if logger.propagate else None


def _locks(logger: logging.Logger) -> list[Any]:
    return [lock for handler in _handlers(logger) if (lock := getattr(handler, "lock", None)) is not None]


def _only_write(logger: logging.Logger) -> bool:
    return all(_origin(type(handler), name) in _WRITING for handler in _handlers(logger) for name in ("emit", "handle"))


def _origin(kind: type, method: str) -> str:
    """The module of the class that defines the method."""
    return next((ancestor.__module__ for ancestor in kind.__mro__ if method in ancestor.__dict__), "")


def _hand_over(line: _Line) -> None:
    global _running
    if len(_queue) >= LONGEST:
        return
    with _lock:
        _queue.append(line)
        if _running:
            return
        _running = True
    try:
        new_thread(_run, "kafkabuf-log").start()
    except BaseException:
        _running = False
        raise


def _run() -> None:
    global _running
    goes_on = True
    while goes_on:
        try:
            goes_on = _call_next()
        except BaseException:  # even SystemExit, or no memory: it must not keep the lines behind
            pass


def _call_next() -> bool:
    """Call the handlers of the first line, and drop it. False: no line is there, and the next needs a new thread."""
    global _running
    _lock.acquire()
    try:
        if not _queue:
            _running = False
            return False
        line = _queue[0]
    finally:
        _lock.release()
    try:
        type(line.logger).callHandlers(line.logger, line.record)
    except BaseException as error:
        line.error = error
    finally:
        _lock.acquire()
        try:
            if _queue and _queue[0] is line:
                _queue.popleft()
        finally:
            _lock.release()
        line.ended.set()
    return True


def _forget() -> None:
    """In a forked child the thread does not exist."""
    global _running, _lock
    _lock, _running = Lock(), False
    _queue.clear()


os.register_at_fork(after_in_child=_forget)
