"""Where rows of CSV end: a text that is cut there parses as the whole text does, by pyarrow and by Python's csv."""

from __future__ import annotations

import csv

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from kafkabuf.cli.produce.inputs._csv_rows import count_rows, first_row, is_open, torn_rows, whole_rows


def cut(text: bytes, sizes: list[int]) -> list[bytes]:
    """The text in pieces of whole rows, as a reader finds them that gets so many bytes at a time."""
    pieces, carried, place, at = [], b"", 0, 0
    for size in [*sizes, len(text)]:
        chunk = text[at : at + size]
        at += size
        end, place = whole_rows(chunk, place)
        if end:
            pieces.append(carried + chunk[:end])
            carried = b""
        carried += chunk[end:]
    return [*pieces, carried]


def parsed(text: bytes) -> list[dict[str, object]]:
    names = ["a", "b"]
    if not text.strip(b"\r\n"):
        return []
    table = arrow_csv.read_csv(
        pa.BufferReader(text),
        read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda row: "skip"),
        convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    found: list[dict[str, object]] = table.to_pylist()
    return found


@given(text=st.text(alphabet='",\n\rab', max_size=60).map(str.encode), sizes=st.lists(st.integers(1, 9), max_size=12))
def test_pieces_parse_as_the_whole_text(text: bytes, sizes: list[int]) -> None:
    pieces = cut(text, sizes)
    assert b"".join(pieces) == text
    assert [row for piece in pieces for row in parsed(piece)] == parsed(text)


@given(
    rows=st.lists(st.tuples(st.text(alphabet='",\na é', max_size=9), st.text(max_size=3)), min_size=1, max_size=20),
    sizes=st.lists(st.integers(1, 9), max_size=30),
)
def test_every_row_of_pythons_csv_that_has_come_is_given_at_once(rows: list[tuple[str, str]], sizes: list[int]) -> None:
    class Lines(list[str]):
        write = list.append

    lines = Lines()
    csv.writer(lines, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    encoded = [line.encode(errors="surrogatepass") for line in lines]
    ends = [sum(map(len, encoded[:count])) for count in range(len(encoded) + 1)]
    text, given_bytes, at, place = b"".join(encoded), 0, 0, 0
    for size in [*sizes, len(text)]:
        end, place = whole_rows(text[at : at + size], place)
        given_bytes = at + end if end else given_bytes
        at = min(at + size, len(text))
        assert given_bytes == max(each for each in ends if each <= at)


@given(text=st.text(alphabet='",;\n\rab', max_size=60).map(str.encode), delimiter=st.sampled_from(",;"))
def test_rows_that_are_counted_and_found_torn_are_those_that_pyarrow_finds(text: bytes, delimiter: str) -> None:
    """A torn row is one from which a strict parser makes no fields."""
    end, _ = whole_rows(text, 0, ord(delimiter))
    text = text[:end]
    rows, at = [], 0
    while at < len(text):
        begin, behind = first_row(text[at:], ord(delimiter))
        rows += [text[at + begin : at + behind]] if behind > begin else []
        at += behind
    assert count_rows(text, ord(delimiter)) == len(rows) == pyarrow_rows(text, delimiter)
    torn = torn_rows(text, ord(delimiter))
    assert [number for number, *_ in torn] == [number for number, row in enumerate(rows) if is_torn(row, delimiter)]
    assert [text[begin:end] for _, begin, end in torn] == [rows[number] for number, *_ in torn]


def pyarrow_rows(text: bytes, delimiter: str) -> int:
    refused = 0

    def leave_out(row: arrow_csv.InvalidRow) -> str:
        nonlocal refused
        refused += 1
        return "skip"

    if not text.strip(b"\r\n"):
        return 0
    table = arrow_csv.read_csv(
        pa.BufferReader(text),
        read_options=arrow_csv.ReadOptions(column_names=["a"], use_threads=False, block_size=len(text) + 1),
        parse_options=arrow_csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, invalid_row_handler=leave_out
        ),
    )
    return int(table.num_rows) + refused


def is_torn(row: bytes, delimiter: str) -> bool:
    try:
        list(csv.reader([row.decode().rstrip("\r\n")], delimiter=delimiter, strict=True))
    except csv.Error:
        return True
    return False


def test_text_that_ends_in_a_quoted_field_is_open() -> None:
    ends = {b'a,"b': True, b'a,"b"': False, b'a,"b""': True, b'a"b': False, b'"': True, b"": False}
    assert {text: is_open(whole_rows(text, 0)[1]) for text in ends} == ends
