"""Fetch, the broker's half: versions 4 to 18. Records are sent from the buffers in which the log stores them.

Request:  [replica_id before v15] max_wait min_bytes max_bytes isolation [session_id session_epoch v7+]
          [topic (its id from v13) [partition [leader_epoch v9+] offset [last_epoch v12+] [log_start v5+] max_bytes]]
          [forgotten v7+] [rack v11+]
Response: throttle [error session_id v7+] [topic [partition error high_watermark last_stable [log_start v5+] aborted
          [preferred_replica v11+] records]]
Flexible from version 12. Versions 17 and 18 add tagged fields to the request. They are for followers and are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from kafkabuf.broker.wire._cursor import MALFORMED, Cursor
from kafkabuf.broker.wire.writer import put_count, put_string
from kafkabuf.errors import InvalidRequestError
from kafkabuf.protocol.messages import FETCH, RequestHeader, encode_response_header
from kafkabuf.protocol.schema import Buffer

T = TypeVar("T")
Steps = Generator[None, None, T]

MIN_VERSION = 4
MAX_VERSION = 18
FIRST_FLEXIBLE = 12
FIRST_TOPIC_ID = 13
CONSUMER = -1
# Partitions of a request that a step reads.
_STEP = 50

_THROTTLE = struct.Struct(">i").pack
_SESSION = struct.Struct(">hi").pack
_PARTITION = struct.Struct(">ihqq").pack
_ABORTED = struct.Struct(">qq").pack
_INT64 = struct.Struct(">q").pack
_INT32 = struct.Struct(">i").pack


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """One partition of a request. `leader_epoch` is the epoch that the client knows, -1 if the request has no epoch.

    Only followers, which fetch without a frame, set `high_watermark` and `log_start_offset`.
    """

    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """`topics` have names before version 13, and topic ids from then on.

    Only followers, which fetch without a frame, set `replica_id`.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[tuple[str | UUID, list[FetchPartition]]]
    replica_id: int = CONSUMER


@dataclass(slots=True)
class FetchedPartition:
    """One partition's response.

    `records` are whole stored batches, in order. `aborted`: producer ids and first offsets of aborted transactions, for
    readers with read_committed.
    """

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    records: Sequence[Buffer] = field(default_factory=tuple)
    nbytes: int = 0


def decode_request(frame: Buffer, header: RequestHeader) -> FetchRequest:
    """Raises InvalidRequestError if the frame is not a Fetch request of `header.version`."""
    steps = decode_request_in_steps(frame, header)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: FetchRequest = end.value
            return request


def decode_request_in_steps(frame: Buffer, header: RequestHeader) -> Steps[FetchRequest]:
    """As `decode_request`, in steps between which the caller may do other things. The frame must stay as it is."""
    version = header.version
    cursor = Cursor(frame, header.size, version >= FIRST_FLEXIBLE)
    try:
        if version < 15:
            cursor.int32()
        max_wait_ms, min_bytes, max_bytes = cursor.int32(), cursor.int32(), cursor.int32()
        isolation_level = cursor.int8()
        session_id, session_epoch = (cursor.int32(), cursor.int32()) if version >= 7 else (0, -1)
        topics = []
        for _ in range(cursor.count()):
            topics.append((yield from _decode_topic(cursor, version)))
        if version >= 7:
            _skip_forgotten_topics(cursor, version)
        if version >= 11:
            cursor.string()
        cursor.tags()
        cursor.end()
    except MALFORMED as error:
        raise InvalidRequestError(f"malformed fetch v{version} of {len(frame)} bytes: {error}") from error
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, topics)


def _decode_topic(cursor: Cursor, version: int) -> Steps[tuple[str | UUID, list[FetchPartition]]]:
    topic = cursor.uuid() if version >= FIRST_TOPIC_ID else cursor.string()
    partitions = []
    for _ in range(cursor.count()):
        partition = cursor.int32()
        leader_epoch = cursor.int32() if version >= 9 else -1
        offset = cursor.int64()
        if version >= 12:
            cursor.int32()
        if version >= 5:
            cursor.int64()
        max_bytes = cursor.int32()
        cursor.tags()
        partitions.append(FetchPartition(partition, leader_epoch, offset, max_bytes))
        if not len(partitions) % _STEP:
            yield
    cursor.tags()
    yield
    return topic, partitions


def _skip_forgotten_topics(cursor: Cursor, version: int) -> None:
    for _ in range(cursor.count()):
        if version >= FIRST_TOPIC_ID:
            cursor.uuid()
        else:
            cursor.string()
        for _ in range(cursor.count()):
            cursor.int32()
        cursor.tags()


def encode_response(
    header: RequestHeader,
    topics: list[tuple[str | UUID, list[FetchedPartition]]],
    error_code: int = 0,
    throttle_ms: int = 0,
) -> list[Buffer]:
    """The frame as a list of buffers, so that records are not copied. The session id is always 0: no session."""
    version, flexible = header.version, header.version >= FIRST_FLEXIBLE
    parts: list[Buffer] = []
    out = bytearray(encode_response_header(FETCH, version, header.correlation_id))
    out += _THROTTLE(throttle_ms)
    if version >= 7:
        out += _SESSION(error_code, 0)
    put_count(out, len(topics), flexible)
    for topic, partitions in topics:
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            put_string(out, topic, flexible)
        put_count(out, len(partitions), flexible)
        for fetched in partitions:
            _put_partition(out, fetched, version)
            if fetched.nbytes:
                parts.append(out)
                parts += fetched.records
                out = bytearray()
            out += b"\0" * flexible
        out += b"\0" * flexible
    out += b"\0" * flexible
    parts.append(out)
    return parts


def _put_partition(out: bytearray, fetched: FetchedPartition, version: int) -> None:
    flexible = version >= FIRST_FLEXIBLE
    out += _PARTITION(fetched.partition, fetched.error_code, fetched.high_watermark, fetched.last_stable_offset)
    if version >= 5:
        out += _INT64(fetched.log_start_offset)
    put_count(out, -1 if fetched.aborted is None else len(fetched.aborted), flexible)
    for producer_id, first_offset in fetched.aborted or ():
        out += _ABORTED(producer_id, first_offset) + b"\0" * flexible
    if version >= 11:
        out += _INT32(-1)
    put_count(out, fetched.nbytes, flexible)
