"""What producers in several processes do for each other, and one producer for several transactional ids.

One transaction that several producers write: one producer begins it, others join it, one producer ends it. Flink's
Kafka sink does the same by reflection. The producers share the transactional id, producer id and epoch. So only one of
them may write to a partition: each producer counts a partition's sequence numbers from 0.

One transactional id that several producers serve, one after the other: a producer stops between two transactions, and
another producer resumes there. The new producer asks no broker for a producer id.

One producer that serves several transactional ids, one after the other: it keeps its connections, its memory and the
coordinators that it has found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafkabuf.producer import KafkaProducer
from kafkabuf.transactions.groups import Coordinator
from kafkabuf.transactions.manager import TransactionManager


@dataclass(frozen=True)
class SharedTransaction:
    """An open transaction, for producers in other processes. `version` is 2 for a transaction of KIP-890, else 1."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int


@dataclass(frozen=True)
class Pause:
    """Where a producer has stopped between two transactions of version 2, and the nodes of its coordinators.

    A node is -1 where the producer did not need the coordinator.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator: int
    group: str
    group_coordinator: int


def assign(producer: KafkaProducer, transactional_id: str) -> None:
    """Let `producer` serve another transactional id. It has no open transaction and no record without an outcome.

    Raises what the producer's next call would raise, if its last transaction has failed.
    """
    producer._transaction_manager().assign(transactional_id)
    producer._sender.core.transactional_id = transactional_id.encode()


def refresh(producer: KafkaProducer) -> None:
    """Let `producer` ask for the metadata of its topics again, and wait for them up to max.block.ms."""
    producer._metadata.await_update(producer.config.max_block_ms / 1000)


def ask_for_topics(producer: KafkaProducer, names: Iterable[str]) -> None:
    """Let `producer` ask for the metadata of these topics together: send_arrow() asks for one after the other."""
    for name in names:
        producer._metadata.add_topic(name)


# ---- one transaction of several producers ----------------------------------------------------------------------------


def begin_shared(producer: KafkaProducer) -> SharedTransaction:
    """Begin a transaction for other producers. `producer` has called init_transactions(); it leaves the transaction."""
    producer.begin_transaction()
    return leave(producer)


def join(producer: KafkaProducer, shared: SharedTransaction) -> None:
    """Let `producer` write to the transaction, or end it. Raises what `assign` raises."""
    assign(producer, shared.transactional_id)
    producer._transaction_manager().join(shared.producer_id, shared.producer_epoch, is_v2=shared.version == 2)


def outlive_refusals(producer: KafkaProducer) -> None:
    """Let the producer's transactions go on after the broker has refused records: these fail, the others are sent.

    The caller must look at the outcome of every record before the commit, which no longer raises for these records.
    """
    transactions = producer._transaction_manager()
    transactions.producer_state.outlives_refusals = True


def leave(producer: KafkaProducer) -> SharedTransaction:
    """Wait until all records are acknowledged, then leave the transaction to the others: close() will not abort it.

    Raises AbortableTransactionError if a record could not be delivered: the producer that ends the transaction must
    abort it then.
    """
    producer.flush()
    transactions = producer._transaction_manager()
    shared = SharedTransaction(transactions.transactional_id, *_identity(transactions), 2 if transactions.is_v2 else 1)
    transactions.leave()
    return shared


# ---- one transactional id of several producers -----------------------------------------------------------------------


def pause(producer: KafkaProducer) -> Pause | None:
    """What another producer needs to resume after the last transaction. None if that transaction was of version 1."""
    transactions = producer._transaction_manager()
    if not transactions.is_v2:
        return None
    queue = transactions.queue
    return Pause(
        transactions.transactional_id,
        *_identity(transactions),
        queue.known_node(Coordinator.TRANSACTION),
        queue.keys[Coordinator.GROUP],
        queue.known_node(Coordinator.GROUP),
    )


def resume(producer: KafkaProducer, paused: Pause) -> None:
    """Let `producer` begin the next transaction of the id. The other producer begins no further transaction.

    If it does, or if a third producer initialises the id, the coordinator fences the producers with the older epoch.
    Raises IllegalStateError if `producer` has had no connection yet: it does not know the version of transactions.
    """
    transactions = producer._transaction_manager()
    for kind, key, node_id in (
        (Coordinator.TRANSACTION, paused.transactional_id, paused.coordinator),
        (Coordinator.GROUP, paused.group, paused.group_coordinator),
    ):
        if node_id >= 0:
            transactions.queue.remember(kind, key, node_id)
    assign(producer, paused.transactional_id)
    transactions.resume(paused.producer_id, paused.producer_epoch)


def knows_version_2(producer: KafkaProducer) -> bool:
    """Whether the producer has learnt from a broker that the cluster has transactions of version 2."""
    return producer._transaction_manager().next_is_v2


def _identity(transactions: TransactionManager) -> tuple[int, int]:
    return transactions.producer_state.producer_id, transactions.producer_state.producer_epoch
