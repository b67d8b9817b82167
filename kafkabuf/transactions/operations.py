"""The operation that a user's thread begins and waits for, one at a time.

The thread may run out of time, or be interrupted; the operation goes on. Called again with the same arguments, the
operation is not begun anew: the thread waits on. Until the thread has seen the end, another operation is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import IllegalStateError, KafkaError, TimeoutError
from kafkabuf.transactions.result import Result
from kafkabuf.transactions.states import State


class Manager(Protocol):
    """What an operation needs of the TransactionManager. All but `circumstances` is used under its lock."""

    state: State

    def refuse_if_failed(self, states: tuple[State, ...]) -> None: ...
    def has_request_for(self, result: Result) -> bool: ...
    def undo(self, before: State, error: BaseException) -> None: ...
    def circumstances(self) -> str: ...


class Operations:
    """`lock` is the manager's, and guards what is here. `wakeup` wakes the Sender."""

    def __init__(
        self, manager: Manager, lock: threading.RLock, clock: Clock, max_block_ms: int, wakeup: Callable[[], None]
    ) -> None:
        self._manager = manager
        self._lock = lock
        self._clock = clock
        self._max_block_ms = max_block_ms
        self._wakeup = wakeup
        self.waited_for: Result | None = None  # the operation whose caller has not seen its end

    def run(self, operation: str, start: Callable[[Result], None], arguments: object = None) -> None:
        """Start the operation, or wait on for the same one, up to max.block.ms. Raises the operation's error."""
        with self._lock:
            self.refuse_while_another_is_waited_for(operation, arguments)
            result = self.waited_for
            if result is None:
                self._manager.refuse_if_failed((State.FATAL_ERROR,))
                result = self._start(Result(operation, arguments), start)
        self._wakeup()
        if not result.wait(self._max_block_ms / 1000, self._clock):
            raise TimeoutError(
                f"{operation}() did not end within max.block.ms ({self._max_block_ms} ms); it goes on: call it again "
                f"to wait for it. {self._manager.circumstances()}"
            )
        with self._lock:
            if self.waited_for is result:
                self.waited_for = None
        if result.error is not None:
            raise result.error

    def _start(self, result: Result, start: Callable[[Result], None]) -> Result:
        """Under the lock. An exception from outside, as Ctrl-C, leaves an operation that goes on, or undoes it."""
        before = self._manager.state
        self.waited_for = result
        try:
            start(result)
        except BaseException as error:
            if not self._manager.has_request_for(result):
                self.waited_for = None
                self._manager.undo(before, error)
            raise
        return result

    def refuse_while_another_is_waited_for(self, operation: str, arguments: object = None) -> None:
        """Under the lock."""
        earlier = self.waited_for
        if earlier is None or (earlier.operation, earlier.arguments) == (operation, arguments):
            return
        # The caller of `earlier` was interrupted and waits no more; or aborting discards the offsets.
        if earlier.done or (earlier.operation, operation) == ("send_offsets_to_transaction", "abort_transaction"):
            self.waited_for = None
            return
        raise IllegalStateError(
            f"{earlier.operation}() timed out and is under way: call it again, with the same arguments, before "
            f"{operation}()"
        )

    def end(self, error: KafkaError) -> None:
        """Under the lock. The operation whose caller waits fails with this error."""
        if self.waited_for is not None:
            self.waited_for.end(error)

    def is_held_here(self) -> bool:
        """Whether this thread is in the middle of a change here, which a signal's handler has interrupted."""
        result = self.waited_for
        mine = bool(self._lock._is_owned())  # type: ignore[attr-defined]
        return mine or (result is not None and result.is_held_here())
