"""One transaction that several producers write: one begins it, others join, one ends it.

Flink's Kafka sink does the same by reflection. All of them have the transactional id, producer id and epoch in common;
so each partition may be written by only one of them, which counts its sequence numbers from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkabuf.errors import IllegalStateError
from kafkabuf.producer import KafkaProducer


@dataclass(frozen=True)
class SharedTransaction:
    """A transaction under way, for producers in other processes. `version` is 2 for those of KIP-890, else 1."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int


def begin_shared(producer: KafkaProducer) -> SharedTransaction:
    """Begin a transaction for others to write; `producer` has initialised its transactions, and leaves this one."""
    producer.begin_transaction()
    transactions = producer._transaction_manager()
    state = transactions.producer_state
    shared = SharedTransaction(
        transactions.transactional_id, state.producer_id, state.producer_epoch, 2 if transactions.is_v2 else 1
    )
    transactions.leave()
    return shared


def join(producer: KafkaProducer, shared: SharedTransaction) -> None:
    """Let `producer`, new and of the same transactional id, write into the transaction, or end it."""
    transactions = producer._transaction_manager()
    if transactions.transactional_id != shared.transactional_id:
        raise IllegalStateError(
            f"transactional.id is {transactions.transactional_id!r}, the transaction's {shared.transactional_id!r}"
        )
    transactions.join(shared.producer_id, shared.producer_epoch, is_v2=shared.version == 2)


def leave(producer: KafkaProducer) -> None:
    """Wait for everything sent, then leave the transaction to the others: close() does not abort it.

    Raises AbortableTransactionError where a record could not be delivered: then the transaction can only be aborted, by
    whoever ends it.
    """
    producer.flush()
    producer._transaction_manager().leave()
