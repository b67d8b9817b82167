"""The compiled check of a batch's header (records/_batch.pyx), and what the log notes of a producer."""

from __future__ import annotations

import struct
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records._batch import BatchInfo, check_batch, stamp
from kafkabuf.broker.records._producer_entry import AppendedBatch, ProducerEntry
from kafkabuf.broker.records.batch import ATTRIBUTES_AT, CRC, CRC_AT, HEADER, HEADER_SIZE
from kafkabuf.broker.records.config import Limits
from kafkabuf.broker.storage._stored import StoredBatch
from kafkabuf.broker.storage.batches import heads
from kafkabuf.broker.wire.crc import crc32c
from kafkabuf.errors import CorruptMessageError, InvalidRecordError, KafkaError, KafkaStorageError
from tests.broker.raw_client import batch

ROOM = 100
INT16, INT32, INT64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))


@given(
    count=st.integers(1, ROOM) | st.integers(1, 2**31 - 1),
    newest=INT64,
    pid=INT64,
    epoch=INT16,
    sequence=INT32,
    attributes=INT16,
)
def test_header_is_read_as_struct_reads_it(
    count: int, newest: int, pid: int, epoch: int, sequence: int, attributes: int
) -> None:
    data = bytearray(HEADER_SIZE + ROOM * 7)
    fields = (7, len(data) - 12, 3, 2, 0, attributes, count - 1, 0, newest, pid, epoch, sequence, count)
    HEADER.pack_into(data, 0, *fields)
    CRC.pack_into(data, CRC_AT, crc32c(data[ATTRIBUTES_AT:]))
    valid = (pid < 0 or (sequence >= 0 and epoch >= 0)) and not attributes & 0x20 and attributes & 7 < 5
    # Compressed records may take 32 times the largest message.
    valid = valid and count * 7 <= (32 * Limits().max_message_bytes if attributes & 7 else ROOM * 7)
    try:
        info = check_batch(data, 9, Limits())
    except KafkaError:
        assert not valid
        return
    assert valid
    flags = (info.transactional, info.append_time)
    assert flags == (bool(attributes & 0x10), bool(attributes & 0x08))
    found = (info.count, info.max_timestamp, info.magic, info.producer_id, info.producer_epoch, info.base_sequence)
    assert found == (count, newest, 2, pid, epoch, sequence)
    assert info.last_sequence == (sequence + count - 1) % 2**31


@pytest.mark.parametrize("size", range(HEADER_SIZE + 7))
def test_batch_that_is_cut_short_is_refused_wherever_it_is_cut(size: int) -> None:
    whole = batch([b"v"])
    assert len(whole) > size
    with pytest.raises(KafkaError):
        check_batch(whole[:size], 9, Limits())


@given(length=INT32)
def test_length_that_lies_is_refused(length: int) -> None:
    data = bytearray(batch([b"v"]))
    right = len(data) - 12
    struct.pack_into(">i", data, 8, length)
    if length == right:
        check_batch(data, 9, Limits())
    else:
        with pytest.raises(KafkaError, match="batch"):
            check_batch(data, 9, Limits())


@pytest.mark.parametrize(("codec", "most"), [(0, 10), (1, 32 * 1_048_588 // 7), (4, 32 * 1_048_588 // 7)])
def test_batch_says_no_more_records_than_its_bytes_can_have(codec: int, most: int) -> None:
    """Each batch that says 2^31 - 1 would begin a segment, with three files."""
    for count in (most, most + 1):
        data = batch([b""], attributes=codec, body=bytes(76), count=count, last_delta=count - 1)
        if count == most:
            assert check_batch(data, 9, Limits()).count == most
            continue
        with pytest.raises(InvalidRecordError, match=f"says {count} records"):
            check_batch(data, 9, Limits())


def test_released_view_and_a_view_with_gaps_are_refused() -> None:
    view = memoryview(batch([b"v"]))
    with pytest.raises(BufferError):
        check_batch(view[::2], 9, Limits())
    view.release()
    with pytest.raises(ValueError, match="released"):
        check_batch(view, 9, Limits())


def test_stamp_needs_the_bytes_of_a_header() -> None:
    data = bytearray(batch([b"v"]))
    stamp(data, 2**40 + 5, 17)
    assert struct.unpack_from(">qii", data) == (2**40 + 5, len(data) - 12, 17)
    for short in (bytearray(), data[: HEADER_SIZE - 1]):
        with pytest.raises(ValueError, match="header"):
            stamp(short, 0, 0)
    with pytest.raises((TypeError, ValueError)):
        stamp(None, 0, 0)  # type: ignore[arg-type]


def test_offset_beyond_int64_in_an_old_message_is_a_corrupt_batch() -> None:
    message = struct.pack(">qiIbb", 2**63 - 1, 14, 0, 0, 0) + struct.pack(">ii", -1, -1)
    with pytest.raises(CorruptMessageError):
        list(heads(message, 0))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), INT64), max_size=20))
def test_entry_remembers_the_last_five_batches_of_the_epoch(batches: list[tuple[int, int, int, int]]) -> None:
    entry, expected, present = ProducerEntry(), deque[AppendedBatch](maxlen=5), -1
    for offset, (epoch, sequence, count, newest) in enumerate(batches):
        if epoch != present:
            expected.clear()
            present = epoch
        entry.append(BatchInfo(count, newest, 2, 1, epoch, sequence), offset)
        expected.append(AppendedBatch(sequence, (sequence + count - 1) % 2**31, offset, newest))
        assert (entry.batches, entry.last_sequence) == (list(expected), expected[-1].last_sequence)
        assert (entry.epoch, entry.last_timestamp) == (epoch, newest)


def test_log_without_offsets_left_refuses_a_batch_and_stays_as_it_was() -> None:
    log = PartitionLog()
    log.restart_at(2**63 - 3)
    with pytest.raises(KafkaStorageError, match="no offsets are left for 3 records"):
        log.append(bytearray(batch([b"v"] * 3)), BatchInfo(3, 0, 2), 0)
    assert (log.end_offset, log.batches()) == (2**63 - 3, [])
    log.append(bytearray(batch([b"v"] * 2)), BatchInfo(2, 0, 2), 0)
    assert log.end_offset == 2**63 - 1


def test_stored_batch_has_data() -> None:
    with pytest.raises(TypeError):
        StoredBatch(0, 0, 0, 0, None)  # type: ignore[arg-type]
