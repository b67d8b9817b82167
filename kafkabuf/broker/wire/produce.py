"""Produce, the broker's half: versions 2 to 13. It passes records on as bytes and does not decode them.

Request:  [transactional_id v3+] acks timeout_ms [topic (its id from v13) [partition records]]
Response: [topic [partition error base_offset log_append_time [log_start_offset v5+] [record_errors message v8+]]]
          throttle
Flexible from version 9. Tagged fields from version 10: a partition's current leader, and the leaders' addresses
(KIP-951).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from kafkabuf.broker.wire._cursor import MALFORMED, Cursor
from kafkabuf.broker.wire._partition_result import PartitionResult, first_error, put_successes
from kafkabuf.broker.wire.writer import put_count, put_nullable_string, put_string, put_uvarint
from kafkabuf.errors import InvalidRequestError
from kafkabuf.protocol.messages import PRODUCE, RequestHeader, encode_response_header
from kafkabuf.protocol.schema import Buffer, text_of_error

MIN_VERSION = 2
MAX_VERSION = 13
FIRST_FLEXIBLE = 9
FIRST_LEADER_HINTS = 10
FIRST_TOPIC_ID = 13

_PARTITION = struct.Struct(">ihqq").pack
_INT64 = struct.Struct(">q").pack
_INT32 = struct.Struct(">i").pack
# One tagged field, number 0, of nine bytes: leader id, leader epoch, no tagged fields of its own.
_LEADER = struct.Struct(">bbb ii b").pack

# (name, or topic id from version 13, [(partition, records)])
Topics = list[tuple[str | UUID, list[tuple[int, bytearray | None]]]]


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """The records are copies, which belong to the owner of the request, or None if the client sent null."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Topics


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """`endpoints`: (node id, host, port) of the leaders that `topics` name."""

    topics: list[tuple[str | UUID, list[PartitionResult]]]
    endpoints: Sequence[tuple[int, str, int]] = ()

    @property
    def first_error(self) -> int:
        """The first error code of a partition; 0 without an error."""
        return next((code for _, results in self.topics if (code := first_error(results))), 0)


def decode_request(frame: Buffer, header: RequestHeader) -> ProduceRequest:
    """Raises InvalidRequestError if the frame is not a Produce request of `header.version`."""
    cursor = Cursor(frame, header.size, header.version >= FIRST_FLEXIBLE)
    try:
        transactional_id = cursor.nullable_string() if header.version >= 3 else None
        acks = cursor.int16()
        timeout_ms = cursor.int32()
        topics = [_decode_topic(cursor, header.version) for _ in range(cursor.count())]
        cursor.tags()
        cursor.end()
    except MALFORMED as error:
        raise InvalidRequestError(f"malformed produce v{header.version} of {len(frame)} bytes: {error}") from error
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_topic(cursor: Cursor, version: int) -> tuple[str | UUID, list[tuple[int, bytearray | None]]]:
    name = cursor.uuid() if version >= FIRST_TOPIC_ID else cursor.string()
    partitions = []
    for _ in range(cursor.count()):
        partition = cursor.int32()
        records = cursor.nullable_copy()
        cursor.tags()
        partitions.append((partition, records))
    cursor.tags()
    return name, partitions


def encode_response(header: RequestHeader, response: ProduceResponse, throttle_ms: int = 0) -> bytes:
    version, flexible = header.version, header.version >= FIRST_FLEXIBLE
    out = bytearray(encode_response_header(PRODUCE, version, header.correlation_id))
    put_count(out, len(response.topics), flexible)
    for topic, results in response.topics:
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            put_string(out, topic, flexible)
        put_count(out, len(results), flexible)
        number = put_successes(out, results, 0) if flexible else 0
        while number < len(results):
            _put_result(out, results[number], version)
            number = put_successes(out, results, number + 1) if flexible else number + 1
        out += b"\0" * flexible
    out += _INT32(throttle_ms)
    if version >= FIRST_LEADER_HINTS and response.endpoints:
        _put_endpoints(out, response.endpoints)
    else:
        out += b"\0" * flexible
    return bytes(out)


def _put_result(out: bytearray, result: PartitionResult, version: int) -> None:
    flexible = version >= FIRST_FLEXIBLE
    out += _PARTITION(result.partition, result.error_code, result.base_offset, result.log_append_time_ms)
    if version >= 5:
        out += _INT64(result.log_start_offset)
    if version >= 8:
        put_count(out, len(result.record_errors), flexible)
        for index, text in result.record_errors:
            out += _INT32(index)
            put_nullable_string(out, text_of_error(text), flexible)
            out += b"\0" * flexible
        put_nullable_string(out, text_of_error(result.error_message), flexible)
    if version >= FIRST_LEADER_HINTS and result.leader is not None:
        out += _LEADER(1, 0, 9, *result.leader, 0)
    else:
        out += b"\0" * flexible


def _put_endpoints(out: bytearray, endpoints: Sequence[tuple[int, str, int]]) -> None:
    """The only tagged field of the response, number 0."""
    field = bytearray()
    put_count(field, len(endpoints), True)
    for node_id, host, port in endpoints:
        field += _INT32(node_id)
        put_string(field, host, True)
        field += _INT32(port)
        put_nullable_string(field, None, True)
        field += b"\0"
    out += b"\x01\0"
    put_uvarint(out, len(field))
    out += field
