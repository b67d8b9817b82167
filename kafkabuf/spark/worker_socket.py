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

_WORKER, _MAIN, _INPUT = "pyspark.worker", "main", "infile"


def acknowledge() -> None:
    """Call this as a task begins to read rows. Does nothing where the rows come in another way than by TCP."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == _MAIN and frame.f_globals.get("__name__") == _WORKER and _INPUT in frame.f_locals:
            with suppress(OSError), socket.socket(fileno=os.dup(frame.f_locals[_INPUT].fileno())) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            return
