"""Finds the handler for a request, and makes a frame of the handler's response.

Each file under apis/ registers one API: key, versions, handler. A handler gets the node that received the request, the
request's header and its decoded body. It returns the response, or a future of it. It runs in the event loop. The
request's bytes are valid until the handler returns: a handler copies the bytes that it keeps.

A large request is decoded, handled and answered in different turns of the loop, and a large response is encoded in
slices (waiting/slices.py): other connections are served in between.
"""

from __future__ import annotations

import struct
from asyncio import Future, isfuture
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kafkabuf.broker.guards.request_log import LoggedRequest
from kafkabuf.broker.guards.rights import UNLIMITED, LimitedHeader, Need, Rights
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.telemetry.peer import Peer
from kafkabuf.broker.waiting.slices import Slices, Work, next_slice
from kafkabuf.errors import InvalidRequestError, KafkaError, UnsupportedVersionError
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import RequestHeader, encode_response_in_steps
from kafkabuf.protocol.schema import Buffer
from kafkabuf.protocol.writing import has_many_items

Frame = Sequence[Buffer]
# With the peer as the last argument, if the API is `of_peer`.
Handler = Callable[..., Any]

_KEY = struct.Struct(">h")
_PREFIX = struct.Struct(">hhi")
_UNSUPPORTED_VERSION = 35
# A request of this size may name thousands of topics and partitions.
_LARGE_REQUEST = 16 * 1024


@dataclass(frozen=True, slots=True)
class Api:
    """`decode` and `encode` default to kio's schemas: a handler then returns a mapping of plain values, or None to send
    nothing. `encode` puts the throttle time, in milliseconds, into the response. `decode_in_steps` decodes a large
    request, whose bytes stay valid; None: `decode` does.

    `own_errors`: the handler takes injected errors from the fault queue. Otherwise `dispatch` answers with the injected
    error in place of the handler.
    `fails_after`: the API can carry out a request and then answer with an injected error.
    `needs`: the rights that a client needs for a whole request. Without one of them `dispatch` answers with the error
    in place of the handler. The handler checks all other rights.
    `of_peer`: the handler also gets the `Peer` that sent the request.
    """

    key: int
    min_version: int
    max_version: int
    handler: Handler
    decode: Callable[[Buffer, RequestHeader], Any]
    decode_in_steps: Callable[[Buffer, RequestHeader], Work[Any]] | None
    encode: Callable[[RequestHeader, Any, int], Frame]
    own_errors: bool
    fails_after: bool
    needs: tuple[Need, ...]
    of_peer: bool


APIS: dict[int, Api] = {}


def _encode(header: RequestHeader, response: Mapping[str, Any], throttle_ms: int) -> Frame:
    entity = messages.build_response(header.api_key, header.version, **{"throttle_time": throttle_ms, **response})
    return (messages.encode_response(header.api_key, header.version, header.correlation_id, entity),)


def api(
    key: int,
    min_version: int,
    max_version: int,
    *,
    decode: Callable[[Buffer, RequestHeader], Any] = messages.decode_request_body,
    decode_in_steps: Callable[[Buffer, RequestHeader], Work[Any]] | None = messages.decode_request_body_in_steps,
    encode: Callable[[RequestHeader, Any, int], Frame] = _encode,
    own_errors: bool = False,
    fails_after: bool = False,
    needs: tuple[Need, ...] = (),
    of_peer: bool = False,
) -> Callable[[Handler], Handler]:
    """Registers the decorated function as the handler of an API."""

    def register(handler: Handler) -> Handler:
        APIS[key] = Api(
            key,
            min_version,
            max_version,
            handler,
            decode,
            decode_in_steps,
            encode,
            own_errors,
            fails_after or not own_errors,
            needs,
            of_peer,
        )
        return handler

    return register


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request. The request log has it too, unless the log is off."""

    api: Api
    header: RequestHeader
    body: Any
    logged: LoggedRequest | None

    def encode(self, response: Any, throttle_ms: int = 0) -> Frame | None:
        """The frame of a response; None if there is no response. Enters the response's error in the request log."""
        if self.logged is not None:
            self.logged.note_response(response)
        return None if response is None else self.api.encode(self.header, response, throttle_ms)

    def encode_in_steps(self, response: Mapping[str, Any], throttle_ms: int) -> Work[Frame]:
        """As `encode`, for a large response."""
        if self.logged is not None:
            yield from self.logged.note_response_in_steps(response)
        header, values = self.header, {"throttle_time": throttle_ms, **response}
        return ((yield from encode_response_in_steps(header.api_key, header.version, header.correlation_id, values)),)


@dataclass(frozen=True, slots=True)
class PendingResponse:
    """The response to a parked request.

    The connection awaits the response, or gives it up when the connection ends. A connection may end before it has
    begun to wait. So this is not a coroutine: Python warns of a coroutine that is never awaited, and the request would
    stay parked.

    `request` is None for a large request, which is decoded in a later turn: then `response` is a future of the request
    and its response.
    """

    request: Request | None
    response: Future[Any]
    throttle_ms: int
    slices: Slices

    def __await__(self) -> Generator[Any, None, Frame | None]:
        response = yield from self.response
        request: Request = self.request or response[0]
        if self.request is None:
            response = response[1]
        # The handler may wait for its slices, and then for its partitions.
        while isfuture(response):
            response = yield from response
        if not _is_large(response):
            return request.encode(response, self.throttle_ms)
        encoded = self.slices.run(request.encode_in_steps(response, self.throttle_ms))
        return (yield from encoded) if isfuture(encoded) else encoded

    def give_up(self, _: object = None) -> None:
        """Takes the request out of its purgatory. Does nothing if the response is there."""
        self.response.cancel()


# None: the request gets no response.
Response = Frame | PendingResponse | None


def api_key(frame: Buffer) -> int:
    """The request's API key; -1 if the frame is too short to have a key."""
    return int(_KEY.unpack_from(frame)[0]) if len(frame) >= _KEY.size else -1


def open_request(node: Node, frame: Buffer) -> Request:
    """Decodes a request and enters it in the request log.

    Raises InvalidRequestError or UnsupportedVersionError if the request cannot be decoded.
    """
    served, header = _find(frame)
    return _enter(node, served, header, served.decode(frame, header))


def _find(frame: Buffer) -> tuple[Api, RequestHeader]:
    if len(frame) < _PREFIX.size:
        raise InvalidRequestError(f"a request of {len(frame)} bytes: its header alone takes more")
    key, version, _ = _PREFIX.unpack_from(frame)
    served = APIS.get(key)
    if served is None:
        raise UnsupportedVersionError(f"API key {key} is not served here")
    if not served.min_version <= version <= served.max_version:
        raise UnsupportedVersionError(
            f"API key {key} version {version}: versions {served.min_version} to {served.max_version} are served"
        )
    return served, messages.decode_request_header(frame)


def _enter(node: Node, served: Api, header: RequestHeader, body: Any) -> Request:
    return Request(served, header, body, node.cluster.request_log.add(node, header, body))


def dispatch(
    node: Node, frame: Buffer, throttle_ms: int = 0, rights: Rights = UNLIMITED, peer: Peer | None = None
) -> tuple[int, Response]:
    """Answers a request of a client with `rights`. Returns its API key and the response, which tells the client to wait
    for `throttle_ms`.

    Raises InvalidRequestError or UnsupportedVersionError if the caller can only close the connection.
    """
    key = api_key(frame)
    if key == messages.API_VERSIONS and (refusal := refuse_api_versions(frame)) is not None:
        return key, refusal
    served, header = _find(frame)
    slices, peer = node.cluster.slices, peer or Peer()
    if len(frame) >= _LARGE_REQUEST and served.decode_in_steps is not None:
        answering: Any = slices.run(
            _answer_later(node, served, header, served.decode_in_steps, bytes(frame), rights, peer)
        )
        return key, PendingResponse(None, answering, throttle_ms, slices)
    request = _enter(node, served, header, served.decode(frame, header))
    response = _answer(node, request, rights, peer)
    if not isfuture(response) and _is_large(response):
        response = _already(node, response)
    if isfuture(response):
        return key, PendingResponse(request, response, throttle_ms, slices)
    return key, request.encode(response, throttle_ms)


def _answer_later(
    node: Node,
    served: Api,
    header: RequestHeader,
    decode: Callable[[Buffer, RequestHeader], Work[Any]],
    frame: bytes,
    rights: Rights,
    peer: Peer,
) -> Work[tuple[Request, Any]]:
    """Decodes a large request in this turn and the next, and calls its handler in a turn of its own."""
    body = yield from decode(frame, header)
    yield from next_slice()
    request = _enter(node, served, header, body)
    yield from next_slice()
    return request, _answer(node, request, rights, peer)


def _answer(node: Node, request: Request, rights: Rights, peer: Peer) -> Any:
    """The response to a decoded request, or its future."""
    faults = node.cluster.faults
    if not request.api.own_errors and (code := faults.take_error(request.api.key)):
        return {"error_code": code}
    if rights.limited:
        if (error := _refusal(request, rights)) is not None:
            return {"error_code": error.code, "error_message": str(error)}
        request = replace(request, header=LimitedHeader.of(request.header, rights))
    more = (peer,) if request.api.of_peer else ()
    response = request.api.handler(node, request.header, request.body, *more)
    if not request.api.own_errors and (code := faults.take_error(request.api.key, after=True)):
        return {"error_code": code}
    return response


def _refusal(request: Request, rights: Rights) -> KafkaError | None:
    """The error for the first of the API's needs that the client's rights do not meet."""
    refusals = (need.refusal(rights, request.body) for need in request.api.needs)
    return next((error for error in refusals if error is not None), None)


def _already(node: Node, response: Any) -> Future[Any]:
    done: Future[Any] = node.cluster.loop.create_future()
    done.set_result(response)
    return done


def _is_large(response: Any) -> bool:
    """Whether the response is encoded in slices."""
    return isinstance(response, Mapping) and has_many_items(response)


def refuse_api_versions(frame: Buffer) -> Frame | None:
    """The refusal of an ApiVersions request in a version that is not served: always version 0, with the versions that
    are served (KIP-511). None for a version that is served."""
    served = APIS[messages.API_VERSIONS]
    _, version, correlation_id = (
        _PREFIX.unpack_from(frame) if len(frame) >= _PREFIX.size else (0, served.min_version, 0)
    )
    if served.min_version <= version <= served.max_version:
        return None
    entity = messages.build_response(
        messages.API_VERSIONS, 0, error_code=_UNSUPPORTED_VERSION, api_keys=list(version_ranges())
    )
    return (messages.encode_response(messages.API_VERSIONS, 0, correlation_id, entity),)


def version_ranges() -> list[dict[str, int]]:
    """The versions of each API, as an ApiVersions response lists them."""
    return [
        {"api_key": served.key, "min_version": served.min_version, "max_version": served.max_version}
        for served in sorted(APIS.values(), key=lambda served: served.key)
    ]
