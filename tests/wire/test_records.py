"""The record encoders beside kafka-python's encoder and decoder, and at the edges of the format."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench import compiled
from kafkabuf._records import MemoryRecordsBuilder
from kafkabuf.errors import ClosedError, InvalidTimestampError, RecordTooLargeError, SerializationError
from tests.wire.record_support import (
    LAST_TIMESTAMP,
    SampleRecord,
    decoded_by_kafka_python,
    encoded,
    encoded_by_kafka_python,
    kafka_python_builder,
    records,
)

estimate_size_upper_bound = compiled.load("core").estimate_size_upper_bound
INT32_MAX = 2**31 - 1
BATCH_HEADER = 61
MAGICS = pytest.mark.parametrize("magic", [1, 2])


def batches(magic: int) -> st.SearchStrategy[list[SampleRecord]]:
    # Repeated often enough for the offset delta's varint to grow, at 64.
    return st.builds(lambda some, times: some * times, st.lists(records(magic), max_size=5), st.sampled_from([1, 33]))


def without_leader_epoch(batch: bytes) -> bytes:
    """Outside the CRC and overwritten by the broker: Java and we send -1, kafka-python 0."""
    assert batch[12:16] in (b"\xff\xff\xff\xff", b"\0\0\0\0")
    return batch[:12] + batch[16:]


# ---- against kafka-python --------------------------------------------------------------------------------------------


@MAGICS
@given(data=st.data())
def test_another_decoder_reads_the_same_records(magic: int, data: st.DataObject) -> None:
    batch = data.draw(batches(magic))
    assert decoded_by_kafka_python(encoded(magic, batch)) == list(enumerate(batch))


@MAGICS
@given(data=st.data())
def test_bytes_equal_those_of_another_encoder(magic: int, data: st.DataObject) -> None:
    batch = data.draw(batches(magic).filter(bool))
    ours, theirs = encoded(magic, batch), encoded_by_kafka_python(magic, batch)
    if magic == 2:
        assert ours[12:16] == b"\xff\xff\xff\xff"
        ours, theirs = without_leader_epoch(ours), without_leader_epoch(theirs)
    assert ours == theirs


@MAGICS
@given(data=st.data(), write_limit=st.integers(0, 2000))
def test_record_is_taken_exactly_while_it_fits(magic: int, data: st.DataObject, write_limit: int) -> None:
    """hasRoomFor: kafka-python's rule is Java's. The first record always fits, the others within the limit."""
    ours, theirs = MemoryRecordsBuilder(magic, write_limit), kafka_python_builder(magic, write_limit)
    for record in data.draw(st.lists(records(magic, 64), max_size=30)):
        taken = theirs.append(ours.count, *record) is not None
        assert (ours.append(*record) is not None) == taken
        assert ours.size == theirs.size()


@given(
    batch=st.lists(records(2, 64), min_size=1, max_size=4),
    producers=st.lists(
        st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, INT32_MAX)),
        min_size=1,
        max_size=3,
    ),
)
def test_second_close_has_only_the_second_producers_fields(
    batch: list[SampleRecord], producers: list[tuple[int, int, int]]
) -> None:
    builder = MemoryRecordsBuilder(2, 1 << 20)
    for record in batch:
        builder.append(*record)
    for producer in producers:
        expected = encoded_by_kafka_python(2, batch, producer)
        assert without_leader_epoch(builder.close(*producer)) == without_leader_epoch(expected)


# ---- room ------------------------------------------------------------------------------------------------------------


@MAGICS
@pytest.mark.parametrize("write_limit", [0, 1, 100, 4096])
def test_first_record_of_any_size_is_taken(magic: int, write_limit: int) -> None:
    record = SampleRecord(5, b"k" * 3000, b"v" * 3000)
    builder = MemoryRecordsBuilder(magic, write_limit)
    assert builder.append(*record) == 0
    assert builder.append(5, None, None) is None, "a batch past its limit takes nothing more"
    assert decoded_by_kafka_python(builder.close()) == [(0, record)]


@MAGICS
def test_record_that_fits_exactly_is_taken(magic: int) -> None:
    pair = [SampleRecord(5, b"key", b"value"), SampleRecord(4, None, b"another value")]
    size = len(encoded(magic, pair))
    exact, short = MemoryRecordsBuilder(magic, size), MemoryRecordsBuilder(magic, size - 1)
    assert [exact.append(*record) for record in pair] == [0, 1]
    assert [short.append(*record) for record in pair] == [0, None]
    assert exact.size == size
    assert decoded_by_kafka_python(short.close()) == [(0, pair[0])], "a refused record leaves a trace"


@MAGICS
@given(data=st.data())
def test_batch_of_one_needs_at_most_its_upper_bound(magic: int, data: st.DataObject) -> None:
    record = data.draw(records(magic))
    bound = estimate_size_upper_bound(magic, *record[1:])
    size = len(encoded(magic, [record]))
    assert size <= bound <= size + 36


@pytest.mark.parametrize("before", [0, 1, 63, 64, 8191, 8192])
def test_later_record_needs_at_most_its_upper_bound(before: int) -> None:
    """The bound must hold at any position of a batch: send() checks it before it knows the position."""
    builder = MemoryRecordsBuilder(2, 1 << 24)
    for _ in range(before):
        builder.append(LAST_TIMESTAMP, None, None)
    size = builder.size
    builder.append(0, b"k" * 8192, b"v" * (1 << 20), [("name" * 20, b"value" * 20)])
    bound = estimate_size_upper_bound(2, b"k" * 8192, b"v" * (1 << 20), [("name" * 20, b"value" * 20)])
    assert builder.size - size <= bound - BATCH_HEADER


# ---- varints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize("bits", range(63))
def test_timestamp_delta_at_the_edge_of_a_varint_is_encoded_right(bits: int, off: int) -> None:
    delta = 2**bits + off
    pair = [SampleRecord(0, None, b"a"), SampleRecord(delta, None, b"b")]
    for batch in (pair, pair[::-1]):  # a delta and its negative
        ours = encoded(2, batch)
        assert decoded_by_kafka_python(ours) == list(enumerate(batch))
        assert without_leader_epoch(ours) == without_leader_epoch(encoded_by_kafka_python(2, batch))


@pytest.mark.parametrize("size", [2**power + off for power in (6, 7, 13, 14, 20, 21) for off in (-1, 0, 1)])
@pytest.mark.parametrize("where", ["key", "value", "header name", "header value", "whole record"])
def test_size_at_the_edge_of_a_varint_is_encoded_right(size: int, where: str) -> None:
    blob = b"x" * size
    record = {
        "key": SampleRecord(7, blob, None),
        "value": SampleRecord(7, b"", blob),
        "header name": SampleRecord(7, None, None, (("x" * size, b""),)),
        "header value": SampleRecord(7, None, None, (("", blob), ("", None))),
        # Attributes, two deltas, key, size of the value, number of headers: 6 bytes and what the size takes.
        "whole record": SampleRecord(7, None, b"x" * (size - 5 - len(_varint(size)))),
    }[where]
    ours = encoded(2, [record])
    assert decoded_by_kafka_python(ours) == [(0, record)]
    assert without_leader_epoch(ours) == without_leader_epoch(encoded_by_kafka_python(2, [record]))


def _varint(value: int) -> bytes:
    value <<= 1
    return bytes(1 for _ in range(max(1, -(-value.bit_length() // 7))))


@pytest.mark.parametrize("count", [63, 64, 65, 8192])
def test_count_at_the_edge_of_a_varint_is_encoded_right(count: int) -> None:
    many_headers = SampleRecord(7, None, None, tuple((str(n), None) for n in range(count)))
    many_records = [SampleRecord(n, None, None) for n in range(count + 1)]
    for batch in ([many_headers], many_records):
        assert decoded_by_kafka_python(encoded(2, batch)) == list(enumerate(batch))


# ---- headers ---------------------------------------------------------------------------------------------------------


def test_headers_keep_order_duplicates_and_nulls() -> None:
    pairs = (
        ("b", b"1"),
        ("a", None),
        ("b", b""),
        ("b", b"1"),
        ("", b"\0"),
        ("\0nul\0", b""),
        ("žluť \U0001f40e", b"\xff"),
    )
    assert decoded_by_kafka_python(encoded(2, [SampleRecord(1, None, None, pairs)]))[0][1].headers == pairs


@pytest.mark.parametrize(
    "given_as", [lambda h: dict(h), lambda h: iter(h), lambda h: [list(pair) for pair in h], lambda h: list(h)]
)
def test_headers_are_taken_in_every_shape(given_as: Any) -> None:
    pairs = (("a", b"1"), ("b", None), ("c", bytearray(b"23")), ("d", memoryview(b"45678")[1:3]))
    builder = MemoryRecordsBuilder()
    assert builder.append(1, None, None, given_as(pairs)) == 0
    assert decoded_by_kafka_python(builder.close())[0][1].headers == tuple(
        (name, None if value is None else bytes(value)) for name, value in pairs
    )


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ([("a", "text")], "found the str 'text'"),
        ([("a", 1)], "found int"),
        ([("a", memoryview(b"1234")[::2])], "found memoryview"),
        ([(b"a", b"1")], r"found \(b'a', b'1'\)"),
        ([(None, b"1")], r"found \(None, b'1'\)"),
        ([("\ud800", b"1")], r"found \('\\ud800', b'1'\)"),
        ([("a", b"1", b"2")], "pair"),
        ([7], "pair.*found 7"),
        (["ab", ("c", b"")], "found the str 'b'"),
    ],
)
def test_bad_header_is_named_and_leaves_the_batch_whole(bad: Any, complaint: str) -> None:
    builder = MemoryRecordsBuilder()
    good = SampleRecord(1, b"k", b"v", (("h", b"x"),))
    builder.append(*good)
    with pytest.raises(SerializationError, match=complaint):
        builder.append(2, b"k", b"v", [("fine", b"y"), *bad])
    builder.append(*good)
    assert decoded_by_kafka_python(builder.close()) == [(0, good), (1, good)]


def test_magic_1_refuses_headers() -> None:
    builder = MemoryRecordsBuilder(1)
    with pytest.raises(SerializationError, match="magic 1 has no headers"):
        builder.append(1, None, b"v", [("h", b"x")])
    assert builder.append(1, None, b"v", []) == 0


# ---- keys, values, timestamps ----------------------------------------------------------------------------------------


@MAGICS
def test_null_and_empty_stay_different(magic: int) -> None:
    batch = [SampleRecord(1, key, value) for key in (None, b"") for value in (None, b"")]
    assert decoded_by_kafka_python(encoded(magic, batch)) == list(enumerate(batch))
    assert len({encoded(magic, [record]) for record in batch}) == 4


@MAGICS
@pytest.mark.parametrize("view", [bytearray(b"abc"), memoryview(b"xabcx")[1:4], np.frombuffer(b"abc", np.uint8)])
def test_bytes_like_values_are_read_as_bytes(magic: int, view: Any) -> None:
    builder = MemoryRecordsBuilder(magic)
    builder.append(1, view, view)
    assert decoded_by_kafka_python(builder.close()) == [(0, SampleRecord(1, b"abc", b"abc"))]


@given(st.lists(st.integers(0, LAST_TIMESTAMP), min_size=1, max_size=5))
@example([LAST_TIMESTAMP, 0])
@example([0, LAST_TIMESTAMP])
@example([5, 9, 7])
def test_header_has_the_first_and_the_greatest_timestamp(times: list[int]) -> None:
    first, greatest = struct.unpack_from(">qq", encoded(2, [SampleRecord(time, None, None) for time in times]), 27)
    assert (first, greatest) == (times[0], max(times))


@MAGICS
def test_no_digit_of_a_timestamp_is_cut_off(magic: int) -> None:
    builder = MemoryRecordsBuilder(magic)
    with pytest.raises(TypeError, match="integer"):
        builder.append(1.5, None, b"v")  # type: ignore[arg-type]
    assert builder.count == 0


@MAGICS
@pytest.mark.parametrize("timestamp", [-1, -(2**63)])
def test_negative_timestamp_is_refused(magic: int, timestamp: int) -> None:
    builder = MemoryRecordsBuilder(magic)
    with pytest.raises(InvalidTimestampError, match=f"must not be negative, found {timestamp}"):
        builder.append(timestamp, None, b"v")
    assert builder.count == 0


# ---- limits ----------------------------------------------------------------------------------------------------------


def untouched(size: int) -> memoryview:
    """Address space without memory behind it: a read or copy of all of it would take gigabytes."""
    return np.empty(size, np.uint8).data


@MAGICS
def test_record_past_two_to_the_31_is_refused(magic: int) -> None:
    builder = MemoryRecordsBuilder(magic)
    builder.append(1, None, b"first")
    overhead = estimate_size_upper_bound(magic, None, None)
    largest = untouched(INT32_MAX - overhead)
    assert builder.append(1, None, largest) is None, "within the format's limit: only this batch has no room for it"
    half = untouched(2**30)
    too_large = [(None, untouched(INT32_MAX - overhead + 1)), (untouched(2**31), None), (half, half)]
    for key, value in [*too_large, (None, untouched(2**32)), (untouched(2**32 + 5), b"")]:
        for fresh in (builder, MemoryRecordsBuilder(magic)):
            size = fresh.size
            with pytest.raises(RecordTooLargeError, match=r"2\^31"):
                fresh.append(1, key, value)
            assert fresh.size == size
    assert decoded_by_kafka_python(builder.close()) == [(0, SampleRecord(1, None, b"first"))]


@pytest.mark.parametrize("write_limit", [-1, 2**31, 2**40])
def test_write_limit_past_two_to_the_31_is_refused(write_limit: int) -> None:
    with pytest.raises(ValueError, match=f"found {write_limit}"):
        MemoryRecordsBuilder(2, write_limit)


@pytest.mark.parametrize("magic", [-1, 0, 3, 257])
def test_unknown_magic_is_refused(magic: int) -> None:
    with pytest.raises(ValueError, match=f"1 or 2, found {magic}"):
        MemoryRecordsBuilder(magic)


# ---- the end ---------------------------------------------------------------------------------------------------------


@MAGICS
def test_closed_batch_takes_no_record(magic: int) -> None:
    builder = MemoryRecordsBuilder(magic)
    builder.append(1, None, b"v")
    data = builder.close()
    with pytest.raises(ClosedError):
        builder.append(1, None, b"w")
    assert builder.close() == data


@MAGICS
def test_empty_batch_gives_no_bytes(magic: int) -> None:
    """Java's is MemoryRecords.EMPTY; brokers refuse a batch of magic 2 without records as corrupt."""
    assert MemoryRecordsBuilder(magic).close() == b""
