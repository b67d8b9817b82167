"""Framing: one connection of a client to a node. Thread: the event loop.

Requests of one connection are answered one after the other, in the order they came, as Kafka does. While one waits (a
long poll, a group's rebalance) or the client does not read its answers, no more is read than the next request; other
connections go on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kafkabuf.broker.dispatch import Frame, dispatch
from kafkabuf.errors import InvalidRequestError, KafkaError

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

log = logging.getLogger("kafkabuf.broker")

# Kafka's socket.request.max.bytes.
MAX_FRAME = 100 * 1024 * 1024
_INITIAL = 16 * 1024
# Memory follows the bytes that have come, not those announced: the buffer grows by this much or to twice what is in it.
_STEP = 1024 * 1024
# A buffer this large stays with its connection, so that a producer of 1 MiB requests does not pay for a new one each
# time.
_KEEP = 2 * 1024 * 1024
# Unread answers beyond this stop further requests of the connection from being served.
_HIGH_WATER = 1024 * 1024
_BACKLOG = 1024
_ACCEPT_RETRY_SECONDS = 1.0
_LENGTH = struct.Struct(">i")


class Listener:
    """A listening socket and the connections being made from it. `close` returns when each of those has its protocol.

    asyncio's own Server forgets, unclosed, what it has accepted but not yet served when it is closed.
    """

    def __init__(self, host: str, port: int, protocol: Callable[[], asyncio.BufferedProtocol]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._accepting: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._listen()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def _listen(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Most likely there are no file descriptors left: the socket stays readable, so look away for a while.
            log.warning("cannot accept a connection on port %d: %s", self.port, error)
            self._loop.remove_reader(self._socket)
            self._resume = self._loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._connect(accepted))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        await self._loop.connect_accepted_socket(self._protocol, accepted)

    async def close(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        await asyncio.gather(*self._accepting, return_exceptions=True)


class Connection(asyncio.BufferedProtocol):
    """Bytes received are `_buffer[_start:_end]`. Frames are handed out as views of it, valid until their handler
    returns; the buffer is replaced, never resized, because such a view may be alive."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        self._buffer = bytearray(_INITIAL)
        self._start = self._end = 0
        self._waiting: asyncio.Task[None] | None = None
        self._writable = True
        self._reading = True
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._transport = transport
        self._peer = str(transport.get_extra_info("peername"))
        self._node.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._node.connections.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    # ---- bytes in

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room()
        return memoryview(self._buffer)[self._end :]

    def _make_room(self) -> None:
        held = self._end - self._start
        wanted = _LENGTH.unpack_from(self._buffer, self._start)[0] + _LENGTH.size if held >= _LENGTH.size else 0
        size = max(held + _INITIAL, min(wanted, max(2 * held, held + _STEP)))
        larger = bytearray(size)
        larger[:held] = memoryview(self._buffer)[self._start : self._end]
        self._buffer, self._start, self._end = larger, 0, held

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._serve()

    def _next_frame(self) -> memoryview | None:
        held = self._end - self._start
        if held < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        if not 0 <= size <= MAX_FRAME:
            raise InvalidRequestError(f"a request of {size} bytes: 0 to {MAX_FRAME} are allowed")
        if held < _LENGTH.size + size:
            return None
        first = self._start + _LENGTH.size
        self._start = first + size
        return memoryview(self._buffer)[first : first + size]

    # ---- requests, answers

    def _serve(self) -> None:
        """Answers what has come, until a request has to wait or the client does not read."""
        try:
            while not self._closing and self._waiting is None and self._writable:
                frame = self._next_frame()
                if frame is None:
                    break
                self._answer(frame)
        except KafkaError as error:
            self._close(str(error))
        except Exception:
            log.exception("node %d: a request from %s failed, closing", self._node.node_id, self._peer)
            self.abort()
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _KEEP:
                self._buffer = bytearray(_INITIAL)
        self._read_or_pause()

    def _answer(self, frame: memoryview) -> None:
        key, answer = dispatch(self._node, frame)
        faults = self._node.cluster.faults
        delay, drop = faults.take_delay(key), faults.take_drop(key)
        if inspect.isawaitable(answer) or delay:
            self._waiting = asyncio.get_running_loop().create_task(self._answer_later(answer, delay, drop))
        else:
            self._send(answer, drop)

    async def _answer_later(self, answer: Frame | Awaitable[Frame | None] | None, delay: float, drop: bool) -> None:
        try:
            frame = await answer if inspect.isawaitable(answer) else answer
            if delay:
                await self._node.cluster.timer.sleep(delay)
            self._send(frame, drop)
        except KafkaError as error:
            self._close(str(error))
        except Exception:
            log.exception("node %d: a request from %s failed, closing", self._node.node_id, self._peer)
            self.abort()
        self._waiting = None
        self._serve()

    def _send(self, frame: Frame | None, drop: bool) -> None:
        if drop:
            self._close("the answer is dropped, as asked for")
        elif frame is not None and self._transport is not None and not self._closing:
            size = sum(map(len, frame))
            self._transport.write(b"".join((_LENGTH.pack(size), *frame)))

    def _close(self, reason: str) -> None:
        log.warning("node %d: closing the connection from %s: %s", self._node.node_id, self._peer, reason)
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # ---- back-pressure

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._serve()

    def _read_or_pause(self) -> None:
        """Reading stops only when bytes are waiting for an earlier request: a lone long poll costs no system call."""
        held_up = self._waiting is not None or not self._writable
        reading = not held_up or self._end - self._start < _INITIAL
        if self._transport is not None and not self._closing and reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
