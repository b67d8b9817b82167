"""Rows of a table with their numbers, for `kafkabuf produce`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kafkabuf.cli.produce.inputs.records import Refused

MAX_ROWS = 16_384


class Rows(NamedTuple):
    """Rows of a table with their numbers, from 1, and the rows up to the last of them that do not parse. `end` is how
    much of the input has been read, in bytes."""

    batch: Any
    numbers: Sequence[int]
    refused: Sequence[Refused]
    end: int

    def behind(self, done: int) -> Rows:
        """Without the rows up to this number."""
        first = bisect_right(self.numbers, done)
        refused = [each for each in self.refused if each.line > done]
        return Rows(self.batch.slice(first), self.numbers[first:], refused, self.end)

    def before_refused(self) -> Rows:
        """Up to the first row that does not parse."""
        if not self.refused:
            return self
        end = bisect_right(self.numbers, self.refused[0].line)
        return Rows(self.batch.slice(0, end), self.numbers[:end], self.refused[:1], self.end)


def pieces_of(batch: Any) -> Iterator[Any]:
    """A RecordBatch in pieces of a bounded number of rows."""
    for start in range(0, batch.num_rows, MAX_ROWS):
        yield batch.slice(start, MAX_ROWS)
