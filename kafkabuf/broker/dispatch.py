"""From a frame to the handler of its API key, and from the handler's answer to the frame that goes back.

Each file under apis/ registers one API: key, versions, handler. A handler gets the node that was asked, the request's
header and its decoded body, and returns the answer or an awaitable of it. It runs in the event loop and must not keep
the frame: what it wants to keep it copies before it returns or first awaits.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkabuf.errors import InvalidRequestError, UnsupportedVersionError
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import RequestHeader
from kafkabuf.protocol.schema import Buffer

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

Frame = Sequence[Buffer]
Handler = Callable[["Node", RequestHeader, Any], Any]

_PREFIX = struct.Struct(">hhi")
_UNSUPPORTED_VERSION = 35


@dataclass(frozen=True, slots=True)
class Api:
    """`decode` and `encode` default to kio's schemas: a handler then returns a mapping of plain values, or None to send
    nothing. With `own_errors` the handler asks the fault queue by itself, else an injected error answers for it;
    `fails_after` says that it knows of errors that are told once the request has been carried out."""

    key: int
    min_version: int
    max_version: int
    handler: Handler
    decode: Callable[[Buffer, RequestHeader], Any]
    encode: Callable[[RequestHeader, Any], Frame]
    own_errors: bool
    fails_after: bool


APIS: dict[int, Api] = {}


def _encode(header: RequestHeader, answer: Mapping[str, Any]) -> Frame:
    entity = messages.build_response(header.api_key, header.version, **answer)
    return (messages.encode_response(header.api_key, header.version, header.correlation_id, entity),)


def api(
    key: int,
    min_version: int,
    max_version: int,
    *,
    decode: Callable[[Buffer, RequestHeader], Any] = messages.decode_request_body,
    encode: Callable[[RequestHeader, Any], Frame] = _encode,
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


def dispatch(node: Node, frame: Buffer) -> tuple[int, Frame | Awaitable[Frame | None] | None]:
    """The API key and the answer: a frame, None for no answer, or an awaitable of either.

    InvalidRequestError or UnsupportedVersionError where there is nothing to do but close the connection.
    """
    if len(frame) < _PREFIX.size:
        raise InvalidRequestError(f"a request of {len(frame)} bytes: its header alone takes more")
    key, version, correlation_id = _PREFIX.unpack_from(frame)
    found = APIS.get(key)
    if found is None:
        raise UnsupportedVersionError(f"API key {key} is not served here")
    if not found.min_version <= version <= found.max_version:
        if key == messages.API_VERSIONS:
            return key, _refuse_api_versions(correlation_id)
        raise UnsupportedVersionError(
            f"API key {key} version {version}: versions {found.min_version} to {found.max_version} are served"
        )
    header = messages.decode_request_header(frame)
    body = found.decode(frame, header)
    faults = node.cluster.faults
    if not found.own_errors and (code := faults.take_error(key)):
        return key, found.encode(header, {"error_code": code})
    answer = found.handler(node, header, body)
    if not found.own_errors and (code := faults.take_error(key, after=True)):
        answer = {"error_code": code}
    if inspect.isawaitable(answer):
        return key, _later(found, header, answer)
    return key, None if answer is None else found.encode(header, answer)


async def _later(found: Api, header: RequestHeader, answer: Awaitable[Any]) -> Frame | None:
    values = await answer
    return None if values is None else found.encode(header, values)


def _refuse_api_versions(correlation_id: int) -> Frame:
    """KIP-511: whatever version was asked for, the refusal is version 0 and names the versions that would do."""
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
