"""Rows of a task with their numbers, which stay with the rows when a task sends some of them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafkabuf.shown import raw

Int64Array = npt.NDArray[np.int64]


class Topics(NamedTuple):
    """The topics of rows: their names, which need not be UTF-8, and by row the number of its name, -1 for no topic."""

    names: Sequence[bytes]
    numbers: npt.NDArray[np.int32]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Topics:
        """The topics that the rows of a batch name in a column."""
        column = batch.column("topic").dictionary_encode()
        names = [name for name in map(raw, column.dictionary) if name is not None]
        return cls(names, column.indices.fill_null(-1).to_numpy())

    @property
    def are_together(self) -> bool:
        """Whether no row of another topic lies between two rows of a topic."""
        return bool((np.diff(self.numbers) >= 0).all())

    def order(self) -> Int64Array:
        """The places of the rows, topic by topic; the rows of a topic stay in their order."""
        return np.argsort(self.numbers, kind="stable")


class NumberedRows(NamedTuple):
    """Rows, and by row its number in the task, counted from 0."""

    batch: pa.RecordBatch
    numbers: Int64Array

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def slice(self, begin: int, end: int | None = None) -> NumberedRows:
        """The rows from one place to another, without a copy."""
        end = len(self) if end is None else min(end, len(self))
        return NumberedRows(self.batch.slice(begin, end - begin), self.numbers[begin:end])

    def milliseconds(self, place: int) -> int | None:
        """The timestamp of the row at this place, in ms since 1970; None where the row has no timestamp."""
        if "timestamp" not in self.batch.schema.names:
            return None
        column = self.batch.column("timestamp").slice(place, 1)
        timestamp: int | None = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())[0].as_py()
        return timestamp

    def take(self, places: Int64Array) -> NumberedRows:
        """A copy of the rows at these places."""
        return NumberedRows(self.batch.take(pa.array(places)), self.numbers[places])

    def without(self, places: Iterable[int]) -> NumberedRows:
        """A copy of the rows at all other places. One of them must be left."""
        left_out = sorted(places)
        begins, ends = [0, *(place + 1 for place in left_out)], [*left_out, len(self)]
        return joined([self.slice(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end])


def joined(pieces: Sequence[NumberedRows]) -> NumberedRows:
    """One batch of all rows. `pieces` is not empty."""
    if len(pieces) == 1:
        return pieces[0]
    (batch,) = pa.Table.from_batches([piece.batch for piece in pieces]).combine_chunks().to_batches()
    return NumberedRows(batch, np.concatenate([piece.numbers for piece in pieces]))
