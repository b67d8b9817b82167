"""The rows of CSV become blocks for send_arrow(), for `kafkabuf produce`.

Whole rows are read first, and pyarrow parses them: its own reader of long CSV reads in a thread, from which neither a
pipe nor Ctrl-C calls it back. Each field is text, and only a column that has a type is read as that.
"""

from __future__ import annotations

import csv as python_csv
from codecs import BOM_UTF8
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from kafkabuf.cli.produce.inputs.block import Columns, Refused
from kafkabuf.cli.produce.inputs.bytes import InputBytes, not_utf8
from kafkabuf.cli.produce.inputs.column_types import Types, null_if_empty, type_of, typed, wrong
from kafkabuf.cli.produce.inputs.csv_rows import CsvRows
from kafkabuf.cli.produce.inputs.names import delimiter_of_name
from kafkabuf.cli.produce.inputs.rows import Rows, misfits
from kafkabuf.extras import needs

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa
    from pyarrow import csv

_BLOCK = 1 << 20
_LONGEST_ROW = 16 << 20
_DELIMITERS = ",;\t|"
_SHOWN = 60  # bytes of a row


class Choices(NamedTuple):
    """How CSV is read. Without a `delimiter` it is the one of the file's name. The types of columns are those of
    `types`, then those that a schema says (None: it leaves the type open)."""

    delimiter: str | None = None
    types: Types = Types({}, False)
    by_schema: Mapping[str, str | None] = {}


class CsvReader:
    """Reads the rows of CSV, in order and in bounded number. Raises click.ClickException for faulty CSV."""

    def __init__(self, path: str, source: InputBytes, columns: Columns, choices: Choices) -> None:
        self._source = source
        self._columns = columns
        self._choices = choices
        self._delimiter = choices.delimiter or delimiter_of_name(path)
        self._rows = CsvRows(self._delimiter)
        self._header: list[str] | None = None
        self._names: list[str] = []
        self._kinds: list[Any] = []
        # The columns whose types are to be inferred of the first block with a value of theirs, by their places.
        self._untyped: set[int] = set()
        self._next = 1

    def rows(self) -> Iterator[Rows]:
        begun: list[bytes] = []  # a row without end, in pieces
        size = 0
        awaited: tuple[bytes, ...] = ()  # without one of these, no row ends in what comes next
        for chunk in self._chunks():
            begun.append(chunk)
            size += len(chunk)
            if not awaited or any(mark in chunk for mark in awaited):
                rest = yield from self._rows_of(b"".join(begun))
                begun, size = [rest], len(rest)
                awaited = self._rows.awaited(rest)
            if size > _LONGEST_ROW:
                raise self._error(
                    b"".join(begun), f"it is longer than {_LONGEST_ROW >> 20} MiB; is a quote not closed?"
                )
        rest = b"".join(begun)
        if self._rows.is_open(rest):
            raise self._error(rest, "a quote is not closed: the rest of the file would be one field")
        if rest:
            yield from self._rows_of(rest + b"\n")

    def _rows_of(self, text: bytes) -> Generator[Rows, None, bytes]:
        """The whole rows at the start of a text. Returns the rest of the text."""
        end, torn = self._rows.whole(text)
        rows, rest = text[:end], text[end:]
        self._check_text(rows)
        if rows := rows if self._header is not None else self._without_header(rows):
            yield from map(self._typed, self._parsed(rows, torn=torn).pieces())
        return rest

    # ---- bytes -------------------------------------------------------------------------------------------------------

    def _chunks(self) -> Iterator[bytes]:
        """The input without the byte order mark. Where types are inferred, the first chunk is full unless the input
        ends."""
        chunk = self._source.whole(_BLOCK) if self._choices.types.infers else self._source.ready(_BLOCK)
        while len(chunk) < len(BOM_UTF8) and BOM_UTF8.startswith(chunk) and (more := self._source.some(_BLOCK)):
            chunk += more
        chunk = chunk.removeprefix(BOM_UTF8) or self._source.ready(_BLOCK)
        while chunk:
            yield chunk
            chunk = self._source.ready(_BLOCK)

    def _error(self, row: bytes, reason: str) -> click.ClickException:
        """An error of the next row, which begins so."""
        place = "the header" if self._header is None else f"row {self._next}"
        return click.ClickException(f"the csv file cannot be read: {place}, {row[:_SHOWN]!r}: {reason}")

    def _check_text(self, rows: bytes) -> None:
        """pyarrow takes other text for bytes, and does not tell of a faulty row with such text."""
        try:
            rows.decode()
        except UnicodeDecodeError as error:
            before, _ = self._rows.whole(rows[: error.start])
            number = sum(1 for _ in self._rows.rows(rows[:before])) - (self._header is None)
            place = "the header" if number < 0 else f"row {self._next + number}"
            near = rows[max(error.start - 20, 0) : error.start + 20]
            raise click.ClickException(
                f"the csv file cannot be read: {place}: near {near!r} {not_utf8(rows)}"
            ) from None

    # ---- the header --------------------------------------------------------------------------------------------------

    def _without_header(self, rows: bytes) -> bytes:
        """What is behind the header: the first row that is not blank."""
        row = next(self._rows.rows(rows), None)
        if row is None:
            return b""
        text = row[0]
        if b"\0" in text:
            raise self._error(text, "it has a byte 0: is the file UTF-16? iconv converts it to UTF-8")
        if row[1] is not None:
            raise self._error(text, "a field goes on behind its closing quote")
        try:
            (names,) = python_csv.reader([text.decode().rstrip("\r\n")], delimiter=self._delimiter, strict=True)
        except python_csv.Error as error:
            raise self._error(text, str(error)) from None
        self._ask_for_delimiter(names)
        self._header = names
        # Two columns may have one name.
        self._names = [str(place) for place in range(len(names))]
        self._kinds = [self._kind(place, name) for place, name in enumerate(names)]
        for name in self._choices.types.given:
            if name not in names:
                raise click.ClickException(f"--types names the column {name!r}, the file has {', '.join(names)}")
        return rows[row.end() :]

    def _ask_for_delimiter(self, names: Sequence[str]) -> None:
        if self._choices.delimiter is not None or len(names) != 1:
            return
        for other in _DELIMITERS:
            if other != self._delimiter and other in names[0]:
                wanted, used = _quoted(other), _quoted(self._delimiter)
                raise click.ClickException(
                    f"the header has one column, {names[0]!r:.100}: give --delimiter {wanted} if {wanted} separates "
                    f"the columns, and --delimiter {used} if this is a name"
                )

    def _kind(self, place: int, name: str) -> Any:
        """The type of a column: None where it stays text."""
        columns, choices = self._columns, self._choices
        if name in choices.types.given:
            return _unless_text(choices.types.given[name])
        if name in (columns.key, columns.timestamp, columns.partition):
            return None
        if name in choices.by_schema:
            kind = choices.by_schema[name]
            if kind is None:
                raise click.ClickException(f"--value-schema has several types for {name!r}: give --types {name}=TYPE")
            return _unless_text(type_of(kind))
        if choices.types.infers and name != columns.value:
            self._untyped.add(place)
            return pa.null()
        return None

    # ---- rows --------------------------------------------------------------------------------------------------------

    def _parsed(self, text: bytes, *, torn: bool) -> Rows:
        """The fields of rows as text. `torn`: some may go on behind a closing quote."""
        refused: dict[int, tuple[bytes, str]] = {}
        kept: Sequence[int] = range(len(text))  # the places of the rows that pyarrow gets
        if torn:
            rows = [*enumerate(self._rows.rows(text))]
            kept = [place for place, row in rows if row[1] is None]
            text = b"".join(row[0] for _, row in rows if row[1] is None)
            for place, row in rows:
                if row[1] is not None:
                    refused[place] = row[0].rstrip(b"\r\n"), "a field goes on behind its closing quote"

        def leave_out(row: csv.InvalidRow) -> str:
            reason = f"it has {row.actual_columns} columns, the header has {row.expected_columns}"
            refused[kept[row.number - 1]] = row.text.encode(), reason
            return "skip"

        columns = [pa.nulls(0, pa.string()) for _ in self._names]  # pa.array() would import pandas
        if text.strip(b"\r\n"):
            texts = csv.ConvertOptions(column_types=dict.fromkeys(self._names, pa.string()))
            columns = [column.combine_chunks() for column in self._read(text, leave_out, texts).columns]
            self._infer(text)
        batch = pa.RecordBatch.from_arrays(columns, names=self._header or [])
        first = self._next
        self._next += batch.num_rows + len(refused)
        numbers: Sequence[int] = range(first, self._next)
        if refused:
            numbers = [number for number in numbers if number - first not in refused]
        return Rows(batch, numbers, [Refused(first + place, *refused[place]) for place in sorted(refused)])

    def _infer(self, text: bytes) -> None:
        """Gives a type to each column that has none yet, and a value in this text."""
        if not self._untyped:
            return
        names = [str(place) for place in sorted(self._untyped)]
        guesses = csv.ConvertOptions(null_values=[""], include_columns=names)
        for column in self._read(text, lambda row: "skip", guesses).schema:
            if not pa.types.is_null(column.type):
                self._untyped.remove(int(column.name))
                self._kinds[int(column.name)] = _unless_text(column.type)

    def _read(self, text: bytes, leave_out: Callable[[csv.InvalidRow], str], columns: csv.ConvertOptions) -> Any:
        # pyarrow takes the first character of each block for a byte order mark. Here it belongs to a field.
        text = BOM_UTF8 + text if text.startswith(BOM_UTF8) else text
        return csv.read_csv(
            pa.BufferReader(text),
            # Rows have numbers without threads only.
            read_options=csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=self._names),
            parse_options=csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=leave_out
            ),
            convert_options=columns,
        )

    def _typed(self, rows: Rows) -> Rows:
        """The rows with the types of their columns, of which those are refused whose texts do not fit."""
        reasons: dict[int, str] = {}
        for name, kind, column in zip(rows.batch.schema.names, self._kinds, rows.batch.columns, strict=True):
            if kind is None:
                continue
            for row in misfits(column, lambda part: wrong(part, kind)):  # noqa: B023  # called now
                reasons.setdefault(row, f"column {name!r}: {column[row].as_py()!r:.50} is no {kind}")
        rows = rows.without(reasons)
        fitting = [
            self._filled(name, column) if kind is None else typed(column, kind)
            for name, kind, column in zip(rows.batch.schema.names, self._kinds, rows.batch.columns, strict=True)
        ]
        return rows._replace(batch=pa.RecordBatch.from_arrays(fitting, names=rows.batch.schema.names))

    def _filled(self, name: str, column: Any) -> Any:
        """Text. A row that leaves its timestamp or its partition empty has none."""
        return null_if_empty(column) if name in (self._columns.timestamp, self._columns.partition) else column


def _unless_text(kind: Any) -> Any:
    return None if pa.types.is_string(kind) else kind


def _quoted(delimiter: str) -> str:
    return "'\\t'" if delimiter == "\t" else f"'{delimiter}'"
