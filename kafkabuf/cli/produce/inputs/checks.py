"""Rows of tables whose partition or timestamp no record can have, for `kafkabuf produce`: they are faulty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkabuf.cli.produce.inputs.column_types import times
from kafkabuf.cli.produce.inputs.faults import misfits, without
from kafkabuf.cli.produce.inputs.records import Columns
from kafkabuf.cli.produce.inputs.rows import Rows
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
    return without(rows, reasons)


def _partitions(column: Any) -> Any:
    return column.cast(pa.int32())


def _faulty(column: Any, cast: Callable[[Any], Any], last: int) -> list[int]:
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
