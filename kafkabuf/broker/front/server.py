"""Framing: one connection of a client to a node. Thread: the event loop.

Requests of one connection are answered one after the other, in the order they came, as Kafka does. While one waits (a
long poll, a group's rebalance), the connection is muted (throttling, KIP-219) or the client does not read its answers,
no more is read than the next request; other connections go on.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import NamedTuple

from kafkabuf.broker.apis.dispatch import Answer, Frame, Later, api_key, dispatch
from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.front.authenticator import Authenticator
from kafkabuf.broker.guards.limits import MAX_UNAUTHENTICATED, MAX_WITHOUT_RECORDS
from kafkabuf.broker.waiting.timer import Timeout
from kafkabuf.errors import InvalidRequestError, KafkaError
from kafkabuf.protocol.messages import PRODUCE

log = logging.getLogger("kafkabuf.broker")

# An idle connection costs no more than this; the first bytes of a larger request make it _INITIAL.
_IDLE = 512
_INITIAL = 16 * 1024
# Memory follows the bytes that have come, not those announced: the buffer grows by this much or to twice what is in it.
_STEP = 64 * 1024
# A buffer this large stays with its connection, so that a producer of 1 MiB requests does not pay for a new one each
# time.
_KEEP = 2 * 1024 * 1024
# Unread answers beyond this stop further requests of the connection from being served.
_HIGH_WATER = 1024 * 1024
_LENGTH = struct.Struct(">i")
_KEY = struct.Struct(">h")
_CUT = "cut after as many bytes as asked for"


class _Sequel(NamedTuple):
    """What follows on a request's answer: none goes out (`drop`), the connection is closed, and why, or it is muted."""

    drop: bool
    close: str | None
    throttle_ms: int


class Connection(asyncio.BufferedProtocol):
    """Bytes received are `_buffer[_start:_end]`. Frames are handed out as views of it, valid until their handler
    returns; the buffer is replaced, never resized, because such a view may be alive."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clock = node.cluster.network_clock
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        mechanisms = node.cluster.mechanisms
        self._authenticator = None if mechanisms is None else Authenticator(node, mechanisms)
        self._buffer = bytearray(_IDLE)
        self._start = self._end = 0
        self._waiting: asyncio.Task[None] | None = None
        self._muted: Timeout | None = None
        self._writable = True
        self._reading = True
        self._closing = False
        # When bytes last came, or were last taken by a client that lagged behind; when the first byte of the request
        # under way came, None while there is none.
        self._opened = self._active = self._clock.monotonic()
        self._partial: float | None = None
        # An answer that the node, paused or cut off from its clients, could not give yet; nothing is served meanwhile.
        self._held: tuple[Frame | None, _Sequel] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._transport = transport
        self._peer = str(transport.get_extra_info("peername"))
        self._node.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._node.connections.pop(self, None)
        if self._waiting is not None:
            self._waiting.cancel()
        if self._muted is not None:
            self._muted.cancel()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def parked(self) -> bool:
        """Whether a request waits here for something to happen."""
        return self._waiting is not None

    @property
    def _held_up(self) -> bool:
        waiting = self._waiting is not None or self._muted is not None
        return waiting or not self._writable or not self._node.answers

    def go_on(self) -> None:
        """The node answers again."""
        if self._held is not None:
            held, self._held = self._held, None
            self._send(*held)
        self._serve()

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
        self._active = self._clock.monotonic()
        allowed = self._node.cluster.faults.take_received(self._node.node_id, nbytes)
        self._end += allowed
        self._node.traffic.bytes_in += allowed
        self._serve()
        if allowed < nbytes:
            self._close(_CUT)

    def _next_frame(self) -> memoryview | None:
        held = self._end - self._start
        if held < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        self._check_size(size, held)
        if held < _LENGTH.size + size:
            return None
        first = self._start + _LENGTH.size
        self._start = first + size
        self._partial = None
        return memoryview(self._buffer)[first : first + size]

    def _check_size(self, size: int, held: int) -> None:
        most = self._node.cluster.config.limits.socket_request_max_bytes
        if self._authenticator is not None and not self._authenticator.authenticated:
            most = min(most, MAX_UNAUTHENTICATED)
        has_key = held >= _LENGTH.size + _KEY.size
        if has_key and _KEY.unpack_from(self._buffer, self._start + _LENGTH.size)[0] != PRODUCE:
            most = min(most, MAX_WITHOUT_RECORDS)
        if not 0 <= size <= most:
            raise InvalidRequestError(f"a request of {size} bytes: 0 to {most} are allowed")

    # ---- requests, answers

    def _serve(self) -> None:
        """Answers what has come, until a request has to wait or the client does not read."""
        try:
            while not self._closing and not self._held_up:
                frame = self._next_frame()
                if frame is None:
                    break
                self._answer(frame)
        except KafkaError as error:
            self._close(str(error))
        except Exception:
            self._fail()
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _KEEP:
                self._buffer = bytearray(_INITIAL)
        self._note_partial()
        self._read_or_pause()

    def _note_partial(self) -> None:
        """While we are held up the rest of a request is not read, and its client not to blame."""
        if self._start == self._end or self._held_up:
            self._partial = None
        elif self._partial is None:
            self._partial = self._active

    def _answer(self, frame: memoryview) -> None:
        cluster, key = self._node.cluster, api_key(frame)
        self._node.traffic.requests += 1
        throttle_ms = max(cluster.faults.take_throttle(key), cluster.quotas.charge(key, frame))
        reply = None if self._authenticator is None else self._authenticator.take(key, frame)
        answer = reply.frame if reply is not None else dispatch(self._node, frame, throttle_ms)[1]
        end = "the answer is dropped, as asked for" if cluster.faults.take_drop(key) else None
        sequel = _Sequel(end is not None, end or (reply and reply.refusal), throttle_ms)
        delay = cluster.faults.take_delay(key, self._node.node_id)
        if isinstance(answer, Later) or delay:
            self._waiting = asyncio.get_running_loop().create_task(self._answer_later(answer, delay, sequel))
            if isinstance(answer, Later):
                # A task that is cancelled before its first step never comes to what it was to await.
                self._waiting.add_done_callback(answer.leave)
        else:
            self._send(answer, sequel)

    async def _answer_later(self, answer: Answer, delay: float, sequel: _Sequel) -> None:
        try:
            frame = await answer if isinstance(answer, Later) else answer
            if delay:
                await self._node.cluster.timer.sleep(delay)
            self._send(frame, sequel)
        except KafkaError as error:
            self._close(str(error))
        except Exception:
            self._fail()
        self._waiting = None
        self._serve()

    def _send(self, frame: Frame | None, sequel: _Sequel) -> None:
        if not self._node.answers:
            self._held = frame, sequel
            return
        # Before the answer goes: the client that gets it may move the clock at once.
        if sequel.throttle_ms and sequel.close is None and not self._closing:
            self._muted = self._node.cluster.timer.after(sequel.throttle_ms / 1000, self._unmute)
        if frame is not None and not sequel.drop and self._transport is not None and not self._closing:
            self._write(self._transport, b"".join((_LENGTH.pack(sum(map(len, frame))), *frame)))
        if sequel.close is not None:
            self._close(sequel.close)

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        allowed = self._node.cluster.faults.take_sent(self._node.node_id, len(data))
        self._node.traffic.bytes_out += allowed
        transport.write(data if allowed == len(data) else data[:allowed])
        if allowed < len(data):
            self._close(_CUT)

    def _unmute(self) -> None:
        self._muted = None
        self._serve()

    def _close(self, reason: str) -> None:
        log.warning("node %d: closing the connection from %s: %s", self._node.node_id, self._peer, reason)
        self._closing = True
        self._active = self._clock.monotonic()
        if self._transport is not None:
            self._transport.close()

    def _fail(self) -> None:
        log.exception("node %d: a request from %s failed, closing", self._node.node_id, self._peer)
        self.abort()

    # ---- back-pressure

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._active = self._clock.monotonic()
        self._serve()

    def _read_or_pause(self) -> None:
        """Reading stops only when bytes are waiting for an earlier request: a lone long poll costs no system call."""
        reading = not self._held_up or self._end - self._start < _INITIAL
        if self._transport is not None and not self._closing and reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # ---- those that overstay

    def check_overdue(self) -> None:
        """Closes the connection if its client has had all the time that it may take."""
        if (reason := self._overdue()) is not None:
            if not self._closing:
                log.warning("node %d: closing the connection from %s: %s", self._node.node_id, self._peer, reason)
            self.abort()

    def _overdue(self) -> str | None:
        limits, now = self._node.cluster.config.limits, self._clock.monotonic()

        def over(since: float, allowed_ms: int) -> bool:
            return now - since > allowed_ms / 1000

        if self._closing:
            return "it does not take its last answer" if over(self._active, limits.request_receive_timeout_ms) else None
        if self._waiting is not None or self._muted is not None or not self._node.answers:
            return None
        if self._partial is not None and over(self._partial, limits.request_receive_timeout_ms):
            return f"a request took longer than {limits.request_receive_timeout_ms} ms to come"
        stranger = self._authenticator is not None and not self._authenticator.authenticated
        if stranger and over(self._opened, limits.authentication_timeout_ms):
            return f"not authenticated after {limits.authentication_timeout_ms} ms"
        if over(self._active, limits.connections_max_idle_ms):
            return f"idle for longer than {limits.connections_max_idle_ms} ms"
        return None
