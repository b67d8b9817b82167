"""Rows of CSV, Parquet and Arrow tables become blocks for send_arrow(), for `kafkabuf produce`. pyarrow reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from kafkabuf.cli.produce.inputs.bytes import CHUNK, InputBytes
from kafkabuf.cli.produce.inputs.column_types import times
from kafkabuf.cli.produce.inputs.csv import Choices, CsvReader
from kafkabuf.cli.produce.inputs.records import Columns
from kafkabuf.cli.produce.inputs.rows import MAX_ROWS, Rows, pieces_of
from kafkabuf.extras import needs

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa
    from pyarrow import ipc, parquet

_MAGIC = b"ARROW1\0\0"


def rows_of(
    path: str, source: InputBytes, kind: str, columns: Columns, choices: Choices | None = None
) -> Iterator[Rows]:
    """The rows of an input, in order and in bounded number: none of an empty one. A `path` is opened again where the
    table is not read from its start to its end. `choices` are those of CSV. Raises click.ClickException for a faulty
    table."""
    try:
        if kind == "csv":
            yield from CsvReader(path, source, columns, choices or Choices()).rows()
            return
        if kind == "parquet" and not os.path.getsize(path):
            return
        first = 1
        for whole, end in _parquet(path) if kind == "parquet" else _arrow(path, source):
            for batch in pieces_of(whole):
                yield Rows(batch, range(first, first + batch.num_rows), (), end)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        # Of torn data Arrow says so with an OSError that has no number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise click.ClickException(f"the {kind} file cannot be read: {error}") from error


def _parquet(path: str) -> Iterator[tuple[Any, int]]:
    # Arrow reads ahead in threads of its own, and may still do so when the command ends. Of a file of Python's such a
    # thread would ask for the GIL of an interpreter that has gone, which aborts the process.
    with pa.OSFile(path, "rb") as file:
        # By default Arrow keeps all that it has read until the end of the file, and reads a row group at once.
        table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=CHUNK)
        # Its threads would each keep freed memory: a tenth of all that the command takes.
        for batch in table.iter_batches(batch_size=MAX_ROWS, use_threads=False):
            yield batch, file.tell()
            # The pages of the rows before: the pool would keep a quarter of all that the command takes.
            pa.default_memory_pool().release_unused()


def _arrow(path: str, source: InputBytes) -> Iterator[tuple[Any, int]]:
    """The batches of a file, or of streams one behind another. From a pipe a file is read as the stream that it has
    between its magic and its footer."""
    while head := source.whole(len(_MAGIC)):
        is_file = head == _MAGIC
        if is_file and source.is_file:
            yield from _arrow_file(path)
            return
        with ipc.open_stream(pa.PythonFile(_Stream(source, b"" if is_file else head), mode="r")) as reader:
            for batch in reader:
                yield batch, source.consumed
        while is_file and source.some(CHUNK):
            pass  # the footer says where the batches are: they have been read


def _arrow_file(path: str) -> Iterator[tuple[Any, int]]:
    with pa.OSFile(path, "rb") as file:
        reader = ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number), file.tell()


class _Stream:
    """What pyarrow reads in the thread that asks for a batch."""

    closed = False

    def __init__(self, source: InputBytes, head: bytes) -> None:
        self._source = source
        self._head = head

    def read(self, nbytes: int) -> bytes:
        head, self._head = self._head[:nbytes], self._head[nbytes:]
        return head + self._source.whole(nbytes - len(head))

    def close(self) -> None:
        """The input stays open."""


class Shaper:
    """Makes a RecordBatch with the columns of send_arrow(): `value` is a column, or else a struct of those that are no
    other part. With `raw` the value is text or bytes. With `one_type` all values must have one type: nothing would
    tell a reader which schema a value has."""

    def __init__(self, columns: Columns, *, raw: bool, one_type: bool = False) -> None:
        self._columns = columns
        self._raw = raw
        self._one_type = one_type
        self._type: Any = None

    def __call__(self, batch: Any) -> Any:
        """Raises click.ClickException if a column is missing, or is of a wrong type."""
        key, headers, timestamp, partition, _ = self._columns
        try:
            parts = {"value": self._typed(self._value(batch))}
            if key is not None:
                parts["key"] = _text(_column(batch, key))
            if headers is not None:
                parts["headers"] = _column(batch, headers)
            if timestamp is not None:
                parts["timestamp"] = times(_column(batch, timestamp))
            if partition is not None:
                parts["partition"] = _column(batch, partition).cast(pa.int32())
            return pa.RecordBatch.from_pydict(parts)
        except pa.ArrowException as error:
            raise click.ClickException(f"a column has a wrong type: {error}") from error

    def _typed(self, value: Any) -> Any:
        self._type = self._type or value.type
        if self._one_type and value.type != self._type:
            raise click.ClickException(
                f"the columns have the type {value.type}, and {self._type} in the rows before: give --value-schema FILE"
            )
        return value

    def _value(self, batch: Any) -> Any:
        if self._columns.value is not None:
            values = _column(batch, self._columns.value)
            return _text(values) if self._raw else values
        names = [name for name in batch.schema.names if name not in self._columns.beside_value]
        if len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise click.ClickException(f"the file has two columns {twice!r}: a value needs names that differ")
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
