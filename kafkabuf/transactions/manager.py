"""A producer's transactions: their state, and how the coordinators' responses change it (KIP-98, KIP-890).

Kafka's TransactionManager, except for sequence numbers (idempotence.py, _sequences.pyx), the requests (requests.py),
and the wait of the user's thread (operations.py). states.py has the table of all moves between states.

Threads. A user's thread begins an operation and waits for its `Result`. The Sender's thread does the rest. Both change
the state under one lock.

The Sender adds a partition to the transaction before it first sends to the partition. Under version 1 the Sender tells
the coordinator (AddPartitionsToTxn) and holds the batches back until the response. Under version 2 the leader tells the
coordinator. So transactions cost nothing for each record. The accumulator refuses a record outside a transaction when
the record would open a batch (`AccumulatorCore.refusal`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import (
    AbortableTransactionError,
    AuthenticationError,
    ClosedError,
    ClusterAuthorizationError,
    FatalTransactionError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    KafkaError,
    TransactionAbortedError,
    UnknownProducerIdError,
    UnsupportedVersionError,
)
from kafkabuf.network._request import Completion
from kafkabuf.network.client import NetworkClient
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import RLock
from kafkabuf.transactions.advice import circumstances, explained
from kafkabuf.transactions.groups import Coordinator, GroupMetadata, OffsetAndMetadata, TopicPartition
from kafkabuf.transactions.idempotence import TransactionalState
from kafkabuf.transactions.operations import Operations
from kafkabuf.transactions.queue import RequestQueue
from kafkabuf.transactions.requests import (
    AddOffsets,
    AddPartitions,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    Priority,
    TransactionalRequest,
    TxnOffsetCommit,
)
from kafkabuf.transactions.result import Result
from kafkabuf.transactions.states import Move, State

log = producer_log("kafkabuf.producer")

TRANSACTION_VERSION = "transaction.version"  # the cluster's feature; level 2 means transactions as in KIP-890


# If a batch fails with one of these errors, the producer can send nothing more.
_FATAL_FOR_BATCHES = (
    ClusterAuthorizationError,
    FatalTransactionError,
    InvalidProducerIdMappingError,
    UnsupportedVersionError,
)
_OPEN = (State.IN_TRANSACTION, State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR)
_FAILED = (State.ABORTABLE_ERROR, State.FATAL_ERROR)


class Commits(Protocol):
    """What outlives the process of its commits (spool/commits.py). All calls but the first come under the lock."""

    def await_answer(self, timeout: float) -> None: ...
    def begin(self) -> None: ...
    def under_way(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        *,
        is_v2: bool,
    ) -> None: ...
    def ended(self, partitions: Collection[TopicPartition], *, committed: bool) -> None: ...


class TransactionManager:
    """One transactional producer's state. Its methods say which thread calls them."""

    def __init__(
        self, config: ProducerConfig, accumulator: RecordAccumulator, client: NetworkClient, clock: Clock
    ) -> None:
        assert config.transactional_id is not None
        assert isinstance(accumulator.producer_state, TransactionalState)
        self.transactional_id = config.transactional_id
        self.transaction_timeout_ms = config.transaction_timeout_ms
        self.producer_state = accumulator.producer_state
        self._config = config
        self._accumulator = accumulator
        self._client = client
        self._clock = clock
        backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._lock = RLock()  # guards everything below
        self.state = State.UNINITIALIZED
        self.is_v2 = False  # whether the cluster had version 2 of transactions when this transaction began
        self.partitions: set[TopicPartition] = set()  # the transaction's partitions that the coordinator knows
        self._to_add: set[TopicPartition] = set()  # the coordinator does not know of these yet (version 1)
        self._adding: set[TopicPartition] = set()  # the request that adds these is queued or under way
        self._started = False  # the coordinator may know of this transaction
        self._began_at = float("inf")  # when this producer began or joined the transaction
        self._must_bump_epoch = False  # the producer needs a new epoch once the transaction has ended (version 1)
        self._error: KafkaError | None = None  # the cause of ABORTABLE_ERROR or FATAL_ERROR
        self.queue = RequestQueue(client, clock, backoff)
        self.queue.assign(Coordinator.TRANSACTION, self.transactional_id)
        self._operations = Operations(self, self._lock, clock, config.max_block_ms, client.wakeup)
        self.producer_state.send_allowed = self.send_allowed
        self._accumulator.refusal = self.refusal
        self.commits: Commits | None = None  # with a file

    # ---- thread: any thread of the user ------------------------------------------------------------------------------

    def init(self, timeout: float | None = None) -> None:
        """KafkaProducer.init_transactions, with a time-out in seconds (None: max.block.ms), as the next three."""
        if self.commits is not None:
            limit = self._config.max_block_ms / 1000 if timeout is None else timeout
            self.commits.await_answer(limit)
        self._operations.run("init_transactions", self._init, timeout=timeout)

    def begin(self) -> None:
        """KafkaProducer.begin_transaction."""
        with self._lock:
            self._operations.refuse_while_another_is_waited_for("begin_transaction")
            self.refuse_if_failed(_FAILED)
            now, is_v2 = self._clock.monotonic(), self.next_is_v2  # first: there may be no memory
            self._make_for_user(Move.BEGIN, "begin_transaction")
            if self.commits is not None:
                self.commits.begin()
            self._began_at, self.is_v2 = now, is_v2

    def join(self, producer_id: int, producer_epoch: int, *, is_v2: bool) -> None:
        """Take part in a transaction that another producer has begun (sharing.py). Replaces `init` and `begin`."""
        with self._lock:
            self._operations.refuse_while_another_is_waited_for("join")
            if self.state is not State.UNINITIALIZED:
                raise IllegalStateError(
                    f"only a new producer can join a transaction; this producer is {self.state.value}"
                )
            self.producer_state.set_producer_id_and_epoch(producer_id, producer_epoch)
            # This producer may have taken part in this transaction before. It must not go on with its numbers: the
            # leaders then refuse its batches in a partition that has rows of the transaction, as they must.
            for topic in self._accumulator.topics.values():
                for queue in topic.queues:
                    self.producer_state.start_sequences_at_beginning(queue)
            self.is_v2 = is_v2
            self._started = True
            self._began_at = self._clock.monotonic()
            self._make(Move.JOIN)

    def leave(self) -> None:
        """Leave the transaction to the other producers. The caller makes sure that no batch is under way."""
        with self._lock:
            self._operations.refuse_while_another_is_waited_for("leave")
            self.refuse_if_failed(_FAILED)
            if self.state is not State.IN_TRANSACTION:
                raise IllegalStateError(f"there is no transaction to leave; this producer is {self.state.value}")
            self.partitions.clear()
            self._started = False
            self._make(Move.LEAVE)

    def assign(self, transactional_id: str) -> None:
        """Serve another transactional id from now on. The caller makes sure that no batch is under way."""
        with self._lock:
            # The outcome of an operation that timed out must not be taken for that of the next id's operation.
            self._operations.refuse_while_another_is_waited_for("assign")
            self.refuse_if_failed(_FAILED)
            self._make_for_user(Move.ASSIGN, "assign")
            self.transactional_id = transactional_id
            self.queue.assign(Coordinator.TRANSACTION, transactional_id)

    def resume(self, producer_id: int, producer_epoch: int) -> None:
        """Go on after the last transaction of another producer. Replaces `init`.

        Only under version 2: there the end of a transaction gives an epoch that has used no sequence number. Under
        version 1 a leader would take this producer's first batches for repetitions, and drop them.
        """
        with self._lock:
            if not self.next_is_v2:
                raise IllegalStateError("the cluster has no transactions of version 2: call init_transactions()")
            self._make_for_user(Move.RESUME, "resume")
            self.producer_state.set_producer_id_and_epoch(producer_id, producer_epoch)

    @property
    def next_is_v2(self) -> bool:
        return self._client.finalized_features.get(TRANSACTION_VERSION, 0) >= 2

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """KafkaProducer.send_offsets_to_transaction."""

        def start(result: Result) -> None:
            self.refuse_if_failed(_FAILED)
            if self.state is not State.IN_TRANSACTION:
                raise IllegalStateError(
                    f"send_offsets_to_transaction() needs a transaction; this producer is {self.state.value}"
                )
            commit = TxnOffsetCommit(self, result, offsets, group)
            if self.is_v2:
                self.on_offsets_added(commit)
            else:
                self.queue.push(AddOffsets(self, result, commit))

        self._operations.run("send_offsets_to_transaction", start, (dict(offsets), group), timeout)

    def commit(self, timeout: float | None = None) -> None:
        """KafkaProducer.commit_transaction."""
        self._operations.run("commit_transaction", self._commit, timeout=timeout)

    def abort(self, timeout: float | None = None) -> None:
        """KafkaProducer.abort_transaction."""
        self._operations.run("abort_transaction", self._abort, timeout=timeout)

    def refusal(self) -> KafkaError:
        """The error with which send() refuses a record now."""
        with self._lock:
            if self.state in _FAILED:
                return self.failure()
        first = "init_transactions(), then " if self.state is State.UNINITIALIZED else ""
        return IllegalStateError(
            f"send() needs a transaction: call {first}begin_transaction(); this producer is {self.state.value}"
        )

    def failure(self) -> KafkaError:
        """A new error with the cause of the failure, which says whether abort_transaction() helps."""
        with self._lock:
            cause = self._error
            assert cause is not None
            if self.state is not State.FATAL_ERROR:
                failure: KafkaError = AbortableTransactionError(f"abort_transaction() is needed: {cause}")
            elif isinstance(cause, FatalTransactionError):
                failure = type(cause)(*cause.args)
            else:
                failure = FatalTransactionError(f"this producer can only be closed: {cause}")
            failure.__cause__ = cause
            return failure

    def is_held_here(self) -> bool:
        """Whether the calling thread holds a lock of the transactions: a signal handler has interrupted its change."""
        return self._operations.is_held_here()

    # ---- for Operations; under the lock ------------------------------------------------------------------------------

    def refuse_if_failed(self, states: tuple[State, ...]) -> None:
        if self.state in states:
            raise self.failure()

    def has_request_for(self, result: Result) -> bool:
        return any(request.result is result for request in self.queue)

    def undo(self, before: State, error: BaseException) -> None:
        """`error` interrupted an operation that began in state `before`, before the operation had a request."""
        if self.state is before or self.state is State.FATAL_ERROR:
            return
        self._accumulator.flushes.discard(self)
        if self.state is State.ABORTING:
            self._error = self._error or KafkaError(f"abort_transaction() was interrupted by {error!r}")
            self._make(Move.FAIL_ABORT)
        else:
            self._make(Move.UNDO_INIT if self.state is State.INITIALIZING else Move.UNDO_COMMIT)

    def circumstances(self) -> str:
        """The end of the text of a time-out error."""
        with self._lock:
            return circumstances(self.queue, len(self._accumulator.incomplete), self._clock, self._config)

    # ---- operations; under the lock ----------------------------------------------------------------------------------

    def _init(self, result: Result) -> None:
        if self.state is not State.UNINITIALIZED:
            raise IllegalStateError(f"init_transactions() is called once; this producer is {self.state.value}")
        self._make(Move.INIT)
        self.queue.push(InitProducerId(self, result))

    def _commit(self, result: Result) -> None:
        self.refuse_if_failed(_FAILED)
        self._make_for_user(Move.COMMIT, "commit_transaction")
        self._end(result, committed=True)

    def _abort(self, result: Result) -> None:
        self._make_for_user(Move.ABORT, "abort_transaction")
        self._to_add.clear()
        for request in self.queue.drop_before_abort():
            self._give_up_offsets(request)
        self.queue.count_trouble_anew()
        self._end(result, committed=False)

    def _give_up_offsets(self, request: TransactionalRequest) -> None:
        # A commit of offsets may still be on its way: the new epoch keeps it out of the next transaction.
        self._must_bump_epoch = self._must_bump_epoch or (
            isinstance(request, TxnOffsetCommit) and request.sent_to >= 0 and not self.is_v2
        )
        if request.result is not None:
            request.result.end(offsets_aborted())

    def _end(self, result: Result, *, committed: bool) -> None:
        # A record that another thread sends from now on is too late for this transaction.
        self._accumulator.close_open_batches()
        self._accumulator.flushes.add(self)
        self.queue.push(EndTxn(self, result, committed=committed))

    def _make_for_user(self, move: Move, operation: str) -> None:
        if self.state not in move.sources:
            needed = " or ".join(repr(source.value) for source in move.sources)
            advice = {
                State.UNINITIALIZED: ": call init_transactions() first",
                State.READY: ": call begin_transaction() first",
                State.IN_TRANSACTION: ": call commit_transaction() or abort_transaction() first",
            }.get(self.state, "")
            raise IllegalStateError(
                f"{operation}() needs a producer that is {needed}; this producer is {self.state.value!r}{advice}"
            )
        self._make(move)

    def _make(self, move: Move) -> None:
        assert self.state in move.sources, f"{move} does not start from {self.state}"
        log.debug("transactional id %s: %s", self.transactional_id, move.target.value)
        refusal = None if move.target is State.IN_TRANSACTION else self.refusal  # may need memory: before the change
        self.state = move.target
        self._accumulator.refusal = refusal

    # ---- thread: Sender; questions -----------------------------------------------------------------------------------

    def send_allowed(self, topic: str, partition: int) -> bool:
        """Whether the Sender may send to the partition now. The Sender asks before every drain of the partition."""
        topic_partition = (topic, partition)
        with self._lock:
            if topic_partition in self.partitions:
                return self.state in _OPEN
            if self.state not in (State.IN_TRANSACTION, State.COMMITTING):
                return False
            if self.is_v2:
                self.partitions.add(topic_partition)
                self._started = True
                return True
            if topic_partition not in self._adding:
                self._to_add.add(topic_partition)
            return False

    @property
    def must_drop_unsent(self) -> bool:
        """Whether the records that were never sent must fail, because the transaction can no longer take them."""
        return self.state in (State.ABORTING, State.ABORTABLE_ERROR)

    @property
    def has_ongoing_transaction(self) -> bool:
        return self.state in _OPEN

    @property
    def newest_produce_version(self) -> int:
        """The newest Produce version allowed. From 12 on the leader adds the partition to the transaction."""
        return 12 if self.is_v2 else 11

    def reason_to_drop(self) -> KafkaError:
        """The error of the records that are dropped."""
        with self._lock:
            if self._error is not None:
                return self.failure()
        return TransactionAbortedError("the transaction that the record belonged to was aborted")

    def on_failure(self, error: KafkaError, *, numbers_lost: bool) -> None:
        """A batch failed for good: the transaction cannot be committed."""
        if isinstance(error, _FATAL_FOR_BATCHES):
            self.fail(error)
        else:
            self.abort_with(error, bump=numbers_lost)

    def doubt_coordinator(self) -> None:
        """A partition's leader could not reach the coordinator, or waits for it: look the coordinator up now.

        Waiting for a response of that coordinator would take another request.timeout.ms.
        """
        with self._lock:
            self.queue.look_up(Coordinator.TRANSACTION)

    def close(self, error: ClosedError) -> None:
        """The Sender has ended."""
        with self._lock:
            self._error = self._error or error
            self._make(Move.FAIL_PRODUCER)
            self._terminate_all(error)

    def abort_on_close(self) -> None:
        """The producer closes: abort its transaction, unless the transaction is ending already."""
        with self._lock:
            if self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                log.info("aborting the open transaction of %s: the producer is closed", self.transactional_id)
                if self.state is State.ABORTABLE_ERROR:  # perhaps only since this turn: a queued commit must not go
                    for request in self.queue:
                        self._terminate_if_failed(request)
                    self.queue.clear()
                self._abort(Result("close"))

    @property
    def abort_is_hopeless(self) -> bool:
        """Whether an abort has had no success for request.timeout.ms: no coordinator was reached or did what was asked.

        Then the producer leaves the transaction: its coordinator aborts it after transaction.timeout.ms.
        """
        limit = self._config.request_timeout_ms / 1000
        with self._lock:
            return self.state is State.ABORTING and self._clock.monotonic() > self.queue.trouble_since + limit

    def warn_of_open_transaction(self) -> None:
        """The producer ends before its transaction has ended: say so in the log."""
        log.warning(
            "transactional id %s: close() leaves a transaction open (%s); its coordinator may abort it after "
            "transaction.timeout.ms (%d ms). %s",
            self.transactional_id,
            self.state.value,
            self.transaction_timeout_ms,
            self.circumstances(),
        )

    # ---- thread: Sender; requests ------------------------------------------------------------------------------------

    def run(self, now: float, *, has_incomplete: bool) -> float:
        """Send the next request if it is due. Returns the seconds until the next call is due."""
        with self._lock:
            self.queue.restore()
            if self._to_add:
                self.queue.push(AddPartitions(self, self._to_add))
                self._adding |= self._to_add
                self._to_add = set()
            if self.queue.under_way is not None:
                return float("inf")
            request = self._next(has_incomplete)
            if request is None:
                return float("inf")
            if request.not_before > now:
                return request.not_before - now
            if isinstance(request, EndTxn) and request.committed:
                self._note_commit()
            try:
                return self.queue.send_first(self._on_completion)
            except (UnsupportedVersionError, AuthenticationError) as error:
                self.fail(error, request)
                self.queue.remove(request)
                return 0.0
            except MemoryError:
                raise  # the request is still in the queue: the next turn tries again
            except Exception as error:  # the request can never be encoded: the thread that waits for it gets an error
                self.abort_with(InvalidRequestError(f"{request} cannot be written: {error}"), request)
                self.queue.remove(request)  # last: without memory the next turn tries again
                return 0.0

    def _note_commit(self) -> None:
        if self.commits is not None:
            state = self.producer_state
            numbers = state.producer_id, state.producer_epoch
            self.commits.under_way(self.transactional_id, *numbers, self.partitions, is_v2=self.is_v2)

    def _next(self, has_incomplete: bool) -> TransactionalRequest | None:
        """The first request that is still needed. It stays in the queue."""
        while (request := self.queue.first) is not None:
            if self._terminate_if_failed(request):
                self.queue.pop()
            elif isinstance(request, EndTxn) and not self._started and not has_incomplete:
                entry = self.queue.take_first()
                try:
                    self.on_ended(request)
                except MemoryError:
                    self.queue.put_back(entry)
                    raise
            elif request.priority is Priority.END_TXN and has_incomplete:
                return None
            elif request.coordinator is not None and self.queue.lacks_coordinator(request):
                key = self.queue.keys[request.coordinator]
                self.queue.push_lookup(FindCoordinator(self, request.coordinator, key))
            else:
                return request
        return None

    def _terminate_if_failed(self, request: TransactionalRequest) -> bool:
        """After an error only the requests that an abort needs go out: end any other request, and return True."""
        if self.state not in _FAILED:
            return False
        if self.state is State.ABORTABLE_ERROR and isinstance(request, FindCoordinator):
            return False
        if isinstance(request, AddPartitions):
            self._adding -= request.partitions
        if request.result is not None:
            request.result.end(self.failure())
        return True

    def _terminate_all(self, error: KafkaError) -> None:
        for request in self.queue:
            if request.result is not None:
                request.result.end(error)
        self.queue.clear()
        self._operations.end(error)

    def _on_completion(self, request: TransactionalRequest, completion: Completion) -> None:
        # Without memory the Sender makes this call again, until it succeeds: each step may be repeated.
        with self._lock:
            self.queue.under_way = None
            if self.state is State.FATAL_ERROR:
                self._terminate_if_failed(request)
                return
            if self.state is State.ABORTING and request.serves_offsets:
                self._give_up_offsets(request)
                return
            if completion.error is not None and completion.error.retriable:
                log.debug("%s is retried: %s", type(request).__name__, completion.error)
                self.queue.look_up(request.coordinator)
                self.queue.retry(request, completion.error)
                return
            try:
                request.on_response(completion.decode())
            except KafkaError as error:
                request.on_error(error)

    # ---- called by the requests; thread: Sender ----------------------------------------------------------------------

    def on_initialized(self, producer_id: int, producer_epoch: int, request: InitProducerId) -> None:
        """Each step may be repeated: a call that finds no memory is made again."""
        if self.state is not Move.INITIALIZED.target:
            self.producer_state.set_producer_id_and_epoch(producer_id, producer_epoch)
            self._make(Move.INITIALIZED)
        assert request.result is not None
        request.result.end()

    def on_partitions_added(self, partitions: frozenset[TopicPartition]) -> None:
        self._adding -= partitions
        self.partitions |= partitions
        self._started = True

    def on_offsets_added(self, commit: TxnOffsetCommit) -> None:
        self._started = True
        if self.state is State.IN_TRANSACTION:
            self.queue.push(commit)
        elif self.state not in _FAILED:
            self._give_up_offsets(commit)
        elif commit.result is not None:
            commit.result.end(self.failure())

    def on_ended(self, request: EndTxn) -> None:
        assert request.result is not None
        if self.commits is not None:
            self.commits.ended(self.partitions, committed=request.committed)
        self._close_transaction(request.result)

    def _close_transaction(self, result: Result) -> None:
        """Each step may be repeated: a call that finds no memory is made again."""
        if result.done:  # all but to wake the waiting threads is done, and the user may have begun another transaction
            result.end()
            return
        self._accumulator.flushes.discard(self)
        self.partitions.clear()
        self._to_add.clear()
        self._adding.clear()
        self._started = False
        self._error = None
        # A late request of a transaction of version 1 must not join one of version 2: so the producer gets a new epoch.
        if self._must_bump_epoch or not self.producer_state.has_producer_id or (self.next_is_v2 and not self.is_v2):
            if self.state is not Move.END_AND_BUMP_EPOCH.target:
                self._make(Move.END_AND_BUMP_EPOCH)
            self.queue.push(InitProducerId(self, result, bump=self.producer_state.has_producer_id))
            self._must_bump_epoch = False
        else:
            if self.state is not Move.END.target:
                self._make(Move.END)
            result.end()

    def abort_with(self, error: KafkaError, request: TransactionalRequest | None = None, *, bump: bool = False) -> None:
        """The transaction cannot be committed.

        `bump`: it is uncertain which numbers of this epoch the leaders have seen, so that a new epoch is needed.
        """
        with self._lock:
            bump = bump or isinstance(error, UnknownProducerIdError | InvalidProducerIdMappingError)
            # Under version 2 the coordinator gives a new epoch to each transaction.
            self._must_bump_epoch = self._must_bump_epoch or (bump and not self.is_v2)
            if isinstance(request, AddPartitions):
                self._adding -= request.partitions
            if self.state is State.ABORTING:
                if isinstance(request, EndTxn):
                    self._abort_failed(error, request)
                elif request is not None and request.result is not None:
                    request.result.end(error)
                return
            if self.state is State.FATAL_ERROR:
                return
            if self.state is not State.ABORTABLE_ERROR:  # the first error causes the later errors
                error = self._explained(error)
                log.info("transactional id %s: the transaction must be aborted: %s", self.transactional_id, error)
                self._accumulator.flushes.discard(self)
                self._error = error
                self._make(Move.FAIL_TRANSACTION)
            if request is not None and request.result is not None:
                request.result.end(self.failure())

    def _abort_failed(self, error: KafkaError, request: EndTxn) -> None:
        if isinstance(error, UnknownProducerIdError | InvalidProducerIdMappingError):
            self._must_bump_epoch = True
            self.on_ended(request)
            return
        self.queue.note_trouble(error)
        self._accumulator.flushes.discard(self)
        self._error = error
        self._make(Move.FAIL_ABORT)
        assert request.result is not None
        request.result.end(self.failure())

    def fail(self, error: KafkaError, request: TransactionalRequest | None = None) -> None:
        """The producer can do nothing more but close. A call that finds no memory may be repeated."""
        with self._lock:
            if self.state is not State.FATAL_ERROR:  # the first error causes the later errors
                error = self._explained(error)
                log.error("transactional id %s: this producer can only be closed: %s", self.transactional_id, error)
                self._accumulator.flushes.discard(self)
                self._error = error
                self._make(Move.FAIL_PRODUCER)
            failure = self.failure()
            if request is not None and request.result is not None:
                request.result.end(failure)
            self._terminate_all(failure)

    def _explained(self, error: KafkaError) -> KafkaError:
        """The error, with its likely cause if the transaction was open for longer than its coordinator allows."""
        if self.state not in _OPEN:
            return error
        return explained(error, self._clock.monotonic() - self._began_at, self._config)


def offsets_aborted() -> KafkaError:
    return TransactionAbortedError("the transaction that these offsets belonged to was aborted")
