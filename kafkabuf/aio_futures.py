"""What a record's or a bulk append's outcome is to an event loop: awaitables that point at batches.

As with a RecordFuture, nothing is done per record when a batch is acknowledged. Who awaits a record without an outcome
waits for its batch; the first to do so makes an `_End` sleep on it. The Sender wakes that, and thereby the loop, once
for all the batches that end before it has had its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import Any

from kafkabuf.append.report import BulkReport, BulkResult, Failure
from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.errors import KafkaError
from kafkabuf.offset_range import OffsetRange
from kafkabuf.record_metadata import RecordMetadata


class _End:
    """Sleeps on a batch in the place of all who await it."""

    __slots__ = ("_ends", "batch", "waiters")

    def __init__(self, ends: Ends, batch: Batch) -> None:
        self._ends = ends
        self.batch = batch
        self.waiters: list[asyncio.Future[None]] = []

    def release(self) -> None:
        """Thread: whoever ends the batch."""
        self._ends.come(self)


class Ends:
    """The ends of batches that one loop waits for. Thread: the loop's, but for `come`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._awaited: dict[Batch, _End] = {}
        self._came: deque[_End] = deque()
        self._rung = False  # the loop will look at `_came`

    def until(self, batch: Batch, record: RecordFuture | None = None) -> asyncio.Future[None]:
        """Done once the batch has ended; or, where it was split, perhaps when only a part has: then ask again.

        `record`: one of the batch, whose part is what the caller waits for.
        """
        waiter = self.loop.create_future()
        end = self._awaited.get(batch)
        if end is None:
            end = _End(self, batch)
            if not batch.add_sleeper(end, record):
                waiter.set_result(None)
                return waiter
            self._awaited[batch] = end
        end.waiters.append(waiter)
        return waiter

    def come(self, end: _End) -> None:
        """Any thread: tell those who wait."""
        self._came.append(end)
        if not self._rung:
            self._rung = True
            # A loop that is closed has nobody left who waits, and the Sender must go on.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._rung = False  # before the look: what comes after it rings again
        while self._came:
            end = self._came.popleft()
            del self._awaited[end.batch]
            for waiter in end.waiters:
                if not waiter.done():
                    waiter.set_result(None)


class AIORecordFuture:
    """The pending result of one send(): `await` it for the RecordMetadata, or the error that kept it from delivery.

    It has the methods of an asyncio.Future, so that gather(), wait(), wait_for() and shield() take it as one, and it
    may be awaited again and again, by several tasks. A task that is cancelled meanwhile takes nothing from the others;
    cancel(), which wait_for() and gather() call, makes this future raise CancelledError. Neither calls the record back.
    Only in the producer's event loop.
    """

    __slots__ = ("_callbacks", "_cancel_message", "_cancelled", "_ends", "_record", "_waiters")
    _asyncio_future_blocking = False  # what asyncio.isfuture() looks for

    def __init__(self, record: RecordFuture, ends: Ends) -> None:
        self._record = record
        self._ends = ends
        self._cancelled = False
        self._cancel_message: object = None  # gather() reads it
        self._waiters: list[asyncio.Future[None]] | None = None  # what awaiting tasks sleep on
        self._callbacks: list[tuple[Callable[[AIORecordFuture], object], Context]] | None = None

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        record = self._record
        while not record.done() and not self._cancelled:
            waiter = self._ends.until(record.batch, record)
            waiters = self._waiters = self._waiters or []
            waiters.append(waiter)
            try:
                yield from waiter
            finally:
                waiters.remove(waiter)
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._ends.loop

    def done(self) -> bool:
        """Whether the outcome is known, or nobody waits for it any more."""
        return self._cancelled or self._record.done()

    def cancel(self, msg: object = None) -> bool:
        """Give up waiting; the record is sent all the same. False where it has an outcome."""
        if self.done():
            return False
        self._cancelled, self._cancel_message = True, msg
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        self._call_back()
        return True

    def cancelled(self) -> bool:
        return self._cancelled

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        """Also for gather(), which asks its futures."""
        message = self._cancel_message
        return asyncio.CancelledError() if message is None else asyncio.CancelledError(message)

    def result(self) -> RecordMetadata:
        """The RecordMetadata, or raise what failed. Raises asyncio.InvalidStateError while there is no outcome."""
        self._require_outcome()
        return self._record.result(0)

    def exception(self) -> KafkaError | None:
        """What failed, or None. Raises asyncio.InvalidStateError while there is no outcome."""
        self._require_outcome()
        return self._record.exception(0)

    def add_done_callback(self, fn: Callable[[AIORecordFuture], object], *, context: Context | None = None) -> None:
        """Have the loop call `fn(self)` once the outcome is known."""
        entry = (fn, context or copy_context())
        if self.done():
            self._ends.loop.call_soon(fn, self, context=entry[1])
        elif self._callbacks is None:
            self._callbacks = [entry]
            self._watch()
        else:
            self._callbacks.append(entry)

    def remove_done_callback(self, fn: Callable[[AIORecordFuture], object]) -> int:
        """How often it had been added."""
        before = self._callbacks or []
        kept = [entry for entry in before if entry[0] != fn]
        removed = len(before) - len(kept)
        before[:] = kept
        return removed

    def _watch(self, _: object = None) -> None:
        """Look again at each end of the batch or of a part of it."""
        if self.done():
            self._call_back()
        else:
            self._ends.until(self._record.batch, self._record).add_done_callback(self._watch)

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        for fn, context in callbacks or ():
            self._ends.loop.call_soon(fn, self, context=context)

    def _require_outcome(self) -> None:
        if self._cancelled:
            raise self._make_cancelled_error()
        if not self._record.done():
            raise asyncio.InvalidStateError("the record has no outcome yet: await it")

    def __repr__(self) -> str:
        return f"AIO{self._record!r}"


class AIOBulkReport:
    """The pending result of send_arrow() or send_many(): a BulkReport whose questions are awaited."""

    def __init__(self, report: BulkReport, ends: Ends) -> None:
        self.report = report
        self._ends = ends

    @property
    def rows(self) -> int:
        return self.report.rows

    @property
    def too_large(self) -> tuple[Failure, ...]:
        """As BulkReport.too_large, and known at once."""
        return self.report.too_large

    def done(self) -> bool:
        """Whether every row has an outcome."""
        return self.report.done()

    async def wait(self) -> None:
        """Until every row has an outcome."""
        for segment in self.report.segments:
            while not segment.batch.announced:
                await self._ends.until(segment.batch)

    async def result(self) -> BulkResult:
        """As BulkReport.result."""
        await self.wait()
        return self.report.result(0)

    async def exception(self) -> KafkaError | None:
        """As BulkReport.exception."""
        await self.wait()
        return self.report.exception(0)

    async def failures(self) -> tuple[Failure, ...]:
        """As BulkReport.failures."""
        await self.wait()
        return self.report.failures(0)

    async def ranges(self) -> tuple[OffsetRange, ...]:
        """As BulkReport.ranges."""
        await self.wait()
        return self.report.ranges(0)
