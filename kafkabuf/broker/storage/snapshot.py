"""The state of producers on disk: Kafka's producer snapshots and transaction indexes.

NNN.snapshot   version i16 = 1 | CRC-32C of what follows | count i32 | for each producer: id i64, epoch i16, last
               sequence i32, last offset i64, offsets in the last batch less one i32, timestamp i64, coordinator epoch
               i32, first offset of the open transaction i64 (-1: none)
NNN.txnindex   for each aborted transaction: version i16 = 0 | producer id i64 | first offset i64 | last offset i64 |
               last stable offset i64

Behind the producers, where Kafka does not read, is what the transaction indexes had when the snapshot was taken, so
that a lost or damaged entry is noticed: count i32, and for each index with entries: base offset of its segment i64,
entries i32, CRC-32C u32 of the entries' producer ids, first and last offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kafkabuf.broker.records._producer_entry import NO_SEQUENCE, ProducerEntry
from kafkabuf.broker.records.producer_state import AbortedTransaction, ProducerStates
from kafkabuf.broker.wire.crc import crc32c
from kafkabuf.errors import CorruptMessageError

_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_INDEX = struct.Struct(">qiI")
_SUMMED = struct.Struct(">qqq")
_ABORTED = struct.Struct(">hqqqq")
ABORTED_SIZE = _ABORTED.size
_VERSION = 1
_ABORTED_VERSION = 0
_NONE = -1


class IndexSum(NamedTuple):
    """How many entries a transaction index has, and their CRC-32C, which the index does not have."""

    entries: int
    crc: int


def sum_of(aborted: Sequence[AbortedTransaction]) -> IndexSum:
    """The sum of an index with these entries."""
    entries = (_SUMMED.pack(each.producer_id, each.first_offset, each.last_offset) for each in aborted)
    return IndexSum(len(aborted), crc32c(b"".join(entries)))


def encode_snapshot(states: ProducerStates, indexes: Mapping[int, IndexSum]) -> bytes:
    """A log may have thousands of producers, and takes a snapshot where a segment ends: each producer is one call.
    `indexes` has the sum of each transaction index by the base offset of its segment."""
    entries = bytearray()
    for producer_id, entry in states:
        entry.encode(producer_id, entries)
    sums = b"".join(_INDEX.pack(base, *each) for base, each in indexes.items())
    body = _COUNT.pack(len(entries) // _ENTRY.size) + entries + _COUNT.pack(len(indexes)) + sums
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> tuple[ProducerStates, dict[int, IndexSum]]:
    """The states, and the sums of transaction indexes as `encode_snapshot` takes them: none in a snapshot of
    Kafka's. Raises CorruptMessageError for a malformed snapshot."""
    try:
        version, crc = _HEAD.unpack_from(data)
        if version != _VERSION or crc != crc32c(data[_HEAD.size :]):
            raise CorruptMessageError(
                f"the snapshot has version {version} and CRC {crc:#010x}: "
                f"version {_VERSION} with CRC {crc32c(data[_HEAD.size :]):#010x} is needed"
            )
        entries, at = _decode_entries(data)
        indexes = _decode_indexes(data, at)
    except (struct.error, IndexError, OverflowError) as error:
        raise CorruptMessageError(f"a snapshot of {len(data)} bytes is malformed: {error}") from error
    return ProducerStates(entries), indexes


def _decode_entries(data: bytes) -> tuple[dict[int, ProducerEntry], int]:
    entries: dict[int, ProducerEntry] = {}
    (count,), at = _COUNT.unpack_from(data, _HEAD.size), _HEAD.size + _COUNT.size
    for _ in range(count):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start = _ENTRY.unpack_from(data, at)
        entry = ProducerEntry(epoch, coordinator_epoch, timestamp, None if start == _NONE else start)
        if sequence != NO_SEQUENCE:
            first = (sequence - delta) % 2**31
            entry.remember(first, sequence, offset - delta, timestamp)
        entries[producer_id] = entry
        at += _ENTRY.size
    return entries, at


def _decode_indexes(data: bytes, at: int) -> dict[int, IndexSum]:
    if at == len(data):
        return {}  # Kafka wrote this snapshot
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    if len(data) - at != count * _INDEX.size:
        raise CorruptMessageError(f"{len(data) - at} bytes are not the sums of {count} transaction indexes")
    return {base: IndexSum(entries, crc) for base, entries, crc in _INDEX.iter_unpack(data[at:])}


def encode_aborted(aborted: AbortedTransaction, last_stable_offset: int) -> bytes:
    return _ABORTED.pack(
        _ABORTED_VERSION, aborted.producer_id, aborted.first_offset, aborted.last_offset, last_stable_offset
    )


def decode_aborted(data: bytes, base_offset: int) -> list[AbortedTransaction]:
    """The transaction index of the segment that begins at `base_offset`. Raises CorruptMessageError unless the index
    has whole entries in the order of their control records."""
    if len(data) % ABORTED_SIZE:
        raise CorruptMessageError(f"a transaction index has {len(data)} bytes, and each entry has {ABORTED_SIZE}")
    aborted: list[AbortedTransaction] = []
    before = base_offset - 1
    for version, producer_id, first, last, _ in _ABORTED.iter_unpack(data):
        if version != _ABORTED_VERSION or producer_id < 0 or not 0 <= first <= last or last <= before:
            raise CorruptMessageError(
                f"entry {len(aborted)} of a transaction index has version {version}, producer id {producer_id} and "
                f"offsets {first} to {last}, behind offset {before}"
            )
        aborted.append(AbortedTransaction(producer_id, first, last))
        before = last
    return aborted


def copy_aborted(data: bytes, kept: Collection[AbortedTransaction]) -> bytes:
    """The entries of a transaction index that belong to the transactions `kept`, as they are."""
    ends = {(transaction.producer_id, transaction.last_offset) for transaction in kept}
    entries = (data[at : at + ABORTED_SIZE] for at in range(0, len(data) // ABORTED_SIZE * ABORTED_SIZE, ABORTED_SIZE))
    return b"".join(entry for entry in entries if _ABORTED.unpack(entry)[1:4:2] in ends)
