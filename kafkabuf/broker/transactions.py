"""The transaction coordinator (Kafka's TransactionCoordinator and TransactionMetadata), versions 1 and 2 (KIP-890).

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort

A transactional id has one producer id and an epoch that rises whenever a producer with this id starts anew, is fenced,
or (version 2) ends a transaction. Markers are written as soon as a transaction is to end, before its answer goes out;
while they are held (`hold`), or a partition has no leader, it stays in a Prepare state as it may in Kafka, and whoever
asks gets CONCURRENT_TRANSACTIONS. The state belongs to the cluster, not to a node, and outlives the coordinating node;
it runs in the event loop.

Deviations: a transaction is aborted when its time-out is over, not at the next of Kafka's checks, ten seconds apart;
transactional ids are kept for ever; the coordinator's epoch is always 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from kafkabuf.broker.log.control import Marker
from kafkabuf.broker.waiting.timer import Timeout, Timer
from kafkabuf.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)

# Kafka's transaction.max.timeout.ms.
MAX_TIMEOUT_MS = 900_000
NO_PRODUCER_ID = -1
NO_EPOCH = -1
# The last epoch a client gets: the one after it is left for fencing.
LAST_EPOCH = 32767 - 1
_COORDINATOR_EPOCH = 0

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
    """One transactional id. `last_epoch` is the one before, for as long as its owner may ask again; `next_producer_id`
    takes over when the epochs of `producer_id` are used up."""

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


class Transactions:
    """`write_marker` puts a marker into a partition, and says False if that has to wait. `remember` is told of every
    change before it has consequences; `restore` takes what was remembered."""

    def __init__(
        self,
        timer: Timer,
        next_producer_id: Callable[[], int],
        write_marker: Callable[[TopicPartition, Marker], bool],
        version: int,
        remember: Callable[[Transaction], None] = lambda found: None,
    ) -> None:
        self._remember = remember
        self._held = False
        self._timer = timer
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
        """The producer id and epoch to go on with. `known`: what a producer that recovers had (KIP-360)."""
        if not transactional_id:
            raise InvalidRequestError("a transactional id is not empty")
        if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
            raise InvalidTransactionTimeoutError(f"a time-out of {timeout_ms} ms: 1 to {MAX_TIMEOUT_MS} are allowed")
        found = self._by_id.get(transactional_id)
        if found is None:
            found = Transaction(transactional_id, self._next_producer_id(), timeout_ms)
            self._by_id[transactional_id] = found
        self._check_known(found, known)
        if found.state in PREPARED:
            raise ConcurrentTransactionsError("the former transaction is being ended")
        if found.state is State.ONGOING:
            self._fence(found)
            raise ConcurrentTransactionsError("the former producer's transaction is aborted first")
        self._raise_epoch(found, None if known is None else known[1])
        found.timeout_ms, found.state, found.started_ms = timeout_ms, State.EMPTY, -1
        self._remember(found)
        return found.producer_id, found.epoch

    @staticmethod
    def _check_known(found: Transaction, known: Producer | None) -> None:
        if known is None or found.epoch == NO_EPOCH or known[0] == found.producer_id:
            return
        # Or it asks again, having missed the answer that gave it a new producer id.
        if known[0] != found.previous_producer_id or known[1] < LAST_EPOCH:
            raise ProducerFencedError(f"producer id {known[0]} is not that of {found.transactional_id!r} any more")

    def _raise_epoch(self, found: Transaction, expected: int | None) -> None:
        if expected not in (None, found.epoch) and found.epoch != NO_EPOCH:
            # It asks again, having missed the answer: nobody else has started since, or there were no last epoch.
            if expected == found.last_epoch:
                return
            raise ProducerFencedError(f"epoch {expected} is not the present one, {found.epoch}")
        before, found.previous_producer_id = found.epoch, found.producer_id
        if found.exhausted:
            found.producer_id, found.epoch = self._next_producer_id(), 0
        else:
            found.epoch += 1
        found.last_epoch = NO_EPOCH if expected is None else before

    # ---- partitions

    def add(self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]) -> None:
        """Makes partitions part of the transaction, which begins with the first."""
        found = self._check_owner(transactional_id, producer)
        if found.state is not State.ONGOING:
            found.state, found.started_ms = State.ONGOING, self._timer.clock.time_ms()
            found.expiry = self._timer.after(found.timeout_ms / 1000, lambda: self._expire(found))
        found.partitions.update(partitions)
        self._remember(found)

    def restore(self, found: Transaction) -> None:
        """One that was remembered. It has its time-out from now on; what was to end does so with the next call of
        `write_held_markers`."""
        self._by_id[found.transactional_id] = found
        if found.state is State.ONGOING:
            found.expiry = self._timer.after(found.timeout_ms / 1000, lambda: self._expire(found))

    def verify(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> None:
        """TransactionAbortableError if the partition is not part of the transaction."""
        if partition not in self._check_owner(transactional_id, producer).partitions:
            raise TransactionAbortableError(f"{partition} was not added to the transaction of {transactional_id!r}")

    def join(
        self, transactional_id: str, producer: Producer, partition: TopicPartition, *, add: bool, knows_abortable: bool
    ) -> None:
        """What a partition's leader asks before the first records, and a group before the first offsets: with `add`
        the partition becomes part of the transaction (KIP-890), else it has to be."""
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
        found = self._find(transactional_id)
        if found.producer_id != producer[0]:
            raise InvalidProducerIdMappingError(f"producer id {producer[0]} is not that of {transactional_id!r}")
        if found.epoch != producer[1]:
            raise ProducerFencedError(f"epoch {producer[1]} is not the present one, {found.epoch}")
        if found.state in PREPARED:
            raise ConcurrentTransactionsError("the former transaction is being ended")
        return found

    def _find(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise InvalidRequestError("a transactional id is not empty")
        if (found := self._by_id.get(transactional_id)) is None:
            raise InvalidProducerIdMappingError(f"no producer has started with {transactional_id!r}")
        return found

    # ---- the end

    def end(self, transactional_id: str, producer: Producer, committed: bool, version_2: bool) -> Producer:
        """Commits or aborts. The producer id and epoch to go on with: the same, unless `version_2`."""
        found = self._find(transactional_id)
        if version_2:
            return self._end_version_2(found, producer, committed)
        if found.producer_id != producer[0]:
            raise InvalidProducerIdMappingError(f"producer id {producer[0]} is not that of {transactional_id!r}")
        if found.epoch != producer[1]:
            raise ProducerFencedError(f"epoch {producer[1]} is not the present one, {found.epoch}")
        if not self._is_ended(found, committed):
            if found.state is not State.ONGOING:
                raise _wrong_state(found, committed)
            self._prepare(found, committed)
        return producer

    def _end_version_2(self, found: Transaction, producer: Producer, committed: bool) -> Producer:
        """A request with the epoch before the present one comes again: its answer was lost."""
        overflowed = producer == (found.previous_producer_id, LAST_EPOCH) and found.epoch == 0
        again = overflowed or found.epoch == producer[1] + 1
        if found.producer_id != producer[0] and not overflowed:
            raise InvalidProducerIdMappingError(f"producer id {producer[0]} is not that of {found.transactional_id!r}")
        complete = found.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
        present = found.epoch == producer[1] and found.state not in PREPARED
        if not (present or (again and (complete or found.state in PREPARED))):
            raise ProducerFencedError(f"epoch {producer[1]} is not the present one, {found.epoch}")
        if again and self._is_ended(found, committed):
            return found.producer_id, found.epoch
        if again or (committed and found.state is not State.ONGOING):
            raise _wrong_state(found, committed)
        # An abort without a transaction raises the epoch all the same.
        self._prepare(found, committed, raise_epoch=True)
        if found.next_producer_id != NO_PRODUCER_ID:
            return found.next_producer_id, 0
        return found.producer_id, found.epoch

    @staticmethod
    def _is_ended(found: Transaction, committed: bool) -> bool:
        """Whether it has ended so already. ConcurrentTransactionsError if that is under way."""
        if found.state is (State.PREPARE_COMMIT if committed else State.PREPARE_ABORT):
            raise ConcurrentTransactionsError("the transaction is being ended")
        return found.state is (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT)

    def _expire(self, found: Transaction) -> None:
        if found.state is State.ONGOING:
            self._fence(found)

    def _fence(self, found: Transaction) -> None:
        """Aborts with an epoch of which the owner does not know."""
        last = found.epoch if self._version_2 else NO_EPOCH
        found.epoch += 1
        self._prepare(found, committed=False)
        found.last_epoch = last
        self._remember(found)

    def _prepare(self, found: Transaction, committed: bool, raise_epoch: bool = False) -> None:
        if found.expiry is not None:
            found.expiry.cancel()
        if found.state is not State.ONGOING:
            found.started_ms = self._timer.clock.time_ms()
        if raise_epoch:
            if found.exhausted:
                found.next_producer_id = self._next_producer_id()
            found.last_epoch, found.epoch = found.epoch, found.epoch + 1
        found.state = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
        self._remember(found)
        self._write_markers(found)

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self.write_held_markers()

    def write_held_markers(self) -> None:
        """What had to wait is tried again."""
        for found in self._by_id.values():
            if found.state in PREPARED:
                self._write_markers(found)

    def _write_markers(self, found: Transaction) -> None:
        if self._held:
            return
        committed = found.state is State.PREPARE_COMMIT
        marker = Marker(found.producer_id, found.epoch, _COORDINATOR_EPOCH, committed)
        found.partitions = {one for one in found.partitions if not self._write_marker(one, marker)}
        if found.partitions:
            return
        found.state = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
        if found.next_producer_id != NO_PRODUCER_ID:
            found.previous_producer_id = found.producer_id
            found.producer_id, found.epoch = found.next_producer_id, 0
            found.next_producer_id = NO_PRODUCER_ID
        self._remember(found)


def code_for(error: KafkaError, knows_fenced: bool) -> int:
    """The error code for a client, which may be too old to know PRODUCER_FENCED."""
    if isinstance(error, ProducerFencedError) and not knows_fenced:
        return InvalidProducerEpochError.code
    return error.code


def _wrong_state(found: Transaction, committed: bool) -> InvalidTxnStateError:
    wish = "commit" if committed else "abort"
    return InvalidTxnStateError(f"{wish} of {found.transactional_id!r}, which is in state {found.state.value}")
