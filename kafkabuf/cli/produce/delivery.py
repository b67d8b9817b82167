"""Sends the blocks of an input in order, and follows what becomes of them, for `kafkabuf produce`.

A bounded number of blocks wait for their acknowledgements. A line that is no record, or that Kafka refuses, ends the
run, is left out, or goes to a file. An error that is not of a record, such as a missing right, always ends the run.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from kafkabuf.cli.output import naming
from kafkabuf.cli.produce.inputs.records import Raw, Records, Refused
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
_MAX_BLOCKS = 64
_MAX_NOTES = 10
# A bulk append begins its errors with the place of the row in its data.
_ROW = re.compile(r"row (\d+): ")


class StoppedError(Exception):
    """The run ends at a line: the text says at which one, and why."""


class Source(NamedTuple):
    """One input. `settled` is called with its offset up to which every line is acknowledged or left out, and with the
    number of lines up to there."""

    name: str = ""
    """It stands before the numbers of the lines; empty if there is no other input."""
    settled: Callable[[int, int], object] = lambda offset, lines: None

    def place(self, unit: str, number: int) -> str:
        return f"{self.name}{': ' if self.name else ''}{unit} {number}"


class _Pending(NamedTuple):
    source: Source
    report: BulkReport | None
    lines: Sequence[int]
    raw: Raw | None
    end: int
    last: int


class _Behind:
    """What the input has for records from a place on."""

    def __init__(self, raw: Raw, first: int) -> None:
        self._raw = raw
        self._first = first

    def __getitem__(self, place: int) -> bytes:
        return self._raw[self._first + place]


class Refusals:
    """What becomes of lines that are no records: `on_error` is stop or skip, or dead-letter where there is a file."""

    def __init__(self, on_error: str, dead_letters: BinaryIO | None, unit: str = "line") -> None:
        self.unit = unit
        self.count = 0
        self.stops = on_error == "stop"
        self.dead_letters = dead_letters

    def take(self, source: Source, refused: Refused) -> None:
        """Raises StoppedError if the run ends here."""
        self.take_overlong(source, refused.line, refused.reason)
        self.spill(refused.raw + b"\n")

    def _note(self, place: str, reason: str) -> None:
        self.count += 1
        if self.count <= _MAX_NOTES:
            click.echo(f"{place} is left out: {reason}", err=True)
        elif self.count == _MAX_NOTES + 1:
            click.echo(f"more {self.unit}s are left out; the end says how many", err=True)

    def take_overlong(self, source: Source, line: int, reason: str) -> None:
        """As take(); spill() gets the line."""
        place = source.place(self.unit, line)
        if self.stops:
            raise StoppedError(f"{place}: {reason}")
        self._note(place, reason)

    def spill(self, piece: bytes) -> None:
        """A piece of a line that is too long to be kept."""
        if self.dead_letters is not None:
            with naming(self.dead_letters.name):
                self.dead_letters.write(piece)

    def flush(self) -> None:
        if self.dead_letters is not None:
            with naming(self.dead_letters.name):
                self.dead_letters.flush()


class Delivery:
    """`acknowledged` counts records. `source` is the input that is read at present."""

    def __init__(self, send: Callable[[Records], BulkReport], refusals: Refusals) -> None:
        self.acknowledged = 0
        self.source = Source()
        self._send = send
        self._refusals = refusals
        self._pending: deque[_Pending] = deque()

    def add(self, records: Records, end: int, count: int) -> None:
        """Queues the records of a block that ends at the input's offset `end`, behind `count` lines.

        Raises StoppedError.
        """
        stop = records.refused[0] if records.refused and self._refusals.stops else None
        if stop is not None:
            records = _before(records, stop.line)
        report = self._send(records) if len(records.lines) else None
        raw = records.raw if self._refusals.dead_letters is not None else None
        # Behind a line that ends the run nothing is settled.
        self._pending.append(_Pending(self.source, report, records.lines, raw, -1 if stop else end, count))
        if stop is not None:
            self.settle(0)  # raises the error of an earlier line
        for refused in records.refused:
            self._refusals.take(self.source, refused)
        self.settle(_MAX_BLOCKS)

    def add_rows(
        self, send: Callable[[int], BulkReport], rows: Sequence[int], raw: Raw, refused: Sequence[Refused] = ()
    ) -> None:
        """Queues rows of a table, by their numbers, and takes those that did not parse. `send` queues the rows from a
        place on. A row that does not fit its format is refused too. Raises StoppedError."""
        faulty = [*refused]
        first = 0
        while first < len(rows):
            try:
                report = send(first)
            except SerializationError as error:
                place = self._place_of_misfit(error, rows, first)
                faulty.append(Refused(rows[place], raw[place], _without_row(error)))
                self._pend(getattr(error, "report", None), rows[first:place], raw, first)
                self.settle(_MAX_BLOCKS)
                first = place + 1
            else:
                self._pend(report, rows[first:], raw, first)
                break
        faulty.sort(key=lambda each: each.line)
        ends = bool(faulty) and self._refusals.stops
        if rows or faulty:
            # The last block settles all of these rows.
            last = max(*rows[-1:], *(each.line for each in faulty), 0)
            block = self._pending.pop() if first < len(rows) else _Pending(self.source, None, (), None, -1, 0)
            self._pending.append(block._replace(end=-1 if ends else last, last=last))
        if ends:
            self.settle(0)  # raises the error of an earlier row
        for each in faulty:
            self._refusals.take(self.source, each)
        self.settle(_MAX_BLOCKS)

    def _pend(self, report: BulkReport | None, rows: Sequence[int], raw: Raw, first: int) -> None:
        if report is not None and rows:
            kept = _Behind(raw, first) if self._refusals.dead_letters is not None else None
            self._pending.append(_Pending(self.source, report, rows, kept, -1, 0))

    def _place_of_misfit(self, error: SerializationError, rows: Sequence[int], first: int) -> int:
        """The place of the row that does not fit. Raises StoppedError if the run ends here: for the policy, or because
        no row is at fault."""
        match, report = _ROW.match(str(error)), getattr(error, "report", None)
        place = None if match is None else first + int(match[1])
        if place is not None and not self._refusals.stops and (report.rows if report else 0) == place - first:
            return place
        self.settle(0)
        self.give_up(report)
        if place is not None:
            raise StoppedError(f"{self.source.place('row', rows[place])}: {_without_row(error)}") from error
        raise StoppedError(f"{self.source.place('in the rows from', rows[first])} to {rows[-1]}: {error}") from error

    def add_overlong(self, line: int, reason: str) -> None:
        """Takes a line that is too long to be kept. Raises StoppedError."""
        if self._refusals.stops:
            self.settle(0)
        self._refusals.take_overlong(self.source, line, reason)

    def settle(self, waiting: int) -> None:
        """Takes the outcomes that there are, and waits while more than `waiting` blocks have none.

        Raises StoppedError.
        """
        while self._pending:
            report = self._pending[0].report
            if report is not None and not report.done() and len(self._pending) <= waiting:
                return
            self._take(self._pending.popleft())

    def give_up(self, last: BulkReport | None = None) -> None:
        """Waits for all blocks behind an error, and counts what was acknowledged, also of a call that failed."""
        for report in (*(pending.report for pending in self._pending), last):
            if report is not None:
                self.acknowledged += report.rows - sum(each.rows for each in report.failures())
        self._pending.clear()

    def _take(self, pending: _Pending) -> None:
        report = pending.report
        failed = 0
        if report is not None:
            failures = report.failures()
            failed = sum(failure.rows for failure in failures)
            self.acknowledged += report.rows - failed
            if failed:
                self._take_failures(report, pending)
        if pending.end >= 0:
            self._refusals.flush()
            pending.source.settled(pending.end, pending.last)

    def _take_failures(self, report: BulkReport, pending: _Pending) -> None:
        refused = sorted(
            ((int(row), failed.error) for failed in report.failed_rows() for row in failed.rows),
            key=lambda each: each[0],
        )
        for row, error in refused:
            line = pending.lines[row]
            if not self._is_of_record(error):
                raise StoppedError(f"{pending.source.place(self._refusals.unit, line)}: {error}") from error
            raw = pending.raw[row] if pending.raw is not None else b""
            self._refusals.take(pending.source, Refused(line, raw, _without_row(error)))

    def _is_of_record(self, error: KafkaError) -> bool:
        # Records that were refused for others' sake are good: they may go to a file, but not be left out.
        to_file = self._refusals.dead_letters is not None
        return isinstance(error, _OF_RECORDS) or (to_file and isinstance(error, RefusedWithOthersError))


def _without_row(error: KafkaError) -> str:
    """The input has another number for the row."""
    match = _ROW.match(str(error))
    return str(error)[0 if match is None else match.end() :]


def _before(records: Records, line: int) -> Records:
    """Without what comes behind a line that is refused."""
    kept = sum(1 for number in records.lines if number < line)

    def head(column: Any) -> Any:
        return None if column is None else column[:kept]

    values, keys, headers, partitions, timestamps = map(head, records.columns)
    return replace(
        records,
        lines=records.lines[:kept],
        values=values,
        keys=keys,
        headers=headers,
        partitions=partitions,
        timestamps=timestamps,
        refused=records.refused[:1],
    )
