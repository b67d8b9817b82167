"""Rows of CSV, Parquet and Arrow files become blocks for send_arrow(), for `kafkabuf produce`. pyarrow reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import click

from kafkabuf.cli.input_records import Columns, compact
from kafkabuf.extras import needs

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa
    from pyarrow import csv, ipc, parquet

_ROWS = 16_384


def batches(file: BinaryIO, kind: str, columns: Columns) -> Iterator[Any]:
    """The RecordBatches of a file, in order and of bounded length. Raises click.ClickException for a faulty file."""
    try:
        for batch in _opened(file, kind, columns):
            for start in range(0, batch.num_rows, _ROWS):
                yield batch.slice(start, _ROWS)
    except pa.ArrowException as error:
        raise click.ClickException(f"the {kind} file cannot be read: {error}") from error


def _opened(file: BinaryIO, kind: str, columns: Columns) -> Any:
    if kind == "csv":
        # Key and value of a raw record are the text of the file: "007" stays "007".
        texts = dict.fromkeys((name for name in (columns.key, columns.value) if name is not None), pa.string())
        return csv.open_csv(file, convert_options=csv.ConvertOptions(column_types=texts))
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
