"""The transaction coordinator (Kafka's TransactionCoordinator and TransactionMetadata), versions 1 and 2 (KIP-890).

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort

A transactional id has one producer id and one epoch. The epoch rises when a producer with this id starts again, when
the coordinator fences the producer, and in version 2 when the producer ends a transaction. The coordinator writes the
control records as soon as a transaction is to end, in slices, and before the response goes out. Meanwhile, while `hold`
is in effect, or while a partition has no leader, the transaction stays in a Prepare state, as it may in Kafka, and the
coordinator answers requests with CONCURRENT_TRANSACTIONS. The state belongs to the cluster, not to a node, and outlives
the coordinating node. Thread: the event loop.

Deviations: the coordinator aborts a transaction when its time-out is over, Kafka at its next check, every ten seconds;
transactional ids are kept for ever; the coordinator's epoch is always 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from kafkabuf.broker.records.control import Marker
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    KafkaStorageError,
    ProducerFencedError,
    TransactionAbortableError,
)

log = logging.getLogger("kafkabuf.broker")

NO_PRODUCER_ID = -1
NO_EPOCH = -1
# The last epoch that a client gets. The epoch after it is reserved for fencing.
LAST_EPOCH = 32767 - 1
_COORDINATOR_EPOCH = 0
# After this pause the coordinator tries again what the disk has refused.
RETRY_SECONDS = 1.0

# Topic and partition.
TopicPartition = tuple[str, int]
# Producer id and epoch.
Producer = tuple[int, int]


class State(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)


@dataclass(slots=True)
class Transaction:
    """One transactional id. `last_epoch` is the epoch before `epoch`, while the owner may repeat a request with it.
    `next_producer_id` takes over when the epochs of `producer_id` are used up."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    state: State = State.EMPTY
    started_ms: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)
    expiry: Timeout | None = None

    @property
    def exhausted(self) -> bool:
        return self.epoch >= LAST_EPOCH

    def by_topic(self) -> dict[str, list[int]]:
        """The partitions in the order of topics and indexes. To sort tens of thousands of pairs would take long."""
        topics: dict[str, list[int]] = {}
        for topic, index in self.partitions:
            topics.setdefault(topic, []).append(index)
        return {topic: sorted(topics[topic]) for topic in sorted(topics)}


class Transactions:
    """`write_marker` writes a control record to a partition, in steps. It returns False if the control record must
    wait. `run` does work in slices.

    `remember` stores every change before the change takes effect, and `restore` takes the stored transactions. A change
    that the disk refuses does not take place, and the caller gets KafkaStorageError.
    """

    def __init__(
        self,
        timer: Timer,
        run: Callable[[Work[None]], object],
        next_producer_id: Callable[[], int],
        write_marker: Callable[[TopicPartition, Marker], Work[bool]],
        version: int,
        remember: Callable[[Transaction], None] = lambda transaction: None,
        max_timeout_ms: int = 900_000,
    ) -> None:
        self._max_timeout_ms = max_timeout_ms
        self._remember = remember
        self._held = False
        self._timer = timer
        self._run = run
        self._next_producer_id = next_producer_id
        self._write_marker = write_marker
        self._version_2 = version >= 2
        self._by_id: dict[str, Transaction] = {}

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._by_id.values())

    def get(self, transactional_id: str) -> Transaction | None:
        return self._by_id.get(transactional_id)

    # ---- InitProducerId

    def init(self, transactional_id: str, timeout_ms: int, known: Producer | None) -> Producer:
        """The producer id and epoch that the producer gets. `known`: those that a recovering producer had (KIP-360)."""
        if not transactional_id:
            raise InvalidRequestError("a transactional id must not be empty")
        if not 0 < timeout_ms <= self._max_timeout_ms:
            raise InvalidTransactionTimeoutError(
                f"the time-out is {timeout_ms} ms: 1 to {self._max_timeout_ms} ms are allowed"
            )
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            transaction = Transaction(transactional_id, self._next_producer_id(), timeout_ms)
        self._check_known(transaction, known)
        if transaction.state in PREPARED:
            raise ConcurrentTransactionsError("the coordinator is still ending the previous transaction")
        if transaction.state is State.ONGOING:
            self._fence(transaction)
            raise ConcurrentTransactionsError("the coordinator first aborts the transaction of the previous producer")
        with self._stored(transaction):
            self._raise_epoch(transaction, None if known is None else known[1])
            transaction.timeout_ms, transaction.state, transaction.started_ms = timeout_ms, State.EMPTY, -1
        self._by_id[transactional_id] = transaction
        return transaction.producer_id, transaction.epoch

    @staticmethod
    def _check_known(transaction: Transaction, known: Producer | None) -> None:
        if known is None or transaction.epoch == NO_EPOCH or known[0] == transaction.producer_id:
            return
        # A producer with the previous producer id repeats a request: the response with the new producer id was lost.
        if known[0] != transaction.previous_producer_id or known[1] < LAST_EPOCH:
            raise ProducerFencedError(
                f"producer id {known[0]} does not belong to {transaction.transactional_id!r} any more"
            )

    def _raise_epoch(self, transaction: Transaction, expected: int | None) -> None:
        if expected not in (None, transaction.epoch) and transaction.epoch != NO_EPOCH:
            # The producer repeats a request whose response was lost. No other producer has started since: `last_epoch`
            # would be NO_EPOCH.
            if expected == transaction.last_epoch:
                return
            raise ProducerFencedError(f"the request has epoch {expected}, the present epoch is {transaction.epoch}")
        before, transaction.previous_producer_id = transaction.epoch, transaction.producer_id
        if transaction.exhausted:
            transaction.producer_id, transaction.epoch = self._next_producer_id(), 0
        else:
            transaction.epoch += 1
        transaction.last_epoch = NO_EPOCH if expected is None else before

    # ---- partitions

    def add(self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]) -> None:
        """Adds partitions to the transaction. The first of them begins it."""
        transaction = self._check_owner(transactional_id, producer)
        begins = transaction.state is not State.ONGOING
        if not begins and transaction.partitions.issuperset(partitions):
            return
        with self._stored(transaction):
            if begins:
                transaction.state, transaction.started_ms = State.ONGOING, self._timer.clock.time_ms()
            transaction.partitions = transaction.partitions.union(partitions)
        if begins:
            self._expire_after(transaction, transaction.timeout_ms / 1000)

    def restore(self, transaction: Transaction) -> None:
        """Takes back a transaction that `remember` stored. Its time-out begins now. A transaction in a Prepare state
        ends with the next call of `write_held_markers`."""
        self._by_id[transaction.transactional_id] = transaction
        if transaction.state is State.ONGOING:
            self._expire_after(transaction, transaction.timeout_ms / 1000)

    def _expire_after(self, transaction: Transaction, seconds: float) -> None:
        transaction.expiry = self._timer.after(seconds, lambda: self._expire(transaction))

    def verify(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> None:
        """Raises TransactionAbortableError unless the partition is part of the transaction."""
        if partition not in self._check_owner(transactional_id, producer).partitions:
            raise TransactionAbortableError(f"{partition} was not added to the transaction of {transactional_id!r}")

    def join(
        self, transactional_id: str, producer: Producer, partition: TopicPartition, *, add: bool, knows_abortable: bool
    ) -> None:
        """A partition's leader calls this before the transaction's first records, a group before its first offsets.
        With `add` the partition becomes part of the transaction (KIP-890); without `add` it must be part already."""
        try:
            if add:
                self.add(transactional_id, producer, [partition])
            else:
                self.verify(transactional_id, producer, partition)
        except ProducerFencedError as error:
            raise InvalidProducerEpochError(str(error)) from error
        except TransactionAbortableError as error:
            raise error if knows_abortable else InvalidTxnStateError(str(error)) from error

    def _check_owner(self, transactional_id: str, producer: Producer) -> Transaction:
        transaction = self._find(transactional_id)
        if transaction.producer_id != producer[0]:
            raise InvalidProducerIdMappingError(f"producer id {producer[0]} does not belong to {transactional_id!r}")
        if transaction.epoch != producer[1]:
            raise ProducerFencedError(f"the request has epoch {producer[1]}, the present epoch is {transaction.epoch}")
        if transaction.state in PREPARED:
            raise ConcurrentTransactionsError("the coordinator is still ending the previous transaction")
        return transaction

    def _find(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise InvalidRequestError("a transactional id must not be empty")
        if (transaction := self._by_id.get(transactional_id)) is None:
            raise InvalidProducerIdMappingError(f"no producer has started with {transactional_id!r}")
        return transaction

    # ---- the end

    def end(self, transactional_id: str, producer: Producer, committed: bool, version_2: bool) -> Work[Producer]:
        """Commits or aborts. Returns the producer id and epoch for the next transaction: new ones only with
        `version_2`."""
        transaction = self._find(transactional_id)
        if version_2:
            return (yield from self._end_version_2(transaction, producer, committed))
        if transaction.producer_id != producer[0]:
            raise InvalidProducerIdMappingError(f"producer id {producer[0]} does not belong to {transactional_id!r}")
        if transaction.epoch != producer[1]:
            raise ProducerFencedError(f"the request has epoch {producer[1]}, the present epoch is {transaction.epoch}")
        if not self._is_ended(transaction, committed):
            if transaction.state is not State.ONGOING:
                raise _wrong_state(transaction, committed)
            self._prepare(transaction, committed)
            yield from self._write_markers(transaction)
        return producer

    def _end_version_2(self, transaction: Transaction, producer: Producer, committed: bool) -> Work[Producer]:
        """A request with the epoch before the present epoch is a repeated request: its response was lost."""
        overflowed = producer == (transaction.previous_producer_id, LAST_EPOCH) and transaction.epoch == 0
        repeated = overflowed or transaction.epoch == producer[1] + 1
        if transaction.producer_id != producer[0] and not overflowed:
            raise InvalidProducerIdMappingError(
                f"producer id {producer[0]} does not belong to {transaction.transactional_id!r}"
            )
        complete = transaction.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
        present = transaction.epoch == producer[1] and transaction.state not in PREPARED
        if not (present or (repeated and (complete or transaction.state in PREPARED))):
            raise ProducerFencedError(f"the request has epoch {producer[1]}, the present epoch is {transaction.epoch}")
        if repeated and self._is_ended(transaction, committed):
            return transaction.producer_id, transaction.epoch
        if repeated or (committed and transaction.state is not State.ONGOING):
            raise _wrong_state(transaction, committed)
        # An abort raises the epoch even without a transaction.
        self._prepare(transaction, committed, raise_epoch=True)
        overflows = transaction.next_producer_id != NO_PRODUCER_ID
        raised = (transaction.next_producer_id, 0) if overflows else (transaction.producer_id, transaction.epoch)
        yield from self._write_markers(transaction)
        return raised

    @staticmethod
    def _is_ended(transaction: Transaction, committed: bool) -> bool:
        """Whether the transaction has already been committed, or aborted unless `committed`. Raises
        ConcurrentTransactionsError while the coordinator is ending it so."""
        if transaction.state is (State.PREPARE_COMMIT if committed else State.PREPARE_ABORT):
            raise ConcurrentTransactionsError("the coordinator is still ending the transaction")
        return transaction.state is (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT)

    def _expire(self, transaction: Transaction) -> None:
        if transaction.state is not State.ONGOING:
            return
        try:
            self._fence(transaction)
        except KafkaStorageError as error:
            log.error("%r, whose time-out is over, waits for the disk: %s", transaction.transactional_id, error)
            self._expire_after(transaction, RETRY_SECONDS)

    def _fence(self, transaction: Transaction) -> None:
        """Aborts with an epoch that the owner does not know."""
        with self._stored(transaction):
            transaction.last_epoch = transaction.epoch if self._version_2 else NO_EPOCH
            transaction.epoch += 1
            transaction.state = State.PREPARE_ABORT
        self._cancel_expiry(transaction)
        self._run(self._write_markers(transaction))

    def _prepare(self, transaction: Transaction, committed: bool, raise_epoch: bool = False) -> None:
        with self._stored(transaction):
            if transaction.state is not State.ONGOING:
                transaction.started_ms = self._timer.clock.time_ms()
            if raise_epoch:
                if transaction.exhausted:
                    transaction.next_producer_id = self._next_producer_id()
                transaction.last_epoch, transaction.epoch = transaction.epoch, transaction.epoch + 1
            transaction.state = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
        self._cancel_expiry(transaction)

    @staticmethod
    def _cancel_expiry(transaction: Transaction) -> None:
        if transaction.expiry is not None:
            transaction.expiry.cancel()

    @contextmanager
    def _stored(self, transaction: Transaction) -> Iterator[None]:
        """Stores the changes that the caller makes meanwhile. Takes them back if the disk refuses, and raises
        KafkaStorageError."""
        before = replace(transaction)
        try:
            yield
            self._remember(transaction)
        except KafkaStorageError:
            for field_of in fields(Transaction):
                setattr(transaction, field_of.name, getattr(before, field_of.name))
            raise

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self.write_held_markers()

    def write_held_markers(self) -> None:
        """Tries to write the control records that had to wait."""
        for transaction in self._by_id.values():
            if transaction.state in PREPARED:
                self._run(self._write_markers(transaction))

    def _write_markers(self, transaction: Transaction) -> Work[None]:
        """Several works may end a transaction: one that began it, and others that try again."""
        if (marker := _marker(transaction)) is None:
            return
        # The next transaction has another set, even if it ends with the same marker.
        left = transaction.partitions
        for partition in tuple(left):
            if self._held or transaction.partitions is not left or _marker(transaction) != marker:
                return
            if partition in left and (yield from self._write_marker(partition, marker)):
                left.discard(partition)
            yield
        if self._held or left or transaction.partitions is not left or _marker(transaction) != marker:
            return
        try:
            with self._stored(transaction):
                transaction.state = State.COMPLETE_COMMIT if marker.committed else State.COMPLETE_ABORT
                if transaction.next_producer_id != NO_PRODUCER_ID:
                    transaction.previous_producer_id = transaction.producer_id
                    transaction.producer_id, transaction.epoch = transaction.next_producer_id, 0
                    transaction.next_producer_id = NO_PRODUCER_ID
        except KafkaStorageError as error:
            log.error("the end of the transaction of %r waits for the disk: %s", transaction.transactional_id, error)
            self._timer.after(RETRY_SECONDS, self.write_held_markers)


def _marker(transaction: Transaction) -> Marker | None:
    """The control record that ends the transaction; None if the transaction is not to end."""
    if transaction.state not in PREPARED:
        return None
    committed = transaction.state is State.PREPARE_COMMIT
    return Marker(transaction.producer_id, transaction.epoch, _COORDINATOR_EPOCH, committed)


def code_for(error: KafkaError, knows_fenced: bool) -> int:
    """The error code for a client, which may be too old to know PRODUCER_FENCED."""
    if isinstance(error, ProducerFencedError) and not knows_fenced:
        return InvalidProducerEpochError.code
    return error.code


def _wrong_state(transaction: Transaction, committed: bool) -> InvalidTxnStateError:
    verb = "commit" if committed else "abort"
    return InvalidTxnStateError(
        f"cannot {verb} the transaction of {transaction.transactional_id!r}, its state is {transaction.state.value}"
    )
