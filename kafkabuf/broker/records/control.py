"""Control records: each ends a transaction in a partition, alone in its batch, byte for byte as in Kafka.

key:   version i16 = 0 | type i16 (0 abort, 1 commit)
value: version i16 = 0 | coordinator epoch i32

Code calls a control record a marker, as Kafka does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kafkabuf.broker.records.batch import (
    ATTRIBUTES_AT,
    CONTROL,
    CRC,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    OVERHEAD,
    TRANSACTIONAL,
)
from kafkabuf.broker.records.varint import read_varint
from kafkabuf.broker.wire.crc import crc32c

# Length, attributes, timestamp delta, offset delta; key of 4 bytes; value of 6; no headers.
_RECORD = struct.Struct(">4s b hh b hi b")
_HEAD = bytes((32, 0, 0, 0))
_KEY_AND_VALUE = struct.Struct(">b hh b hi b")
# A timestamp delta takes up to ten bytes: the cleaner may have changed it.
_LONGEST = 16 + _KEY_AND_VALUE.size


@dataclass(frozen=True, slots=True)
class Marker:
    """A control record, which the coordinator writes to every partition of a transaction to end the transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool


def read_marker(batch: bytes | bytearray | memoryview) -> Marker | None:
    """The control record of a batch that `control_batch` made; None if the cleaner has left only its header."""
    fields = HEADER.unpack_from(batch)
    if not fields[-1]:
        return None
    record = bytes(batch[HEADER_SIZE : HEADER_SIZE + _LONGEST])
    _, at = read_varint(record, 0)
    _, at = read_varint(record, at + 1)
    _, at = read_varint(record, at)
    _, _, committed, _, _, coordinator_epoch, _ = _KEY_AND_VALUE.unpack_from(record, at)
    return Marker(fields[9], fields[10], coordinator_epoch, bool(committed))


def control_batch(marker: Marker, timestamp: int) -> bytearray:
    """The batch of a control record. The log stamps base offset and leader epoch."""
    record = _RECORD.pack(_HEAD, 8, 0, marker.committed, 12, 0, marker.coordinator_epoch, 0)
    out = bytearray(HEADER.size) + record
    HEADER.pack_into(
        out,
        0,
        0,
        len(out) - OVERHEAD,
        -1,
        2,
        0,
        TRANSACTIONAL | CONTROL,
        0,
        timestamp,
        timestamp,
        marker.producer_id,
        marker.producer_epoch,
        -1,
        1,
    )
    CRC.pack_into(out, CRC_AT, crc32c(memoryview(out)[ATTRIBUTES_AT:]))
    return out
