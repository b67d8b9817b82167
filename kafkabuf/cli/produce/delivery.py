"""Sends the blocks of an input in order, and follows what becomes of them, for `kafkabuf produce`.

A bounded number of blocks wait for their acknowledgements. A line that is no record, or that Kafka refuses, ends the
run, is left out, or goes to a file. An error that is not of a record, such as a missing right, always ends the run.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from kafkabuf.cli.output import naming
from kafkabuf.cli.produce.inputs.block import Block, Refused
from kafkabuf.cli.produce.inputs.source import Source
from kafkabuf.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    RecordTooLargeError,
    RefusedWithOthersError,
    SerializationError,
)

if TYPE_CHECKING:
    from kafkabuf.append.report import BulkReport

# A faulty record has these errors, wherever it is sent.
_OF_RECORDS = (InvalidRecordError, InvalidTimestampError, RecordTooLargeError)
_MAX_PENDING = 128  # a block has an entry for its records and one for its end
_MAX_NOTES = 10
# A bulk append begins its errors with the place of the row in its data.
_ROW = re.compile(r"row (\d+): ")


class StoppedError(Exception):
    """The run ends at a line: the text says at which one, and why."""


class Faults:
    """What becomes of lines that are no records: `on_error` is stop or skip, or dead-letter where there is a file."""

    def __init__(self, on_error: str, letters: BinaryIO | None, unit: str) -> None:
        self.unit = unit
        self.count = 0
        self.stops = on_error == "stop"
        self.letters = letters

    def take(self, source: Source, refused: Refused) -> None:
        """Raises StoppedError if the run ends here."""
        place = source.place(self.unit, refused.number)
        if self.stops:
            raise StoppedError(f"{place}: {refused.reason}")
        self.count += 1
        if self.count <= _MAX_NOTES:
            click.echo(f"{place} is left out: {refused.reason}", err=True)
        elif self.count == _MAX_NOTES + 1:
            click.echo(f"more {self.unit}s are left out; the end says how many", err=True)
        if refused.raw is not None:
            self.spill(refused.raw + b"\n")

    def spill(self, piece: bytes) -> None:
        """A line, or a piece of a line that is too long to be kept."""
        if self.letters is not None:
            with naming(self.letters.name):
                self.letters.write(piece)

    def flush(self) -> None:
        if self.letters is not None:
            with naming(self.letters.name):
                self.letters.flush()


class _Pending(NamedTuple):
    """Records that wait for their acknowledgements: those of a block from its place `first` on. `raw` as in Block."""

    source: Source
    report: BulkReport
    numbers: Sequence[int]
    raw: Callable[[int], bytes] | None
    first: int


class _End(NamedTuple):
    """All before this offset, and up to this number, is settled with what waits before."""

    source: Source
    offset: int
    last: int


class Delivery:
    """`acknowledged` counts records. `source` is the input that is read at present."""

    def __init__(self, faults: Faults) -> None:
        self.acknowledged = 0
        self.source = Source("")
        self._faults = faults
        self._pending: deque[_Pending | _End] = deque()

    def add(self, block: Block) -> None:
        """Queues the records of a block, and takes its faulty lines. Raises StoppedError."""
        faulty, end = [*block.refused], len(block.numbers)
        if faulty and self._faults.stops:
            end = bisect_left(block.numbers, faulty[0].number)
        first = 0
        while first < end:
            try:
                self._pend(block.send(first, end), block, first)
                break
            except SerializationError as error:
                place = self._place_of_misfit(error, block, first)
                faulty.append(Refused(block.numbers[place], block.raw(place), _without_row(error)))
                self._pend(getattr(error, "report", None), block, first)
                first = end if self._faults.stops else place + 1
            self.settle(_MAX_PENDING)
        faulty.sort(key=lambda each: each.number)
        if faulty and self._faults.stops:
            self.settle(0)  # raises the error of an earlier line
        for refused in faulty:
            self._faults.take(self.source, refused)
        self._pending.append(_End(self.source, block.end, block.last))
        self.settle(_MAX_PENDING)

    def _pend(self, report: BulkReport | None, block: Block, first: int) -> None:
        if report is not None and report.rows:
            raw = block.raw if self._faults.letters is not None else None
            self._pending.append(_Pending(self.source, report, block.numbers, raw, first))

    def _place_of_misfit(self, error: SerializationError, block: Block, first: int) -> int:
        """The place of the row that does not fit. Raises StoppedError if no row is at fault."""
        row, report = _ROW.match(str(error)), getattr(error, "report", None)
        before = report.rows if report else 0
        if row is not None and int(row[1]) == before:
            return first + before
        self.settle(0)
        self.give_up(report)
        where = f"{self.source.place('in the rows from', block.numbers[first])} to {block.numbers[-1]}"
        raise StoppedError(f"{where}: {error}") from error

    def settle(self, waiting: int) -> None:
        """Takes the outcomes that there are, and waits while more than `waiting` entries have none.

        Raises StoppedError.
        """
        while self._pending:
            entry = self._pending[0]
            if isinstance(entry, _Pending) and not entry.report.done() and len(self._pending) <= waiting:
                return
            self._pending.popleft()
            if isinstance(entry, _End):
                self._faults.flush()
                entry.source.settle(entry.offset, entry.last)
            elif self._count(entry.report):
                self._take_failures(entry)

    def give_up(self, last: BulkReport | None = None) -> None:
        """Waits for all blocks behind an error, and counts what was acknowledged, also of a call that failed."""
        for report in (*(entry.report for entry in self._pending if isinstance(entry, _Pending)), last):
            if report is not None:
                self._count(report)
        self._pending.clear()

    def _count(self, report: BulkReport) -> int:
        """Waits for the outcomes. Returns the number of records that failed."""
        failed = sum(failure.rows for failure in report.failures())
        self.acknowledged += report.rows - failed
        return failed

    def _take_failures(self, entry: _Pending) -> None:
        failures = [(int(row), failed.error) for failed in entry.report.failed_rows() for row in failed.rows]
        for row, error in sorted(failures, key=lambda failure: failure[0]):
            number = entry.numbers[entry.first + row]
            if not self._is_of_record(error):
                raise StoppedError(f"{entry.source.place(self._faults.unit, number)}: {error}") from error
            raw = b"" if entry.raw is None else entry.raw(entry.first + row)
            self._faults.take(entry.source, Refused(number, raw, _without_row(error)))

    def _is_of_record(self, error: KafkaError) -> bool:
        # Records that were refused for others' sake are good: they may go to a file, but not be left out.
        to_file = self._faults.letters is not None
        return isinstance(error, _OF_RECORDS) or (to_file and isinstance(error, RefusedWithOthersError))


def _without_row(error: KafkaError) -> str:
    """The input has another number for the row."""
    return _ROW.sub("", str(error), count=1) if _ROW.match(str(error)) else str(error)
