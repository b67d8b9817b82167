"""Finds the handler for a request, and makes a frame of the handler's response.

Each file under apis/ registers one API: key, versions, handler. A handler gets the node that received the request, the
request's header and its decoded body. It returns the response, or a future of it. It runs in the event loop. The
request's bytes are valid until the handler returns: a handler copies the bytes that it keeps.
"""

from __future__ import annotations

import struct
from asyncio import Future, isfuture
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafkabuf.broker.cluster.node import Node
from kafkabuf.broker.guards.request_log import LoggedRequest
from kafkabuf.errors import InvalidRequestError, UnsupportedVersionError
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import RequestHeader
from kafkabuf.protocol.schema import Buffer

Frame = Sequence[Buffer]
Handler = Callable[[Node, RequestHeader, Any], Any]

_KEY = struct.Struct(">h")
_PREFIX = struct.Struct(">hhi")
_UNSUPPORTED_VERSION = 35


@dataclass(frozen=True, slots=True)
class Api:
    """`decode` and `encode` default to kio's schemas: a handler then returns a mapping of plain values, or None to send
    nothing. `encode` puts the throttle time, in milliseconds, into the response.

    `own_errors`: the handler takes injected errors from the fault queue. Otherwise `dispatch` answers with the injected
    error in place of the handler.
    `fails_after`: the API can carry out a request and then answer with an injected error.
    """

    key: int
    min_version: int
    max_version: int
    handler: Handler
    decode: Callable[[Buffer, RequestHeader], Any]
    encode: Callable[[RequestHeader, Any, int], Frame]
    own_errors: bool
    fails_after: bool


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
    encode: Callable[[RequestHeader, Any, int], Frame] = _encode,
    own_errors: bool = False,
    fails_after: bool = False,
) -> Callable[[Handler], Handler]:
    """Registers the decorated function as the handler of an API."""

    def register(handler: Handler) -> Handler:
        APIS[key] = Api(
            key, min_version, max_version, handler, decode, encode, own_errors, fails_after or not own_errors
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


@dataclass(frozen=True, slots=True)
class PendingResponse:
    """The response to a parked request.

    The connection awaits the response, or gives it up when the connection ends. A connection may end before it has
    begun to wait. So this is not a coroutine: Python warns of a coroutine that is never awaited, and the request would
    stay parked.
    """

    request: Request
    response: Future[Any]
    throttle_ms: int

    def __await__(self) -> Generator[Any, None, Frame | None]:
        return self.request.encode((yield from self.response), self.throttle_ms)

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
    header = messages.decode_request_header(frame)
    body = served.decode(frame, header)
    return Request(served, header, body, node.cluster.request_log.add(node, header, body))


def dispatch(node: Node, frame: Buffer, throttle_ms: int = 0) -> tuple[int, Response]:
    """Answers a request. Returns its API key and the response, which tells the client to wait for `throttle_ms`.

    Raises InvalidRequestError or UnsupportedVersionError if the caller can only close the connection.
    """
    key = api_key(frame)
    if key == messages.API_VERSIONS and (refusal := refuse_api_versions(frame)) is not None:
        return key, refusal
    request = open_request(node, frame)
    faults, own_errors = node.cluster.faults, request.api.own_errors
    if not own_errors and (code := faults.take_error(key)):
        return key, request.encode({"error_code": code}, throttle_ms)
    response = request.api.handler(node, request.header, request.body)
    if not own_errors and (code := faults.take_error(key, after=True)):
        response = {"error_code": code}
    if isfuture(response):
        return key, PendingResponse(request, response, throttle_ms)
    return key, request.encode(response, throttle_ms)


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
