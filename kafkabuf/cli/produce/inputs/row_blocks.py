"""Rows of tables become blocks for send_arrow(), for `kafkabuf produce`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from kafkabuf.cli.produce.inputs.block import Block, Columns, Reader, Target
from kafkabuf.cli.produce.inputs.bytes import InputBytes
from kafkabuf.cli.produce.inputs.column_types import times
from kafkabuf.cli.produce.inputs.csv import Choices
from kafkabuf.cli.produce.inputs.rows import Rows, RowsAsJson, misfits
from kafkabuf.cli.produce.inputs.source import Source
from kafkabuf.cli.produce.inputs.tables import rows_of
from kafkabuf.extras import needs

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa
    from pyarrow import compute

if TYPE_CHECKING:
    from kafkabuf.append.report import BulkReport
    from kafkabuf.formats import Avro, Json, Protobuf

_LAST_TIME = (1 << 63) - 1


def row_reader(
    kind: str,
    columns: Columns,
    value_format: Avro | Json | Protobuf | None,
    choices: Choices | None = None,
    *,
    one_type: bool = False,
) -> Reader:
    """Reads the rows of tables. `choices` are those of CSV; `one_type`: see Shaper."""
    shaped = Shaper(columns, raw=value_format is None, one_type=one_type)

    def read(opened: InputBytes, source: Source, target: Target, spill: Callable[[bytes], object]) -> Iterator[Block]:
        _, done = source.settled
        for rows in rows_of(source.file, opened, kind, columns, choices):
            rows = checked(rows.behind(done), columns, target.partitions)
            last = max([done, *rows.numbers[-1:], *(refused.number for refused in rows.refused)])
            raw = RowsAsJson(rows.batch).__getitem__
            yield Block(rows.numbers, _sending(rows.batch, target, shaped, value_format), raw, rows.refused, last, last)

    return read


def _sending(
    batch: Any, target: Target, shaped: Shaper, value_format: Avro | Json | Protobuf | None
) -> Callable[[int, int], BulkReport]:
    made: list[Any] = []

    def send(first: int, last: int) -> BulkReport:
        if not made:
            made.append(shaped(batch))
        return target.producer.send_arrow(made[0].slice(first, last - first), target.topic, value_format=value_format)

    return send


def checked(rows: Rows, columns: Columns, partitions: int) -> Rows:
    """The rows, of which those are refused whose partition is none of so many, or whose timestamp is none."""
    reasons: dict[int, str] = {}
    for name, cast, last, what in (
        (columns.partition, _partitions, partitions - 1, f"a partition is a number from 0 to {partitions - 1}"),
        (columns.timestamp, times, _LAST_TIME, "a timestamp is milliseconds since 1970 or ISO-8601 text"),
    ):
        # The Shaper names a column that is missing.
        if name is None or rows.batch.schema.names.count(name) != 1:
            continue
        column = rows.batch.column(name)
        for row in _outside(column, cast, last):
            reasons.setdefault(row, f"{what}, found {str(column[row])!r:.50}")
    return rows.without(reasons)


def _outside(column: Any, cast: Callable[[Any], Any], last: int) -> list[int]:
    """The places of values that are cast to no number from 0 to `last`."""

    def wrong(part: Any) -> list[int]:
        numbers = cast(part).cast(pa.int64())
        places: list[int] = compute.indices_nonzero(
            compute.or_(compute.less(numbers, 0), compute.greater(numbers, last))
        ).to_pylist()
        return places

    try:
        return misfits(column, wrong)
    except pa.ArrowException:
        return []  # the Shaper says what is wrong with the column's type


def _partitions(column: Any) -> Any:
    return column.cast(pa.int32())


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
                parts["partition"] = _partitions(_column(batch, partition))
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
            column = _column(batch, self._columns.value)
            return _text(column) if self._raw else column
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
