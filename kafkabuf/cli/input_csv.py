"""The rows of CSV become blocks for send_arrow(), for `kafkabuf produce`.

pyarrow's own reader of long CSV reads in a thread, from which neither a pipe nor Ctrl-C calls it back. Here whole rows
are read first, and pyarrow parses them.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import click

from kafkabuf.cli.input_bytes import InputBytes
from kafkabuf.cli.input_records import Refused, not_utf8
from kafkabuf.cli.input_rows import Rows, pieces_of
from kafkabuf.extras import needs
from kafkabuf.formats._csv_rows import whole_rows

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa
    from pyarrow import csv

_BLOCK = 1 << 20
_LONGEST_ROW = 16 << 20
_ROW = re.compile(r"Row #(\d+)")


def csv_rows(source: InputBytes, texts: Iterable[str | None]) -> Iterator[Rows]:
    """The rows of CSV, in order and in bounded number. The columns `texts` are text. The others have the types that
    pyarrow gives to the first block with a value of theirs. Raises click.ClickException for faulty CSV, and
    pa.ArrowException."""
    types = {name: pa.string() for name in texts if name is not None}
    header: list[str] | None = None
    names, first = None, 1
    for block in _blocks(source):
        parsed = _parsed(block, first, names, types)
        found = parsed.table.schema
        if header is None:
            header = found.names
            # Two columns may have one name.
            names = [str(place) for place in range(len(found))]
        types = {name: kind for name, kind in zip(names or (), found.types, strict=True) if not pa.types.is_null(kind)}
        schema = pa.schema(zip(header, found.types, strict=True))
        yield from _numbered(parsed, schema, first, source.offset)
        first += parsed.table.num_rows + len(parsed.refused)


class _Parsed(NamedTuple):
    table: Any
    refused: list[Refused]


def _blocks(source: InputBytes) -> Iterator[bytes]:
    """Whole rows. The first block is full unless the input ends, since the types of all blocks are taken from it."""
    carried: list[bytes] = []
    size = place = 0
    read: Callable[[int], bytes] = source.whole
    while chunk := read(_BLOCK):
        if read == source.whole:
            chunk = chunk.removeprefix(BOM_UTF8)
        end, place = whole_rows(chunk, place)
        if end:
            yield b"".join((*carried, chunk[:end]))
            carried, size = [], 0
            read = source.ready
        carried.append(chunk[end:])
        size += len(chunk) - end
        if size > _LONGEST_ROW:
            raise click.ClickException(
                f"the csv file cannot be read: a row is longer than {_LONGEST_ROW >> 20} MiB; is a quote not closed?"
            )
    rest = b"".join(carried)
    if rest or read == source.whole:
        yield rest


def _parsed(block: bytes, first: int, names: list[str] | None, types: dict[str, Any]) -> _Parsed:
    """A block whose first row has this number. Without `names` it begins with the header."""
    _check_text(block)
    refused: list[Refused] = []
    # The header is number 1 of its block.
    before = first - 1 - (names is None)

    def leave_out(row: csv.InvalidRow) -> str:
        reason = f"it has {row.actual_columns} columns, the header has {row.expected_columns}"
        refused.append(Refused(before + row.number, row.text.encode(), reason))
        return "skip"

    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            # Rows have numbers without threads only.
            read_options=csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
            parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=leave_out),
            convert_options=csv.ConvertOptions(column_types=types),
        )
    except pa.ArrowException as error:
        text = _ROW.sub(lambda found: f"row {before + int(found[1])}", str(error))
        raise click.ClickException(f"the csv file cannot be read: {text}") from error
    return _Parsed(table, refused)


def _check_text(block: bytes) -> None:
    """pyarrow takes other text for bytes, and does not tell of a faulty row with such text."""
    try:
        block.decode()
    except UnicodeDecodeError as error:
        near = block[max(error.start - 20, 0) : error.start + 20]
        raise click.ClickException(f"the csv file cannot be read: near {near!r} {not_utf8(block)}") from None


def _numbered(parsed: _Parsed, schema: Any, next_row: int, end: int) -> Iterator[Rows]:
    faulty = deque(parsed.refused)
    for whole in parsed.table.to_batches():
        for batch in pieces_of(pa.RecordBatch.from_arrays(whole.columns, schema=schema)):
            numbers: list[int] = []
            refused: list[Refused] = []
            while len(numbers) < batch.num_rows:
                if faulty and faulty[0].line == next_row:
                    refused.append(faulty.popleft())
                else:
                    numbers.append(next_row)
                next_row += 1
            yield Rows(batch, numbers, refused, end)
    if faulty:
        yield Rows(pa.RecordBatch.from_pylist([], schema), [], [*faulty], end)
