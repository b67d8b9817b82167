"""The settings of a transactional producer, its states, and how a thread waits for the end of what it has begun, and
what it is told where that does not come."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    KafkaError,
    NetworkError,
    UnknownTopicOrPartitionError,
)


class TransactionConfig(Protocol):
    """The settings that transactions need."""

    @property
    def transactional_id(self) -> str | None: ...
    @property
    def transaction_timeout_ms(self) -> int: ...
    @property
    def max_block_ms(self) -> int: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]: ...
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
        self._lock = threading.RLock()  # a signal's handler may wait for the same end
        self._waiters: list[threading.Lock] = []

    def end(self, error: KafkaError | None = None) -> None:
        """The first call decides."""
        with self._lock:
            if not self.done:
                self.error, self.done = error, True
                for waiter in self._waiters:
                    waiter.release()

    def is_held_here(self) -> bool:
        """Whether this thread is in the middle of a change here, which a signal's handler has interrupted."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

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


def advice(trouble: KafkaError | None, config: TransactionConfig) -> str:
    """What may help where an operation does not come to its end, and this went wrong last."""
    if isinstance(trouble, NetworkError):
        servers = ", ".join(f"{host}:{port}" for host, port in config.bootstrap_servers)
        return (
            f"See that the brokers run, that bootstrap.servers ({servers}) and the addresses they advertise can be "
            "reached from here, and that security.protocol is theirs."
        )
    if isinstance(trouble, CoordinatorNotAvailableError):
        return (
            "See that __transaction_state and __consumer_offsets have leaders; a cluster of fewer brokers than "
            "transaction.state.log.replication.factor and offsets.topic.replication.factor cannot make them."
        )
    if isinstance(trouble, ConcurrentTransactionsError):
        return (
            "An earlier transaction of this transactional.id is still being ended: see that all partitions it wrote to "
            "have leaders, and that no other producer uses the id."
        )
    if isinstance(trouble, UnknownTopicOrPartitionError):
        return "A partition that was written to, or whose offset is to be committed, is not there: create the topic."
    return f"Where the cluster is only slow, raise max.block.ms; request.timeout.ms is {config.request_timeout_ms} ms."
