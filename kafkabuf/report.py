"""What became of the rows of one send_arrow, in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
        return next((segment.batch.error for segment in self._segments if segment.batch.error is not None), None)

    def result(self, timeout: float | None = None) -> ArrowResult:
        """Partition, offset, timestamp (ms) and error code of every row, in the order they were given. Waits."""
        self.wait(timeout)
        segment = _joined([chunk.segment for chunk in self._places], np.int32)
        place = _joined([chunk.place for chunk in self._places], np.int32)
        timestamp = _joined([chunk.timestamp for chunk in self._places], np.int64)
        batches = [segment.batch for segment in self._segments]
        partition, base, appended, code = (
            np.array([field(batch) for batch in batches], dtype)[segment]
            for field, dtype in (
                (lambda batch: batch.partition, np.int32),
                (lambda batch: batch.base_offset, np.int64),
                (lambda batch: batch.log_append_time, np.int64),
                (_error_code, np.int16),
            )
        )
        return ArrowResult(
            partition, np.where(base >= 0, base + place, -1), np.where(appended >= 0, appended, timestamp), code
        )

    def ranges(self, timeout: float | None = None) -> tuple[OffsetRange, ...]:
        """The offsets of the delivered rows, a range a partition. Waits as `wait` does."""
        self.wait(timeout)
        delivered = (segment for segment in self._segments if segment.rows and segment.batch.succeeded)
        return merge_ranges(map(_range, delivered))


def _joined(arrays: list[npt.NDArray[np.generic]], dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _error_code(batch: Batch) -> int:
    return 0 if batch.error is None else batch.error.code


def _range(segment: Segment) -> OffsetRange:
    batch = segment.batch
    known = batch.base_offset >= 0
    first = batch.base_offset + segment.first_index if known else -1
    last = first + segment.rows - 1 if known else -1
    return OffsetRange(batch.topic, batch.partition, first, last, segment.rows, segment.bytes)
