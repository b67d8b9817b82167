"""The reading position of the hand-written codecs (broker/wire/_cursor.pyx), on frames that lie."""

from __future__ import annotations

import gc
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.broker.wire._cursor import MALFORMED, Cursor
from kafkabuf.protocol.schema import MOST_ITEMS, read_uvarint, skip_tags

READS = ("int8", "int16", "int32", "int64", "uuid", "count", "string", "nullable_string", "nullable_bytes", "tags")


def test_numbers_are_big_endian_with_their_sign() -> None:
    values = (-2, 0x7FFE, -(2**31), 2**63 - 5)
    cursor = Cursor(struct.pack(">bhiq", *values), 0, flexible=False)
    assert (cursor.int8(), cursor.int16(), cursor.int32(), cursor.int64()) == values
    cursor.end()


@given(frame=st.binary(max_size=40), start=st.integers(0, 40), reads=st.lists(st.sampled_from(READS), max_size=12))
@pytest.mark.parametrize("flexible", [False, True])
def test_any_frame_is_read_within_its_bytes_or_refused(
    flexible: bool, frame: bytes, start: int, reads: list[str]
) -> None:
    if start > len(frame):
        with pytest.raises(ValueError, match="position"):
            Cursor(frame, start, flexible)
        return
    cursor = Cursor(frame, start, flexible)
    for read in reads:
        before = cursor.position
        try:
            getattr(cursor, read)()
        except MALFORMED:
            break
        assert before <= cursor.position <= len(frame)


@given(frame=st.binary(min_size=1, max_size=12))
def test_compact_lengths_and_tags_are_those_of_the_schemas_reader(frame: bytes) -> None:
    def outcome(read: object) -> object:
        try:
            return read()  # type: ignore[operator]
        except MALFORMED as error:
            return isinstance(error, MALFORMED)

    def length() -> object:
        cursor = Cursor(frame, 0, True)
        data = cursor.nullable_bytes()
        return (-1 if data is None else len(data)), cursor.position

    def expected_length() -> object:
        value, position = read_uvarint(frame, 0)
        if position + value - 1 > len(frame):
            raise ValueError("too long")
        return value - 1, position + max(value - 1, 0)

    def tags() -> object:
        cursor = Cursor(frame, 0, True)
        cursor.tags()
        return cursor.position

    assert outcome(length) == outcome(expected_length)
    assert outcome(tags) == outcome(lambda: skip_tags(frame, 0))


@pytest.mark.parametrize("length", [4, 2**31 - 1, -2, -(2**31)])
@pytest.mark.parametrize("read", ["nullable_bytes", "nullable_copy"])
def test_length_that_lies_is_refused(length: int, read: str) -> None:
    with pytest.raises(ValueError, match=f"a length of {length} bytes, but only 3 are left"):
        getattr(Cursor(struct.pack(">i", length) + b"abc", 0, False), read)()


def test_copy_outlives_the_frame_and_a_view_shows_it() -> None:
    frame = bytearray(b"\x04abc\x04abc\0")
    cursor = Cursor(frame, 0, True)
    view, copy = cursor.nullable_bytes(), cursor.nullable_copy()
    assert cursor.nullable_copy() is None
    frame[:] = b"." * len(frame)
    assert (bytes(view or b""), copy) == (b"...", bytearray(b"abc"))


def test_frame_cannot_go_away_while_a_cursor_reads_it() -> None:
    frame = bytearray(8)
    cursor = Cursor(frame, 0, False)
    with pytest.raises(BufferError):
        frame.clear()
    assert not hasattr(cursor, "view")
    assert cursor.int64() == 0
    released = memoryview(bytes(8))
    released.release()
    with pytest.raises(ValueError, match="released"):
        Cursor(released, 0, False)


def test_arrays_may_have_so_many_items_together() -> None:
    half = MOST_ITEMS // 2 + 1
    frame = struct.pack(">ii", half, half) + bytes(half)
    cursor = Cursor(frame, 0, False)
    assert cursor.count() == half
    with pytest.raises(ValueError, match=f"{MOST_ITEMS} are allowed"):
        cursor.count()


def test_collector_gives_a_frame_back_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that somebody keeps leads to the call's frame, and so to the cursor: a cycle like this one."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    buffer = bytearray(8)
    holder: dict[str, object] = {"cursor": Cursor(memoryview(buffer)[2:], 0, False)}
    holder["itself"] = holder
    del holder
    gc.collect()
    assert told == []
    buffer.append(0)  # nobody has a view of it
