"""The texts of a transactional producer's errors: what the producer waits for, and what the user can do."""

from __future__ import annotations

from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    NetworkError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
    host_port,
)
from kafkabuf.transactions.queue import RequestQueue
from kafkabuf.transactions.requests import Priority

# The errors that a producer gets after its coordinator has aborted the transaction.
_AFTER_TIMEOUT = (InvalidProducerEpochError, InvalidTxnStateError, ProducerFencedError)


def circumstances(queue: RequestQueue, incomplete_batches: int, clock: Clock, config: ProducerConfig) -> str:
    """The end of the text of a time-out error: what the producer waits for, the last error, and what may help."""
    trouble = queue.trouble
    parts = [_waited_for(queue, incomplete_batches, clock)]
    if trouble is not None:
        parts.append(f"Last error: {trouble}.")
    return " ".join([*parts, advice(trouble, config)])


def _waited_for(queue: RequestQueue, incomplete_batches: int, clock: Clock) -> str:
    sent, first = queue.under_way, queue.first
    if sent is not None:
        seconds = clock.monotonic() - sent.sent_at
        return f"Broker {sent.sent_to} has not responded yet to {sent}, sent {seconds:.1f} s ago."
    if first is None or (first.priority is Priority.END_TXN and incomplete_batches):
        return f"First {incomplete_batches} batch(es) of records must get an outcome, which delivery.timeout.ms bounds."
    node_id = queue.coordinator(first)
    return f"The next request is {first}" + ("." if node_id is None else f", for broker {node_id}.")


def advice(trouble: KafkaError | None, config: ProducerConfig) -> str:
    """What the user can do if an operation has not ended and `trouble` is the last error."""
    if isinstance(trouble, NetworkError):
        servers = ", ".join(host_port(host, port) for host, port in config.bootstrap_servers)
        return (
            f"Check that the brokers run, that bootstrap.servers ({servers}) and the addresses that the brokers "
            "advertise can be reached from here, and that security.protocol matches the listeners."
        )
    if isinstance(trouble, CoordinatorNotAvailableError):
        return (
            "Check that __transaction_state and __consumer_offsets have leaders. A cluster with fewer brokers than "
            "transaction.state.log.replication.factor and offsets.topic.replication.factor cannot create these topics."
        )
    if isinstance(trouble, ConcurrentTransactionsError):
        return (
            "The coordinator is still ending an earlier transaction of this transactional.id: check that all "
            "partitions of that transaction have leaders, and that no other producer uses the id."
        )
    if isinstance(trouble, UnknownTopicOrPartitionError):
        return "A partition of the transaction, or of the offsets to commit, does not exist: create the topic."
    return f"If the cluster is only slow, raise max.block.ms; request.timeout.ms is {config.request_timeout_ms} ms."


def explained(error: KafkaError, seconds: float, config: ProducerConfig) -> KafkaError:
    """The error of a transaction that was open for `seconds`, with its likely cause: transaction.timeout.ms."""
    limit = config.transaction_timeout_ms
    if not isinstance(error, _AFTER_TIMEOUT) or seconds < limit / 1000:
        return error
    with_cause = type(error)(
        f"{error}. The transaction was open for {seconds:.1f} s; its coordinator aborts it after "
        f"transaction.timeout.ms ({limit} ms)"
    )
    with_cause.__cause__ = error
    return with_cause
