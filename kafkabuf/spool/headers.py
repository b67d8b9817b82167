"""The headers of the batches in a Fetch response: where a batch lies in the log, and whose it is.

    base offset i64 | length i32 | leader epoch i32 | magic i8 | CRC u32 | attributes i16 | last offset delta i32 |
    first timestamp i64 | largest timestamp i64 | producer id i64 | producer epoch i16 | base sequence i32 | records i32

The records behind a header are neither decompressed nor decoded. A response may end in the middle of a batch: its
header counts if it is whole. Messages of magic 0 and 1 have offset, length and magic at the same places, and no
producer id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kafkabuf.errors import CorruptMessageError

_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = 12  # the length counts the bytes behind these
_APPEND_TIME = 0x08  # an attribute: the broker has replaced the largest timestamp by its own time
_CONTROL = 0x20  # an attribute: the coordinator of a transaction wrote the batch


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """One batch of the log. `producer_id` is -1 if the batch cannot be a producer's numbered batch.

    `count` is the number of records that the producer sent: compaction may have removed some of them. The largest
    timestamp is -1 if it is the broker's time.
    """

    base_offset: int
    count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    largest_timestamp: int
    base_timestamp: int = -1

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.count - 1


def batch_headers(records: bytes) -> Iterator[BatchHeader]:
    """The headers in the records of a Fetch response, in order. Raises CorruptMessageError for malformed bytes."""
    position = 0
    while position + _HEADER.size <= len(records):
        (offset, length, _, magic, _, attributes, delta, first, largest, producer_id, epoch, sequence, _) = (
            _HEADER.unpack_from(records, position)
        )
        if magic < 2:
            yield BatchHeader(offset, 1, -1, -1, -1, -1)
        elif length < _HEADER.size - _OFFSET_AND_LENGTH or delta < 0:
            raise CorruptMessageError(f"a batch at offset {offset} has a length of {length} and {delta + 1} offsets")
        else:
            numbered = sequence >= 0 and not attributes & _CONTROL
            largest = -1 if attributes & _APPEND_TIME else largest
            yield BatchHeader(offset, delta + 1, producer_id if numbered else -1, epoch, sequence, largest, first)
        if length <= 0:
            raise CorruptMessageError(f"a message at offset {offset} has a length of {length}")
        position += _OFFSET_AND_LENGTH + length
