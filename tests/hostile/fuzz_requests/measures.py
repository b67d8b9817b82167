"""What the fuzzer of requests measures with: time, memory, the lines of the log, and a client's end of a connection."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from kafkabuf.broker.front.server import Connection
from tests.hostile.fuzz_requests.worlds import FuzzError, World

_KEPT = 1 << 20
_LENGTH = struct.Struct(">i")


class Selector(selectors.DefaultSelector):
    """Counts the files that were ready in the last turn, and tells of each turn."""

    def __init__(self, turned: Callable[[], None]) -> None:
        super().__init__()
        self.events = 0
        self._turned = turned

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(timeout)
        self.events = len(ready)
        self._turned()
        return ready


class Meter:
    """Time, without the time in which this thread waited for a processor; and memory."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._refs = os.open("/proc/self/clear_refs", os.O_WRONLY)
        self._sched = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def close(self) -> None:
        for file in (self._statm, self._refs, self._sched):
            os.close(file)

    def seconds(self) -> float:
        return (time.perf_counter_ns() - int(os.pread(self._sched, 100, 0).split()[1])) / 1e9

    def forget_peak(self) -> int:
        """Returns the bytes that the process holds now."""
        os.pwrite(self._refs, b"5", 0)
        return int(os.pread(self._statm, 100, 0).split()[1]) * resource.getpagesize()

    def peak(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Log(logging.Handler):
    """The lines that the broker logs. A line is whole, and no request raises."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines = 0
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.lines += record.levelno >= logging.WARNING
        if self.error is not None:
            return
        if record.exc_info and record.exc_info[1] is not None:
            self.error = record.exc_info[1]
        elif not text.isprintable():
            self.error = FuzzError("log", f"a line of the log has characters that no line should have: {text[:200]!r}")
        elif record.levelno >= logging.ERROR and "descriptor" not in text and "Too many open files" not in text:
            self.error = FuzzError("log", f"an error is logged: {text[:300]}")

    def loop_failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.error = self.error or context.get("exception") or FuzzError("raises", str(context.get("message")))

    def take(self) -> None:
        """Raises the first error."""
        error, self.error = self.error, None
        if error is not None:
            raise error


class _FromLoopback(Connection):
    """Pairs of sockets have no addresses, and ACLs name hosts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport._extra["peername"] = "127.0.0.1", 9  # type: ignore[attr-defined]
        super().connection_made(transport)


class Client:
    """The client's end of a connection. `received` counts its bytes, `response` has the first of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, world: World) -> None:
        self.node = world.cluster.nodes[1]
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self._socket = ours
        self.connection = _FromLoopback(self.node)
        self.closed = False
        self.forget()
        loop.run_until_complete(loop.connect_accepted_socket(lambda: self.connection, theirs))

    def forget(self) -> None:
        self.response = bytearray()
        self.received = 0

    def push(self, data: memoryview) -> memoryview:
        """Send what the socket takes; returns the rest."""
        try:
            return data[self._socket.send(data) :] if data else data
        except BlockingIOError:
            return data
        except OSError:
            self.closed = True
            return data[:0]

    def drain(self, room: bytearray) -> int:
        """Read what is there; returns the number of bytes."""
        total = 0
        while not self.closed:
            try:
                size = self._socket.recv_into(room)
            except BlockingIOError:
                break
            except OSError:
                size = 0
            self.closed = not size
            total += size
            if len(self.response) < _KEPT:
                self.response += room[:size]
        self.received += total
        return total

    def whole(self) -> bool:
        """Whether a response is there."""
        return len(self.response) >= 4 and len(self.response) >= 4 + _LENGTH.unpack_from(self.response)[0]

    def close(self) -> None:
        self._socket.close()
