"""Record batches as the broker sees them: checked on arrival, stamped with offset and epoch.

Otherwise the broker leaves the bytes alone, unless it must replace the timestamps.

Magic 2, one batch:
    base offset i64 | length i32 | leader epoch i32 | magic i8 | crc u32 | attributes i16 | last offset delta i32 |
    first timestamp i64 | max timestamp i64 | producer id i64 | producer epoch i16 | base sequence i32 | count i32 |
    records
The CRC-32C covers attributes to end, so base offset and leader epoch are stamped without touching it.

The checks are those of Kafka's UnifiedLog and LogValidator that need only the header. validator.py has those that may
need the records.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kafkabuf.broker.crc import crc32c
from kafkabuf.broker.log import compression
from kafkabuf.broker.log.config import Limits
from kafkabuf.errors import (
    CorruptMessageError,
    InvalidRecordError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)

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

CRC_AT = 17
_NEWEST_AT = 35

_BASE = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
CRC = struct.Struct(">I")


@dataclass(slots=True)
class BatchInfo:
    """The facts of a batch that the log keeps beside its bytes. Its records have the offsets base to base + `count` -
    1."""

    count: int
    max_timestamp: int
    magic: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


def check_batch(records: memoryview, version: int, limits: Limits) -> BatchInfo:
    """Checks the one magic 2 batch of a Produce request, version 3 or later. Raises the error of the response.

    CorruptMessageError for a wrong length or CRC, InvalidRecordError for a header that contradicts itself,
    RecordTooLargeError, UnsupportedCompressionTypeError.
    """
    if not len(records):
        raise InvalidRecordError("there must be one record batch for the partition, found none")
    if len(records) > MAGIC_AT and records[MAGIC_AT] != 2:
        raise InvalidRecordError(f"Produce version {version} takes magic 2 only, found {records[MAGIC_AT]}")
    if len(records) < HEADER_SIZE:
        raise CorruptMessageError(f"{len(records)} bytes are not a record batch: a header takes {HEADER_SIZE} bytes")
    fields = HEADER.unpack_from(records)
    _, length, _, _, crc, attributes, last_delta, _, max_timestamp, pid, pid_epoch, sequence, count = fields
    _check_length(len(records), length, limits)
    actual = crc32c(records[ATTRIBUTES_AT:])
    if actual != crc:
        raise CorruptMessageError(f"the batch header has CRC {crc:#010x}, its bytes have CRC {actual:#010x}")
    if count <= 0 or last_delta != count - 1:
        raise InvalidRecordError(f"the batch has {count} records, but its last offset delta is {last_delta}")
    if pid >= 0 and (sequence < 0 or pid_epoch < 0):
        raise InvalidRecordError(
            f"producer id {pid} needs an epoch and a base sequence, found epoch {pid_epoch} and sequence {sequence}"
        )
    if attributes & CONTROL:
        raise InvalidRecordError("clients may not write control batches")
    _check_codec(attributes & CODEC_MASK, version)
    return BatchInfo(count, max_timestamp, 2, pid, pid_epoch, sequence, bool(attributes & TRANSACTIONAL))


def _check_length(size: int, length: int, limits: Limits) -> None:
    if length < HEADER_SIZE - OVERHEAD or length + OVERHEAD > size:
        raise CorruptMessageError(f"the batch length is {length}, but {size - OVERHEAD} bytes follow it")
    if length + OVERHEAD < size:
        raise InvalidRecordError(f"{size - length - OVERHEAD} bytes follow the batch: exactly one batch is allowed")
    if size > limits.max_message_bytes:
        raise RecordTooLargeError(f"the batch has {size} bytes, max.message.bytes is {limits.max_message_bytes}")


def _check_codec(codec: int, version: int) -> None:
    if codec >= len(compression.NAMES):
        raise UnsupportedCompressionTypeError(f"compression type {codec} is unknown")
    if codec == compression.ZSTD and version < 7:
        raise UnsupportedCompressionTypeError(f"zstd needs Produce version 7 or later, this is version {version}")


def stamp(batch: bytearray, base_offset: int, leader_epoch: int) -> None:
    """Writes the two fields of a magic 2 batch that the leader sets. The CRC covers neither."""
    _BASE.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, OVERHEAD, leader_epoch)


def is_transactional(batch: Data) -> bool:
    """Whether the bytes of a Produce request begin with a batch of a transaction, which need not be whole."""
    return len(batch) > ATTRIBUTES_AT + 1 and batch[MAGIC_AT] == 2 and bool(batch[ATTRIBUTES_AT + 1] & TRANSACTIONAL)


def has_append_time(batch: Data) -> bool:
    """Whether the header of a magic 2 batch says that the leader set the timestamps."""
    return batch[MAGIC_AT] == 2 and bool(batch[ATTRIBUTES_AT + 1] & LOG_APPEND_TIME)


def stamp_timestamps(batch: bytearray, newest: int, append_time: bool) -> None:
    """Writes the greatest timestamp and the timestamp type of a magic 2 batch, and its new CRC. With `append_time`
    readers take `newest` for the timestamp of every record."""
    batch[ATTRIBUTES_AT + 1] = batch[ATTRIBUTES_AT + 1] & ~LOG_APPEND_TIME | LOG_APPEND_TIME * append_time
    _BASE.pack_into(batch, _NEWEST_AT, newest)
    CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
