"""Produce, the broker's half: versions 2 to 11. Records are passed as bytes, never looked into.

Request:  [transactional_id v3+] acks timeout_ms [topic [partition records]]
Response: [topic [partition error base_offset log_append_time [log_start_offset v5+] [record_errors message v8+]]]
          throttle
Flexible from version 9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from kafkabuf.errors import InvalidRequestError
from kafkabuf.protocol.cursor import MALFORMED, Cursor
from kafkabuf.protocol.messages import PRODUCE, RequestHeader, encode_response_header
from kafkabuf.protocol.schema import Buffer
from kafkabuf.protocol.writer import put_count, put_nullable_string, put_string

MIN_VERSION = 2
MAX_VERSION = 11
FIRST_FLEXIBLE = 9

_PARTITION = struct.Struct(">ihqq").pack
_INT64 = struct.Struct(">q").pack
_INT32 = struct.Struct(">i").pack


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """`topics`: (name, [(partition, records)]). The records are views of the frame, None where the client sent null."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[tuple[int, memoryview | None]]]]


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What became of one partition's records. Offsets are -1 where nothing was appended."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None


def decode_request(frame: Buffer, header: RequestHeader) -> ProduceRequest:
    """InvalidRequestError if the frame is not a Produce request of `header.version`."""
    cursor = Cursor(frame, header.size, header.version >= FIRST_FLEXIBLE)
    try:
        transactional_id = cursor.nullable_string() if header.version >= 3 else None
        acks = cursor.int16()
        timeout_ms = cursor.int32()
        topics = [_decode_topic(cursor) for _ in range(cursor.count())]
        cursor.tags()
        cursor.end()
    except MALFORMED as error:
        raise InvalidRequestError(f"malformed produce v{header.version} of {len(frame)} bytes: {error}") from error
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_topic(cursor: Cursor) -> tuple[str, list[tuple[int, memoryview | None]]]:
    name = cursor.string()
    partitions = []
    for _ in range(cursor.count()):
        partition = cursor.int32()
        records = cursor.nullable_bytes()
        cursor.tags()
        partitions.append((partition, records))
    cursor.tags()
    return name, partitions


def encode_response(
    header: RequestHeader, topics: Iterable[tuple[str, list[PartitionResult]]], throttle_ms: int = 0
) -> bytes:
    version, flexible = header.version, header.version >= FIRST_FLEXIBLE
    topics = list(topics)
    out = bytearray(encode_response_header(PRODUCE, version, header.correlation_id))
    put_count(out, len(topics), flexible)
    for name, results in topics:
        put_string(out, name, flexible)
        put_count(out, len(results), flexible)
        for result in results:
            out += _PARTITION(result.partition, result.error_code, result.base_offset, result.log_append_time_ms)
            if version >= 5:
                out += _INT64(result.log_start_offset)
            if version >= 8:
                put_count(out, 0, flexible)
                put_nullable_string(out, result.error_message, flexible)
            out += b"\0" * flexible
        out += b"\0" * flexible
    out += _INT32(throttle_ms)
    out += b"\0" * flexible
    return bytes(out)
