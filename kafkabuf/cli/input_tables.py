"""Rows of CSV, Parquet and Arrow files become blocks for send_arrow(), for `kafkabuf produce`. pyarrow reads them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import click

from kafkabuf.cli.input_records import Columns, Refused, compact
from kafkabuf.extras import needs

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa
    from pyarrow import csv, ipc, parquet

_ROWS = 16_384


class Rows(NamedTuple):
    """Rows of a file with their numbers, from 1, and the rows up to the last of them that do not parse."""

    batch: Any
    numbers: Sequence[int]
    refused: Sequence[Refused] = ()

    def behind(self, done: int) -> Rows:
        """Without the rows up to this number."""
        first = bisect_right(self.numbers, done)
        refused = [each for each in self.refused if each.line > done]
        return Rows(self.batch.slice(first), self.numbers[first:], refused)

    def before_refused(self) -> Rows:
        """Up to the first row that does not parse."""
        if not self.refused:
            return self
        end = bisect_right(self.numbers, self.refused[0].line)
        return Rows(self.batch.slice(0, end), self.numbers[:end], self.refused[:1])


def opened_file(path: str) -> Any:
    """A file for `batches`, to be used in a `with`: one of Arrow's.

    Arrow reads ahead in threads of its own, and may still do so when the command ends. A thread that reads a file of
    Python's then asks for the GIL of an interpreter that has gone, which aborts the process.
    """
    return pa.OSFile(path, "rb")


def batches(file: BinaryIO, kind: str, columns: Columns) -> Iterator[Rows]:
    """The rows of a file, in order and in bounded number. Raises click.ClickException for a faulty file."""
    try:
        if kind == "csv":
            yield from _csv(file, columns)
            return
        first = 1
        for whole in _opened(file, kind):
            for batch in _pieces(whole):
                yield Rows(batch, range(first, first + batch.num_rows))
                first += batch.num_rows
    except pa.ArrowException as error:
        raise click.ClickException(f"the {kind} file cannot be read: {error}") from error


def _pieces(batch: Any) -> Iterator[Any]:
    for start in range(0, batch.num_rows, _ROWS):
        yield batch.slice(start, _ROWS)


def _csv(file: BinaryIO, columns: Columns) -> Iterator[Rows]:
    faulty: deque[Refused] = deque()
    reader = _opened_csv(file, columns, faulty.append)
    for field in reader.schema:
        if pa.types.is_binary(field.type):
            raise click.ClickException(f"the column {field.name!r} is not UTF-8: iconv -f latin1 -t utf-8 converts it")
    next_row = 1
    for whole in reader:
        for batch in _pieces(whole):
            numbers: list[int] = []
            refused: list[Refused] = []
            # The parser has left out faulty rows of this batch, and perhaps of later ones.
            while len(numbers) < batch.num_rows:
                if faulty and faulty[0].line == next_row:
                    refused.append(faulty.popleft())
                else:
                    numbers.append(next_row)
                next_row += 1
            yield Rows(batch, numbers, refused)
    if faulty:
        yield Rows(pa.RecordBatch.from_pylist([], reader.schema), [], [*faulty])


def _opened_csv(file: BinaryIO, columns: Columns, refuse: Callable[[Refused], object]) -> Any:
    # Key and value of a raw record are the text of the file: "007" stays "007".
    texts = dict.fromkeys((name for name in (columns.key, columns.value) if name is not None), pa.string())

    def leave_out(row: csv.InvalidRow) -> str:
        reason = f"it has {row.actual_columns} columns, the header has {row.expected_columns}"
        # The header is number 1.
        refuse(Refused(row.number - 1, row.text.encode(), reason))
        return "skip"

    return csv.open_csv(
        file,
        # Rows have numbers without threads only.
        read_options=csv.ReadOptions(use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=leave_out),
        convert_options=csv.ConvertOptions(column_types=texts),
    )


def _opened(file: BinaryIO, kind: str) -> Any:
    if kind == "parquet":
        return parquet.ParquetFile(file).iter_batches(batch_size=_ROWS)
    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    if not is_file:
        return ipc.open_stream(file)
    reader = ipc.open_file(file)
    return (reader.get_batch(number) for number in range(reader.num_record_batches))


class Shaper:
    """Makes a RecordBatch with the columns of send_arrow(): `value` is a column, or else a struct of those that are no
    other part. With `raw` the value is text or bytes."""

    def __init__(self, columns: Columns, *, raw: bool) -> None:
        self._columns = columns
        self._raw = raw

    def __call__(self, batch: Any) -> Any:
        """Raises click.ClickException if a column is missing, or is of a wrong type."""
        key, headers, timestamp, partition, _ = self._columns
        try:
            parts = {"value": self._value(batch)}
            if key is not None:
                parts["key"] = _text(_column(batch, key))
            if headers is not None:
                parts["headers"] = _column(batch, headers)
            if timestamp is not None:
                found = _column(batch, timestamp)
                parts["timestamp"] = found if pa.types.is_timestamp(found.type) else found.cast(pa.timestamp("ms"))
            if partition is not None:
                parts["partition"] = _column(batch, partition).cast(pa.int32())
            return pa.RecordBatch.from_pydict(parts)
        except pa.ArrowException as error:
            raise click.ClickException(f"a column has a wrong type: {error}") from error

    def _value(self, batch: Any) -> Any:
        if self._columns.value is not None:
            found = _column(batch, self._columns.value)
            return _text(found) if self._raw else found
        names = [name for name in batch.schema.names if name not in self._columns.beside_value]
        if not names:
            raise click.ClickException("no column is left for the value: the options name all; give --value COL")
        if not self._raw:
            fields = [batch.schema.field(name) for name in names]
            return pa.StructArray.from_arrays([batch.column(name) for name in names], fields=fields)
        if len(names) != 1:
            raise click.ClickException(
                f"a raw value is one column, and {len(names)} are left: give --value COL or --value-format json"
            )
        return _text(_column(batch, names[0]))


def _column(batch: Any, name: str) -> Any:
    if batch.schema.names.count(name) != 1:
        raise click.ClickException(f"one column {name!r} is needed, the file has {', '.join(batch.schema.names)}")
    return batch.column(name)


def _text(column: Any) -> Any:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    checks = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
    )  # fmt: skip
    return column if any(check(kind) for check in checks) else column.cast(pa.string())


class RowsAsJson:
    """The rows of a RecordBatch as lines of JSON: each is made when it is asked for."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getitem__(self, row: int) -> bytes:
        (found,) = self._batch.slice(row, 1).to_pylist()
        return compact(
            {name: value if isinstance(value, int | float | None) else str(value) for name, value in found.items()}
        )
