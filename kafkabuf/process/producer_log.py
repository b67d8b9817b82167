"""Loggers whose lines name their producer, so that the lines of two producers in one process can be told apart.

A line begins with `[CLIENT_ID]`, and its LogRecord has the attribute `client_id`, for formatters and filters. A thread
that works for a producer says so with `log_as(client_id)`: the Sender's thread for all its life, a user's thread in the
calls that may log.

A filter or a handler of the user's may raise, and so may formatting, or a lack of memory. That must not end the Sender,
or leave its work half done. So our code logs by a `ProducerLog`, whose methods do not raise: the first error goes to
stderr, as logging's own errors do, and `lost` counts the lines.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from kafkabuf.errors import printable
from kafkabuf.process.log_handover import Handover
from kafkabuf.process.threads import get_ident, is_main_thread, this_line

REPEAT_AFTER = 60.0  # seconds
# The thread or greenlet -> the client.id of the producer that it works for. A ContextVar would crash CPython 3.11 where
# there is no memory: PyContextVar_Set() gives up a token that it could not make.
_client_ids: dict[Hashable, str | None] = {}


def client_id_here() -> str | None:
    """The client.id of the producer that this thread or greenlet works for; None if it works for none."""
    return _client_ids.get(this_line())


class Seldom:
    """A line that repeats for as long as a trouble lasts: it is due once in REPEAT_AFTER seconds."""

    def __init__(self) -> None:
        self._due_at = float("-inf")

    def is_due(self, now: float) -> bool:
        """The caller logs the line if it is due."""
        if now < self._due_at:
            return False
        self._due_at = now + REPEAT_AFTER
        return True


@contextmanager
def log_as(client_id: str | None) -> Iterator[None]:
    """Lines that this thread or greenlet logs inside the block are the producer's."""
    here = this_line()
    before = _client_ids.get(here)
    _client_ids[here] = client_id
    try:
        yield
    finally:
        if before is None:
            _client_ids.pop(here, None)
        else:
            _client_ids[here] = before


def _forget_threads() -> None:
    """In a forked child the other threads do not exist, and a new thread may get the ident of one."""
    here = this_line()
    own = _client_ids.get(here)
    _client_ids.clear()
    if own is not None:
        _client_ids[here] = own


os.register_at_fork(after_in_child=_forget_threads)


class _Naming(logging.Filter):
    """Puts the client.id into the lines of a logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        client_id = client_id_here()
        if client_id is not None and not hasattr(record, "client_id"):
            record.client_id = client_id
            record.logged_in = get_ident()  # a handler may run in another thread (log_handover.py)
            name = prefix(client_id)
            record.msg = (name.replace("%", "%%") if record.args else name) + str(record.msg)
        return True


_naming = _Naming()


def prefix(client_id: str) -> str:
    """How the lines of a producer begin."""
    return f"[{printable(client_id)}] "


class ProducerLog:
    """The methods of a logging.Logger that our code calls. They raise KeyboardInterrupt in the main thread alone."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self.lost = 0  # lines that a filter or a handler has refused by raising

    def debug(self, text: str, *arguments: object) -> None:
        self._say(logging.DEBUG, text, arguments)

    def info(self, text: str, *arguments: object) -> None:
        self._say(logging.INFO, text, arguments)

    def warning(self, text: str, *arguments: object, exc_info: bool | BaseException = False) -> None:
        self._say(logging.WARNING, text, arguments, exc_info)

    def error(self, text: str, *arguments: object, exc_info: bool | BaseException = False) -> None:
        self._say(logging.ERROR, text, arguments, exc_info)

    def exception(self, text: str, *arguments: object) -> None:
        self._say(logging.ERROR, text, arguments, True)

    def critical(self, text: str, *arguments: object) -> None:
        self._say(logging.CRITICAL, text, arguments)

    def log(self, level: int, text: str, *arguments: object) -> None:
        self._say(level, text, arguments)

    def _say(
        self, level: int, text: str, arguments: tuple[object, ...], exc_info: bool | BaseException = False
    ) -> None:
        try:
            self._logger.log(
                level, text, *arguments, exc_info=exc_info or None, stacklevel=3
            )  # 3: the caller of our caller
        except BaseException as error:  # even SystemExit
            if isinstance(error, KeyboardInterrupt) and is_main_thread():
                raise  # the user's
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        self.lost += 1
        if self.lost > 1 or sys.stderr is None or not logging.raiseExceptions:
            return
        try:
            name = self._logger.name
            print(f"kafkabuf: a line of the logger {name!r} is lost, since logging raised:", file=sys.stderr)
            traceback.print_exception(error)
        except BaseException:  # there is no memory, or stderr is closed or the user's object
            pass


def producer_log(name: str) -> ProducerLog:
    """The log of that name. Its lines name the producer that the logging thread works for."""
    logger = logging.getLogger(name)
    logger.addFilter(_naming)
    logger.callHandlers = Handover(logger)  # type: ignore[method-assign]
    return ProducerLog(logger)
