"""Reads records one by one: for ListOffsets by timestamp, to validate them, and to verify batches when `verify_records`
is set.

A magic 2 record is
    length varint | attributes i8 | timestamp delta varlong | offset delta varint | key | value | header count | headers
with zig-zag varints. A null has the length -1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kafkabuf.broker.log.batch import CODEC_MASK, HEADER, HEADER_SIZE, LOG_APPEND_TIME, MAGIC_AT
from kafkabuf.broker.log.compression import NONE, decompress
from kafkabuf.broker.log.message_set import messages
from kafkabuf.errors import InvalidRecordError


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Offset and timestamp of a record, and whether its key is other than null."""

    offset: int
    timestamp: int
    has_key: bool


def read_records(batch: bytes | bytearray | memoryview) -> Iterator[StoredRecord]:
    """The records of a stored batch or message set, in order. Raises InvalidRecordError for a malformed record."""
    view = memoryview(batch)
    return _batch_records(view) if view[MAGIC_AT] == 2 else _set_records(view)


def _batch_records(view: memoryview) -> Iterator[StoredRecord]:
    base_offset, _, _, _, _, attributes, _, first_timestamp, max_timestamp, *_, count = HEADER.unpack_from(view)
    body = decompress(attributes & CODEC_MASK, bytes(view[HEADER_SIZE:]))
    position = 0
    try:
        for index in range(count):
            length, start = _varint(body, position)
            end = start + length
            if length < 0 or end > len(body):
                raise InvalidRecordError(f"record {index} says {length} bytes, {len(body) - start} are left")
            timestamp_delta, offset_delta, has_key = _check_record(body, start, end, index)
            if offset_delta != index:
                raise InvalidRecordError(f"record {index} has offset delta {offset_delta}")
            stamped = max_timestamp if attributes & LOG_APPEND_TIME else first_timestamp + timestamp_delta
            yield StoredRecord(base_offset + offset_delta, stamped, has_key)
            position = end
    except IndexError:
        raise InvalidRecordError(f"the batch ends before the last of its {count} records") from None
    if position != len(body):
        raise InvalidRecordError(f"{len(body) - position} bytes are left after {count} records")


def _check_record(body: bytes | bytearray, start: int, end: int, index: int) -> tuple[int, int, bool]:
    """Timestamp delta, offset delta, and whether the record has a key. Raises InvalidRecordError unless the record
    fills its length exactly."""
    timestamp_delta, position = _varint(body, start + 1)
    offset_delta, position = _varint(body, position)
    # The byte 1 is the varint -1, the length of null.
    has_key = body[position] != 1
    for _ in ("key", "value"):
        position = _skip_bytes(body, position, end, null=True)
    headers, position = _varint(body, position)
    if not 0 <= headers <= end - position:
        raise InvalidRecordError(f"record {index} says {headers} headers, {end - position} bytes are left")
    for _ in range(headers):
        position = _skip_bytes(body, position, end, null=False)
        position = _skip_bytes(body, position, end, null=True)
    if position != end:
        raise InvalidRecordError(f"record {index} ends {position - end:+d} bytes from the end that its length gives")
    return timestamp_delta, offset_delta, has_key


def _skip_bytes(body: bytes | bytearray, position: int, end: int, null: bool) -> int:
    size, position = _varint(body, position)
    if size < (-1 if null else 0) or position + size > end:
        raise InvalidRecordError(f"a field says {size} bytes, the record has {end - position} left")
    return position + max(size, 0)


def _varint(body: bytes | bytearray, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise InvalidRecordError("a varint is longer than ten bytes")


def _set_records(view: memoryview) -> Iterator[StoredRecord]:
    for message in messages(view):
        if message.codec == NONE:
            yield StoredRecord(message.offset, message.timestamp, message.has_key)
            continue
        inner = list(messages(memoryview(decompress(message.codec, bytes(view[message.value])))))
        for relative, inner_message in enumerate(inner):
            offset = message.offset - len(inner) + 1 + relative
            yield StoredRecord(offset, inner_message.timestamp, inner_message.has_key)


def verify(batch: bytes | bytearray | memoryview) -> None:
    """Reads every record of a magic 2 batch. Raises InvalidRecordError if a record is malformed or the newest timestamp
    of the records is not that of the header."""
    fields = HEADER.unpack_from(batch)
    newest = max(record.timestamp for record in read_records(batch))
    if newest != fields[8]:
        raise InvalidRecordError(f"the header's newest timestamp is {fields[8]}, that of the records is {newest}")
