"""Requests and responses as frames: header and body, without the four bytes of length that precede them on the wire.

All messages that are not on the hot path go through this module. Produce and the broker's half of Fetch have modules of
their own. Malformed bytes raise InvalidRequestError (requests) or CorruptMessageError (responses), never a bare
IndexError or struct.error.

Header versions (KIP-482): a flexible request has header 2, a flexible response header 1, all others 1 and 0.
ApiVersions responses always have header 0, so that a client can read the response to a version that the broker does not
know (KIP-511).
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kafkabuf.errors import CorruptMessageError, InvalidRequestError, UnsupportedVersionError
from kafkabuf.extras import needs
from kafkabuf.protocol.entities import apis, message_class
from kafkabuf.protocol.schema import BoundedFrame, Buffer, build, read_in_steps, reader, skip_tags
from kafkabuf.protocol.writing import write_in_steps, writer

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
JOIN_GROUP = 11
HEARTBEAT = 12
LEAVE_GROUP = 13
SYNC_GROUP = 14
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
SASL_HANDSHAKE = 17
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN = 24
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
WRITE_TXN_MARKERS = 27
TXN_OFFSET_COMMIT = 28
DESCRIBE_ACLS = 29
CREATE_ACLS = 30
DELETE_ACLS = 31
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
DESCRIBE_LOG_DIRS = 35
SASL_AUTHENTICATE = 36
CREATE_PARTITIONS = 37
DELETE_GROUPS = 42
ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
LIST_PARTITION_REASSIGNMENTS = 46
OFFSET_DELETE = 47
DESCRIBE_QUORUM = 55
DESCRIBE_CLUSTER = 60
DESCRIBE_PRODUCERS = 61
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS = 66
CONSUMER_GROUP_HEARTBEAT = 68
CONSUMER_GROUP_DESCRIBE = 69
GET_TELEMETRY_SUBSCRIPTIONS = 71
PUSH_TELEMETRY = 72
LIST_CONFIG_RESOURCES = 74
DESCRIBE_TOPIC_PARTITIONS = 75

_UNSUPPORTED_VERSION = 35
# What the readers raise for malformed bytes.
_MALFORMED = (ValueError, IndexError, OverflowError, struct.error)
_HEADER = struct.Struct(">hhih")
_RESPONSE_HEADER = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of a request; `size` is where the body starts in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    size: int


def known_versions(api_key: int) -> range:
    """The versions of an API that have a schema. Empty if the API is unknown."""
    if api_key in apis():
        return apis()[api_key].versions
    kio = _kio("schema.index")
    versions = kio.schema_name_map[kio.api_key_map[api_key]] if api_key in kio.api_key_map else {}
    return range(min(versions), max(versions) + 1) if versions else range(0)


def api_name(api_key: int) -> str | None:
    """The name of an API in lower case; None if the API is unknown."""
    if api_key in apis():
        return apis()[api_key].name
    name: str | None = _kio("schema.index").api_key_map.get(api_key)
    return name


@cache
def request_class(api_key: int, version: int) -> type[Any]:
    """The class of a request, ours or kio's. Raises UnsupportedVersionError for an unknown API or version."""
    return message_class(api_key, version, "request") or _kio_class(api_key, version, "request")


@cache
def response_class(api_key: int, version: int) -> type[Any]:
    """The class of a response, ours or kio's. Raises UnsupportedVersionError for an unknown API or version."""
    return message_class(api_key, version, "response") or _kio_class(api_key, version, "response")


def load_schemas() -> None:
    """Loads the index of kio's schemas, which a message without a table of ours needs."""
    _kio("index")


def _kio(module: str) -> Any:
    # Imported late: only the broker needs it, and it takes long to load.
    with needs("broker", "kafkabuf.broker"):
        return importlib.import_module(f"kio.{module}")


def _kio_class(api_key: int, version: int, kind: str) -> type[Any]:
    if api_key in apis() and apis()[api_key].lines:
        raise _unknown(api_key, version)
    index = _kio("index")
    try:
        kio_class: type[Any] = getattr(index, f"load_{kind}_schema")(api_key, version)
    except (index.UnknownAPIKey, index.UnknownEntity):
        raise _unknown(api_key, version) from None
    return kio_class


def _unknown(api_key: int, version: int) -> UnsupportedVersionError:
    known = known_versions(api_key)
    if not known:
        return UnsupportedVersionError(f"API key {api_key} is unknown")
    return UnsupportedVersionError(
        f"{api_name(api_key)} version {version} is unknown, known are {known.start} to {known.stop - 1}"
    )


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether a version uses compact encodings and tagged fields (KIP-482). Versions older than the schemas do not."""
    known = known_versions(api_key)
    if known and 0 <= version < known.start:
        return False
    if api_key in apis() and version in known:
        return apis()[api_key].is_flexible(version)
    return bool(request_class(api_key, version).__flexible__)


def build_request(api_key: int, version: int, **values: Any) -> Any:
    """A request entity from plain values: ints (durations in ms), strings, bytes, mappings for nested entities.

    Fields that this version lacks are ignored. Missing fields get the schema's default.
    """
    return build(request_class(api_key, version), values)


def build_response(api_key: int, version: int, **values: Any) -> Any:
    """As `build_request`, for the response."""
    return build(response_class(api_key, version), values)


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    return _HEADER.pack(api_key, version, correlation_id, size) + name + (b"\0" * is_flexible(api_key, version))


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, entity: Any) -> bytes:
    out = bytearray(encode_request_header(api_key, version, correlation_id, client_id))
    writer(request_class(api_key, version))(out, entity)
    return bytes(out)


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    tags = is_flexible(api_key, version) and api_key != API_VERSIONS
    return _RESPONSE_HEADER.pack(correlation_id) + b"\0" * tags


def encode_response(api_key: int, version: int, correlation_id: int, entity: Any) -> bytes:
    out = bytearray(encode_response_header(api_key, version, correlation_id))
    writer(response_class(api_key, version))(out, entity)
    return bytes(out)


def encode_response_in_steps(
    api_key: int, version: int, correlation_id: int, values: Mapping[str, Any]
) -> Generator[None, None, bytearray]:
    """As `build_response` and `encode_response`, in steps between which the caller may do other things."""
    out = bytearray(encode_response_header(api_key, version, correlation_id))
    yield from write_in_steps(out, response_class(api_key, version), values)
    return out


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Raises InvalidRequestError for malformed bytes, UnsupportedVersionError if no codec can know this version."""
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
        flexible = is_flexible(api_key, version)
        position = _HEADER.size + max(length, 0)
        if length < -1 or position > len(frame):
            raise ValueError(f"the client id claims a length of {length} bytes")
        client_id = None if length < 0 else bytes(frame[_HEADER.size : position]).decode()
        if flexible:
            position = skip_tags(frame, position)
    except _MALFORMED as error:
        raise InvalidRequestError(f"malformed request header in a frame of {len(frame)} bytes: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def decode_request(frame: Buffer) -> tuple[RequestHeader, Any]:
    """Header and entity of a request. Raises InvalidRequestError if malformed, UnsupportedVersionError if unknown."""
    header = decode_request_header(frame)
    return header, decode_request_body(frame, header)


def decode_request_body(frame: Buffer, header: RequestHeader) -> Any:
    cls = request_class(header.api_key, header.version)
    try:
        # Bytes after a request's last field are ignored, as in Kafka: librdkafka sends some with Metadata v13.
        entity, _ = reader(cls)(BoundedFrame(frame), header.size)
    except _MALFORMED as error:
        raise _malformed(frame, header, error) from error
    return entity


def decode_request_body_in_steps(frame: Buffer, header: RequestHeader) -> Generator[None, None, Any]:
    """As `decode_request_body`, in steps between which the caller may do other things. It works on a copy of the frame,
    which it makes in the first step."""
    cls = request_class(header.api_key, header.version)
    try:
        entity, _ = yield from read_in_steps(cls, BoundedFrame(frame), header.size)
    except _MALFORMED as error:
        raise _malformed(frame, header, error) from error
    return entity


def _malformed(frame: Buffer, header: RequestHeader, error: Exception) -> InvalidRequestError:
    name = f"{api_name(header.api_key)} v{header.version}"
    return InvalidRequestError(f"malformed {name} request of {len(frame)} bytes: {error}")


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Correlation id and entity of the response to a request of this API and version.

    An ApiVersions response with UNSUPPORTED_VERSION is decoded as version 0, because brokers send it in version 0.
    """
    try:
        (correlation_id,) = _RESPONSE_HEADER.unpack_from(frame)
        position = _RESPONSE_HEADER.size
        if api_key == API_VERSIONS:
            (code,) = struct.unpack_from(">h", frame, position)
            version = 0 if code == _UNSUPPORTED_VERSION else version
        elif is_flexible(api_key, version):
            position = skip_tags(frame, position)
        entity, end = reader(response_class(api_key, version))(frame, position)
        _check_end(frame, end)
    except _MALFORMED as error:
        name = api_name(api_key) or api_key
        raise CorruptMessageError(f"malformed {name} v{version} response of {len(frame)} bytes: {error}") from error
    return correlation_id, entity


def _check_end(frame: Buffer, end: int) -> None:
    if end != len(frame):
        raise ValueError(f"{len(frame) - end} bytes are left over")
