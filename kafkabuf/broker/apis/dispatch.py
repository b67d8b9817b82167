"""From a frame to the handler of its API key, and from the handler's answer to the frame that goes back.

Each file under apis/ registers one API: key, versions, handler. A handler gets the node that was asked, the request's
header and its decoded body, and returns the answer or a future of it. It runs in the event loop and must not keep
the frame: what it wants to keep it copies before it returns or first awaits.
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
    nothing. `encode` puts the throttle time, in milliseconds, into the answer. With `own_errors` the handler asks the
    fault queue by itself, else an injected error answers for it; `fails_after` says that it knows of errors that are
    told once the request has been carried out."""

    key: int
    min_version: int
    max_version: int
    handler: Handler
    decode: Callable[[Buffer, RequestHeader], Any]
    encode: Callable[[RequestHeader, Any, int], Frame]
    own_errors: bool
    fails_after: bool


APIS: dict[int, Api] = {}


def _encode(header: RequestHeader, answer: Mapping[str, Any], throttle_ms: int) -> Frame:
    entity = messages.build_response(header.api_key, header.version, **{"throttle_time": throttle_ms, **answer})
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
    """A request that was read, and entered in the request log."""

    api: Api
    header: RequestHeader
    body: Any
    logged: LoggedRequest | None

    def encode(self, answer: Any, throttle_ms: int = 0) -> Frame | None:
        """The frame to answer with, None if `answer` is. The request log learns of its error."""
        if self.logged is not None:
            self.logged.note_answer(answer)
        return None if answer is None else self.api.encode(self.header, answer, throttle_ms)


@dataclass(frozen=True, slots=True)
class Later:
    """The answer of a request that waits for something. The connection awaits it, or leaves it: a connection may end
    before it has begun to wait. (A coroutine would complain of that, and the parked request would wait on.)"""

    request: Request
    answer: Future[Any]
    throttle_ms: int

    def __await__(self) -> Generator[Any, None, Frame | None]:
        return self.request.encode((yield from self.answer), self.throttle_ms)

    def leave(self, _: object = None) -> None:
        """Gives up waiting. Does nothing if the answer has come."""
        self.answer.cancel()


# A frame, None for no answer, or what will be either.
Answer = Frame | Later | None


def api_key(frame: Buffer) -> int:
    """-1 if the frame is too short to have one."""
    return int(_KEY.unpack_from(frame)[0]) if len(frame) >= _KEY.size else -1


def open_request(node: Node, frame: Buffer) -> Request:
    """InvalidRequestError or UnsupportedVersionError for what cannot be read."""
    if len(frame) < _PREFIX.size:
        raise InvalidRequestError(f"a request of {len(frame)} bytes: its header alone takes more")
    key, version, _ = _PREFIX.unpack_from(frame)
    found = APIS.get(key)
    if found is None:
        raise UnsupportedVersionError(f"API key {key} is not served here")
    if not found.min_version <= version <= found.max_version:
        raise UnsupportedVersionError(
            f"API key {key} version {version}: versions {found.min_version} to {found.max_version} are served"
        )
    header = messages.decode_request_header(frame)
    body = found.decode(frame, header)
    return Request(found, header, body, node.cluster.request_log.add(node, header, body))


def dispatch(node: Node, frame: Buffer, throttle_ms: int = 0) -> tuple[int, Answer]:
    """The API key and the answer, which tells the client to wait for `throttle_ms`.

    InvalidRequestError or UnsupportedVersionError where there is nothing to do but close the connection.
    """
    key = api_key(frame)
    if key == messages.API_VERSIONS and (refusal := refuse_api_versions(frame)) is not None:
        return key, refusal
    request = open_request(node, frame)
    faults, own_errors = node.cluster.faults, request.api.own_errors
    if not own_errors and (code := faults.take_error(key)):
        return key, request.encode({"error_code": code}, throttle_ms)
    answer = request.api.handler(node, request.header, request.body)
    if not own_errors and (code := faults.take_error(key, after=True)):
        answer = {"error_code": code}
    if isfuture(answer):
        return key, Later(request, answer, throttle_ms)
    return key, request.encode(answer, throttle_ms)


def refuse_api_versions(frame: Buffer) -> Frame | None:
    """KIP-511: whatever version was asked for, the refusal is version 0 and names the versions that would do. None for
    a version that is served."""
    found = APIS[messages.API_VERSIONS]
    _, version, correlation_id = _PREFIX.unpack_from(frame) if len(frame) >= _PREFIX.size else (0, found.min_version, 0)
    if found.min_version <= version <= found.max_version:
        return None
    entity = messages.build_response(
        messages.API_VERSIONS, 0, error_code=_UNSUPPORTED_VERSION, api_keys=list(version_ranges())
    )
    return (messages.encode_response(messages.API_VERSIONS, 0, correlation_id, entity),)


def version_ranges() -> list[dict[str, int]]:
    """What ApiVersions tells of each API."""
    return [
        {"api_key": one.key, "min_version": one.min_version, "max_version": one.max_version}
        for one in sorted(APIS.values(), key=lambda one: one.key)
    ]
