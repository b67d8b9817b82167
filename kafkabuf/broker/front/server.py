"""Framing: one connection of a client to a node. Thread: the event loop.

As in Kafka, the node answers the requests of one connection one after the other, in the order in which they came. The
connection is blocked while a request waits (a long poll, a group's rebalance), while the connection is muted
(throttling, KIP-219), and while the client does not read its responses. A blocked connection serves no request and
reads no more than the start of the next request. Other connections go on.

A client may send thousands of requests without waiting for a response. Its connection serves them for a slice of time,
and then lines up behind the other long works (waiting/slices.py).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kafkabuf.broker.apis.dispatch import Frame, PendingResponse, Response, api_key, dispatch
from kafkabuf.broker.front.authenticator import Authenticator
from kafkabuf.broker.front.identity import peer_of, rights_of_client
from kafkabuf.broker.guards.limits import MAX_UNAUTHENTICATED, MAX_WITHOUT_RECORDS
from kafkabuf.broker.guards.rights import UNLIMITED, Rights
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.broker.waiting.slices import Work, next_slice
from kafkabuf.broker.waiting.timer import Timeout
from kafkabuf.errors import InvalidRequestError, KafkaError
from kafkabuf.protocol.messages import PRODUCE, PUSH_TELEMETRY
from kafkabuf.protocol.schema import Buffer

# The buffer of an idle connection. The first bytes of a larger request make the buffer _INITIAL bytes large.
_IDLE = 512
_INITIAL = 16 * 1024
# The buffer grows with the bytes that have come, not with the length that a request announces: by this much, or to
# twice the bytes in it.
_STEP = 64 * 1024
# A connection keeps a buffer of up to this size, so that a producer of 1 MiB requests does not need a new buffer for
# each request.
_KEEP = 2 * 1024 * 1024
# The node serves no further request of a connection whose client has left more bytes than this unread.
_HIGH_WATER = 1024 * 1024
# A response up to this size goes out as one piece. A larger response goes out in pieces of about this size, as fast as
# the client reads them: the node does not copy the log's records.
_PIECE = 256 * 1024
_LENGTH = struct.Struct(">i")
_KEY = struct.Struct(">h")
_CUT = "cut_after lets no more bytes pass"


class _Delivery(NamedTuple):
    """How a response goes out. `drop`: the client does not get the response. `close`: the reason why the connection is
    closed then, None if it stays open. `throttle_ms`: how long the connection is muted then."""

    drop: bool
    close: str | None
    throttle_ms: int


class Connection(asyncio.BufferedProtocol):
    """The bytes received are `_buffer[_start:_end]`. A handler gets its frame as a view of the buffer, valid until the
    handler returns. The buffer is replaced, never resized, because such a view may be alive."""

    def __init__(self, node: Node, address: str = "") -> None:
        self._node = node
        self.address = address
        self._clock = node.cluster.network_clock
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        self._client = Peer()
        mechanisms = node.cluster.mechanisms
        self._authenticator = None if mechanisms is None else Authenticator(node, mechanisms)
        # None until the client is known: with SASL, until it has authenticated.
        self._rights: Rights | None = UNLIMITED if node.cluster.authorizer is None else None
        self._buffer = bytearray(_IDLE)
        self._start = self._end = 0
        self._waiting: asyncio.Task[None] | None = None
        self._muted: Timeout | None = None
        # Whether the next requests of this connection wait for their turn in the queue of long work.
        self._queued = False
        self._writable = True
        self._reading = True
        self._closing = False
        # The rest of a response that the client has no room for yet. The connection serves no request meanwhile.
        self._pieces: Iterator[Buffer] | None = None
        # When bytes last came, or when a client that lagged behind last took bytes.
        self._opened = self._active = self._clock.monotonic()
        # When the first byte of an incomplete request came; None while there is no incomplete request.
        self._partial: float | None = None
        # A response that waits because the node is paused or cut off from its clients. The connection serves no request
        # meanwhile.
        self._unsent: tuple[Frame | None, _Delivery] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._transport = transport
        self._peer = str(transport.get_extra_info("peername"))
        self._client = peer_of(transport)
        self._node.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._pieces = None
        self._node.connections.pop(self, None)
        self._node.client_metrics.disconnected(self._client)
        if self._waiting is not None:
            self._waiting.cancel()
        if self._muted is not None:
            self._muted.cancel()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def active(self) -> float:
        return self._active

    @property
    def parked(self) -> bool:
        """Whether a request of this connection waits for an event."""
        return self._waiting is not None

    @property
    def _blocked(self) -> bool:
        waiting = self._waiting is not None or self._muted is not None
        return waiting or not self._writable or self._pieces is not None or not self._node.answers

    def go_on(self) -> None:
        """The node calls this when it answers its clients again."""
        if self._unsent is not None:
            unsent, self._unsent = self._unsent, None
            self._send(*unsent)
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
        limit = self._node.cluster.config.limits.socket_request_max_bytes
        if self._authenticator is not None and self._authenticator.in_dialogue:
            limit = min(limit, MAX_UNAUTHENTICATED)
        has_key = held >= _LENGTH.size + _KEY.size
        if has_key and (key := _KEY.unpack_from(self._buffer, self._start + _LENGTH.size)[0]) != PRODUCE:
            # A push that is a little too large gets an error of its own.
            metrics = 2 * self._node.cluster.config.telemetry_max_bytes if key == PUSH_TELEMETRY else 0
            limit = min(limit, MAX_WITHOUT_RECORDS + metrics)
        if not 0 <= size <= limit:
            raise InvalidRequestError(f"a request of {size} bytes: 0 to {limit} are allowed")

    # ---- requests, responses

    def _serve(self) -> None:
        """Serves the requests that have come whole, until the connection is blocked or a slice of time is over."""
        if not self._queued:
            slices = self._node.cluster.slices
            over = slices.begin()
            while self._serve_next():
                if self._start < self._end and over():
                    self._queued = True
                    slices.run(self._serve_queued())
                    break
        self._tidy()

    def _serve_queued(self) -> Work[None]:
        """Serves the other requests in later slices. Requests may come meanwhile."""
        yield from next_slice()
        while self._serve_next():
            yield
        self._queued = False
        self._tidy()

    def _serve_next(self) -> bool:
        """Serves the next request. Returns False if it has not come whole or the connection is blocked."""
        if self._closing or self._blocked:
            return False
        try:
            frame = self._next_frame()
            if frame is None:
                return False
            self._answer(frame)
        except KafkaError as error:
            self._close(str(error))
        except Exception:
            self._fail()
        return True

    def _tidy(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _KEEP:
                self._buffer = bytearray(_INITIAL)
        self._note_partial()
        self._read_or_pause()

    def _note_partial(self) -> None:
        """A blocked connection does not read the rest of a request: the client's time does not count then."""
        if self._start == self._end or self._queued or self._blocked:
            self._partial = None
        elif self._partial is None:
            self._partial = self._active

    def _answer(self, frame: memoryview) -> None:
        cluster, key = self._node.cluster, api_key(frame)
        self._node.traffic.requests += 1
        throttle_ms = max(cluster.faults.take_throttle(key), cluster.quotas.charge(key, frame))
        reply = None if self._authenticator is None else self._authenticator.take(key, frame)
        if reply is not None:
            response: Response = reply.frame
        else:
            rights = self._rights or self._find_rights()
            response = dispatch(self._node, frame, throttle_ms, rights, self._client)[1]
        dropped = "drop_next drops the response" if cluster.faults.take_drop(key) else None
        delivery = _Delivery(dropped is not None, dropped or (reply and reply.refusal), throttle_ms)
        delay = cluster.faults.take_delay(key, self._node.node_id)
        if isinstance(response, PendingResponse) or delay:
            self._waiting = asyncio.get_running_loop().create_task(self._answer_later(response, delay, delivery))
            if isinstance(response, PendingResponse):
                # A task that is cancelled before its first step never awaits the response, and so never cancels it.
                self._waiting.add_done_callback(response.give_up)
        else:
            self._send(response, delivery)

    def _find_rights(self) -> Rights:
        """The client's rights. They stay the same: a client that authenticates again keeps its principal."""
        rights = rights_of_client(self._node.cluster, self._transport, self._authenticator)
        if self._authenticator is None or self._authenticator.authenticated:
            self._rights = rights
        return rights

    async def _answer_later(self, response: Response, delay: float, delivery: _Delivery) -> None:
        try:
            frame = await response if isinstance(response, PendingResponse) else response
            if delay:
                await self._node.cluster.timer.sleep(delay)
            self._send(frame, delivery)
        except KafkaError as error:
            self._close(str(error))
        except Exception:
            self._fail()
        self._waiting = None
        self._serve()

    def _send(self, frame: Frame | None, delivery: _Delivery) -> None:
        if not self._node.answers:
            self._unsent = frame, delivery
            return
        # The mute begins before the response goes out: a client may move the clock as soon as it has the response.
        if delivery.throttle_ms and delivery.close is None and not self._closing:
            self._muted = self._node.cluster.timer.after(delivery.throttle_ms / 1000, self._unmute)
        if frame is not None and not delivery.drop and self._transport is not None and not self._closing:
            self._write(self._transport, frame)
        if delivery.close is not None:
            self._close(delivery.close)

    def _write(self, transport: asyncio.Transport, frame: Frame) -> None:
        if transport.is_closing():
            return  # the client is gone, and asyncio would log each response to its further requests
        size = sum(map(len, frame))
        allowed = self._node.cluster.faults.take_sent(self._node.node_id, _LENGTH.size + size)
        self._node.traffic.bytes_out += allowed
        if size <= _PIECE:
            data = b"".join((_LENGTH.pack(size), *frame))
            transport.write(data if allowed == len(data) else data[:allowed])
        else:
            self._pieces = _cut((_LENGTH.pack(size), *frame), allowed)
            self._write_pieces(transport)
        if allowed < _LENGTH.size + size:
            self._close(_CUT)

    def _write_pieces(self, transport: asyncio.Transport) -> None:
        while self._pieces is not None and self._writable:
            if (piece := next(self._pieces, None)) is None:
                self._pieces = None
                if self._closing:
                    transport.close()
            else:
                transport.write(piece)

    def _unmute(self) -> None:
        self._muted = None
        self._serve()

    def _close(self, reason: str) -> None:
        self._warn("closing the connection from %s: %s", reason)
        self._closing = True
        self._active = self._clock.monotonic()
        if self._transport is not None and self._pieces is None:
            self._transport.close()

    def _fail(self) -> None:
        self._warn("a request from %s failed, closing", exc_info=True)
        self.abort()

    def _warn(self, text: str, *reason: str, exc_info: bool = False) -> None:
        node = self._node
        node.cluster.warnings.warn(f"node %d: {text}", node.node_id, self._peer, *reason, exc_info=exc_info)

    # ---- back-pressure

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._active = self._clock.monotonic()
        if self._transport is not None:
            self._write_pieces(self._transport)
        self._serve()

    def _read_or_pause(self) -> None:
        """Stops reading only when a blocked connection has received 16 KiB of further requests: a long poll without a
        request behind it costs no system call."""
        reading = not (self._queued or self._blocked) or self._end - self._start < _INITIAL
        if self._transport is not None and not self._closing and reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # ---- time limits

    def check_overdue(self) -> None:
        """Closes the connection if its client has used up one of its time limits."""
        if (reason := self._overdue()) is not None:
            if not self._closing:
                self._warn("closing the connection from %s: %s", reason)
            self.abort()

    def _overdue(self) -> str | None:
        limits, now = self._node.cluster.config.limits, self._clock.monotonic()

        def over(since: float, allowed_ms: int) -> bool:
            return now - since > allowed_ms / 1000

        if self._closing:
            return (
                "the client does not read its last response"
                if over(self._active, limits.request_receive_timeout_ms)
                else None
            )
        if self._waiting is not None or self._muted is not None or not self._node.answers:
            return None
        if self._partial is not None and over(self._partial, limits.request_receive_timeout_ms):
            return f"a request was incomplete for more than {limits.request_receive_timeout_ms} ms"
        unauthenticated = self._authenticator is not None and not self._authenticator.authenticated
        if unauthenticated and over(self._opened, limits.authentication_timeout_ms):
            return f"not authenticated after {limits.authentication_timeout_ms} ms"
        if over(self._active, limits.connections_max_idle_ms):
            return f"idle for longer than {limits.connections_max_idle_ms} ms"
        return None


def _cut(buffers: Frame, size: int) -> Iterator[Buffer]:
    """The first `size` bytes in pieces of at most _PIECE bytes. Joins small buffers, and copies no large buffer."""
    small = bytearray()
    for buffer in buffers:
        view = memoryview(buffer)[:size]
        size -= len(view)
        if len(small) + len(view) <= _PIECE:
            small += view
            continue
        if small:
            yield small
            small = bytearray()
        for at in range(0, len(view), _PIECE):
            yield view[at : at + _PIECE]
    if small:
        yield small
