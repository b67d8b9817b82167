"""Message sets of magic 0 and 1, which Produce version 2 carries: checked message by message, offsets set in place.

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | [timestamp i64, magic 1] | key size i32 | key |
    value size i32 | value
The CRC-32 covers magic to the end of the message, so the broker sets the offset without touching the CRC. The value of
a compressed message is a message set. The compressed message has the offset of its last inner message; the offsets of
inner messages are relative in magic 1 (KIP-31).

Deviations from Kafka: the broker stores a set as it came and does not convert it to magic 2. The broker refuses a
compressed magic 0 message, because it would have to rewrite the inner offsets and compress them again. With
message.timestamp.type=LogAppendTime the messages keep the producer's timestamps.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from kafkabuf.broker.records._batch import BatchInfo
from kafkabuf.broker.records.batch import CODEC_MASK, NO_TIMESTAMP
from kafkabuf.broker.records.compression import LZ4, NAMES, NONE, ZSTD, decompress, max_unpacked
from kafkabuf.broker.records.config import Limits
from kafkabuf.errors import (
    CorruptMessageError,
    InvalidRecordError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)

_HEAD = struct.Struct(">qiIbb")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
OVERHEAD = 12
# The broker reads inner messages one by one, in a few microseconds each.
_MOST_INNER = 160_000
CRC_END = 16


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a set. `start`, `end` and `value` are places in the set; a null value is an empty slice."""

    start: int
    end: int
    offset: int
    magic: int
    codec: int
    timestamp: int
    has_key: bool
    value: slice


def messages(data: memoryview) -> Iterator[Message]:
    """The messages of a set, each checked. Raises CorruptMessageError for a wrong length or CRC."""
    position = 0
    while position < len(data):
        message = _message(data, position)
        yield message
        position = message.end


def _message(data: memoryview, start: int) -> Message:
    try:
        offset, size, crc, magic, attributes = _HEAD.unpack_from(data, start)
        end = start + OVERHEAD + size
        if end > len(data) or size < 14:
            raise CorruptMessageError(f"the message size is {size}, but {len(data) - start - OVERHEAD} bytes follow it")
        if magic not in (0, 1):
            raise InvalidRecordError(f"a message set holds magic 0 and 1 only, found {magic}")
        actual = zlib.crc32(data[start + CRC_END : end])
        if actual != crc:
            raise CorruptMessageError(f"the message has CRC field {crc:#010x}, its bytes have CRC {actual:#010x}")
        at = start + _HEAD.size
        timestamp = NO_TIMESTAMP
        if magic:
            (timestamp,) = _INT64.unpack_from(data, at)
            at += 8
        (key_size,) = _INT32.unpack_from(data, at)
        at += 4 + max(key_size, 0)
        (value_size,) = _INT32.unpack_from(data, at)
        value = slice(at + 4, at + 4 + max(value_size, 0))
    except struct.error as error:
        raise CorruptMessageError(f"the message is cut short: {error}") from error
    if key_size < -1 or value_size < -1 or value.stop != end:
        raise CorruptMessageError(
            f"a key of {key_size} bytes and a value of {value_size} bytes do not fill a message of {size} bytes"
        )
    return Message(start, end, offset, magic, attributes & CODEC_MASK, timestamp, key_size >= 0, value)


def check_message_set(records: memoryview, limits: Limits) -> tuple[BatchInfo, list[tuple[int, int]]]:
    """Checks a whole set. Returns the facts that the log keeps, and (position, offset within the set) of each message.

    Raises the error of the response, as `check_batch` does.
    """
    offsets: list[tuple[int, int]] = []
    count, newest, magic = 0, NO_TIMESTAMP, 0
    room = max_unpacked(LZ4, len(records), limits.max_message_bytes)
    most = _MOST_INNER
    for message in messages(records):
        if message.end - message.start > limits.max_message_bytes:
            size = message.end - message.start
            raise RecordTooLargeError(f"the message has {size} bytes, max.message.bytes is {limits.max_message_bytes}")
        if message.codec == NONE:
            count += 1
        else:
            inner, unpacked = _inner_count(records, message, room, most)
            count, room, most = count + inner, room - unpacked, most - inner
        offsets.append((message.start, count - 1))
        newest, magic = max(newest, message.timestamp), max(magic, message.magic)
    if not count:
        raise InvalidRecordError("there must be a message for the partition, found none")
    return BatchInfo(count, newest, magic), offsets


def _inner_count(records: memoryview, wrapper: Message, room: int, most: int) -> tuple[int, int]:
    """The number of inner messages of `wrapper`, and their bytes. There may be at most `most` messages, of `room`
    bytes."""
    if wrapper.codec >= len(NAMES) or wrapper.codec == ZSTD:
        raise UnsupportedCompressionTypeError(f"magic {wrapper.magic} has no compression type {wrapper.codec}")
    if wrapper.magic == 0:
        raise UnsupportedForMessageFormatError("the broker refuses compressed messages of magic 0: use magic 1")
    inner = decompress(wrapper.codec, records[wrapper.value], room)
    offsets = [_inner_offset(message, wrapper) for message in islice(messages(memoryview(inner)), most + 1)]
    if len(offsets) > most:
        raise InvalidRecordError(f"compressed messages may have {_MOST_INNER} inner messages in all, found more")
    if not offsets or offsets != list(range(len(offsets))):
        raise InvalidRecordError(
            f"the {len(offsets)} inner messages have the offsets {offsets[:5]}..., they must have 0, 1, 2..."
        )
    return len(offsets), len(inner)


def _inner_offset(message: Message, wrapper: Message) -> int:
    """No reader takes a compressed message, or one of another magic, within a compressed message."""
    if message.codec != NONE or message.magic != wrapper.magic:
        raise InvalidRecordError(
            f"an inner message has magic {message.magic} and compression type {message.codec}, it must have magic "
            f"{wrapper.magic} and no compression"
        )
    return message.offset


def stamp(data: bytearray, offsets: list[tuple[int, int]], base_offset: int) -> None:
    """Writes the offset of every message, in place."""
    for position, relative in offsets:
        _INT64.pack_into(data, position, base_offset + relative)
