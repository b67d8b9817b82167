"""The operation that a user's thread begins and waits for, one at a time.

The wait may time out or be interrupted; the operation goes on. A second call with the same arguments does not begin the
operation again: it waits for the same end. Until a call has returned the outcome, other operations are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import IllegalStateError, KafkaError, TimeoutError
from kafkabuf.process.threads import RLock
from kafkabuf.transactions.result import Result
from kafkabuf.transactions.states import State


class Manager(Protocol):
    """The members of TransactionManager that an operation needs. It uses all but `circumstances` under its lock."""

    state: State

    def refuse_if_failed(self, states: tuple[State, ...]) -> None: ...
    def has_request_for(self, result: Result) -> bool: ...
    def undo(self, before: State, error: BaseException) -> None: ...
    def circumstances(self) -> str: ...


class Operations:
    """The operation under way. `lock` is the manager's lock and guards all fields. `wakeup` wakes the Sender."""

    def __init__(
        self, manager: Manager, lock: RLock, clock: Clock, max_block_ms: int, wakeup: Callable[[], None]
    ) -> None:
        self._manager = manager
        self._lock = lock
        self._clock = clock
        self._max_block_ms = max_block_ms
        self._wakeup = wakeup
        self.waited_for: Result | None = None  # the outcome that an operation's caller has not seen yet

    def run(
        self,
        operation: str,
        start: Callable[[Result], None],
        arguments: object = None,
        timeout: float | None = None,
    ) -> None:
        """Start the operation, or find it under way, and wait up to `timeout` seconds (None: max.block.ms).

        Raises the operation's error, or TimeoutError.
        """
        try:
            with self._lock:
                self.refuse_while_another_is_waited_for(operation, arguments)
                result = self.waited_for
                if result is None:
                    self._manager.refuse_if_failed((State.FATAL_ERROR,))
                    result = self._start(Result(operation, arguments), start)
        finally:
            self._wakeup()  # also after an exception: the operation may go on
        if not result.wait(self._max_block_ms / 1000 if timeout is None else timeout, self._clock):
            waited = f"max.block.ms ({self._max_block_ms} ms)" if timeout is None else f"{timeout:g} s"
            raise TimeoutError(
                f"{operation}() did not end within {waited}; it goes on: call it again to wait for it. "
                f"{self._manager.circumstances()}"
            )
        with self._lock:
            if self.waited_for is result:
                self.waited_for = None
        if result.error is not None:
            raise result.error

    def _start(self, result: Result, start: Callable[[Result], None]) -> Result:
        """Under the lock. After an exception (Ctrl-C) the operation goes on, or is undone if it has no request."""
        result.before = self._manager.state
        self.waited_for = result
        try:
            start(result)
        except BaseException as error:
            result.interruption = error
            self._undo_if_interrupted()
            raise
        return result

    def _undo_if_interrupted(self) -> None:
        """Under the lock. Without memory this raises MemoryError and changes nothing: the next call begins with it."""
        result = self.waited_for
        if result is None or result.interruption is None:
            return
        assert result.before is not None
        if not self._manager.has_request_for(result):
            self._manager.undo(result.before, result.interruption)
            self.waited_for = None
        result.interruption = None

    def refuse_while_another_is_waited_for(self, operation: str, arguments: object = None) -> None:
        """Under the lock."""
        self._undo_if_interrupted()
        earlier = self.waited_for
        if earlier is None or (earlier.operation, earlier.arguments) == (operation, arguments):
            return
        # The caller of `earlier` was interrupted and no longer waits; or the abort discards the offsets.
        if earlier.done or (earlier.operation, operation) == ("send_offsets_to_transaction", "abort_transaction"):
            self.waited_for = None
            return
        raise IllegalStateError(
            f"{earlier.operation}() timed out and is under way: call it again, with the same arguments, before "
            f"{operation}()"
        )

    def end(self, error: KafkaError) -> None:
        """Under the lock. Fail the operation whose caller waits."""
        if self.waited_for is not None:
            self.waited_for.end(error)

    def is_held_here(self) -> bool:
        """Whether the calling thread holds this lock or the result's: a signal handler has interrupted its change."""
        result = self.waited_for
        holds_lock = bool(self._lock._is_owned())  # type: ignore[attr-defined]
        return holds_lock or (result is not None and result.is_held_here())
