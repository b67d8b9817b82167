"""The Sender: its life, and the steps that it takes after an error. The turn itself is in _sender.pyx."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.batches._accumulator import PartitionQueue, TopicQueues
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._split import split
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.errors import (
    AuthenticationError,
    ClosedError,
    ClusterAuthorizationError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    NetworkError,
    NotCoordinatorError,
    OutOfOrderSequenceNumberError,
    PurgedError,
    RecordTooLargeError,
    RefusedWithOthersError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    host_port,
    printable,
    shown,
)
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.metadata.snapshot import Cluster, Node
from kafkabuf.network.client import NetworkClient
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import new_waiter, sleep
from kafkabuf.sending._produce import VERSIONS_BY_MAGIC, PartitionResponse, ProduceResponse
from kafkabuf.sending._sender import SenderCore
from kafkabuf.sending.explanation import Explanation
from kafkabuf.sending.unseen_failures import Failures
from kafkabuf.transactions.idempotence import ProducerIdSource, ProducerState
from kafkabuf.transactions.states import State

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

log = producer_log("kafkabuf.producer")

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # of max.message.bytes: message.max.bytes of the broker
MOST_TRIES = 200  # of a step at the Sender's end that finds no memory
PAUSE_BETWEEN_TRIES = 0.01  # seconds
TELL_EVERY = 60.0  # seconds between two warnings of failures that the user has not seen
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
    NotCoordinatorError,
    OutOfOrderSequenceNumberError,
)


class Sender(SenderCore):
    """Moves batches from the accumulator to the brokers (Kafka's Sender).

    One thread calls `run`, or a test calls `run_once`. Any thread may call the other public methods.
    """

    _accumulator: RecordAccumulator
    _producer_state: ProducerState | None

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        metadata: Metadata,
        client: NetworkClient,
        clock: Clock,
    ) -> None:
        super().__init__(config, accumulator, metadata, client, clock)
        self._config = config
        self._forced = False
        self._broken: str | None = None  # what ended the thread before its time
        self._warned = False
        self._logged_failure = ""  # the last error with which all buffered records failed
        self.failures = Failures()
        accumulator.on_failed = self._count_failed
        self._abort_deadline = float("inf")  # while closing: the Sender then no longer waits for the transaction's end
        if config.transactional_id is not None:
            # Late: most producers have no transactions, and the Sender is made when a producer opens.
            from kafkabuf.transactions.manager import TransactionManager

            self._transactions = TransactionManager(config, accumulator, client, clock)
            self._seen_state = self._transactions.state  # after the last _run_transactions
        elif self._producer_state is not None:
            backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
            self._producer_ids = ProducerIdSource(self._producer_state, client, clock, backoff, self._fail_everything)
        accumulator.pool.on_why = Explanation(accumulator, metadata, client)
        metadata.listeners.append(self._on_cluster)
        metadata.topics_in_use = self._topics_in_use

    # ---- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run turns until `close`, and then until every batch has an outcome or a forced close fails the rest."""
        try:
            while self.step():
                pass
        except BaseException as error:
            self._accumulator.closed_because = self._broken = _ended_by(error)
            log.critical("%s", self._accumulator.closed_because)
            raise
        finally:
            try:
                self._end()
            except BaseException:  # another thread threw it in between two steps
                self._end()
                raise

    def _is_finished(self) -> bool:
        """While the producer closes: whether nothing is left to do."""
        return self._forced or not (self._has_unfinished_work() or self._pushes_metrics())

    def _wait_while_closing(self, now: float) -> float:
        """Seconds that the poll may last while the producer closes. 0: this turn may be the last.

        The event that ends the last batch need not come from the network, and nothing would wake the poll then.
        """
        if self._is_finished():
            return 0.0
        if self._transactions is None:
            return float("inf")
        # The turn changed the transaction's state after _run_transactions: the new state needs that step again at once.
        stale = self._transactions.state is not self._seen_state
        return 0.0 if stale else max(self._abort_deadline - now, 0.0)

    def _has_unfinished_work(self) -> bool:
        """While the producer closes: whether batches lack an outcome, or the transaction has yet to end."""
        if self._accumulator.incomplete:
            return True
        if self._transactions is None:
            return False
        self._transactions.abort_on_close()
        may_end = self._clock.monotonic() < self._abort_deadline and not self._transactions.abort_is_hopeless
        return may_end and self._transactions.has_ongoing_transaction

    def _pushes_metrics(self) -> bool:
        """While the producer closes, with all other work done: whether the last push of metrics is under way."""
        telemetry = self._client.telemetry
        return telemetry is not None and telemetry.finish(self._clock.monotonic())

    def _pause_after(self, error: Exception) -> None:
        """A turn has failed: log the error, and wait. A turn that fails at once each time must not use a whole core."""
        if self._disowned:
            return
        log.error("the Sender's turn failed; the Sender goes on with the next turn", exc_info=error)
        self._clock.wait(new_waiter(), self._config.retry_backoff_ms / 1000)

    def purge(self, *, in_flight: bool) -> None:
        """Any thread: fail the batches that were not sent, and with `in_flight` all batches, in the next turn.

        Records that are sent after this call go into other batches.
        """
        accumulator = self._accumulator
        accumulator.close_open_batches()
        self._purges.append(
            (accumulator.incomplete_batches() if in_flight else accumulator.waiting_batches(), in_flight)
        )
        self._client.wakeup()

    def _purge(self) -> None:
        while self._purges:
            batches, in_flight = self._purges[0]
            for batch in batches:
                if in_flight or (batch.base_sequence < 0 and self._accumulator.holds(batch)):
                    self._accumulator.give_up(batch, PurgedError("the record was purged"))
            self._purges.popleft()  # last: without memory the next turn goes on

    def _end(self) -> None:
        if self._disowned:
            return
        if self._warned:
            self._tell_failures()
        # Another thread may have thrown an exception into a step, which then has ended halfway: each record needs an
        # outcome all the same. So each step may be taken twice.
        if not self._take_last_steps():
            self._take_last_steps()
        if not self._warned:
            self._tell_failures()

    def _take_last_steps(self) -> bool:
        """Whether no step failed."""
        failures = 0
        for step in _LAST_STEPS:
            if not self._take_last_step(step):
                failures += 1
        return not failures

    def _take_last_step(self, step: Callable[[Sender], object]) -> bool:
        """Whether the step succeeded. Nobody else takes it: so it is repeated for some time if it finds no memory."""
        tries = 0
        while tries < MOST_TRIES:
            tries += 1
            try:
                step(self)
                return True
            except MemoryError:
                log.error("there is no memory for a step of the Sender's end; the Sender tries it again")
            except BaseException:
                log.exception("a step of the Sender's end failed; the Sender goes on with the next step")
                return False
            try:
                sleep(PAUSE_BETWEEN_TRIES)
            except MemoryError:
                pass
        return False

    def _close_metadata(self) -> None:
        self._metadata.close(self._accumulator.closed_because)

    def _end_requests(self) -> None:
        self.end_requests(self._client.close())

    def _release_scratch(self) -> None:
        self._accumulator.release_scratch()

    def _close_accumulator(self) -> None:
        self._accumulator.close()

    def _end_transactions(self) -> None:
        if self._transactions is not None:
            if self._transactions.has_ongoing_transaction and not self._forced:
                self._transactions.warn_of_open_transaction()
            self._transactions.close(ClosedError(self._accumulator.closed_because or "the producer was closed"))

    def _fail_rest(self) -> None:
        self._accumulator.abort(None if self._broken is None else ClosedError(self._broken))

    def close(self, *, force: bool = False, warned: bool = False) -> None:
        """Send the queued batches, or with `force` fail them. `run` returns after that.

        `warned`: the user has been warned of the records that have no outcome now.
        """
        if not self.closing:
            # A coordinator that cannot be reached must not hold up close() for ever.
            self._abort_deadline = self._clock.monotonic() + self._config.delivery_timeout_ms / 1000
        self._warned = self._warned or warned
        self._forced = self._forced or force
        self.closing = True
        self._client.wakeup()

    @property
    def _disowned(self) -> bool:
        """Whether this process is a forked child. The parent's Sender then does the remaining work."""
        return self._accumulator.pool.disowned

    @property
    def record_errors(self) -> int:
        return int(self.stats.errors.total)

    @property
    def record_retries(self) -> int:
        return int(self.stats.retries.total)

    @property
    def batch_splits(self) -> int:
        return int(self.stats.splits.total)

    # ---- the rare steps of a turn ------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        expired = self._accumulator.expire(now)
        if expired:
            log.info("%d batch(es) expired; the first: %s", len(expired), expired[0].error)

    def _update_producer_state(self, now: float) -> float:
        """Get a producer id, resolve the sequences in doubt. Returns the seconds until the next call is due."""
        state = self._producer_state
        assert state is not None
        state.update()
        if state.fatal_error is not None and self._accumulator.incomplete:
            self._fail_everything(state.fatal_error)
        if state.has_producer_id or state.fatal_error is not None:
            return float("inf")
        return self._producer_ids.run(now, urgent=bool(self._accumulator.incomplete))

    def _run_transactions(self, now: float) -> float:
        """Send the next request of a transaction, in every turn. Returns the seconds until the next call is due."""
        transactions = self._transactions
        assert transactions is not None
        if transactions.must_drop_unsent and self._accumulator.active:
            self._accumulator.drop_unsent(transactions.reason_to_drop())
        elif transactions.state is State.FATAL_ERROR and self._accumulator.incomplete:
            self._fail_everything(transactions.failure())
        lowest, highest = VERSIONS_BY_MAGIC[2]
        self.produce_versions = (lowest, min(highest, transactions.newest_produce_version))
        wait = transactions.run(now, has_incomplete=bool(self._accumulator.incomplete))
        self._seen_state = transactions.state
        return wait

    def _fail_everything(self, error: KafkaError) -> None:
        # The same error is logged as an error once only: all later records fail with it too.
        level = logging.DEBUG if str(error) == self._logged_failure else logging.ERROR
        self._logged_failure = str(error)
        log.log(level, "all buffered records fail: %s", error)
        self._accumulator.abort(error)

    def _fail_unauthenticated(self, queues: list[PartitionQueue], error: AuthenticationError) -> None:
        """Fail the batches that wait for a node that refuses the client, or whose certificate the client refuses."""
        for queue in queues:
            self._fail_waiting(queue, error)

    def _fail_waiting(self, queue: PartitionQueue, error: KafkaError) -> None:
        for batch in self._accumulator.waiting_batches(queue):
            if not batch.claimed:  # the claimant of a claimed batch wakes the Sender, which then comes here again
                self._accumulator.give_up(batch.whole or batch, error)

    def _ask_for_leaders(self, topics: set[str]) -> None:
        """Request metadata of topics whose batches have no leader, unless every broker refuses the client."""
        refusal = self._refusal()
        for name in topics:
            topic = self._accumulator.topics[name]
            self._fail_gone(topic)
            if refusal is not None:
                self._fail_unauthenticated([queue for queue in topic.queues if queue.leader < 0], refusal)
            self._metadata.add_topic(name)
        self._metadata.request_update()

    def _refusal(self) -> AuthenticationError | None:
        """The error of a client that every known broker refuses and none has accepted: no broker will name a leader."""
        try:
            self._client.connection_error()
        except AuthenticationError as error:
            return error
        return None

    def _fail_gone(self, topic: TopicQueues) -> None:
        """Fail the batches of partitions that are gone: the topic was deleted and made again with fewer partitions.

        These batches cannot go to another partition: the key or the caller chose their partition, and the
        broker may have written some of them.
        """
        for queue in topic.queues[topic.partitions :]:
            if queue.batches:
                error = UnknownTopicOrPartitionError(
                    f"partition {queue.partition} of topic {topic.name!r} is gone: the topic was deleted and made "
                    f"again with {topic.partitions} partition(s)"
                )
                self._fail_waiting(queue, error)

    def _topics_in_use(self) -> list[str]:
        """Topics with records that wait or are in flight, the oldest first: metadata keeps them up to date."""
        return list(dict.fromkeys(batch.topic for batch in self._accumulator.incomplete_batches()))

    def _fail_unsupported(self, batches: list[Batch], error: UnsupportedVersionError) -> None:
        magic = self._accumulator.magic
        other = "set record.magic to 2 (or auto)" if magic == 1 else "set record.magic to 1 for brokers this old"
        text = f"the broker takes no records of magic {magic}: {other} ({error})"
        for batch in batches:
            self._fail(batch, UnsupportedVersionError(text))

    def _retry_or_fail_all(self, batches: list[Batch], error: KafkaError) -> None:
        for batch in batches:
            self._retry_or_fail(batch, error)

    def _retry_or_fail(self, batch: Batch, error: KafkaError, response: PartitionResponse | None = None) -> None:
        """The request failed, or `response` reports an error of the batch."""
        queue = self._accumulator.queue_of(batch)
        queue.proven = False
        queue.last_error = error
        if batch.done:  # expired while in flight
            return
        if error.invalid_metadata:
            self._metadata.request_update()
        if isinstance(error, RecordTooLargeError) and batch.count > 1 and not self._forced:
            self._split_or_fail(batch, error)
            return
        if self._producer_state is not None and isinstance(error, ClusterAuthorizationError):
            self._producer_state.fail(error)
        if not self._can_retry(queue, batch, error, response):
            self._fail(batch, self._explained(queue, batch, error), response, refused=response is not None)
            return
        if batch.attempts >= self._config.retries or self._forced:
            self._fail(batch, error, response)
            return
        self.stats.retried(batch.topic, batch.count, self._clock.monotonic())
        log.debug("%r is sent again: %s", batch, error)
        is_certain = response is not None and isinstance(error, _BEFORE_THE_APPEND)
        batch.doubtful = batch.doubtful or not is_certain
        soon = False
        if self._transactions is not None and isinstance(error, _COORDINATOR_ERRORS):
            self._transactions.doubt_coordinator()
            # The leader responded, so it works: it finds the new coordinator soon, and the whole transaction waits.
            soon = response is not None
        self._accumulator.requeue(batch, self._clock.monotonic(), soon=soon)
        if is_certain and batch.renumbered:
            batch.retry_at = 0.0  # the broker refused the old numbers, which says nothing about the new numbers

    def _can_retry(
        self, queue: PartitionQueue, batch: Batch, error: KafkaError, response: PartitionResponse | None
    ) -> bool:
        if self._producer_state is None:
            return error.retriable
        log_start_offset = -1 if response is None else response.log_start_offset
        return self._producer_state.can_retry(queue, batch, error, log_start_offset)

    def _explained(self, queue: PartitionQueue, batch: Batch, error: KafkaError) -> KafkaError:
        """The error of a batch that is not retried."""
        state = self._producer_state
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
        if isinstance(error, InvalidProducerEpochError) and self.transactional_id is not None:
            return InvalidProducerEpochError(
                f"{error}. Either a newer producer has the transactional id {self.transactional_id.decode()}, or the "
                "coordinator has aborted the transaction after transaction.timeout.ms"
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

    def _split_or_fail(self, batch: Batch, error: RecordTooLargeError) -> None:
        """Send a batch that was refused as too large again, in two parts. `retries` does not limit this."""
        try:
            log.debug("%r is split: %s", batch, error)
            split(self._accumulator, batch)
            self.stats.splits.add(1, self._clock.monotonic())
        except Exception:
            log.exception("%r could not be split; its records fail", batch)
            self._accumulator.give_up(batch.whole or batch, error)

    def _go_again(self, batches: list[Batch], error: BaseException, sent: bool) -> None:
        """After an error within the Sender, put the batches back that have neither an outcome nor a place in a queue.

        `sent`: a broker may have them, as after a lost connection.
        """
        for batch in batches:
            if batch.done or self._accumulator.holds(batch):
                continue
            try:
                if sent:
                    unknown = f"it is unknown whether a broker has the batch: {shown(error)}"
                    self._retry_or_fail(batch, NetworkError(unknown))
                else:
                    self._accumulator.requeue(batch, self._clock.monotonic())
            except MemoryError:
                raise  # the next turn tries again
            except Exception as failure:
                log.exception("%r cannot be retried; its records fail", batch)
                self._accumulator.fail(batch, KafkaError(f"an error within the producer: {shown(failure)}"))

    def _fail(
        self, batch: Batch, error: KafkaError, response: PartitionResponse | None = None, *, refused: bool = False
    ) -> None:
        """`refused`: it is certain that the broker did not append the batch in this attempt."""
        # A place outside of the batch would name no record, and no record would be at fault.
        named = response.record_errors or () if response is not None else ()
        invalid_records = [(place, text) for place, text in named if 0 <= place < batch.count]
        record_errors, error_of_others = _errors_of_records(error, invalid_records) if invalid_records else (None, None)
        self._accumulator.fail(batch, error, record_errors, error_of_others, refused)

    def _count_failed(self, batch: Batch, refused: bool) -> None:
        """The accumulator's `on_failed`."""
        if self._producer_state is not None:
            queue = self._accumulator.queue_of(batch)
            self._producer_state.handle_failed_batch(queue, batch, refused=refused)
        try:
            self._note_failed(batch)
        except MemoryError:
            pass  # metrics and the log lack a failure, but the batch is counted: the call is not to be made again

    def _note_failed(self, batch: Batch) -> None:
        now = self._clock.monotonic()
        self.stats.failed(batch.topic, batch.count, now)
        # commit_transaction() raises for a failure in a transaction, and the user knows of a purge.
        if self._transactions is None and not isinstance(batch.error, PurgedError) and self.failures.add(batch):
            self.tell_at = min(self.tell_at, now + TELL_EVERY)

    def _tell_failures(self) -> None:
        self.failures.tell()

    def _on_leaders(self, leaders: dict[tuple[str, int], tuple[int, int]], response: ProduceResponse) -> None:
        """The broker no longer leads these partitions and names the new leaders (KIP-951)."""
        self._metadata.update_leaders(leaders, [Node(node_id, *where) for node_id, where in response.nodes.items()])

    def _on_cluster(self, cluster: Cluster) -> None:
        """Thread: Sender. Add queues for new partitions, and give every queue its present leader.

        A topic that metadata has forgotten loses its leaders: the next record to it requests metadata at once. A topic
        that the cluster says does not exist keeps its leaders until it exists again or its records expire.
        """
        for name in list(self._accumulator.topics):  # a copy: send() adds topics during this loop
            info = cluster.topics.get(name)
            if info is None:
                self._accumulator.forget_leaders(self._accumulator.topics[name])
            elif info.partitions:
                self._accumulator.topic_queues(name, info.leaders, info.leader_epochs, info.topic_id)


# The steps of a Sender's end. Each may be repeated. They stand here since there may be no memory at the end.
_LAST_STEPS: tuple[Callable[[Sender], object], ...] = (
    Sender._close_accumulator,
    Sender._close_metadata,
    Sender._end_transactions,  # before the batches fail with ClosedErrors: the transaction must not count these
    Sender._fail_rest,
    Sender._end_requests,
    Sender._release_scratch,
)


def _ended_by(error: BaseException) -> str:
    """What the user's later calls say after the end of the Sender's thread."""
    return f"the producer's thread was ended by {shown(error)}: create a new producer"


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
