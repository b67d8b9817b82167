"""Spares each task 40 ms in which the JVM and the kernel of the Python worker wait for each other.

The JVM sends a task's rows in small writes behind the description of the task. Nagle's algorithm holds a small write
back until the earlier bytes are acknowledged. The worker's kernel delays the acknowledgement, because the worker has
nothing to send meanwhile. With TCP_QUICKACK the kernel acknowledges at once.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

_WORKER, _MAIN, _INPUT = "pyspark.worker", "main", "infile"


def acknowledge() -> None:
    """Call this as a task begins to read rows. Does nothing where the rows come in another way than by TCP.

    Only Linux has TCP_QUICKACK.
    """
    option: int = getattr(socket, "TCP_QUICKACK", -1)
    rows = task_input() if option >= 0 else None
    if rows is not None:
        with suppress(OSError):
            _set(rows.fileno(), option)


def task_input() -> Any:
    """The file from which PySpark's worker reads the rows: a local variable of its main function; else None."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == _MAIN and _module(frame) == _WORKER:
            return frame.f_locals.get(_INPUT)
        frame = frame.f_back
    return None


def _module(frame: FrameType) -> str | None:
    """The module of the frame's function. Without PySpark's daemon the worker is `__main__`: its spec has the name."""
    names = frame.f_globals
    return getattr(names.get("__spec__"), "name", None) or names.get("__name__")


def _set(descriptor: int, option: int) -> None:
    """Set an option of the TCP connection. Raises OSError if the descriptor is none."""
    copy = os.dup(descriptor)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, option, 1)
