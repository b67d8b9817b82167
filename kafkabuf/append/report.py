"""The outcomes of the rows of one bulk append, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from kafkabuf.append._bulk import places_of
from kafkabuf.append.offset_range import OffsetRange, merge_ranges
from kafkabuf.errors import KafkaError, RecordTooLargeError, TimeoutError
from kafkabuf.shown import also_unfinished

if TYPE_CHECKING:
    from kafkabuf.append._bulk import Portion
    from kafkabuf.batches._batch import Batch
    from kafkabuf.clock import Clock

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int16, np.int32, np.int64)
RowsOf = Callable[[int], Int64Array | None]

ROWS, ERRORS = "rows", "errors"
OnErrors = Literal["raise", "return"]


class _Chunk(NamedTuple):
    """By row of one chunk: its Portion's number (-1: left out) and its timestamp in ms (None: all rows have `now`)."""

    portion: Int32Array
    timestamp: Int64Array | None
    now: int

    def timestamps(self) -> Int64Array:
        return np.full(len(self.portion), self.now, np.int64) if self.timestamp is None else self.timestamp


class BulkResult(NamedTuple):
    """The outcome of each row: `error_code` 0 is success; `offset` is -1 if the row was not delivered, or with acks=0.

    A row that was too large has error code 10 (MESSAGE_TOO_LARGE) and partition -1. Where the broker named the rows
    that it refused, the other rows of their batch have error code -1 (RefusedWithOthersError).
    """

    partition: Int32Array
    offset: Int64Array
    timestamp: Int64Array
    error_code: npt.NDArray[np.int16]


class Failure(NamedTuple):
    """Rows that were not delivered: of the rows from `first_row` to `last_row`, those for `partition` of `topic`.

    `rows` is their number. If it equals the length of the range, the failure covers the whole range. If it is less, the
    range also contains rows for other partitions, rows in a part of the batch that was delivered (KIP-126), or rows
    that failed with another error. A row that was too large has a Failure of its own, with partition -1. A row that the
    broker named (KIP-467) has a Failure of its own too. The other rows of its batch fail with RefusedWithOthersError,
    and can be sent again. Rows are counted from 0 over all data of the call.
    """

    error: KafkaError
    topic: str
    partition: int
    first_row: int
    last_row: int
    rows: int

    @property
    def error_code(self) -> int:
        """Kafka's error code; -1 for an error that never crosses the wire."""
        return self.error.code


class FailedRows(NamedTuple):
    """Rows that failed with the same error, by their numbers. `partition` is -1 for a row that was left out.

    `records` counts the records of their batch that have this error, rows of other calls included: the broker blames no
    record in particular, unless the number is 1.
    """

    error: KafkaError
    partition: int
    rows: Int64Array
    records: int


class _Piece(NamedTuple):
    """Neighbouring rows with the same outcome: the rows of a Portion in one batch, or in one part of a split batch."""

    portion: Portion
    batch: Batch
    first: int  # index of the first row in `batch`
    rows: int
    bytes: int  # of the Portion, by the share of its rows


class BulkReport:
    """The pending result of one send_arrow() or send_many().

    An acknowledgement costs the report nothing: the report reads the outcomes from the batches when its methods are
    called. It keeps a number for each row, and the timestamps if the rows have their own: 4 or 12 bytes a row. With
    `report="errors"` it keeps no rows, drops delivered batches, and has no `result`.
    """

    def __init__(self, clock: Clock, keep: str = ROWS) -> None:
        if keep not in (ROWS, ERRORS):
            raise ValueError(f"report is {ROWS!r} or {ERRORS!r}, found {keep!r}")
        self._clock = clock
        self._chunks: list[_Chunk] = []
        self._failures: list[Failure] = []  # of rows that were left out, and of folded portions
        self._ranges: tuple[OffsetRange, ...] = ()  # of folded portions
        self._failed: list[Batch] = []  # of folded portions
        self.row_aligned = keep == ROWS
        self.portions: list[Portion] = []
        self.rows = 0

    # ---- for the appending thread ------------------------------------------------------------------------------------

    def add_rows(self, rows: int, portion: Int32Array | None, timestamp: Int64Array | None, now: int) -> None:
        """The first `rows` rows of a chunk were queued or left out; the arrays may be longer.

        A MemoryError leaves the report as it was.
        """
        total = self.rows + rows
        if portion is not None:
            self._chunks.append(_Chunk(portion[:rows], None if timestamp is None else timestamp[:rows], now))
        self.rows = total

    def leave_out(self, row: int, topic: str, error: RecordTooLargeError) -> None:
        """Record the failure of a row that is too large."""
        self._failures.append(Failure(error, topic, -1, row, row, 1))

    def fold(self) -> None:
        """Drop the portions that have ended, and keep their offsets or their failure."""
        # Each portion is checked once: the Sender may announce further batches meanwhile.
        over = {portion: None for portion in self.portions if _is_over(portion)}
        self._failures += _failures(over, lambda _: None)
        self._failed += [piece.batch for piece in _pieces(over) if piece.batch.error is not None]
        self._ranges = merge_ranges((*self._ranges, *_ranges(over)))
        self.portions[:] = [portion for portion in self.portions if portion not in over]

    # ---- for the user ------------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether every row has an outcome."""
        return all(portion.batch.done for portion in self.portions)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until every row has an outcome. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        for portion in self.portions:
            seconds = None if deadline is None else deadline - self._clock.monotonic()
            if not portion.batch.wait(seconds, self._clock):
                why = portion.batch.why_pending()
                raise TimeoutError(f"not all of {self.rows} rows were acknowledged within {timeout} s{why}")

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """The error of the first row that failed, or None. Waits as `wait` does."""
        return next((failure.error for failure in self.failures(timeout)), None)

    def failures(self, timeout: float | None = None) -> tuple[Failure, ...]:
        """The rows that were not delivered, sorted by their first row. Waits as `wait` does."""
        self.wait(timeout)
        self._read_errors()
        failures = (*self._failures, *_failures(self.portions, self._rows_of))
        return tuple(sorted(failures, key=lambda failure: failure.first_row))

    def failed_rows(self, timeout: float | None = None) -> tuple[FailedRows, ...]:
        """The numbers of the rows that were not delivered, by error. Waits as `wait` does.

        Raises ValueError if the call was made with `report="errors"`.
        """
        self._require_rows()
        self.wait(timeout)
        self._read_errors()
        left_out = (FailedRows(row.error, -1, np.array([row.first_row], np.int64), 1) for row in self._failures)
        return (*left_out, *_failed_rows(self.portions, self._rows_of))

    def _require_rows(self) -> None:
        if not self.row_aligned:
            raise ValueError('report="errors" keeps no rows: call failures() and ranges(), or send with report="rows"')

    def _rows_of(self, portion: int) -> Int64Array | None:
        """The rows of the Portion with this number, in order; None where no row numbers are kept."""
        if not self.row_aligned:
            return None
        return np.flatnonzero(_joined([chunk.portion for chunk in self._chunks], np.int32) == portion)

    def _read_errors(self) -> None:
        """Note that the user has seen every failure, so that the Sender warns of no failure."""
        failed, self._failed = self._failed, []
        for batch in (*failed, *(piece.batch for piece in _pieces(self.portions))):
            batch.read_error()

    @property
    def too_large(self) -> tuple[Failure, ...]:
        """The rows that were left out as larger than `max.request.size` or `buffer.memory`. Known without waiting."""
        return tuple(failure for failure in self._failures if failure.partition < 0)

    def result(self, timeout: float | None = None, *, errors: OnErrors = "raise") -> BulkResult:
        """Partition, offset, timestamp (ms) and error code of every row, in the order of the data. Waits.

        If rows failed, it raises the first failure, as a future does: an error of the same class whose text counts the
        failed rows, with this report as `error.report`. With `errors="return"` it returns the outcomes of all rows.
        A call that was made with `report="errors"` has no outcomes to return: if no row failed, this raises ValueError.
        """
        if errors not in get_args(OnErrors):
            raise ValueError(f"errors is 'raise' or 'return', found {errors!r}")
        if errors == "return":
            self._require_rows()
        failures = self.failures(timeout)
        if failures and errors == "raise":
            raise self._counted(failures) from failures[0].error
        self._require_rows()
        return self._columns()

    def _counted(self, failures: tuple[Failure, ...]) -> KafkaError:
        """The first failure as an error of this report, with the number of failed rows."""
        first, failed = failures[0].error, sum(failure.rows for failure in failures)
        more = ', result(errors="return") has the outcome of each row' if self.row_aligned else ""
        text = f"{failed} of {self.rows} rows failed, the first with: {first}"
        error = type(first)(f"{text} (error.report.failures() lists them{more})")
        error.report = self
        return error

    def _columns(self) -> BulkResult:
        portion_of_row = _joined([chunk.portion for chunk in self._chunks], np.int32)
        timestamp = _joined([chunk.timestamps() for chunk in self._chunks], np.int64)
        index = places_of(portion_of_row, np.array([portion.first_index for portion in self.portions], np.int32))
        batches, batch_of_row, index = _by_part(self.portions, portion_of_row, index)

        def column(field: Callable[[Batch], int], left_out: int, dtype: type[Number]) -> npt.NDArray[Number]:
            # Rows that were left out have batch number -1, which selects the last element. With an array as index NumPy
            # crashes where it finds no memory; take() raises.
            return np.array([*map(field, batches), left_out], dtype).take(batch_of_row)

        base = column(lambda batch: batch.base_offset, -1, np.int64)
        appended = column(lambda batch: batch.log_append_time, -1, np.int64)
        error_code = column(_error_code, RecordTooLargeError.code, np.int16)
        if any(batch.record_errors for batch in batches):
            for failed in _failed_rows(self.portions, self._rows_of):
                error_code[failed.rows] = failed.error.code
        return BulkResult(
            column(lambda batch: batch.partition, -1, np.int32),
            np.where(base >= 0, base + index, -1),
            np.where(appended >= 0, appended, timestamp),
            error_code,
        )

    def ranges(self, timeout: float | None = None) -> tuple[OffsetRange, ...]:
        """The offsets of the delivered rows, one range for each partition. Waits as `wait` does."""
        self.wait(timeout)
        return merge_ranges((*self._ranges, *_ranges(self.portions)))

    @also_unfinished
    def __repr__(self) -> str:
        # It reads the failures without note: a shell that prints the report does not stand for a user who handles them.
        failed = sum(failure.rows for failure in (*self._failures, *_failures(self.portions, lambda _: None)))
        state = f"{failed} failed" if failed else "delivered"
        return f"BulkReport({self.rows} rows, {state if self.done() else 'pending'})"


def _joined(arrays: list[npt.NDArray[Number]], dtype: type[Number]) -> npt.NDArray[Number]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _by_part(
    portions: list[Portion], portion_of_row: Int32Array, index: Int32Array
) -> tuple[list[Batch], Int64Array | Int32Array, Int32Array]:
    """Batches and parts with one outcome each; by row, the number of its batch or part (-1: left out) and its index.

    `index` is by row the index in its Portion's batch.
    """
    if all(portion.batch.parts is None for portion in portions):
        return [portion.batch for portion in portions], portion_of_row, index
    parts = [
        (number, part) for number, portion in enumerate(portions) for part in portion.batch.parts or [portion.batch]
    ]
    firsts = np.array([part.first for _, part in parts], np.int32)
    starts = np.array([number << 32 | part.first for number, part in parts], np.int64)
    part_of_row = np.searchsorted(starts, portion_of_row.astype(np.int64) << 32 | index, side="right") - 1
    return [part for _, part in parts], part_of_row, index - firsts[part_of_row]


def _pieces(portions: Iterable[Portion]) -> Iterator[_Piece]:
    for portion in portions:
        begin, end = portion.first_index, portion.first_index + portion.rows
        if portion.batch.parts is None:  # as nearly always: then the Portion is the piece
            if portion.rows:
                yield _Piece(portion, portion.batch, begin, portion.rows, portion.bytes)
            continue
        for part in portion.batch.parts:
            first, last = max(begin, part.first), min(end, part.first + part.count)
            if first < last:
                share = portion.bytes * (last - begin) // portion.rows
                share -= portion.bytes * (first - begin) // portion.rows
                yield _Piece(portion, part, first - part.first, last - first, share)


def _is_over(portion: Portion) -> bool:
    return portion.rows > 0 and all(part.announced for part in portion.batch.parts or [portion.batch])


def _error_code(batch: Batch) -> int:
    return 0 if batch.error is None else batch.error.code


def _failures(portions: Iterable[Portion], rows_of: RowsOf) -> Iterator[Failure]:
    for number, portion in enumerate(portions):
        for piece in _pieces([portion]):
            batch = piece.batch
            if batch.error is None:
                continue
            rows = _rows_of_piece(piece, number, rows_of if batch.record_errors else lambda _: None)
            for error, places in _errors(piece):
                first, last = portion.first_row, portion.end_row - 1
                if rows is not None:
                    first, last = int(rows[places[0]]), int(rows[places[-1]])
                yield Failure(error, batch.topic, batch.partition, first, last, len(places))


def _failed_rows(portions: Iterable[Portion], rows_of: RowsOf) -> Iterator[FailedRows]:
    for number, portion in enumerate(portions):
        if portion.batch.parts is None and portion.batch.error is None:
            continue
        for piece in _pieces([portion]):
            if piece.batch.error is None:
                continue
            rows = _rows_of_piece(piece, number, rows_of)
            assert rows is not None
            named = len(piece.batch.record_errors or ())
            for error, places in _errors(piece):
                is_named = error is not piece.batch.error and error is not piece.batch.error_of_others
                records = 1 if is_named else piece.batch.count - named
                yield FailedRows(error, piece.batch.partition, rows[places], records)


def _rows_of_piece(piece: _Piece, number: int, rows_of: RowsOf) -> Int64Array | None:
    """The numbers of a piece's rows, in order. None where they are not known: rows of other partitions lie between."""
    portion = piece.portion
    begin = piece.batch.first + piece.first - portion.first_index
    if portion.end_row - portion.first_row == portion.rows:
        return np.arange(portion.first_row + begin, portion.first_row + begin + piece.rows)
    rows = rows_of(number)
    return None if rows is None else rows[begin : begin + piece.rows]


def _errors(piece: _Piece) -> Iterator[tuple[KafkaError, Int64Array]]:
    """The errors of a failed piece, each with the places of its rows in the piece."""
    batch = piece.batch
    places = np.arange(piece.rows)
    named = {place - piece.first: error for place, error in (batch.record_errors or {}).items()}
    named = {place: named[place] for place in sorted(named) if 0 <= place < piece.rows}
    for place, error in named.items():
        yield error, places[place : place + 1]
    places_without_error = np.delete(places, list(named))
    error_of_others = batch.error_of_others if batch.record_errors else batch.error
    if len(places_without_error):
        assert error_of_others is not None
        yield error_of_others, places_without_error


def _ranges(portions: Iterable[Portion]) -> Iterator[OffsetRange]:
    for piece in _pieces(portions):
        batch = piece.batch
        if batch.succeeded:
            has_offset = batch.base_offset >= 0
            first = batch.base_offset + piece.first if has_offset else -1
            last = first + piece.rows - 1 if has_offset else -1
            yield OffsetRange(batch.topic, batch.partition, first, last, piece.rows, piece.bytes)
