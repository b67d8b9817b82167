"""Rows of tables with their numbers, and those that are faulty, for `kafkabuf produce`. pyarrow holds them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafkabuf.cli.produce.inputs.block import Refused
from kafkabuf.errors import SerializationError
from kafkabuf.extras import needs
from kafkabuf.formats import Json
from kafkabuf.shown import json_object

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa

MAX_ROWS = 16_384
_NEIGHBOURS = 64  # rows


class Rows(NamedTuple):
    """A RecordBatch of rows with their numbers, from 1, and the rows among them that are no records."""

    batch: Any
    numbers: Sequence[int]
    refused: Sequence[Refused] = ()

    def pieces(self) -> Iterator[Rows]:
        """The rows in pieces of a bounded number."""
        left = self
        while len(left.numbers) > MAX_ROWS:
            numbers = left.numbers[:MAX_ROWS]
            refused = [each for each in left.refused if each.number < numbers[-1]]
            yield Rows(left.batch.slice(0, MAX_ROWS), numbers, refused)
            left = left.behind(numbers[-1])
        yield left

    def behind(self, done: int) -> Rows:
        """Without the rows up to this number."""
        first = bisect_right(self.numbers, done)
        refused = [each for each in self.refused if each.number > done]
        return Rows(self.batch.slice(first), self.numbers[first:], refused)

    def without(self, reasons: Mapping[int, str]) -> Rows:
        """The rows of which those at these places are refused."""
        if not reasons:
            return self
        raw = RowsAsJson(self.batch)
        refused = [*self.refused, *(Refused(self.numbers[row], raw[row], reasons[row]) for row in sorted(reasons))]
        kept = [row for row in range(self.batch.num_rows) if row not in reasons]
        return Rows(
            self.batch.take(pa.array(kept, pa.int64())),
            [self.numbers[row] for row in kept],
            sorted(refused, key=lambda each: each.number),
        )


def misfits(column: Any, wrong: Callable[[Any], list[int]]) -> list[int]:
    """The places of wrong values. `wrong` gives the places in a column, or raises pa.ArrowInvalid for one that it
    cannot place."""
    try:
        return wrong(column)
    except pa.ArrowInvalid:
        # The half that has no such value is found quickly.
        if len(column) == 1:
            return [0]
        half = len(column) // 2
        behind = misfits(column.slice(half), wrong)
        return [*misfits(column.slice(0, half), wrong), *(half + place for place in behind)]


class RowsAsJson:
    """The rows of a RecordBatch as lines of JSON, as --value-format json writes them. Some neighbours of a row that is
    asked for are made with it."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._first = 0
        self._lines: list[bytes] = []

    def __getitem__(self, row: int) -> bytes:
        if not self._first <= row < self._first + len(self._lines):
            self._first, self._lines = row, _as_json(self._batch.slice(row, _NEIGHBOURS))
        return self._lines[row - self._first]


def _as_json(batch: Any) -> list[bytes]:
    try:
        return [row or b"" for row in Json().encode(batch)]
    except SerializationError:  # a type or a text that JSON does not have
        columns = list(zip(batch.schema.names, batch.columns, strict=True))
        return [json_object({name: column[row] for name, column in columns}) for row in range(batch.num_rows)]
