"""Connections between a producer and the cluster's nodes, as slow and as bad as the seed wants them.

The producer's end is a real socket, which the real Poller reads and writes. The other end is the simulation's: what
comes out of it reaches the node after a while, and what the node answers goes back the same way. A direction that is
blocked holds everything until it is free again, as TCP does; a frame of the node's may come twice, or never.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.front.server import Connection
from kafkabuf.network._io import Poller
from kafkabuf.network.resolve import Address

# Larger than whatever a seed has under way: the simulation's end of a socket is never full.
_ROOM = 1 << 22
_CHUNK = 1 << 16


class Time(Protocol):
    """What a connection needs of the world."""

    def now(self) -> float: ...
    def at(self, when: float, call: Callable[[], object]) -> None: ...
    def latency(self) -> float: ...


class VirtualPoller(Poller):
    """A poll never waits: it notes until when it would have. `stirred`: there may be news for it."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.stirred = True
        self.sleeps_until = 0.0
        self.polled = True  # it may have written since the connections were last looked at

    def wakeup(self) -> None:
        self.stirred = True
        super().wakeup()

    def poll(self, timeout: float | None = None) -> list[Any]:
        self.stirred, self.polled = False, True
        self.sleeps_until = float("inf") if timeout is None else self._time.now() + timeout
        news = super().poll(0.0)
        # What the Sender does about them it writes in its next turn, which follows at once.
        self.stirred = self.stirred or bool(news)
        return news


class Direction:
    """What is on its way one way, in order; None is the end of the stream."""

    def __init__(self, time: Time, take: Callable[[bytes | None], None]) -> None:
        self._time = time
        self._take = take
        self._queue: deque[bytes | None] = deque()
        self._due = 0  # how many of the queue have travelled long enough
        self._last = 0.0
        self.blocked = False

    def put(self, data: bytes | None) -> None:
        self._queue.append(data)
        self._last = max(self._last, self._time.now() + self._time.latency())
        self._time.at(self._last, self._arrive)

    def _arrive(self) -> None:
        self._due += 1
        self._deliver()

    def _deliver(self) -> None:
        while self._due and self._queue and not self.blocked:
            self._due -= 1
            self._take(self._queue.popleft())

    def block(self, blocked: bool) -> None:
        self.blocked = blocked
        self._deliver()


class Link(asyncio.Transport):
    """One TCP connection, and for the node's Connection its transport."""

    def __init__(self, time: Time, node: Node, poller: VirtualPoller, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.node = node
        self._loop = loop
        self._poller = poller
        self.near, self._far = socket.socketpair()
        self._far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        self._far.setblocking(False)
        self.to_node = Direction(time, self._at_node)
        self.to_client = Direction(time, self._at_client)
        self.twice = 0  # frames of the node's that come twice,
        self.never = 0  # or never
        self._unread = bytearray()
        self._reading = True
        self._feeding = False
        self._lost = False  # by the node
        self.over = False  # for the client
        self._protocol = Connection(node)
        self._protocol.connection_made(self)

    # ---- the client's side -------------------------------------------------------------------------------------------

    def pump(self) -> bool:
        """Take what the client has written; whether there was anything."""
        stirred = False
        while self._poller.polled and not self.over:
            try:
                data = self._far.recv(_CHUNK)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            stirred = True
            self.over = not data
            self.to_node.put(data or None)
        if self.over:
            self._far.close()
        return stirred

    def _at_client(self, data: bytes | None) -> None:
        if self.over:
            return
        self._poller.stirred = True
        if data is None:
            self.over = True
            self._far.close()
            return
        try:
            sent = self._far.send(data)
        except ConnectionError:
            return  # the client has closed its end, which the next pump notices
        assert sent == len(data)

    # ---- the node's side ---------------------------------------------------------------------------------------------

    def _at_node(self, data: bytes | None) -> None:
        if self._lost:
            return
        if data is None:
            self._lose()
            return
        self._unread += data
        self._feed()

    def _feed(self) -> None:
        if self._feeding:
            return
        self._feeding = True
        while self._unread and self._reading and not self._lost:
            view = self._protocol.get_buffer(-1)
            count = min(len(view), len(self._unread))
            view[:count] = self._unread[:count]
            del self._unread[:count]
            view.release()
            self._protocol.buffer_updated(count)
        self._feeding = False

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.100", 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        times = 1
        if self.twice:
            self.twice, times = self.twice - 1, 2
        elif self.never:
            self.never, times = self.never - 1, 0
        for _ in range(times):
            self.to_client.put(bytes(data))

    def close(self) -> None:
        self.to_client.put(None)
        self._lose()

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._feed()

    def dispose(self) -> None:
        """The world ends."""
        self._far.close()


def resolve(host: str, port: int) -> list[Address]:
    return [Address(int(socket.AF_INET), (host, port))]


def black_hole() -> tuple[socket.socket, socket.socket]:
    """A socket on which a connection never comes about, because it can never be written to; and what keeps it so."""
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    near.setblocking(False)
    try:
        while True:
            near.send(bytes(_CHUNK))
    except BlockingIOError:
        return near, far
