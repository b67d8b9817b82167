"""The settings of a transactional producer, and what its errors say: what it waits for, and what may help."""

from __future__ import annotations

from typing import Protocol

from kafkabuf.clock import Clock
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    NetworkError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.transactions.queue import RequestQueue
from kafkabuf.transactions.requests import Priority

# The answers to a producer whose transaction its coordinator has aborted.
_AFTER_TIMEOUT = (InvalidProducerEpochError, InvalidTxnStateError, ProducerFencedError)


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


def circumstances(queue: RequestQueue, incomplete_batches: int, clock: Clock, config: TransactionConfig) -> str:
    """The end of a time-out's text: what is waited for, what went wrong last, and what may help."""
    trouble = queue.trouble
    parts = [_waited_for(queue, incomplete_batches, clock)]
    if trouble is not None:
        parts.append(f"Last error: {trouble}.")
    return " ".join([*parts, advice(trouble, config)])


def _waited_for(queue: RequestQueue, incomplete_batches: int, clock: Clock) -> str:
    sent, waiting = queue.under_way, queue.first
    if sent is not None:
        seconds = clock.monotonic() - sent.sent_at
        return f"Broker {sent.sent_to} was sent {sent} {seconds:.1f} s ago and has not answered yet."
    if waiting is None or (waiting.priority is Priority.END_TXN and incomplete_batches):
        return f"First {incomplete_batches} batch(es) of records must end, which delivery.timeout.ms bounds."
    node_id = queue.coordinator(waiting)
    return f"Next is {waiting}" + ("." if node_id is None else f", for broker {node_id}.")


def advice(trouble: KafkaError | None, config: TransactionConfig) -> str:
    """What may help where an operation has not ended and `trouble` is the last error."""
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


def explained(error: KafkaError, seconds: float, config: TransactionConfig) -> KafkaError:
    """The error of a transaction that was open for so long, with its likely cause: transaction.timeout.ms."""
    limit = config.transaction_timeout_ms
    if not isinstance(error, _AFTER_TIMEOUT) or seconds < limit / 1000:
        return error
    found = type(error)(
        f"{error}. The transaction was open for {seconds:.1f} s; its coordinator aborts it after "
        f"transaction.timeout.ms ({limit} ms)"
    )
    found.__cause__ = error
    return found
