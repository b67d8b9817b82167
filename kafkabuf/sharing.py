"""One transaction that several producers write: one producer begins it, others join it, one producer ends it.

Flink's Kafka sink does the same by reflection. The producers share the transactional id, producer id and epoch. So only
one of them may write to a partition: each producer counts a partition's sequence numbers from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkabuf.errors import IllegalStateError
from kafkabuf.producer import KafkaProducer


@dataclass(frozen=True)
class SharedTransaction:
    """An open transaction, for producers in other processes. `version` is 2 for a transaction of KIP-890, else 1."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int


def begin_shared(producer: KafkaProducer) -> SharedTransaction:
    """Begin a transaction for other producers. `producer` has called init_transactions(); it leaves the transaction."""
    producer.begin_transaction()
    transactions = producer._transaction_manager()
    state = transactions.producer_state
    shared = SharedTransaction(
        transactions.transactional_id, state.producer_id, state.producer_epoch, 2 if transactions.is_v2 else 1
    )
    transactions.leave()
    return shared


def join(producer: KafkaProducer, shared: SharedTransaction) -> None:
    """Let `producer`, a new producer with the same transactional id, write to the transaction, or end it."""
    transactions = producer._transaction_manager()
    if transactions.transactional_id != shared.transactional_id:
        raise IllegalStateError(
            f"the producer's transactional.id is {transactions.transactional_id!r}, and the transaction's is "
            f"{shared.transactional_id!r}: join with a producer of the same transactional.id"
        )
    transactions.join(shared.producer_id, shared.producer_epoch, is_v2=shared.version == 2)


def leave(producer: KafkaProducer) -> None:
    """Wait until all records are acknowledged, then leave the transaction to the others: close() will not abort it.

    Raises AbortableTransactionError if a record could not be delivered: the producer that ends the transaction must
    abort it then.
    """
    producer.flush()
    producer._transaction_manager().leave()
