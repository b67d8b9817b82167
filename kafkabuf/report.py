"""What became of the rows of one send_arrow, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kafkabuf.errors import KafkaError, TimeoutError
from kafkabuf.offset_range import OffsetRange, merge_ranges

if TYPE_CHECKING:
    from kafkabuf._batch import Batch
    from kafkabuf._bulk import Segment
    from kafkabuf.clock import Clock

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int16, np.int32, np.int64)


class RowPlaces(NamedTuple):
    """By row of one Arrow chunk: the number of its Segment, its place in that batch, its timestamp in ms."""

    segment: Int32Array
    place: Int32Array
    timestamp: Int64Array


class ArrowResult(NamedTuple):
    """Row-aligned outcome. `offset` is -1 where the row was not delivered or acks=0; `error_code` 0 is success."""

    partition: Int32Array
    offset: Int64Array
    timestamp: Int64Array
    error_code: npt.NDArray[np.int16]


class _Piece(NamedTuple):
    """Neighbouring rows that share an outcome: those of a Segment, or of it in one part of a batch that was split."""

    batch: Batch
    first: int  # place in `batch`
    rows: int
    bytes: int  # the Segment's, shared out by rows


class ArrowReport:
    """The pending result of one send_arrow. Nothing is done for it when batches are acknowledged; it asks them."""

    def __init__(self, segments: list[Segment], places: list[RowPlaces], clock: Clock) -> None:
        self._segments = segments
        self._places = places
        self._clock = clock

    @property
    def rows(self) -> int:
        """Rows queued."""
        return sum(len(chunk.segment) for chunk in self._places)

    def done(self) -> bool:
        """Whether every row has an outcome."""
        return all(segment.batch.done for segment in self._segments)

    def wait(self, timeout: float | None = None) -> None:
        """Until every row has an outcome. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        for segment in self._segments:
            left = None if deadline is None else deadline - self._clock.monotonic()
            if not segment.batch.wait(left, self._clock):
                raise TimeoutError(f"not all of {self.rows} rows were acknowledged within {timeout} s")

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """The first error any row met, or None. Waits as `wait` does."""
        self.wait(timeout)
        return next((piece.batch.error for piece in self._pieces() if piece.batch.error is not None), None)

    def result(self, timeout: float | None = None) -> ArrowResult:
        """Partition, offset, timestamp (ms) and error code of every row, in the order they were given. Waits."""
        self.wait(timeout)
        segment = _joined([chunk.segment for chunk in self._places], np.int32)
        place = _joined([chunk.place for chunk in self._places], np.int32)
        timestamp = _joined([chunk.timestamp for chunk in self._places], np.int64)
        batches, which, place = self._by_part(segment, place)

        def column(field: Callable[[Batch], int], dtype: type[Number]) -> npt.NDArray[Number]:
            return np.array([field(batch) for batch in batches], dtype)[which]

        base = column(lambda batch: batch.base_offset, np.int64)
        appended = column(lambda batch: batch.log_append_time, np.int64)
        return ArrowResult(
            column(lambda batch: batch.partition, np.int32),
            np.where(base >= 0, base + place, -1),
            np.where(appended >= 0, appended, timestamp),
            column(_error_code, np.int16),
        )

    def ranges(self, timeout: float | None = None) -> tuple[OffsetRange, ...]:
        """The offsets of the delivered rows, a range a partition. Waits as `wait` does."""
        self.wait(timeout)
        return merge_ranges(_range(piece) for piece in self._pieces() if piece.batch.succeeded)

    def _by_part(
        self, segment: Int32Array, place: Int32Array
    ) -> tuple[list[Batch], Int64Array | Int32Array, Int32Array]:
        """Batches with one outcome each, and by row its number among them and its place there."""
        if all(segment.batch.parts is None for segment in self._segments):
            return [segment.batch for segment in self._segments], segment, place
        parts = [(number, part) for number, one in enumerate(self._segments) for part in one.batch.parts or [one.batch]]
        firsts = np.array([part.first for _, part in parts], np.int32)
        starts = np.array([number << 32 | part.first for number, part in parts], np.int64)
        which = np.searchsorted(starts, segment.astype(np.int64) << 32 | place, side="right") - 1
        return [part for _, part in parts], which, place - firsts[which]

    def _pieces(self) -> Iterator[_Piece]:
        for segment in self._segments:
            begin, end = segment.first_index, segment.first_index + segment.rows
            for part in segment.batch.parts or [segment.batch]:
                first, last = max(begin, part.first), min(end, part.first + part.count)
                if first < last:
                    share = segment.bytes * (last - begin) // segment.rows
                    share -= segment.bytes * (first - begin) // segment.rows
                    yield _Piece(part, first - part.first, last - first, share)


def _joined(arrays: list[npt.NDArray[Number]], dtype: type[Number]) -> npt.NDArray[Number]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _error_code(batch: Batch) -> int:
    return 0 if batch.error is None else batch.error.code


def _range(piece: _Piece) -> OffsetRange:
    batch = piece.batch
    known = batch.base_offset >= 0
    first = batch.base_offset + piece.first if known else -1
    last = first + piece.rows - 1 if known else -1
    return OffsetRange(batch.topic, batch.partition, first, last, piece.rows, piece.bytes)
