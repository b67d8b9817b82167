"""Loggers whose lines name their producer, so that the lines of two producers in one process can be told apart.

A line begins with `[CLIENT_ID]`, and its LogRecord has the attribute `client_id`, for formatters and filters. A thread
that works for a producer says so with `log_as(client_id)`: the Sender's thread for all its life, a user's thread in the
calls that may log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kafkabuf.errors import printable
from kafkabuf.log_handover import Handover

_thread = threading.local()


def client_id_here() -> str | None:
    """The client.id of the producer that this thread works for; None if it works for none."""
    return getattr(_thread, "client_id", None)


@contextmanager
def log_as(client_id: str | None) -> Iterator[None]:
    """Lines that this thread logs inside the block are the producer's."""
    before = client_id_here()
    _thread.client_id = client_id
    try:
        yield
    finally:
        _thread.client_id = before


class _Naming(logging.Filter):
    """Puts the client.id into the lines of a logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        client_id = client_id_here()
        if client_id is not None and not hasattr(record, "client_id"):
            record.client_id = client_id
            name = prefix(client_id)
            record.msg = (name.replace("%", "%%") if record.args else name) + str(record.msg)
        return True


_naming = _Naming()


def prefix(client_id: str) -> str:
    """How the lines of a producer begin."""
    return f"[{printable(client_id)}] "


def producer_log(name: str) -> logging.Logger:
    """The logger of that name. Its lines name the producer that the logging thread works for."""
    logger = logging.getLogger(name)
    logger.addFilter(_naming)
    logger.callHandlers = Handover(logger)  # type: ignore[method-assign]
    return logger
