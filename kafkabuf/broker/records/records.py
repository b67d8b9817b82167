"""Reads the records of a stored batch, or of a set of messages of magic 0 and 1.

For ListOffsets by timestamp, to validate them, and to verify batches when `verify_records` is set. _record_walk.pyx
reads the records of magic 2. `max_message_bytes` is the topic's max.message.bytes, which bounds what compressed records
may become (compression.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kafkabuf.broker.records._record_walk import RecordWalk
from kafkabuf.broker.records.batch import (
    CODEC_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC_AT,
    NO_TIMESTAMP,
    SMALLEST_RECORD,
)
from kafkabuf.broker.records.compression import LZ4, NONE, check_lz4, decompress, max_unpacked, unpack
from kafkabuf.broker.records.config import Limits
from kafkabuf.broker.records.message_set import messages
from kafkabuf.errors import CorruptMessageError, InvalidRecordError

MAX_MESSAGE_BYTES = Limits().max_message_bytes
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Index in the batch, offset and timestamp of a record, and whether its key is other than null."""

    index: int
    offset: int
    timestamp: int
    has_key: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records that a topic takes: the bounds of the timestamp, whether a record without a timestamp is exempt from
    them, and whether a record needs a key."""

    least: int
    greatest: int
    timestamp_optional: bool
    needs_key: bool

    def refuses(self, record: StoredRecord) -> bool:
        exempt = self.timestamp_optional and record.timestamp == NO_TIMESTAMP
        in_time = exempt or self.least <= record.timestamp <= self.greatest
        return not in_time or (self.needs_key and not record.has_key)


def read_records(
    data: bytes | bytearray | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES
) -> Iterator[StoredRecord]:
    """The records of a stored batch or message set, in order. Raises InvalidRecordError for a malformed record,
    CorruptMessageError for records that cannot be unpacked."""
    view = memoryview(data)
    if view[MAGIC_AT] != 2:
        yield from _set_records(view, max_message_bytes)
        return
    if _is_cleaned(view):
        yield from _cleaned_records(view)
        return
    batch = _Batch(view, max_message_bytes)
    for index, (delta, has_key) in enumerate(batch.walk):
        yield batch.record(index, delta, has_key)


def first_at(
    data: bytes | bytearray | memoryview, timestamp: int, offset: int, max_message_bytes: int
) -> StoredRecord | None:
    """The first record at or after `timestamp`, from `offset` on. Raises what `read_records` raises."""
    view = memoryview(data)
    if view[MAGIC_AT] != 2 or _is_cleaned(view):
        records = read_records(view, max_message_bytes)
        return next((record for record in records if record.timestamp >= timestamp and record.offset >= offset), None)
    batch = _Batch(view, max_message_bytes)
    fields = batch.walk.first(batch.delta(timestamp), max(offset - batch.base_offset, 0))
    return None if fields is None else batch.record(*fields, has_key=False)


def find_refused(
    data: bytes | bytearray | memoryview, wanted: Wanted, max_message_bytes: int, most: int
) -> tuple[int, int, Sequence[StoredRecord]]:
    """The greatest timestamp of the records, the number of records that `wanted` refuses, and the first `most` of
    these. Raises what `read_records` raises."""
    view = memoryview(data)
    if view[MAGIC_AT] != 2:
        records = list(_set_records(view, max_message_bytes))
        refused = [record for record in records if wanted.refuses(record)]
        return max(record.timestamp for record in records), len(refused), refused[:most]
    batch = _Batch(view, max_message_bytes)
    least, greatest = batch.delta(wanted.least), batch.delta(wanted.greatest)
    exempt = batch.delta(NO_TIMESTAMP) if wanted.timestamp_optional else None
    newest, count, rows = batch.walk.outside(least, greatest, exempt, wanted.needs_key, most)
    return batch.timestamp(newest), count, [batch.record(*fields) for fields in rows]


def verify(data: bytes | bytearray | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
    """Reads every record of a magic 2 batch. Raises InvalidRecordError if a record is malformed or the newest timestamp
    of the records is not that of the header, CorruptMessageError for records that a client cannot unpack."""
    view = memoryview(data)
    batch = _Batch(view, max_message_bytes)
    if batch.codec == LZ4:
        check_lz4(view[HEADER_SIZE:])
    newest = batch.timestamp(batch.walk.newest())
    if newest != batch.max_timestamp:
        raise InvalidRecordError(
            f"the header's newest timestamp is {batch.max_timestamp}, that of the records is {newest}"
        )


def _is_cleaned(view: memoryview) -> bool:
    """Whether the cleaner has taken records out of a magic 2 batch: the offsets of the others have gaps."""
    fields = HEADER.unpack_from(view)
    return bool(fields[6] + 1 != fields[-1])


def _cleaned_records(view: memoryview) -> Iterator[StoredRecord]:
    # Loaded with the first use: few logs are compacted.
    from kafkabuf.broker.records.rewriting import OpenBatch

    fields = HEADER.unpack_from(view)
    for index, record in enumerate(OpenBatch(view).records()):
        timestamp = fields[8] if fields[5] & LOG_APPEND_TIME else fields[7] + record.timestamp_delta
        yield StoredRecord(index, record.offset, timestamp, record.key is not None)


class _Batch:
    """The header of a magic 2 batch, and the walk over its records. The walk has timestamps relative to the first."""

    def __init__(self, view: memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        fields = HEADER.unpack_from(view)
        self.base_offset: int = fields[0]
        self.max_timestamp: int = fields[8]
        attributes, first_timestamp = fields[5], fields[7]
        self._append_time = bool(attributes & LOG_APPEND_TIME)
        # With LogAppendTime, readers take the newest timestamp of the header for that of every record.
        self._first_timestamp: int = self.max_timestamp if self._append_time else first_timestamp
        self.codec, count, packed = attributes & CODEC_MASK, fields[-1], view[HEADER_SIZE:]
        most = max_unpacked(self.codec, len(packed), max_message_bytes)
        if self.codec != NONE and count * SMALLEST_RECORD > most:
            raise CorruptMessageError(f"the batch says {count} records, its records may take {most} bytes")
        self.walk = RecordWalk(unpack(self.codec, packed, most), count, relative=not self._append_time)

    def delta(self, timestamp: int) -> int:
        return min(max(timestamp - self._first_timestamp, -_INT64), _INT64 - 1)

    def timestamp(self, delta: int) -> int:
        """A sum beyond 64 bits wraps around, as in Java."""
        return (self._first_timestamp + delta + _INT64) % (2 * _INT64) - _INT64

    def record(self, index: int, delta: int, has_key: bool) -> StoredRecord:
        return StoredRecord(index, self.base_offset + index, self.timestamp(delta), has_key)


def _set_records(view: memoryview, max_message_bytes: int) -> Iterator[StoredRecord]:
    index = 0
    for message in messages(view):
        if message.codec == NONE:
            yield StoredRecord(index, message.offset, message.timestamp, message.has_key)
            index += 1
            continue
        packed = view[message.value]
        most = max_unpacked(message.codec, len(packed), max_message_bytes)
        inner = list(messages(memoryview(decompress(message.codec, packed, most))))
        for relative, inner_message in enumerate(inner):
            offset = message.offset - len(inner) + 1 + relative
            yield StoredRecord(index, offset, inner_message.timestamp, inner_message.has_key)
            index += 1
