"""What became of the rows of one bulk append, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kafkabuf.append._bulk import places_of
from kafkabuf.errors import KafkaError, RecordTooLargeError, TimeoutError
from kafkabuf.offset_range import OffsetRange, merge_ranges

if TYPE_CHECKING:
    from kafkabuf.append._bulk import Segment
    from kafkabuf.batches._batch import Batch
    from kafkabuf.clock import Clock

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int16, np.int32, np.int64)

ROWS, ERRORS = "rows", "errors"


class _Chunk(NamedTuple):
    """By row of one chunk: the number of its Segment (-1: none) and its timestamp in ms (None: all have `now`)."""

    segment: Int32Array
    timestamp: Int64Array | None
    now: int

    def timestamps(self) -> Int64Array:
        return np.full(len(self.segment), self.now, np.int64) if self.timestamp is None else self.timestamp


class BulkResult(NamedTuple):
    """Row-aligned outcome: `error_code` 0 is success; `offset` is -1 where the row was not delivered or acks=0.

    A row too large to be queued has the error code 10 (MESSAGE_TOO_LARGE) and the partition -1.
    """

    partition: Int32Array
    offset: Int64Array
    timestamp: Int64Array
    error_code: npt.NDArray[np.int16]


class Failure(NamedTuple):
    """Rows that were not delivered: those of `first_row` to `last_row` that were bound for `partition` of `topic`.

    There are `rows` of them. Where `rows` is the length of that range, it is the whole range; where it is less, rows
    bound elsewhere lie in between, or rows in a part of their batch that was delivered (KIP-126). A row that was too
    large to be queued stands alone, with partition -1. Rows are counted from 0 over all of the call's data.
    """

    error: KafkaError
    topic: str
    partition: int
    first_row: int
    last_row: int
    rows: int

    @property
    def error_code(self) -> int:
        """Kafka's; -1 where the error never crosses the wire."""
        return self.error.code


class _Piece(NamedTuple):
    """Neighbouring rows that share an outcome: those of a Segment, or of it in one part of a batch that was split."""

    segment: Segment
    batch: Batch
    first: int  # place in `batch`
    rows: int
    bytes: int  # the Segment's, shared out by rows


class BulkReport:
    """The pending result of one send_arrow or send_many.

    Nothing is done for it when batches are acknowledged; it asks them. It keeps a number for each row and, where rows
    have timestamps of their own, those: 4 or 12 bytes a row. With `report="errors"` it keeps neither, forgets batches
    as they are delivered, and has no `result`.
    """

    def __init__(self, clock: Clock, keep: str = ROWS) -> None:
        if keep not in (ROWS, ERRORS):
            raise ValueError(f"report is {ROWS!r} or {ERRORS!r}, found {keep!r}")
        self._clock = clock
        self._chunks: list[_Chunk] = []
        self._failures: list[Failure] = []  # of rows never queued, and of segments that were folded
        self._ranges: tuple[OffsetRange, ...] = ()  # of segments that were folded
        self._failed: list[Batch] = []  # of segments that were folded
        self.row_aligned = keep == ROWS
        self.segments: list[Segment] = []
        self.rows = 0

    # ---- for the appending thread ------------------------------------------------------------------------------------

    def add_rows(self, rows: int, segment: Int32Array | None, timestamp: Int64Array | None, now: int) -> None:
        """So many rows of a chunk have been queued or left out; the arrays may have been meant for more."""
        self.rows += rows
        if segment is not None:
            self._chunks.append(_Chunk(segment[:rows], None if timestamp is None else timestamp[:rows], now))

    def leave_out(self, row: int, topic: str, error: RecordTooLargeError) -> None:
        """The row is too large to be queued."""
        self._failures.append(Failure(error, topic, -1, row, row, 1))

    def fold(self) -> None:
        """Forget the segments that are over, but for their offsets or their failure."""
        # Looked at once: the Sender may announce more of them meanwhile.
        over = {segment: None for segment in self.segments if _is_over(segment)}
        self._failures += _failures(over)
        self._failed += [piece.batch for piece in _pieces(over) if piece.batch.error is not None]
        self._ranges = merge_ranges((*self._ranges, *_ranges(over)))
        self.segments[:] = [segment for segment in self.segments if segment not in over]

    # ---- for the user ------------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether every row has an outcome."""
        return all(segment.batch.done for segment in self.segments)

    def wait(self, timeout: float | None = None) -> None:
        """Until every row has an outcome. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        for segment in self.segments:
            left = None if deadline is None else deadline - self._clock.monotonic()
            if not segment.batch.wait(left, self._clock):
                why = segment.batch.why_pending()
                raise TimeoutError(f"not all of {self.rows} rows were acknowledged within {timeout} s{why}")

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """The error of the first row that met one, or None. Waits as `wait` does."""
        return next((failure.error for failure in self.failures(timeout)), None)

    def failures(self, timeout: float | None = None) -> tuple[Failure, ...]:
        """The rows that were not delivered, by their first row. Waits as `wait` does."""
        self.wait(timeout)
        self._read_errors()
        return tuple(sorted((*self._failures, *_failures(self.segments)), key=lambda failure: failure.first_row))

    def _read_errors(self) -> None:
        """The user has seen every failure: no warning of it is due."""
        failed, self._failed = self._failed, []
        for batch in (*failed, *(piece.batch for piece in _pieces(self.segments))):
            batch.read_error()

    @property
    def too_large(self) -> tuple[Failure, ...]:
        """The rows that were left out because they are larger than `max.request.size` or `buffer.memory`. Known now."""
        return tuple(failure for failure in self._failures if failure.partition < 0)

    def result(self, timeout: float | None = None) -> BulkResult:
        """Partition, offset, timestamp (ms) and error code of every row, in the order they were given. Waits.

        Raises ValueError where the call was made with `report="errors"`.
        """
        if not self.row_aligned:
            raise ValueError('report="errors" keeps no rows: ask failures() and ranges(), or send with report="rows"')
        self.wait(timeout)
        self._read_errors()
        segment = _joined([chunk.segment for chunk in self._chunks], np.int32)
        timestamp = _joined([chunk.timestamps() for chunk in self._chunks], np.int64)
        place = places_of(segment, np.array([one.first_index for one in self.segments], np.int32))
        batches, which, place = _by_part(self.segments, segment, place)

        def column(field: Callable[[Batch], int], of_none: int, dtype: type[Number]) -> npt.NDArray[Number]:
            # Number -1, of rows that were left out, finds what stands last.
            return np.array([*map(field, batches), of_none], dtype)[which]

        base = column(lambda batch: batch.base_offset, -1, np.int64)
        appended = column(lambda batch: batch.log_append_time, -1, np.int64)
        return BulkResult(
            column(lambda batch: batch.partition, -1, np.int32),
            np.where(base >= 0, base + place, -1),
            np.where(appended >= 0, appended, timestamp),
            column(_error_code, RecordTooLargeError.code, np.int16),
        )

    def ranges(self, timeout: float | None = None) -> tuple[OffsetRange, ...]:
        """The offsets of the delivered rows, a range a partition. Waits as `wait` does."""
        self.wait(timeout)
        return merge_ranges((*self._ranges, *_ranges(self.segments)))


def _joined(arrays: list[npt.NDArray[Number]], dtype: type[Number]) -> npt.NDArray[Number]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _by_part(
    segments: list[Segment], segment: Int32Array, place: Int32Array
) -> tuple[list[Batch], Int64Array | Int32Array, Int32Array]:
    """Batches with one outcome each, and by row its number among them (-1: none) and its place there."""
    if all(one.batch.parts is None for one in segments):
        return [one.batch for one in segments], segment, place
    parts = [(number, part) for number, one in enumerate(segments) for part in one.batch.parts or [one.batch]]
    firsts = np.array([part.first for _, part in parts], np.int32)
    starts = np.array([number << 32 | part.first for number, part in parts], np.int64)
    which = np.searchsorted(starts, segment.astype(np.int64) << 32 | place, side="right") - 1
    return [part for _, part in parts], which, place - firsts[which]


def _pieces(segments: Iterable[Segment]) -> Iterator[_Piece]:
    for segment in segments:
        begin, end = segment.first_index, segment.first_index + segment.rows
        for part in segment.batch.parts or [segment.batch]:
            first, last = max(begin, part.first), min(end, part.first + part.count)
            if first < last:
                share = segment.bytes * (last - begin) // segment.rows
                share -= segment.bytes * (first - begin) // segment.rows
                yield _Piece(segment, part, first - part.first, last - first, share)


def _is_over(segment: Segment) -> bool:
    return segment.rows > 0 and all(part.announced for part in segment.batch.parts or [segment.batch])


def _error_code(batch: Batch) -> int:
    return 0 if batch.error is None else batch.error.code


def _failures(segments: Iterable[Segment]) -> Iterator[Failure]:
    for piece in _pieces(segments):
        batch, segment = piece.batch, piece.segment
        if batch.error is None:
            continue
        first, last = segment.first_row, segment.end_row - 1
        if last - first == segment.rows - 1:  # no others in between: a part's rows can be told from the rest
            first += batch.first + piece.first - segment.first_index
            last = first + piece.rows - 1
        yield Failure(batch.error, batch.topic, batch.partition, first, last, piece.rows)


def _ranges(segments: Iterable[Segment]) -> Iterator[OffsetRange]:
    for piece in _pieces(segments):
        batch = piece.batch
        if batch.succeeded:
            known = batch.base_offset >= 0
            first = batch.base_offset + piece.first if known else -1
            last = first + piece.rows - 1 if known else -1
            yield OffsetRange(batch.topic, batch.partition, first, last, piece.rows, piece.bytes)
