"""The headers of batches, as independent encoders write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from kafkabuf.errors import CorruptMessageError
from kafkabuf.spool.headers import BatchHeader, batch_headers
from tests.broker.raw_client import NOW, batch, message

APPEND_TIME, CONTROL = 0x08, 0x20


def at(offset: int, data: bytes) -> bytes:
    """The batch as a log has it at an offset."""
    return offset.to_bytes(8, "big") + data[8:]


def headers(data: bytes) -> list[BatchHeader]:
    return list(batch_headers(data))


def test_headers_of_all_batches_are_read_in_order() -> None:
    data = at(7, batch([b"a", b"b"], producer=(5, 3, 11))) + at(9, batch([b"c"] * 4))
    assert headers(data) == [BatchHeader(7, 2, 5, 3, 11, NOW + 1, NOW), BatchHeader(9, 4, -1, -1, -1, NOW + 3, NOW)]
    assert [header.last_offset for header in headers(data)] == [8, 12]


@pytest.mark.parametrize("codec", [DefaultRecordBatchBuilder.CODEC_NONE, DefaultRecordBatchBuilder.CODEC_GZIP])
def test_headers_are_those_that_kafka_python_writes(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, True, 9_000, 4, 2**31 - 2, 1 << 20)
    for offset in range(3):
        assert builder.append(offset, 1_000 + offset, b"k", b"v" * 100, []) is not None
    assert headers(bytes(builder.build())) == [BatchHeader(0, 3, 9_000, 4, 2**31 - 2, 1_002, 1_000)]


def test_time_of_the_broker_is_not_the_producers() -> None:
    assert headers(batch([b"a"], attributes=APPEND_TIME, producer=(5, 3, 0)))[0].largest_timestamp == -1


def test_end_of_a_transaction_is_no_batch_of_its_producer() -> None:
    assert headers(batch([b"a"], attributes=CONTROL, producer=(5, 3, 0)))[0].producer_id == -1


def test_batch_that_compaction_thinned_keeps_its_count() -> None:
    assert headers(batch([b"a"], producer=(5, 3, 0), last_delta=9))[0].count == 10


def test_messages_of_magic_1_have_no_producer() -> None:
    data = message(b"v", offset=5) + at(6, batch([b"a"], producer=(5, 3, 0)))
    assert headers(data) == [BatchHeader(5, 1, -1, -1, -1, -1), BatchHeader(6, 1, 5, 3, 0, NOW, NOW)]


def test_response_that_ends_within_a_batch_gives_each_whole_header() -> None:
    first, second = batch([b"a" * 50]), at(1, batch([b"b" * 50]))
    data = first + second
    for size in range(len(data) + 1):
        expected = (size >= 61) + (size >= len(first) + 61)
        assert len(headers(data[:size])) == expected


@given(st.binary(max_size=200))
def test_any_bytes_give_headers_or_corrupt_message(data: bytes) -> None:
    try:
        headers(data)
    except CorruptMessageError:
        pass


@pytest.mark.parametrize("length", [-13, -1, 0, 48])
def test_length_that_cannot_be_is_refused(length: int) -> None:
    data = batch([b"a"])
    with pytest.raises(CorruptMessageError):
        headers(data[:8] + length.to_bytes(4, "big", signed=True) + data[12:])
