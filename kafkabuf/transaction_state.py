"""The settings of a transactional producer, its states, and how a thread waits for the end of what it has begun."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import KafkaError


class TransactionConfig(Protocol):
    """The settings that transactions need."""

    @property
    def transactional_id(self) -> str | None: ...
    @property
    def transaction_timeout_ms(self) -> int: ...
    @property
    def max_block_ms(self) -> int: ...
    @property
    def retry_backoff_ms(self) -> int: ...
    @property
    def retry_backoff_max_ms(self) -> int: ...


class State(Enum):
    """Where a transactional producer stands."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "between transactions"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that must be aborted"
    FATAL_ERROR = "unusable"


# From where each can be reached. FATAL_ERROR can from everywhere.
SOURCES = {
    State.INITIALIZING: (State.UNINITIALIZED, State.ABORTING),
    State.READY: (State.INITIALIZING, State.COMMITTING, State.ABORTING),
    State.IN_TRANSACTION: (State.READY,),
    State.COMMITTING: (State.IN_TRANSACTION,),
    State.ABORTING: (State.IN_TRANSACTION, State.ABORTABLE_ERROR),
    State.ABORTABLE_ERROR: (
        State.INITIALIZING,
        State.IN_TRANSACTION,
        State.COMMITTING,
        State.ABORTING,
        State.ABORTABLE_ERROR,
    ),
}


class Result:
    """The end of an operation. A thread that ran out of time may come back and wait on."""

    def __init__(self, operation: str, arguments: object = None) -> None:
        self.operation = operation
        self.arguments = arguments
        self.error: KafkaError | None = None
        self.done = False
        self._lock = threading.Lock()
        self._waiters: list[threading.Lock] = []

    def end(self, error: KafkaError | None = None) -> None:
        """The first call decides."""
        with self._lock:
            if not self.done:
                self.error, self.done = error, True
                for waiter in self._waiters:
                    waiter.release()

    def wait(self, timeout: float, clock: Clock) -> bool:
        """False when `timeout` seconds pass first."""
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if self.done:
                return True
            self._waiters.append(waiter)
        try:
            clock.wait(waiter, timeout)
        finally:
            with self._lock:
                self._waiters.remove(waiter)
        return self.done
