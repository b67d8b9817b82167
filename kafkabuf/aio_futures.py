"""The outcomes of records and bulk appends for an event loop: awaitables that point at batches.

As with a RecordFuture, the acknowledgement of a batch costs nothing per record. A task that awaits a record without an
outcome waits for the record's batch; the first such task adds a `_BatchEnd` to the batch's sleepers. The Sender
releases the `_BatchEnd`, which wakes the loop: once for all batches that end before the loop gets its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.errors import KafkaError
from kafkabuf.offset_range import OffsetRange
from kafkabuf.record_metadata import RecordMetadata

if TYPE_CHECKING:
    from kafkabuf.append.report import BulkReport, BulkResult, Failure, OnErrors


class _BatchEnd:
    """The one sleeper on a batch, for all tasks of the loop that await the batch."""

    __slots__ = ("_ends", "batch", "waiters")

    def __init__(self, ends: BatchEnds, batch: Batch) -> None:
        self._ends = ends
        self.batch = batch
        self.waiters: list[asyncio.Future[None]] = []

    def release(self) -> None:
        """Called by the thread that ends the batch."""
        self._ends.batch_ended(self)


class BatchEnds:
    """The ends of batches that one loop waits for. Only the loop's thread calls it, except for `batch_ended`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._awaited: dict[Batch, _BatchEnd] = {}
        self._ended: deque[_BatchEnd] = deque()
        self._wakeup_scheduled = False  # the loop will run _wake_waiters

    def wait_for(self, batch: Batch, record: RecordFuture | None = None) -> asyncio.Future[None]:
        """A future that is done once the batch has ended.

        If the batch was split, the future may be done when only a part has ended: the caller then calls again.
        `record`: a record of the batch; the caller waits for the part that holds it.
        """
        waiter = self.loop.create_future()
        end = self._awaited.get(batch)
        if end is None:
            end = _BatchEnd(self, batch)
            if not batch.add_sleeper(end, record):
                waiter.set_result(None)
                return waiter
            self._awaited[batch] = end
        end.waiters.append(waiter)
        return waiter

    def forget(self) -> None:
        """In a forked child no batch ends: a later wait_for() asks its batch, which raises ClosedError."""
        self._awaited.clear()

    def batch_ended(self, end: _BatchEnd) -> None:
        """Have the loop wake the tasks that wait for the batch. Any thread may call it."""
        self._ended.append(end)
        if not self._wakeup_scheduled:
            self._wakeup_scheduled = True
            # A closed loop has no waiting tasks, and its RuntimeError must not stop the Sender.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._wake_waiters)

    def _wake_waiters(self) -> None:
        # Cleared before the deque is read: a batch that ends during or after the loop below schedules another call.
        self._wakeup_scheduled = False
        while self._ended:
            end = self._ended.popleft()
            del self._awaited[end.batch]
            for waiter in end.waiters:
                if not waiter.done():
                    waiter.set_result(None)


class AIORecordFuture:
    """The pending result of one send(): `await` returns the RecordMetadata or raises the error of a failed delivery.

    It has the methods of an asyncio.Future, so that gather(), wait(), wait_for() and shield() accept it. Several tasks
    may await it, each any number of times. If one of these tasks is cancelled, the other tasks still get the result.
    cancel(), which gather() calls, and before Python 3.12 wait_for(), makes this future raise CancelledError. The
    record is sent in either case. Use it only in the producer's event loop.
    """

    __slots__ = ("_callbacks", "_cancel_message", "_cancelled", "_ends", "_record", "_waiters")
    _asyncio_future_blocking = False  # asyncio.isfuture() looks for this attribute

    def __init__(self, record: RecordFuture, ends: BatchEnds) -> None:
        self._record = record
        self._ends = ends
        self._cancelled = False
        self._cancel_message: object = None  # gather() reads it
        self._waiters: list[asyncio.Future[None]] | None = None  # one for each task that awaits this future
        self._callbacks: list[tuple[Callable[[AIORecordFuture], object], Context]] | None = None

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        record = self._record
        while not record.done() and not self._cancelled:
            waiter = self._ends.wait_for(record.batch, record)
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
        """Whether the outcome is known or this future was cancelled."""
        return self._cancelled or self._record.done()

    def cancel(self, msg: object = None) -> bool:
        """Give up waiting; the record is sent all the same. Returns False if the outcome is known already."""
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
        """The error of a cancelled future. gather() calls it too."""
        message = self._cancel_message
        return asyncio.CancelledError() if message is None else asyncio.CancelledError(message)

    def result(self) -> RecordMetadata:
        """Return the RecordMetadata or raise the error. Raises asyncio.InvalidStateError while there is no outcome."""
        self._require_outcome()
        return self._record.result(0)

    def exception(self) -> KafkaError | None:
        """The error, or None. Raises asyncio.InvalidStateError while there is no outcome."""
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
        """Remove every entry of `fn` and return the number of removed entries."""
        callbacks = self._callbacks or []
        kept = [entry for entry in callbacks if entry[0] != fn]
        removed = len(callbacks) - len(kept)
        callbacks[:] = kept
        return removed

    def _watch(self, _: object = None) -> None:
        """Run the callbacks if there is an outcome, else wait for the next end of the batch or of a part of it."""
        if self.done():
            self._call_back()
        else:
            self._ends.wait_for(self._record.batch, self._record).add_done_callback(self._watch)

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
    """The pending result of send_arrow() or send_many(): a BulkReport whose waiting methods are coroutines."""

    def __init__(self, report: BulkReport, ends: BatchEnds) -> None:
        self.report = report
        self._ends = ends

    @property
    def rows(self) -> int:
        return self.report.rows

    @property
    def too_large(self) -> tuple[Failure, ...]:
        """As BulkReport.too_large; known without waiting."""
        return self.report.too_large

    def done(self) -> bool:
        """Whether every row has an outcome."""
        return self.report.done()

    async def wait(self) -> None:
        """Wait until every row has an outcome."""
        for segment in self.report.segments:
            while not segment.batch.announced:
                await self._ends.wait_for(segment.batch)

    async def result(self, *, errors: OnErrors = "raise") -> BulkResult:
        """As BulkReport.result: raises the first failure, or returns every outcome with `errors="return"`."""
        await self.wait()
        return self.report.result(0, errors=errors)

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

    def __repr__(self) -> str:
        return f"AIO{self.report!r}"
