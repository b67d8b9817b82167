"""CSV, Parquet and Arrow tables become rows, for `kafkabuf produce`. pyarrow reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from kafkabuf.cli.produce.inputs.block import Columns
from kafkabuf.cli.produce.inputs.bytes import CHUNK, InputBytes, Readable
from kafkabuf.cli.produce.inputs.csv import Choices, CsvReader
from kafkabuf.cli.produce.inputs.rows import MAX_ROWS, Rows
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
        first = 1
        for batch in _parquet(path, source) if kind == "parquet" else _arrow(path, source):
            yield from Rows(batch, range(first, first + batch.num_rows)).pieces()
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        # Of torn data Arrow says so with an OSError that has no number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise click.ClickException(f"the {kind} file cannot be read: {error}") from error


def _parquet(path: str, source: InputBytes) -> Iterator[Any]:
    if not os.path.getsize(path):
        return
    # Arrow reads ahead in threads of its own, and may still do so when the command ends. Of a file of Python's such a
    # thread would ask for the GIL of an interpreter that has gone, which aborts the process.
    with pa.OSFile(path, "rb") as file:
        # By default Arrow keeps all that it has read until the end of the file, and reads a row group at once.
        table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=CHUNK)
        # Its threads would each keep freed memory: a tenth of all that the command takes.
        for batch in table.iter_batches(batch_size=MAX_ROWS, use_threads=False):
            source.consumed = file.tell()
            yield batch
            # The pages of the rows before: the pool would keep a quarter of all that the command takes.
            pa.default_memory_pool().release_unused()


def _arrow(path: str, source: InputBytes) -> Iterator[Any]:
    """The batches of a file, or of streams one behind another. From a pipe a file is read as the stream that it has
    between its magic and its footer."""
    while head := source.whole(len(_MAGIC)):
        is_file = head == _MAGIC
        if is_file and source.is_file:
            yield from _arrow_file(path, source)
            return
        stream = Readable(source.whole, b"" if is_file else head)
        with ipc.open_stream(pa.PythonFile(stream, mode="r")) as batches:
            yield from batches
        while is_file and source.some(CHUNK):
            pass  # the footer says where the batches are: they have been read


def _arrow_file(path: str, source: InputBytes) -> Iterator[Any]:
    with pa.OSFile(path, "rb") as file:
        reader = ipc.open_file(file)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            source.consumed = file.tell()
            yield batch
