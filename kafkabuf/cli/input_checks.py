"""Rows of tables whose partition or timestamp no record can have, for `kafkabuf produce`: they are faulty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkabuf.cli.input_records import Columns, Refused
from kafkabuf.cli.input_rows import Rows
from kafkabuf.cli.input_tables import RowsAsJson, times
from kafkabuf.extras import needs

with needs("spark", "kafkabuf produce of csv, parquet and arrow"):
    import pyarrow as pa
    from pyarrow import compute

_LAST_TIME = (1 << 63) - 1


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
        for row in _faulty(column, cast, last):
            reasons.setdefault(row, f"{what}, found {str(column[row])!r:.50}")
    if not reasons:
        return rows
    raw = RowsAsJson(rows.batch)
    refused = [*rows.refused, *(Refused(rows.numbers[row], raw[row], reasons[row]) for row in sorted(reasons))]
    kept = [row for row in range(rows.batch.num_rows) if row not in reasons]
    return Rows(
        rows.batch.take(pa.array(kept, pa.int64())),
        [rows.numbers[row] for row in kept],
        sorted(refused, key=lambda each: each.line),
        rows.end,
    )


def _partitions(column: Any) -> Any:
    return column.cast(pa.int32())


def _faulty(column: Any, cast: Callable[[Any], Any], last: int) -> list[int]:
    """The places of values that are cast to no number from 0 to `last`."""
    try:
        numbers = cast(column).cast(pa.int64())
    except pa.ArrowInvalid:
        # It names no place: the half that has none is found quickly.
        if len(column) == 1:
            return [0]
        half = len(column) // 2
        behind = _faulty(column.slice(half), cast, last)
        return [*_faulty(column.slice(0, half), cast, last), *(half + place for place in behind)]
    except pa.ArrowException:
        return []  # the Shaper says what is wrong with the column's type
    wrong = compute.or_(compute.less(numbers, 0), compute.greater(numbers, last))
    found: list[int] = compute.indices_nonzero(wrong).to_pylist()
    return found
