"""What becomes of a batch that failed: may it go again, when, in which order, and who is told of it.

What failed. A batch expires, or the user purges it. A request ends with an error, or with a response that refuses some
of its batches. The broker takes no such batch, the client may not write, or the partition is gone. Or an error of our
own leaves batches without an outcome and without a place in a queue.

May it go again. The error says so: `retriable`. A producer that numbers its batches asks more, since no record may come
twice or out of order: `_may_go_again`. Nothing goes again after `retries`, or in a Sender that closes by force.

When. After a back-off, or at once where the refusal says nothing against it: `requeue`.

In which order. A batch returns to its place by number, before all that was opened later (`put_back` of the
accumulator). A batch that is too large goes in two halves from where it lay (_split.pyx). Where numbers are missing,
the partition counts anew before it sends anything more (transactions/idempotence.py).

With a file. The leader may forget the id of a recovered batch at any time, because the batch is old: what was appended
and not acknowledged would then be appended again. So a recovered batch that is in doubt goes again only when the
cluster was asked for it (`ask_cluster`). The cluster is asked too where it refuses the batch for its numbers: another
process may have sent it from a copy of the file. A recovered batch that is refused for good stays in the file.

Who is told. `fail` of the accumulator gives the batch its error, takes it out of its queue, and calls `count_failed`
before any callback runs: the numbers, the metrics, the transaction, and the warning of errors that nobody reads.

The turn (_sender.pyx) calls `Recovery`, which never calls the turn. A request that never left is no failure: the turn
puts its batches back as they were. Only the Sender's thread runs this code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.batches._accumulator import PartitionQueue, TopicQueues
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._split import split
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.errors import (
    AuthenticationError,
    BufferExhaustedError,
    ClusterAuthorizationError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    NetworkError,
    NotCoordinatorError,
    OutOfOrderSequenceNumberError,
    PurgedError,
    RecordListTooLargeError,
    RecordTooLargeError,
    RefusedWithOthersError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    host_port,
    printable,
    shown,
)
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.network._metrics import ProducerStats
from kafkabuf.process.producer_log import REPEAT_AFTER, Seldom, producer_log
from kafkabuf.sending._produce import PartitionResponse
from kafkabuf.sending._sender import RecoveryPolicy
from kafkabuf.sending.unseen_failures import Failures
from kafkabuf.transactions.idempotence import ProducerState, TransactionalState

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig
    from kafkabuf.transactions.manager import TransactionManager

log = producer_log("kafkabuf.producer")

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # of max.message.bytes: message.max.bytes of the broker
# The errors with which a leader responds when the transaction's coordinator does not verify the transaction.
# NETWORK_EXCEPTION from a leader means that its connection to the coordinator failed. A NetworkError without a response
# may mean that the leader still waits for the coordinator.
_COORDINATOR_ERRORS = (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NetworkError,
    NotCoordinatorError,
)
# The responses with these errors come before the leader appends the batch. Other errors may come after it: a leader
# that has lost its partition, or whose followers are late, has the batch in its log.
_BEFORE_THE_APPEND = (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    NotCoordinatorError,
    OutOfOrderSequenceNumberError,
)
_OF_NUMBERS = (InvalidProducerEpochError, OutOfOrderSequenceNumberError, UnknownProducerIdError)
# A leader that responds with one of these errors has validated the records, and has appended none of them. The errors
# say nothing about other records. CORRUPT_MESSAGE is not among them: it is retriable, because bytes may change on the
# way, and a record that a broker calls corrupt each time expires without a certain outcome.
ERRORS_OF_RECORDS = (InvalidRecordError, InvalidTimestampError, RecordListTooLargeError, RecordTooLargeError)


_DROPPED = "the record was dropped to make room for newer records (kafkabuf.buffer.full=drop_oldest)"


class Recovery(RecoveryPolicy):
    """The failed batches of one producer."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        metadata: Metadata,
        clock: Clock,
        stats: ProducerStats,
        transactions: TransactionManager | None,
    ) -> None:
        state = accumulator.producer_state
        assert state is None or isinstance(state, ProducerState)
        self._config = config
        self._accumulator = accumulator
        self._metadata = metadata
        self._clock = clock
        self._stats = stats
        self._transactions = transactions
        self._numbers = state  # None: idempotence is off
        self._has_file = accumulator.tables is not None
        self._tireless = self._has_file and config.buffer_expire == "never"
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._logged_failure = ""  # the last error with which all buffered records failed
        self._refusals, self._drops = Seldom(), Seldom()
        # With a file: asks the cluster which batches of a queue it has; `refused`: it has refused their numbers.
        self.ask_cluster: Callable[[PartitionQueue, bool], object] | None = None
        self._refused: set[PartitionQueue] = set()
        self.forced = False  # the Sender closes by force: nothing goes again
        self.unseen = Failures()
        accumulator.on_failed = self.count_failed

    # ---- what failed: without a request ------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Fail the batches whose delivery.timeout.ms is over."""
        expired = self._accumulator.expire(now)
        if expired:
            log.info("%d batch(es) expired; the first: %s", len(expired), expired[0].error)

    def run_errands(self) -> None:
        """Do what other threads have asked for."""
        for _ in range(len(self.errands)):  # an errand may add one for the next turn
            try:
                self.errands[0]()
            except MemoryError:
                raise  # the next turn does it again
            except Exception:
                log.exception("a step that another thread has asked for failed; the Sender goes on with the next")
            self.errands.popleft()

    def purge(self, batches: list[Batch], in_flight: bool) -> None:
        """Fail what the user has purged."""
        for batch in batches:
            if in_flight or (batch.base_sequence < 0 and self._accumulator.holds(batch)):
                self._accumulator.give_up(batch, PurgedError("the record was purged"))

    def drop_oldest(self) -> None:
        """Fail the oldest batches that are not in flight until no thread waits for memory (drop_oldest)."""
        pool = self._accumulator.pool
        dropped = 0
        for batch in sorted(self._accumulator.waiting_batches(), key=attrgetter("number")):
            if not pool.waiting:
                break
            if not batch.claimed:
                failed = self._accumulator.give_up(batch.whole or batch, BufferExhaustedError(_DROPPED))
                dropped += sum(part.count for part in failed)
        now = self._clock.monotonic()
        if dropped:
            self._stats.dropped.add(dropped, now)
        if dropped and self._drops.is_due(now):
            total = self._stats.dropped.total
            log.warning("the buffer is full: %d records were dropped up to now, the oldest first", total)

    def without_id(self, error: KafkaError) -> None:
        """No broker gives a producer id. With a file the records wait for it: the right may be granted."""
        if self._has_file:
            self._tell_of_refusal(error)
        else:
            self.fail_everything(error)

    def fail_everything(self, error: KafkaError) -> None:
        """The producer cannot send: no id, no right, or a transaction that has failed for good."""
        # The same error is logged as an error once only: all later records fail with it too.
        level = logging.DEBUG if str(error) == self._logged_failure else logging.ERROR
        self._logged_failure = str(error)
        log.log(level, "all buffered records fail: %s", error)
        self._accumulator.abort(error)

    def fail_unauthenticated(self, queues: list[PartitionQueue], error: AuthenticationError) -> None:
        """Fail the batches that wait for a node that refuses the client, or whose certificate the client refuses.

        With a file they wait: the password may be put right before the next process, or on the broker.
        """
        if self._has_file:
            self._tell_of_refusal(error)
            return
        for queue in queues:
            self._fail_waiting(queue, error)

    def _tell_of_refusal(self, error: KafkaError) -> None:
        if self._refusals.is_due(self._clock.monotonic()):
            log.warning("the records wait in the file of kafkabuf.buffer.path: %s", error)

    def fail_gone(self, topic: TopicQueues) -> None:
        """Fail the batches of partitions that are gone: the topic was deleted and made again with fewer partitions.

        These batches cannot go to another partition: the key or the caller chose their partition, and the
        broker may have written some of them. Recovered batches wait, because nobody would learn of their error: the
        topic may get its partitions again.
        """
        for queue in topic.queues[topic.partitions :]:
            if queue.batches:
                error = UnknownTopicOrPartitionError(
                    f"partition {queue.partition} of topic {topic.name!r} is gone: the topic was deleted and made "
                    f"again with {topic.partitions} partition(s)"
                )
                self._fail_waiting(queue, error)
                if self._has_file and queue.batches:
                    self._tell_of_refusal(error)

    def _fail_waiting(self, queue: PartitionQueue, error: KafkaError) -> None:
        for batch in self._accumulator.waiting_batches(queue):
            # The claimant of a claimed batch wakes the Sender, which then comes here again.
            if not (batch.claimed or (batch.whole or batch).recovered):
                self._accumulator.give_up(batch.whole or batch, error)

    # ---- what failed: with its request -------------------------------------------------------------------------------

    def fail_unsupported(self, batches: list[Batch], error: UnsupportedVersionError) -> None:
        """The broker supports no Produce version that carries these batches."""
        if self._has_file:
            self._tell_of_refusal(error)
            for batch in batches:
                self.requeue(batch)
            return
        magic = self._accumulator.magic
        other = "set record.magic to 2 (or auto)" if magic == 1 else "set record.magic to 1 for brokers this old"
        text = f"the broker takes no records of magic {magic}: {other} ({error})"
        for batch in batches:
            self._fail(batch, UnsupportedVersionError(text))

    def go_again(self, batches: list[Batch], error: BaseException, sent: bool) -> None:
        """After an error within the Sender, put the batches back that have neither an outcome nor a place in a queue.

        `sent`: a broker may have them, as after a lost connection.
        """
        for batch in batches:
            if batch.done or self._accumulator.holds(batch):
                continue
            try:
                if sent:
                    unknown = f"it is unknown whether a broker has the batch: {shown(error)}"
                    self.retry_or_fail(batch, NetworkError(unknown))
                else:
                    self.requeue(batch)
            except MemoryError:
                raise  # the next turn tries again
            except Exception as failure:
                log.exception("%r cannot be retried; its records fail", batch)
                for staying in self._accumulator.leave_behind(batch):
                    self._accumulator.fail(staying, KafkaError(f"an error within the producer: {shown(failure)}"))

    def retry_or_fail_all(self, batches: list[Batch], error: KafkaError) -> None:
        """The request of these batches failed."""
        for batch in batches:
            self.retry_or_fail(batch, error)

    def retry_or_fail(self, batch: Batch, error: KafkaError, response: PartitionResponse | None = None) -> None:
        """The request failed, or `response` reports an error of the batch: it goes again, or fails."""
        queue = self._accumulator.queue_of(batch)
        queue.proven = False
        queue.last_error = error
        if batch.done:  # expired while in flight
            return
        if error.invalid_metadata:
            self._metadata.request_update()
        # A closing Sender does not send what is put back here: with a file it leaves that there, and else fails it.
        ends = self.forced and not self._has_file
        if isinstance(error, RecordTooLargeError) and batch.count > 1 and not ends:
            self._split_or_fail(batch, error)
            return
        if self._numbers is not None and isinstance(error, ClusterAuthorizationError) and not self._has_file:
            self._numbers.fail(error)
        if not self._may_go_again(queue, batch, error, response):
            self._fail(batch, self._explained(queue, batch, error), response, refused=response is not None)
            return
        if ends or (batch.attempts >= self._config.retries and not self._tireless):
            self._fail(batch, error, response)
            return
        self._stats.retried(batch.topic, batch.count, self._clock.monotonic())
        log.debug("%r is sent again: %s", batch, error)
        self._retry(batch, error, response)

    # ---- may it go again ---------------------------------------------------------------------------------------------

    def _may_go_again(
        self, queue: PartitionQueue, batch: Batch, error: KafkaError, response: PartitionResponse | None
    ) -> bool:
        """Whether to retry a batch. Asks for a new epoch if the batch needs one."""
        if self._waits(error):
            self._tell_of_refusal(error)
            return True
        state = self._numbers
        if state is None:
            return error.retriable
        asks = self.ask_cluster is not None and not state.transactional and not batch.renumbered
        if asks and isinstance(error, _OF_NUMBERS):
            fenced = isinstance(error, InvalidProducerEpochError)
            if fenced:
                self._leave_id(state, queue, error)
            if fenced or (batch.recovered and state.is_stale(queue)):  # what it lacks goes under the present id
                self._doubt(queue, refused=True)
                return True
        if isinstance(error, InvalidProducerEpochError) and not state.transactional:
            return batch.renumbered  # True: the broker refused the earlier epoch, and the batch has a new epoch now
        if not isinstance(error, OutOfOrderSequenceNumberError | UnknownProducerIdError):
            return error.retriable
        log_start_offset = -1 if response is None else response.log_start_offset
        forgotten = isinstance(error, UnknownProducerIdError)
        # A broker that has forgotten the producer names the start of its log, except for a moment while the partition
        # moves to another broker.
        if forgotten and log_start_offset < 0:
            return True
        if isinstance(state, TransactionalState):
            behind_log_start = forgotten and log_start_offset > queue.last_acked_offset
            return _goes_on_in_transaction(state, queue, batch, behind_log_start)
        return _goes_on_without_transaction(state, queue, batch, forgotten)

    def _waits(self, error: KafkaError) -> bool:
        """With a file a batch goes again unless a record is at fault: a right may be granted, a broker mended."""
        if not self._has_file or self._transactions is not None:
            return False
        return not (error.retriable or isinstance(error, ERRORS_OF_RECORDS + _OF_NUMBERS))

    # ---- with a file: has the cluster the batch ----------------------------------------------------------------------

    def _leave_id(self, state: ProducerState, queue: PartitionQueue, error: KafkaError) -> None:
        """Somebody else has taken the next epoch of this producer's id, which belongs to recovered batches."""
        if not state.is_stale(queue):
            state.set_producer_id_and_epoch(-1, -1)
            log.warning(
                "another process has opened a copy of the file of kafkabuf.buffer.path: %s. This producer goes on "
                "under a new producer id. Records that the copy has, and that were not delivered yet, may come twice",
                error,
            )  # fmt: skip

    def _doubt(self, queue: PartitionQueue, *, refused: bool = False) -> None:
        """Send nothing of the partition until the cluster was asked which of its batches it has."""
        if refused:
            self._refused.add(queue)
        if not queue.doubted:
            self.errands.append(partial(self._ask_cluster, queue))
            queue.doubted = True

    def _ask_cluster(self, queue: PartitionQueue) -> None:
        assert self.ask_cluster is not None
        if queue.in_flight:  # a response ends the poll: the next turn tries again
            self.errands.append(partial(self._ask_cluster, queue))
        else:
            self.ask_cluster(queue, queue in self._refused)
            self._refused.discard(queue)

    # ---- when, and in which order ------------------------------------------------------------------------------------

    def _retry(self, batch: Batch, error: KafkaError, response: PartitionResponse | None) -> None:
        is_certain = response is not None and isinstance(error, _BEFORE_THE_APPEND)
        batch.doubtful = batch.doubtful or not is_certain
        if batch.recovered and not is_certain and self.ask_cluster is not None and self._numbers is not None:
            self._doubt(self._accumulator.queue_of(batch))
        soon = False
        if self._transactions is not None and isinstance(error, _COORDINATOR_ERRORS):
            self._transactions.doubt_coordinator()
            # The leader responded, so it works: it finds the new coordinator soon, and the whole transaction waits.
            soon = response is not None
        self.requeue(batch, soon=soon)
        if is_certain and batch.renumbered:
            batch.retry_at = 0.0  # the broker refused the old numbers, which says nothing about the new numbers

    def requeue(self, batch: Batch, *, soon: bool = False) -> None:
        """Put a batch back to its place after an error that may pass. It goes again after an exponential back-off.

        With `soon` the back-off doubles at most once. A new leader gets the batch without a back-off (KIP-951).
        """
        delay = self._backoff.delay(min(batch.attempts, 1) if soon else batch.attempts)
        batch.retry_at = self._clock.monotonic() + delay
        batch.attempts += 1
        self._accumulator.put_back(self._accumulator.queue_of(batch), batch)

    def _split_or_fail(self, batch: Batch, error: RecordTooLargeError) -> None:
        """Send a batch that was refused as too large again, in two parts. `retries` does not limit this."""
        try:
            log.debug("%r is split: %s", batch, error)
            split(self._accumulator, batch)
            self._stats.splits.add(1, self._clock.monotonic())
        except Exception:
            log.exception("%r could not be split; its records fail", batch)
            self._accumulator.leave_behind(batch.whole or batch)
            self._accumulator.give_up(batch.whole or batch, error)

    # ---- who is told -------------------------------------------------------------------------------------------------

    def _fail(
        self, batch: Batch, error: KafkaError, response: PartitionResponse | None = None, *, refused: bool = False
    ) -> None:
        """`refused`: it is certain that the broker did not append the batch in this attempt."""
        # A place outside of the batch would name no record, and no record would be at fault.
        named = response.record_errors or () if response is not None else ()
        invalid_records = [(place, text) for place, text in named if 0 <= place < batch.count]
        record_errors, error_of_others = _errors_of_records(error, invalid_records) if invalid_records else (None, None)
        if self._has_file and batch.recovered:  # nobody would learn of its error
            self._tell_of_refusal(error)
        if batch.recovered or not isinstance(error, ERRORS_OF_RECORDS):
            in_doubt = batch.doubtful or batch.whole_doubtful
            unsent = refused and not in_doubt and isinstance(error, ERRORS_OF_RECORDS)
            for staying in self._accumulator.leave_behind(batch, unsent=unsent):
                if staying is not batch:  # there is no room for the batch alone
                    self._accumulator.fail(staying, error)
        self._accumulator.fail(batch, error, record_errors, error_of_others, refused)

    def _explained(self, queue: PartitionQueue, batch: Batch, error: KafkaError) -> KafkaError:
        """The error of a batch that is not retried."""
        state = self._numbers
        if type(error) is RecordTooLargeError and batch.count == 1:
            # The text says how to look the limit up. To ask for it takes a round trip, for which the batch would keep
            # its numbers, and brokers would refuse every batch behind it. A producer seldom has the right to describe
            # configs, and a request without the right is an entry in the audit log that the user did not cause.
            return RecordTooLargeError(
                f"the record needs {batch.size} bytes, which is more than max.message.bytes of topic {batch.topic!r}: "
                f"raise it there, or send smaller records. Kafka's default is {DEFAULT_MAX_MESSAGE_BYTES}; brokers do "
                f"not name the topic's limit with the error, and this command shows it: kafka-configs.sh "
                f"--bootstrap-server {host_port(*self._config.bootstrap_servers[0])} --describe --all "
                f"--entity-type topics --entity-name {batch.topic}. The broker says: {error}"
            )
        if isinstance(error, InvalidProducerEpochError) and self._transactions is not None:
            return InvalidProducerEpochError(
                f"{error}. Either a newer producer has the transactional id {self._transactions.transactional_id}, or "
                "the coordinator has aborted the transaction after transaction.timeout.ms"
            )
        if isinstance(error, OutOfOrderSequenceNumberError) and batch.whole_doubtful:
            return OutOfOrderSequenceNumberError(
                "it is unknown whether the broker has the record: it was sent in a larger batch, to which no response "
                f"came, and the broker then refused that batch as too large. A retry could append it twice ({error})"
            )
        if not isinstance(error, OutOfOrderSequenceNumberError) or not (state and state.was_overtaken(queue, batch)):
            return error
        return OutOfOrderSequenceNumberError(
            f"{batch.topic}-{batch.partition} took records that were sent after this record, and refused this record. "
            "That happens when the topic is deleted and made again. A retry would append the record out of order"
        )

    def count_failed(self, batch: Batch, refused: bool) -> None:
        """A batch has its error, and nobody knows yet. `refused`: the broker did not append it in the last attempt.

        A call that finds no memory is made again. So the batch's numbers go last: by them the next call knows it.
        """
        if self._numbers is not None:
            queue = self._accumulator.queue_of(batch)
            if isinstance(self._numbers, TransactionalState):
                self._count_in_transaction(self._numbers, queue, batch, refused)
            else:
                _count_without_transaction(self._numbers, queue, batch, refused)
        try:
            self._note_failed(batch)
        except MemoryError:
            pass  # metrics and the log lack a failure, but the batch is counted: the call is not to be made again

    def _count_in_transaction(
        self, state: TransactionalState, queue: PartitionQueue, batch: Batch, refused: bool
    ) -> None:
        """The transaction must be aborted, unless it outlives a refusal that is certain (`TransactionalState`)."""
        assert batch.error is not None
        assert self._transactions is not None
        certain = refused and not batch.doubtful and isinstance(batch.error, ERRORS_OF_RECORDS)
        numbers_lost = _loses_numbers(queue, batch)
        if state.outlives_refusals and certain and numbers_lost:
            state.free_numbers(queue, batch)
            return
        if numbers_lost:
            state.lose_numbers(queue)
        self._transactions.on_failure(batch.error, numbers_lost=numbers_lost)
        state.failed(queue, batch)

    def _note_failed(self, batch: Batch) -> None:
        now = self._clock.monotonic()
        self._stats.failed(batch.topic, batch.count, now)
        # commit_transaction() raises for a failure in a transaction, the user knows of a purge, and records that stay
        # in a file are not lost.
        known = self._transactions is not None or isinstance(batch.error, PurgedError) or batch.left
        if not known and self.unseen.add(batch):
            self.tell_at = min(self.tell_at, now + REPEAT_AFTER)

    def tell(self) -> None:
        """Warn of the failures that the user has not seen."""
        self.unseen.tell()


def _goes_on_without_transaction(state: ProducerState, queue: PartitionQueue, batch: Batch, forgotten: bool) -> bool:
    """The broker refused the batch for its number, or has `forgotten` the producer: whether the batch goes again."""
    if batch.whole_doubtful:
        return False  # the broker may have the whole, and then refuses the numbers of its parts
    batch.unseen = True
    # Only the first batch asks for an epoch. The broker refused a later batch because of a batch before it.
    if state.is_next(queue, batch):
        doubtful = None if forgotten else state.in_doubt(queue, batch)
        if doubtful is None:
            state.request_idempotent_epoch_bump_for_partition(queue)
        else:
            state.ask_for(queue, doubtful)
    return not state.was_overtaken(queue, batch)


def _goes_on_in_transaction(
    state: TransactionalState, queue: PartitionQueue, batch: Batch, behind_log_start: bool
) -> bool:
    if not state.is_next(queue, batch):
        return not state.was_overtaken(queue, batch)
    if behind_log_start:
        # Retention deleted all records of the producer there, and with them the broker's memory of the producer.
        # To count from 0 again uses no number twice, so the transaction can go on.
        state.start_sequences_at_beginning(queue)
        return True
    return state.has_gap(queue)


def _count_without_transaction(state: ProducerState, queue: PartitionQueue, batch: Batch, refused: bool) -> None:
    if _loses_numbers(queue, batch):
        certain = refused and state.is_next(queue, batch) and state.in_doubt(queue, batch) is None
        # The parts behind would get new numbers, and come twice where the broker has the whole.
        if certain and not batch.whole_doubtful:
            state.request_idempotent_epoch_bump_for_partition(queue)
        else:
            state.lose_numbers(queue)
    state.failed(queue, batch)


def _loses_numbers(queue: PartitionQueue, batch: Batch) -> bool:
    """Whether numbers are lost with this batch: it has been sent under them."""
    return batch in queue.in_sequence and not batch.renumbered


def _errors_of_records(
    error: KafkaError, invalid_records: Sequence[tuple[int, str | None]]
) -> tuple[dict[int, KafkaError], KafkaError]:
    """The errors of the invalid records, by place in the batch, and the error of the other records (KIP-467)."""
    # The error code belongs to the batch: where several records are invalid it need not be the code of each.
    kind = type(error) if len(invalid_records) == 1 else InvalidRecordError
    errors = {place: kind(printable(text) if text else str(error)) for place, text in invalid_records}
    return errors, RefusedWithOthersError(
        f"the broker refused {len(errors)} other record(s) of this record's batch: {error}"
    )
