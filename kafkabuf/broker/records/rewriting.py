"""A batch of magic 2 without the records that a cleaned log does not keep (Kafka's MemoryRecords.filterTo).

The batch keeps its base offset and last offset, its sequences and its codec, and each kept record its offset and
timestamp. A batch without a record is a header alone.

A batch with a tombstone, or the batch of a control record whose transaction has no records any more, gets a delete
horizon when a cleaning first keeps it: the time from which on a later cleaning may drop it (KIP-534). The attribute
0x40 says so, and the horizon stands in the place of the first timestamp, to which the deltas of the timestamps refer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kafkabuf.broker.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    OVERHEAD,
    Data,
)
from kafkabuf.broker.records.compression import compress_in_steps, max_unpacked, unpack
from kafkabuf.broker.records.varint import read_varint
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.broker.wire.crc import crc32c
from kafkabuf.errors import InvalidRecordError

DELETE_HORIZON = 0x40
# A bound for a batch that a cleaning has already read.
_MAX_UNPACKED = 1 << 30
# Records in a step, which takes about a millisecond.
_RECORDS = 300


class KeyedRecord(NamedTuple):
    """A record of a stored batch. `start` and `end` are its places in the decompressed records, `rest` is the place
    behind its timestamp delta. A `tombstone` has a null value."""

    start: int
    rest: int
    end: int
    offset: int
    timestamp_delta: int
    key: bytes | None
    tombstone: bool


def record_count(data: Data) -> int:
    return int(HEADER.unpack_from(data)[-1])


def delete_horizon(data: Data) -> int | None:
    fields = HEADER.unpack_from(data)
    return fields[7] if fields[5] & DELETE_HORIZON else None


class Kept:
    """The records of a batch that stay: how many, and their places in the decompressed records, where neighbours are
    one place. A batch may have millions of records: there is no object for each."""

    def __init__(self) -> None:
        self.count = 0
        self.starts = array("q")
        self.ends = array("q")
        self.newest_delta = 0
        self.has_tombstone = False

    def add(self, record: KeyedRecord) -> None:
        if self.ends and self.ends[-1] == record.start:
            self.ends[-1] = record.end
        else:
            self.starts.append(record.start)
            self.ends.append(record.end)
        delta = record.timestamp_delta
        self.newest_delta = max(self.newest_delta, delta) if self.count else delta
        self.count += 1
        self.has_tombstone |= record.tombstone


class OpenBatch:
    """A stored batch whose records are decompressed. Raises CorruptMessageError or InvalidRecordError."""

    def __init__(self, data: Data, body: Data | None = None) -> None:
        self._data = data
        fields = HEADER.unpack_from(data)
        self._base_offset, self._attributes, self._first_timestamp = fields[0], fields[5], fields[7]
        self._count: int = fields[-1]
        self._body = finish(unpacked(data, _MAX_UNPACKED)) if body is None else body

    @classmethod
    def opened(cls, data: Data, max_message_bytes: int) -> Work[OpenBatch]:
        """The batch, in steps. It may become as many bytes as Produce allows (compression.py)."""
        codec = HEADER.unpack_from(data)[5] & CODEC_MASK
        body = yield from unpacked(data, max_unpacked(codec, len(data) - HEADER_SIZE, max_message_bytes))
        return cls(data, body)

    def records(self) -> Iterator[KeyedRecord]:
        body, start = self._body, 0
        try:
            for _ in range(self._count):
                length, at = read_varint(body, start)
                end = at + length
                if not start < end <= len(body):
                    raise InvalidRecordError(f"a record at {start} says {length} bytes, the batch has {len(body)}")
                delta, rest = read_varint(body, at + 1)
                offset_delta, at = read_varint(body, rest)
                key_size, at = read_varint(body, at)
                key = None if key_size < 0 else bytes(body[at : at + key_size])
                value_size, _ = read_varint(body, at + max(key_size, 0))
                yield KeyedRecord(start, rest, end, self._base_offset + offset_delta, delta, key, value_size < 0)
                start = end
        except IndexError:
            raise InvalidRecordError(f"the batch at offset {self._base_offset} ends within a record") from None

    def kept(self, keep: Callable[[KeyedRecord], bool]) -> Work[Kept]:
        """What is left of the batch with the records for which `keep` holds, in steps."""
        kept = Kept()
        for number, record in enumerate(self.records(), 1):
            if keep(record):
                kept.add(record)
            if not number % _RECORDS:
                yield
        return kept

    def without_records(self) -> Data:
        return _with_new_header(
            self._data, self._attributes & ~(CODEC_MASK | DELETE_HORIZON), NO_TIMESTAMP, None, 0, b""
        )

    def only(self, kept: Kept, keep: Callable[[KeyedRecord], bool], new_horizon: int | None) -> Work[Data]:
        """The batch with only the records `kept`, those for which `keep` holds, in steps. With `new_horizon` it gets a
        delete horizon."""
        shift = 0 if new_horizon is None else self._first_timestamp - new_horizon
        body = bytearray()
        if shift:
            for number, record in enumerate(self.records(), 1):
                if keep(record):
                    body += self._moved(record, shift)
                if not number % _RECORDS:
                    yield
        else:
            for number, (start, end) in enumerate(zip(kept.starts, kept.ends, strict=True), 1):
                body += self._body[start:end]
                if not number % _RECORDS:
                    yield
        self._body = b""
        attributes = self._attributes if new_horizon is None else self._attributes | DELETE_HORIZON
        newest = None if attributes & LOG_APPEND_TIME else self._first_timestamp + kept.newest_delta
        packed = yield from compress_in_steps(attributes & CODEC_MASK, body)
        return _with_new_header(self._data, attributes, self._first_timestamp - shift, newest, kept.count, packed)

    def _moved(self, record: KeyedRecord, shift: int) -> bytes:
        """The record with a timestamp delta that is `shift` greater."""
        content = b"\0" + varint(record.timestamp_delta + shift) + self._body[record.rest : record.end]
        return varint(len(content)) + content


def filtered(
    batch: OpenBatch,
    data: Data,
    keep: Callable[[KeyedRecord], bool],
    *,
    keep_empty: bool,
    horizon: int,
    gets_horizon: bool = False,
) -> Work[Data | None]:
    """The batch with the records for which `keep` holds, or `data` itself if that is all of it. Without a record: its
    header if `keep_empty`, else None. `horizon` is the delete horizon of a batch that needs one: it has a tombstone, or
    `gets_horizon`. In steps."""
    kept = yield from batch.kept(keep)
    if not kept.count:
        return batch.without_records() if keep_empty else None
    needs_horizon = gets_horizon or kept.has_tombstone
    new_horizon = horizon if needs_horizon and delete_horizon(data) is None else None
    if new_horizon is None and kept.count == record_count(data):
        return data
    return (yield from batch.only(kept, keep, new_horizon))


def unpacked(data: Data, most: int) -> Work[Data]:
    """The decompressed records of a batch, of at most `most` bytes, in steps."""
    fields = HEADER.unpack_from(data)
    if not fields[-1]:
        return b""
    pieces = unpack(fields[5] & CODEC_MASK, bytes(memoryview(data)[HEADER_SIZE:]), most)
    first, second = next(pieces, b""), next(pieces, None)
    if second is None:
        return first
    body = bytearray(first) + second
    for piece in pieces:
        body += piece
        yield
    return body


def _with_new_header(
    data: Data, attributes: int, first: int, newest: int | None, count: int, body: bytes | bytearray
) -> bytes:
    """A batch with the header of `data` and these fields. `newest` None leaves the greatest timestamp as it is."""
    fields = list(HEADER.unpack_from(data))
    fields[1], fields[5], fields[7], fields[-1] = HEADER_SIZE - OVERHEAD + len(body), attributes, first, count
    fields[8] = fields[8] if newest is None else newest
    out = bytearray(HEADER_SIZE) + body
    HEADER.pack_into(out, 0, *fields)
    CRC.pack_into(out, CRC_AT, crc32c(memoryview(out)[ATTRIBUTES_AT:]))
    return bytes(out)


def varint(number: int) -> bytes:
    """The zig-zag varint of a number of up to 64 bits."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
