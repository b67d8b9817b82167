from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Protocol, final

from kafkabuf.batches._batch import Batch, RecordFuture
from kafkabuf.errors import KafkaError
from kafkabuf.record_metadata import RecordMetadata

class Outcomes(Protocol):
    def result(self, record: RecordFuture, /) -> Any: ...
    def exception(self, record: RecordFuture, /) -> KafkaError | None: ...

@final
class BatchEnds:
    loop: AbstractEventLoop
    _awaited: dict[Batch, Any]
    def __new__(cls, loop: AbstractEventLoop, outcomes: Outcomes | None = None) -> BatchEnds: ...
    def future_of(self, record: RecordFuture) -> AIORecordFuture: ...
    def wait_for(self, batch: Batch) -> Future[None]: ...
    def forget(self) -> None: ...
    def _wake_waiters(self) -> None: ...

@final
class AIORecordFuture:
    """The pending result of one send(): `await` returns the RecordMetadata or raises the error of a failed delivery.

    It has the methods of an asyncio.Future, so that gather(), wait(), wait_for() and shield() accept it. Several tasks
    may await it, each any number of times. If one of these tasks is cancelled, the other tasks still get the result.
    cancel(), which gather() calls, and before Python 3.12 wait_for(), makes this future raise CancelledError. The
    record is sent in either case. Use it only in the producer's event loop.
    """

    _asyncio_future_blocking: bool
    @property
    def _record(self) -> RecordFuture: ...
    @property
    def _cancel_message(self) -> object: ...
    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...
    def get_loop(self) -> AbstractEventLoop: ...
    def done(self) -> bool:
        """Whether the outcome is known or this future was cancelled."""
    def cancel(self, msg: object = None) -> bool:
        """Give up waiting; the record is sent all the same. Returns False if the outcome is known already."""
    def cancelled(self) -> bool: ...
    def _make_cancelled_error(self) -> CancelledError: ...
    def result(self) -> RecordMetadata:
        """Return the RecordMetadata or raise the error. Raises asyncio.InvalidStateError while there is no outcome."""
    def exception(self) -> KafkaError | None:
        """The error, or None. Raises asyncio.InvalidStateError while there is no outcome."""
    def add_done_callback(self, fn: Callable[[AIORecordFuture], object], *, context: Context | None = None) -> None:
        """Have the loop call `fn(self)` once the outcome is known."""
    def remove_done_callback(self, fn: Callable[[AIORecordFuture], object]) -> int:
        """Remove every entry of `fn` and return the number of removed entries."""

def run_step(ends: BatchEnds, step: Any) -> None: ...
