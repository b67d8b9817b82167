"""The Sender's thread waits for no log handler, since a handler may wait for the Sender.

A handler that sends each line to Kafka holds its lock while send() waits for metadata or memory. If the Sender logs a
line in this time, it would wait for the lock, and the handler for the Sender. So the Sender takes the locks of the
handlers only where they are free. Otherwise a thread of its own waits for them and hands the line over, with the lines
that follow, in order.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import Any

from kafkabuf.threads import Lock, new_thread

LONGEST = 1000  # lines that wait; the newest are dropped beyond that
_here = threading.local()


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
        elif _queue or not self._call_unless_busy(record):
            _hand_over(self._logger, record)

    def _call_unless_busy(self, record: logging.LogRecord) -> bool:
        """Call the handlers with their locks held. False: another thread holds one of the locks."""
        held: list[Any] = []
        try:
            for lock in _locks(self._logger):
                if not lock.acquire(blocking=False):
                    return False
                held.append(lock)
            type(self._logger).callHandlers(self._logger, record)
            return True
        finally:
            for lock in reversed(held):
                lock.release()


_queue: deque[tuple[logging.Logger, logging.LogRecord]] = deque()
_lock = Lock()
_running = False


def _locks(logger: logging.Logger | None) -> list[Any]:
    """The locks of all handlers that get the logger's records."""
    locks = []
    while logger is not None:
        locks += [lock for handler in logger.handlers if (lock := getattr(handler, "lock", None)) is not None]
        logger = logger.parent if logger.propagate else None
    return locks


def _hand_over(logger: logging.Logger, record: logging.LogRecord) -> None:
    global _running
    if len(_queue) >= LONGEST:
        return
    with _lock:
        _queue.append((logger, record))
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
    while True:
        with _lock:
            if not _queue:
                _running = False
                return
            logger, record = _queue[0]
        try:
            type(logger).callHandlers(logger, record)
        except Exception:
            pass  # a handler that raises must not keep the lines behind
        with _lock:
            _queue.popleft()


def _forget() -> None:
    """In a forked child the thread does not exist."""
    global _running, _lock
    _lock, _running = Lock(), False
    _queue.clear()


os.register_at_fork(after_in_child=_forget)
