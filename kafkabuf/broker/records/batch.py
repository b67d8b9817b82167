"""Record batches as the broker sees them: checked on arrival, stamped with offset and epoch (_batch.pyx).

Otherwise the broker leaves the bytes alone, unless it must replace the timestamps.

Magic 2, one batch:
    base offset i64 | length i32 | leader epoch i32 | magic i8 | crc u32 | attributes i16 | last offset delta i32 |
    first timestamp i64 | max timestamp i64 | producer id i64 | producer epoch i16 | base sequence i32 | count i32 |
    records
The CRC-32C covers attributes to end, so base offset and leader epoch are stamped without touching it.
"""

from __future__ import annotations

import struct

from kafkabuf.broker.wire.crc import crc32c

Data = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
# The bytes that the length does not count: base offset and length.
OVERHEAD = 12
MAGIC_AT = 16
ATTRIBUTES_AT = 21
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
NO_TIMESTAMP = -1
# A record of magic 2 has at least this many bytes: its length and six fields.
SMALLEST_RECORD = 7

CRC_AT = 17
_NEWEST_AT = 35
_PRODUCER_AT = 43

_BASE = struct.Struct(">q")
_PRODUCER = struct.Struct(">qh")
CRC = struct.Struct(">I")


def is_transactional(batch: Data) -> bool:
    """Whether the bytes of a Produce request begin with a batch of a transaction, which need not be whole."""
    return len(batch) > ATTRIBUTES_AT + 1 and batch[MAGIC_AT] == 2 and bool(batch[ATTRIBUTES_AT + 1] & TRANSACTIONAL)


def producer_of(batch: Data) -> tuple[int, int] | None:
    """The producer id and epoch of the batch with which the bytes of a Produce request begin, if it is one of a
    transaction. The other fields are not checked."""
    if len(batch) < HEADER_SIZE or not is_transactional(batch):
        return None
    producer: tuple[int, int] = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
    return producer


def is_compressed(batch: Data) -> bool:
    """Whether the bytes of a Produce request begin with a compressed batch, which need not be whole. A message set of
    magic 0 and 1 counts as compressed: its messages may be."""
    if len(batch) <= ATTRIBUTES_AT + 1:
        return False
    return batch[MAGIC_AT] != 2 or bool(batch[ATTRIBUTES_AT + 1] & CODEC_MASK)


def stamp_timestamps(batch: bytearray, newest: int, append_time: bool) -> None:
    """Writes the greatest timestamp and the timestamp type of a magic 2 batch, and its new CRC. With `append_time`
    readers take `newest` for the timestamp of every record."""
    batch[ATTRIBUTES_AT + 1] = batch[ATTRIBUTES_AT + 1] & ~LOG_APPEND_TIME | LOG_APPEND_TIME * append_time
    _BASE.pack_into(batch, _NEWEST_AT, newest)
    CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
