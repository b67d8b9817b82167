"""Where rows of CSV end: a text that is cut there parses as the whole text does, by pyarrow and by Python's csv."""

from __future__ import annotations

import csv

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from kafkabuf.cli.produce.inputs.csv_rows import CsvRows

# Much text has quotes at the edges of fields only.
_PIECES = st.sampled_from(['"', ",", "\n", "\r", "a", "b", '"a"', '"\n"', '""', ',"b,\n"\n'])
_TEXTS = st.lists(_PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode())


def cut(text: bytes, sizes: list[int]) -> list[bytes]:
    """The text in pieces of whole rows, as a reader finds them that gets so many bytes at a time."""
    pieces, rest, at = [], b"", 0
    for size in [*sizes, len(text)]:
        rest += text[at : at + size]
        at += size
        end, _ = CsvRows(",").whole(rest)
        pieces.append(rest[:end])
        rest = rest[end:]
    return [*pieces, rest]


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


@given(text=_TEXTS, sizes=st.lists(st.integers(1, 9), max_size=12))
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
    given_bytes = at = 0
    for size, piece in zip([*sizes, 1 << 20], cut(b"".join(encoded), sizes), strict=False):
        given_bytes, at = given_bytes + len(piece), min(at + size, ends[-1])
        assert given_bytes == max(end for end in ends if end <= at)


@given(text=_TEXTS.map(lambda text: text.replace(b"b,", b"b;")), delimiter=st.sampled_from(",;"))
def test_rows_are_those_of_pyarrow_and_torn_where_a_strict_parser_makes_no_fields(text: bytes, delimiter: str) -> None:
    finder = CsvRows(delimiter)
    end, torn = finder.whole(text)
    text = text[:end]
    rows = [*finder.rows(text)]
    assert len(rows) == pyarrow_rows(text, delimiter)
    assert [row[1] is not None for row in rows] == [is_torn(row[0], delimiter) for row in rows]
    assert torn == any(row[1] is not None for row in rows)


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
    ends = {b'a,"b': True, b'a,"b"': False, b'a,"b""': True, b'a"b': False, b'"': True, b"": False, b"\r": False}
    assert {text: CsvRows(",").is_open(text) for text in ends} == ends
