"""Connections between a producer and the cluster's nodes; the seed makes them slow or faulty.

The producer's end is a real socket, which the real Poller reads and writes. The simulation holds the other end: bytes
that it reads reach the node after a delay, and the node's responses return in the same way. A blocked direction keeps
its bytes until it is free again, as TCP does. A response may arrive twice, or never.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kafkabuf.broker.front.server import Connection
from kafkabuf.broker.nodes.node import Node
from kafkabuf.network._io import Poller
from kafkabuf.network.resolve import Address

# More than a seed ever has under way, so that the simulation's end of a socket is never full.
_ROOM = 1 << 22
_CHUNK = 1 << 16


class Time(Protocol):
    """The methods of World that a connection needs."""

    def now(self) -> float: ...
    def at(self, when: float, call: Callable[[], object]) -> None: ...
    def latency(self) -> float: ...


class VirtualPoller(Poller):
    """A Poller that never waits, but notes the time until which it would have waited in `sleeps_until`."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.stirred = True  # an event may be ready for the next poll
        self.sleeps_until = 0.0
        self.polled = True  # a poll may have written since the world last read the connections

    def wakeup(self) -> None:
        self.stirred = True
        super().wakeup()

    def poll(self, timeout: float | None = None) -> list[Any]:
        self.stirred, self.polled = False, True
        self.sleeps_until = float("inf") if timeout is None else self._time.now() + timeout
        events = super().poll(0.0)
        # The Sender's requests that follow from the events are written in its next turn, which must follow at once.
        self.stirred = self.stirred or bool(events)
        return events


class Direction:
    """The bytes under way in one direction, in order; None is the end of the stream."""

    def __init__(self, time: Time, deliver: Callable[[bytes | None], None]) -> None:
        self._time = time
        self._deliver = deliver
        self._queue: deque[bytes | None] = deque()
        self._due = 0  # so many of the queue have travelled long enough
        self._last_arrival = 0.0
        self.blocked = False

    def put(self, data: bytes | None) -> None:
        self._queue.append(data)
        self._last_arrival = max(self._last_arrival, self._time.now() + self._time.latency())
        self._time.at(self._last_arrival, self._arrive)

    def _arrive(self) -> None:
        self._due += 1
        self._deliver_due()

    def _deliver_due(self) -> None:
        while self._due and self._queue and not self.blocked:
            self._due -= 1
            self._deliver(self._queue.popleft())

    def block(self, blocked: bool) -> None:
        self.blocked = blocked
        self._deliver_due()


class Link(asyncio.Transport):
    """One TCP connection. It is the transport of the node's Connection."""

    def __init__(self, time: Time, node: Node, poller: VirtualPoller, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.node = node
        self._loop = loop
        self.poller = poller
        self.near, self._far = socket.socketpair()
        self._far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        self._far.setblocking(False)
        self.to_node = Direction(time, self._at_node)
        self.to_client = Direction(time, self._at_client)
        self.doubled = 0  # so many of the next responses arrive twice
        self.dropped = 0  # so many of the next responses never arrive
        self._unread = bytearray()
        self._reading = True
        self._feeding = False
        self._lost = False  # the node has lost the connection
        self.over = False  # the client has lost the connection
        self._protocol = Connection(node)
        self._protocol.connection_made(self)

    # ---- the client's side -------------------------------------------------------------------------------------------

    def pump(self) -> bool:
        """Read what the client has written, and say whether there was anything."""
        stirred = False
        while self.poller.polled and not self.over:
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
        self.poller.stirred = True
        if data is None:
            self.over = True
            self._far.close()
            return
        try:
            sent = self._far.send(data)
        except ConnectionError:
            return  # the client has closed its end: the next pump will notice
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

    def is_closing(self) -> bool:
        return self._lost

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        times = 1
        if self.doubled:
            self.doubled, times = self.doubled - 1, 2
        elif self.dropped:
            self.dropped, times = self.dropped - 1, 0
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
        """Close the socket at the end of the world."""
        self._far.close()


def resolve(host: str, port: int) -> list[Address]:
    return [Address(int(socket.AF_INET), (host, port))]


def black_hole() -> tuple[socket.socket, socket.socket]:
    """A socket that can never be written to, so that its connection is never established, and its other end."""
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    near.setblocking(False)
    try:
        while True:
            near.send(bytes(_CHUNK))
    except BlockingIOError:
        return near, far
