"""The partition log, and the checks of batches and message sets."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c

from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records import message_set, records
from kafkabuf.broker.records._batch import BatchInfo, check_batch, stamp
from kafkabuf.broker.records.config import Limits, LogConfig
from kafkabuf.errors import (
    CorruptMessageError,
    InvalidRecordError,
    KafkaError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from tests.broker.raw_client import NOW, batch, message, sized, varint

LIMITS = Limits()


def check(data: bytes, version: int = 9, limits: Limits = LIMITS) -> BatchInfo:
    return check_batch(memoryview(data), version, limits)


def append(log: PartitionLog, data: bytes, epoch: int = 0) -> int:
    stored = bytearray(data)
    stamp(stored, log.end_offset, epoch)
    return log.append(stored, check(data), epoch)


def with_crc(data: bytes) -> bytes:
    """`data` with the right CRC."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


# ---- the log


def test_offsets_are_consecutive() -> None:
    log = PartitionLog()
    assert [append(log, batch([b"x"] * n)) for n in (1, 5, 2)] == [0, 1, 6]
    assert log.end_offset == 8
    assert [struct.unpack_from(">q", one.data)[0] for one in log.batches()] == [0, 1, 6]


def test_fetch_from_within_a_batch_returns_the_batch() -> None:
    log = PartitionLog()
    for n in (1, 5, 2):
        append(log, batch([b"x"] * n))
    stored = [one.data for one in log.batches()]
    assert log.read(0, 1 << 20, True) == stored
    assert log.read(1, 1 << 20, True) == log.read(5, 1 << 20, True) == stored[1:]
    assert log.read(6, 1 << 20, True) == log.read(7, 1 << 20, True) == stored[2:]
    assert log.read(8, 1 << 20, True) == []
    assert log.available(5) == len(stored[1]) + len(stored[2])
    assert log.available(8) == 0


def test_first_batch_is_returned_even_above_the_fetch_limit() -> None:
    log = PartitionLog()
    append(log, batch([b"x" * 1000]))
    append(log, batch([b"y" * 1000]))
    first = log.batches()[0].data
    assert log.read(0, 10, True) == [first]
    assert log.read(0, 10, False) == []
    assert log.read(0, len(first), False) == [first]


def test_retention_by_bytes_drops_whole_old_batches() -> None:
    size = len(batch([b"x" * 100]))
    log = PartitionLog(LogConfig(3 * size))
    for _ in range(10):
        append(log, batch([b"x" * 100]))
    assert (log.log_start_offset, log.end_offset, log.size) == (7, 10, 3 * size)
    assert [one.base_offset for one in log.batches()] == [7, 8, 9]
    assert log.read(7, 1 << 20, True) == [one.data for one in log.batches()]


def test_retention_by_bytes_keeps_the_last_batch() -> None:
    log = PartitionLog(LogConfig(1))
    for _ in range(3):
        append(log, batch([b"x", b"y"]))
    assert (log.log_start_offset, log.end_offset, len(log.batches())) == (4, 6, 1)


def test_lookups_hold_in_a_log_that_was_trimmed_often() -> None:
    log = PartitionLog(LogConfig(1000))
    data = batch([b"x"])
    for number in range(5000):
        assert append(log, data) == number
    kept = log.batches()
    assert (kept[0].base_offset, kept[-1].base_offset) == (log.log_start_offset, 4999)
    assert log.read(4999, 1 << 20, True) == [kept[-1].data]
    assert log.available(log.log_start_offset) == log.size == len(kept) * len(data)


def test_offset_for_a_timestamp_is_the_first_at_or_after_it() -> None:
    log = PartitionLog()
    append(log, batch([b"a", b"b"], timestamps=[100, 300]))
    append(log, batch([b"c", b"d"], timestamps=[200, 400]), epoch=3)
    assert log.offset_at(0) == (0, 100, 0)
    assert log.offset_at(101) == (1, 300, 0)
    assert log.offset_at(301) == (3, 400, 3)
    assert log.offset_at(401) is None
    assert log.newest() == (3, 400, 3)
    assert PartitionLog().newest() is None


def test_timestamps_of_a_compressed_batch_are_found() -> None:
    log = PartitionLog()
    plain = batch([b"a", b"b", b"c"], timestamps=[100, 200, 300])
    data = batch([b"a"] * 3, timestamps=[100, 200, 300], attributes=1, body=gzip.compress(plain[61:]))
    append(log, data)
    assert log.offset_at(150) == (1, 200, 0)


# ---- magic 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda b: b"", InvalidRecordError),
        (lambda b: b[:60], CorruptMessageError),
        (lambda b: b[:-1], CorruptMessageError),
        (lambda b: b + b"\0", InvalidRecordError),
        (lambda b: b + b, InvalidRecordError),
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), CorruptMessageError),
        (lambda b: b[:17] + bytes([b[17] ^ 0x80]) + b[18:], CorruptMessageError),
        (lambda b: b[:16] + b"\1" + b[17:], InvalidRecordError),
        (lambda b: b[:16] + b"\3" + b[17:], InvalidRecordError),
        (lambda b: b[:8] + struct.pack(">i", -5) + b[12:], CorruptMessageError),
        (lambda b: b[:8] + struct.pack(">i", 48) + b[12:], CorruptMessageError),
        (lambda b: b[:8] + struct.pack(">i", 2**31 - 1) + b[12:], CorruptMessageError),
        (lambda b: batch([b"x"] * 3, count=2), InvalidRecordError),
        (lambda b: batch([b"x"] * 3, count=0, last_delta=-1), InvalidRecordError),
        (lambda b: batch([b"x"] * 3, count=-1, last_delta=-2), InvalidRecordError),
        (lambda b: batch([b"x"], attributes=0x20), InvalidRecordError),
        (lambda b: batch([b"x"], attributes=5), UnsupportedCompressionTypeError),
        (lambda b: batch([b"x"], producer=(7, 0, -1)), InvalidRecordError),
        (lambda b: batch([b"x"], producer=(7, -1, 0)), InvalidRecordError),
    ],
)
def test_bad_batch_is_refused(change: Callable[[bytes], bytes], error: type[KafkaError]) -> None:
    good = batch([b"one", None, b"three"])
    assert check(good).count == 3
    with pytest.raises(error):
        check(change(good))


def test_batch_info_has_the_fields_of_the_header() -> None:
    info = check(batch([b"x"] * 4, timestamps=[5, 9, 7, 8], producer=(12, 3, 40)))
    assert (info.count, info.max_timestamp, info.magic) == (4, 9, 2)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (12, 3, 40)


def test_batch_over_the_topics_limit_is_refused() -> None:
    data = batch([b"x" * 500])
    assert check(data, limits=Limits(max_message_bytes=len(data))).count == 1
    with pytest.raises(RecordTooLargeError, match=f"{len(data)} bytes, max.message.bytes is {len(data) - 1}"):
        check(data, limits=Limits(max_message_bytes=len(data) - 1))


def test_zstd_needs_produce_version_7() -> None:
    data = batch([b"x"], attributes=4)
    assert check(data, version=7).count == 1
    with pytest.raises(UnsupportedCompressionTypeError):
        check(data, version=6)


def test_stamping_keeps_the_crc_valid() -> None:
    data = bytearray(batch([b"x"]))
    stamp(data, 2**40, 17)
    assert struct.unpack_from(">q", data)[0] == 2**40
    assert struct.unpack_from(">i", data, 12)[0] == 17
    assert check(bytes(data)).count == 1


RECORD = b"\0" + varint(0) + varint(0) + sized(b"k") + sized(b"v") + varint(1) + sized(b"h") + sized(None)


@pytest.mark.parametrize(
    "body",
    [
        varint(len(RECORD)) + RECORD[:-1],
        varint(len(RECORD) + 1) + RECORD,
        varint(len(RECORD) - 1) + RECORD,
        varint(len(RECORD)) + RECORD + b"\0",
        varint(-3) + RECORD,
        b"",
        b"\xff" * 12,
        varint(6) + b"\0" + varint(0) + varint(1) + sized(None) + sized(None) + varint(0),
        varint(6) + b"\0" + varint(0) + varint(0) + varint(-2) + sized(None) + varint(0),
        varint(6) + b"\0" + varint(0) + varint(0) + varint(50) + sized(None) + varint(0),
        varint(6) + b"\0" + varint(0) + varint(0) + sized(None) + sized(None) + varint(9),
        varint(6) + b"\0" + varint(0) + varint(0) + sized(None) + sized(None) + varint(-1),
        varint(7) + b"\0" + varint(0) + varint(0) + sized(None) + sized(None) + varint(1) + sized(None),
    ],
)
def test_verification_refuses_a_malformed_record(body: bytes) -> None:
    records.verify(batch([b"-"], body=varint(len(RECORD)) + RECORD))
    with pytest.raises(InvalidRecordError):
        records.verify(batch([b"-"], body=body))


def test_verification_refuses_a_wrong_newest_timestamp() -> None:
    good = batch([b"a", b"b"], timestamps=[10, 20])
    records.verify(good)
    with pytest.raises(InvalidRecordError, match="newest timestamp is 21, that of the records is 20"):
        records.verify(with_crc(good[:35] + struct.pack(">q", 21) + good[43:]))


# ---- magic 0 and 1


def check_set(data: bytes, limits: Limits = LIMITS) -> tuple[BatchInfo, list[tuple[int, int]]]:
    return message_set.check_message_set(memoryview(data), limits)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_get_the_offsets_of_the_log(magic: int) -> None:
    data = b"".join(message(value, magic=magic, offset=9) for value in (b"a", None, b"", b"ccc"))
    info, offsets = check_set(data)
    assert (info.count, info.magic, info.max_timestamp) == (4, magic, NOW if magic else -1)
    stored = bytearray(data)
    message_set.stamp(stored, offsets, 1000)
    assert [one.offset for one in message_set.messages(memoryview(stored))] == [1000, 1001, 1002, 1003]


def test_compressed_message_counts_with_its_inner_messages() -> None:
    inner = b"".join(message(b"v%d" % n, offset=n, time=NOW - 10 + n) for n in range(5))
    data = message(b"plain") + message(gzip.compress(inner), attributes=1) + message(b"after")
    info, offsets = check_set(data)
    assert info.count == 7
    assert [relative for _, relative in offsets] == [0, 5, 6]
    stored = bytearray(data)
    message_set.stamp(stored, offsets, 100)
    found = list(records.read_records(stored))
    assert [one.offset for one in found] == list(range(100, 107))
    assert found[3].timestamp == NOW - 8


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b"", InvalidRecordError, id="nothing"),
        pytest.param(message(b"x")[:-1], CorruptMessageError, id="cut off in the value"),
        pytest.param(message(b"x")[:10], CorruptMessageError, id="cut off in the size"),
        pytest.param(message(b"x") + b"\0\0", CorruptMessageError, id="bytes after the end"),
        pytest.param(message(b"x")[:-1] + b"y", CorruptMessageError, id="another byte than the CRC's"),
        pytest.param(message(b"x", magic=2), InvalidRecordError, id="magic of today's batch"),
        pytest.param(struct.pack(">qi", 0, -1) + message(b"x")[12:], CorruptMessageError, id="negative size"),
        pytest.param(struct.pack(">qi", 0, 2**31 - 1) + message(b"x")[12:], CorruptMessageError, id="largest size"),
        pytest.param(message(b"not gzip", attributes=1), CorruptMessageError, id="no gzip"),
        pytest.param(message(gzip.compress(b""), attributes=1), InvalidRecordError, id="nothing compressed"),
        pytest.param(
            message(gzip.compress(message(b"x", offset=5)), attributes=1), InvalidRecordError, id="inner offset not 0"
        ),
        pytest.param(
            message(gzip.compress(message(b"x", magic=0)), magic=0, attributes=1),
            UnsupportedForMessageFormatError,
            id="compressed magic 0",
        ),
        pytest.param(message(b"x", attributes=4), UnsupportedCompressionTypeError, id="zstd"),
        pytest.param(message(b"x" * 2_000_000), RecordTooLargeError, id="too large"),
    ],
)
def test_bad_message_set_is_refused(data: bytes, error: type[KafkaError]) -> None:
    with pytest.raises(error):
        check_set(data)


def test_value_size_beyond_the_message_is_refused() -> None:
    import zlib

    tail = struct.pack(">bbqi", 1, 0, NOW, -1) + struct.pack(">i", 50) + b"x"
    data = struct.pack(">qiI", 0, len(tail) + 4, zlib.crc32(tail)) + tail
    with pytest.raises(CorruptMessageError, match="key of -1 bytes and a value of 50 bytes do not fill"):
        check_set(data)


def test_gzip_bomb_is_refused() -> None:
    from kafkabuf.broker.records.compression import decompress

    with pytest.raises(CorruptMessageError, match="too large"):
        decompress(1, gzip.compress(bytes(101 * 1024 * 1024), compresslevel=1), 100 * 1024 * 1024)
