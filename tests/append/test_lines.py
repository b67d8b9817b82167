"""append_lines: each line of a text becomes the record that send_many() would make of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.append._bulk_lines import append_lines, count_lines
from kafkabuf.append.report import BulkReport
from kafkabuf.errors import ClosedError, RecordTooLargeError
from rigs.producer import SLAB, TOPIC, Rig, assert_whole
from tests.append.arrow_support import stored, turning

BLANKS = b" \t\r\f\v"


def send_lines(rig: Rig, text: bytes) -> BulkReport:
    report = BulkReport(rig.clock)
    append_lines(rig.producer, report, TOPIC, text)
    return report


texts = st.lists(st.binary(max_size=40) | st.just(b"x" * 700), max_size=80).map(b"\n".join)


@given(text=texts, slabs=st.integers(9, 20))
def test_lines_arrive_as_split_gives_them(text: bytes, slabs: int) -> None:
    rig = turning(leaders=(1, 2, 1), slabs=slabs)
    found = stored(rig, send_lines(rig, text))
    assert [(record.key, record.value, record.headers) for record in found] == [
        (None, line, []) for line in text.split(b"\n")
    ]


@given(text=texts | st.text(alphabet="a \t\r\n\f\v\x1c\0", max_size=12).map(str.encode))
def test_lines_are_counted_and_no_blank_line_is_missed(text: bytes) -> None:
    lines = text.split(b"\n")
    count, blank = count_lines(text)
    assert count == len(lines)
    assert blank == any(not line or line[0] in BLANKS for line in lines)
    assert blank or all(line.strip() for line in lines)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_line_that_is_too_large_is_left_out_and_the_others_are_sent(place: int) -> None:
    rig = Rig(max_request_size=2 * SLAB)
    lines = [b"a", b"b", b"c"]
    lines.insert(place, b"x" * 4 * SLAB)
    report = send_lines(rig, b"\n".join(lines))
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"a", b"b", b"c"]
    (failure,) = report.failures(0)
    assert isinstance(failure.error, RecordTooLargeError)
    assert (failure.first_row, report.rows) == (place, 4)
    assert [failed.rows.tolist() for failed in report.failed_rows(0)] == [[place]]
    assert_whole(rig.pool)


def test_lines_of_a_closed_producer_are_refused() -> None:
    rig = Rig()
    rig.producer._begin_close()
    with pytest.raises(ClosedError):
        send_lines(rig, b"a\nb")
    assert_whole(rig.pool)


def test_serializer_gets_each_line() -> None:
    seen: list[Any] = []

    def serializer(value: Any) -> bytes:
        seen.append(value)
        return bytes(value).upper()

    rig = turning(value_serializer=serializer)
    assert [record.value for record in stored(rig, send_lines(rig, b"a\n\nb"))] == [b"A", b"", b"B"]
    assert seen == [b"a", b"", b"b"]
