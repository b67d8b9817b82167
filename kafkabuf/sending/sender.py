"""The Sender: its life, and what it does when something went wrong. The turn itself is in _sender.pyx."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.batches._accumulator import PartitionQueue, TopicQueues
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._split import split
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import (
    AuthenticationError,
    ClosedError,
    ClusterAuthorizationError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidRecordError,
    KafkaError,
    NetworkError,
    NotCoordinatorError,
    OutOfOrderSequenceNumberError,
    PurgedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    printable,
)
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.metadata.snapshot import Cluster, Node
from kafkabuf.network.client import NetworkClient
from kafkabuf.sending._produce import VERSIONS_BY_MAGIC, PartitionAnswer, ProduceAnswer
from kafkabuf.sending._sender import SenderCore
from kafkabuf.sending.explanation import Explanation
from kafkabuf.sending.failures import Failures
from kafkabuf.transactions.idempotence import ProducerIdSource, ProducerState
from kafkabuf.transactions.manager import TransactionManager
from kafkabuf.transactions.states import State

log = logging.getLogger("kafkabuf.producer")

TELL_EVERY = 60.0  # seconds between two warnings of failures that nobody has looked at
# What a leader answers that cannot have a transaction verified by its coordinator (with NETWORK_EXCEPTION it speaks of
# the coordinator's connection), or not at all while it waits for that one.
_OF_THE_COORDINATOR = (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NetworkError,
    NotCoordinatorError,
)


class Sender(SenderCore):
    """Moves batches from the accumulator to the brokers (Kafka's Sender).

    One thread calls `run`, or a test calls `run_once`; all else may be called by any thread.
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
        self._warned = False
        self._said = ""  # the error that all which was buffered failed with last
        self.failures = Failures()
        accumulator.on_failed = self._count_failed
        self._patient_until = float("inf")
        self._purging: bool | None = None  # what is in flight too, where a purge has been asked for
        if config.transactional_id is not None:
            self._transactions = TransactionManager(config, accumulator, client, clock)
            self._seen_state = self._transactions.state  # as this turn's steps for transactions left it
        elif self._producer_state is not None:
            backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
            self._producer_ids = ProducerIdSource(self._producer_state, client, clock, backoff, self._fail_everything)
        accumulator.pool.on_why = Explanation(accumulator, metadata, client)
        metadata.listeners.append(self._on_cluster)
        metadata.topics_in_use = self._topics_in_use

    # ---- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until closed; then until everything has an outcome, or a forced close fails what is left."""
        try:
            while self.step():
                pass
        finally:
            self._end()

    def step(self) -> bool:
        """One turn; False, and none, where there is nothing left to do."""
        if self._disowned:
            return False
        if self.closing and (self._forced or not self._has_unfinished_work()):
            return False
        self._turn_or_log()
        return True

    def _wait_while_closing(self, now: float) -> float:
        """How long a poll may last, as far as `run` is concerned: 0 where it would find that this turn was the last."""
        if self._forced or not self._has_unfinished_work():
            return 0.0
        if self._transactions is None:
            return float("inf")
        # A state that this turn's end has brought about asks for steps that come earlier in a turn.
        stale = self._transactions.state is not self._seen_state
        return 0.0 if stale else max(self._patient_until - now, 0.0)

    def _has_unfinished_work(self) -> bool:
        """While closing: batches without an outcome, and then a transaction that must be ended."""
        if self._accumulator.incomplete:
            return True
        if self._transactions is None:
            return False
        self._transactions.abort_on_close()
        patient = self._clock.monotonic() < self._patient_until and not self._transactions.abort_is_hopeless
        return patient and self._transactions.has_ongoing_transaction

    def _turn_or_log(self) -> None:
        try:
            if self._purging is not None:
                self._purge()
            self.run_once()
        except Exception:
            if self._disowned:
                return
            log.exception("the Sender's turn failed; the next one goes on")
            # A turn that fails at once must not spin.
            pause = threading.Lock()
            pause.acquire()
            self._clock.wait(pause, self._config.retry_backoff_ms / 1000)

    def purge(self, *, in_flight: bool) -> None:
        """Any thread: fail what waits, and with `in_flight` what was sent, in the next turn."""
        self._purging = bool(self._purging) or in_flight
        self._client.wakeup()

    def _purge(self) -> None:
        in_flight, self._purging = self._purging, None
        purged = self._accumulator.abort if in_flight else self._accumulator.drop_unsent
        purged(PurgedError("the record was purged"))

    def _end(self) -> None:
        if self._disowned:
            return
        if self._warned:
            self._tell_failures()
        steps: list[Callable[[], object]] = [
            self._accumulator.close,
            self._metadata.close,
            self._end_transactions,  # before the answers that will not come: these are no news
            self._accumulator.abort,
            lambda: self.end_requests(self._client.close()),
            self._accumulator.release_scratch,
        ]
        for step in steps:
            try:
                step()
            except Exception:
                log.exception("the Sender's end failed in a part; it goes on with the others")
        if not self._warned:
            self._tell_failures()

    def _end_transactions(self) -> None:
        if self._transactions is not None:
            if self._transactions.has_ongoing_transaction and not self._forced:
                self._transactions.say_what_is_left()
            self._transactions.close(ClosedError("the producer was closed"))

    def close(self, *, force: bool = False, warned: bool = False) -> None:
        """Finish what is queued, or with `force` fail it; `run` returns after that.

        `warned`: the user has been warned of the records that have no outcome now.
        """
        if not self.closing:
            # A coordinator that cannot be reached must not keep a close() for ever.
            self._patient_until = self._clock.monotonic() + self._config.delivery_timeout_ms / 1000
        self._warned = self._warned or warned
        self._forced = self._forced or force
        self.closing = True
        self._client.wakeup()

    @property
    def _disowned(self) -> bool:
        """This is a forked child, and what is left to do is the parent's."""
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

    # ---- what a turn finds amiss -------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        expired = self._accumulator.expire(now)
        if expired:
            log.info("%d batch(es) expired; the first: %s", len(expired), expired[0].error)

    def _update_producer_state(self, now: float) -> float:
        """Before draining, where the producer's id or its sequences need it; seconds until that is due again."""
        state = self._producer_state
        assert state is not None
        state.update()
        if state.fatal_error is not None and self._accumulator.incomplete:
            self._fail_everything(state.fatal_error)
        if state.has_producer_id or state.fatal_error is not None:
            return float("inf")
        return self._producer_ids.run(now, urgent=bool(self._accumulator.incomplete))

    def _run_transactions(self, now: float) -> float:
        """In every turn of a transactional producer; seconds until the next is due for its sake."""
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
        # Once: what is sent after it fails of the same.
        level = logging.DEBUG if str(error) == self._said else logging.ERROR
        self._said = str(error)
        log.log(level, "what is buffered fails: %s", error)
        self._accumulator.abort(error)

    def _fail_unauthenticated(self, queues: list[PartitionQueue], error: AuthenticationError) -> None:
        """What waits for a node that will not have us, or that we will not have, would wait in vain."""
        for queue in queues:
            self._fail_waiting(queue, error)

    def _fail_waiting(self, queue: PartitionQueue, error: KafkaError) -> None:
        for batch in list(queue.batches):
            if not batch.claimed:  # its claimant wakes the Sender, which is then asked again
                self._accumulator.give_up(batch.whole or batch, error)

    def _ask_for_leaders(self, topics: set[str]) -> None:
        """Of topics whose records have nowhere to go."""
        for name in topics:
            self._fail_gone(self._accumulator.topics[name])
            self._metadata.add_topic(name)
        self._metadata.request_update()

    def _fail_gone(self, topic: TopicQueues) -> None:
        """A topic that was made again with fewer partitions: what waits for one that is gone would wait in vain.

        It cannot go elsewhere: its key, or the caller, chose that partition, and a part of it may have been written.
        """
        for queue in topic.queues[topic.partitions :]:
            if queue.batches:
                error = UnknownTopicOrPartitionError(
                    f"partition {queue.partition} of topic {topic.name!r} is gone: the topic was deleted and made "
                    f"again with {topic.partitions} partition(s)"
                )
                self._fail_waiting(queue, error)

    def _topics_in_use(self) -> list[str]:
        """Those with records that wait or are in flight, for metadata to keep up to date; the oldest first."""
        return list(dict.fromkeys(batch.topic for batch in list(self._accumulator.incomplete)))

    def _fail_unsupported(self, batches: list[Batch], error: UnsupportedVersionError) -> None:
        magic = self._accumulator.magic
        other = "set record.magic to 2 (or auto)" if magic == 1 else "set record.magic to 1 for brokers this old"
        text = f"the broker takes no records of magic {magic}: {other} ({error})"
        for batch in batches:
            self._fail(batch, UnsupportedVersionError(text))

    def _retry_or_fail_all(self, batches: list[Batch], error: KafkaError) -> None:
        for batch in batches:
            self._retry_or_fail(batch, error)

    def _retry_or_fail(self, batch: Batch, error: KafkaError, answer: PartitionAnswer | None = None) -> None:
        """A request failed, or `answer` says that the batch did."""
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
        if not self._can_retry(queue, batch, error, answer):
            self._fail(batch, self._explained(queue, batch, error), answer, refused=answer is not None)
            return
        if batch.attempts >= self._config.retries or self._forced:
            self._fail(batch, error, answer)
            return
        self.stats.retried(batch.topic, batch.count, self._clock.monotonic())
        log.debug("%r is sent again: %s", batch, error)
        soon = False
        if self._transactions is not None and isinstance(error, _OF_THE_COORDINATOR):
            self._transactions.doubt_coordinator()
            # A leader that says so works: a whole transaction waits for it to find the next coordinator.
            soon = answer is not None
        self._accumulator.requeue(batch, self._clock.monotonic(), soon=soon)

    def _can_retry(
        self, queue: PartitionQueue, batch: Batch, error: KafkaError, answer: PartitionAnswer | None
    ) -> bool:
        if self._producer_state is None:
            return error.retriable
        log_start_offset = -1 if answer is None else answer.log_start_offset
        return self._producer_state.can_retry(queue, batch, error, log_start_offset)

    def _explained(self, queue: PartitionQueue, batch: Batch, error: KafkaError) -> KafkaError:
        """What a batch that does not go again fails with."""
        state = self._producer_state
        if not isinstance(error, OutOfOrderSequenceNumberError) or not (state and state.was_overtaken(queue, batch)):
            return error
        return OutOfOrderSequenceNumberError(
            f"{batch.topic}-{batch.partition} took records that were sent after this one while it was refused, as it "
            "may when the topic is deleted and made again: sent once more it would come after them, out of order"
        )

    def _split_or_fail(self, batch: Batch, error: RecordTooLargeError) -> None:
        """A refusal for the size says nothing of the records: they go again in parts, whatever `retries` is."""
        try:
            log.debug("%r is split: %s", batch, error)
            split(self._accumulator, batch)
            self.stats.splits.add(1, self._clock.monotonic())
        except Exception:
            log.exception("%r could not be split; its records fail", batch)
            self._accumulator.give_up(batch.whole or batch, error)

    def _go_again(self, batches: list[Batch], error: BaseException, sent: bool) -> None:
        """Something raised that should not: what has neither an outcome nor a place in a queue goes again.

        `sent`: a broker may have it, as after a lost connection.
        """
        for batch in batches:
            if batch.done or self._accumulator.holds(batch):
                continue
            try:
                if sent:
                    self._retry_or_fail(batch, NetworkError(f"what became of the request is not known: {error!r}"))
                else:
                    self._accumulator.requeue(batch, self._clock.monotonic())
            except Exception as failure:
                log.exception("%r cannot go again; its records fail", batch)
                self._accumulator.fail(batch, KafkaError(f"an error within the producer: {failure!r}"))

    def _fail(
        self, batch: Batch, error: KafkaError, answer: PartitionAnswer | None = None, *, refused: bool = False
    ) -> None:
        """`refused`: it is certain that the broker does not have what this attempt sent."""
        found = answer.record_errors if answer is not None else ()
        own, error_of_others = _errors_of_records(error, found) if found else (None, None)
        self._accumulator.fail(batch, error, own, error_of_others, refused)

    def _count_failed(self, batch: Batch, refused: bool) -> None:
        """The accumulator's `on_failed`."""
        if self._producer_state is not None:
            queue = self._accumulator.queue_of(batch)
            self._producer_state.handle_failed_batch(queue, batch, refused=refused)
        now = self._clock.monotonic()
        self.stats.failed(batch.topic, batch.count, now)
        # Of a transaction commit_transaction() tells, and who purges knows.
        if self._transactions is None and not isinstance(batch.error, PurgedError) and self.failures.add(batch):
            self.tell_at = min(self.tell_at, now + TELL_EVERY)

    def _tell_failures(self) -> None:
        self.failures.tell()

    def _on_leaders(self, leaders: dict[tuple[str, int], tuple[int, int]], answer: ProduceAnswer) -> None:
        """The broker leads no more and says who does: its batches go there at once (KIP-951)."""
        self._metadata.update_leaders(leaders, [Node(node_id, *where) for node_id, where in answer.nodes.items()])

    def _on_cluster(self, cluster: Cluster) -> None:
        """Thread: Sender. New partitions get queues, and every queue its leader of now.

        A topic that metadata has forgotten has none: what is sent to it next has it asked for at once. One that is
        said not to exist keeps those it had, until it is there again or its records expire.
        """
        for name in list(self._accumulator.topics):  # a copy: send() adds to it
            info = cluster.topics.get(name)
            if info is None:
                self._accumulator.topics[name].forget_leaders()
            elif info.partitions:
                self._accumulator.topic_queues(name, info.leaders, info.leader_epochs, info.topic_id)


def _errors_of_records(
    error: KafkaError, found: Sequence[tuple[int, str | None]]
) -> tuple[dict[int, KafkaError], KafkaError]:
    """What the records at fault fail with, by place in the batch, and what the others do (KIP-467)."""
    # The code is the batch's: where several records are at fault it need not be that of each.
    kind = type(error) if len(found) == 1 else InvalidRecordError
    own = {place: kind(printable(text) if text else str(error)) for place, text in found}
    return own, KafkaError(f"the record was in a batch of which the broker refused {len(own)}: {error}")
