"""The idempotent producer's state: its id and epoch, and the partitions whose sequence broke.

Kafka's TransactionManager as far as it concerns producers without transactions (KIP-98, KIP-360). The numbering of
batches is in _sequences.pyx, its rules in _sequences.pxd. What a failed batch does to the state: sending/recovery.py.

When numbers were lost, or when the broker says that numbers are missing, a new epoch counts from 0. Only the first
batch of a partition that has no outcome may ask for a new epoch. To the broker a batch under new numbers is a new
batch: no batch may get new numbers that the broker might have.

Only the Sender's thread runs this code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.batches._accumulator import PartitionQueue
from kafkabuf.batches._batch import Batch
from kafkabuf.batches._sequences import SequenceCore
from kafkabuf.clock import Clock
from kafkabuf.errors import (
    ClosedError,
    ClusterAuthorizationError,
    CorruptMessageError,
    KafkaError,
    UnsupportedVersionError,
    error_for_code,
)
from kafkabuf.network._request import Completion
from kafkabuf.network.client import NetworkClient
from kafkabuf.process.producer_log import producer_log
from kafkabuf.protocol import messages

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

log = producer_log("kafkabuf.producer")

LARGEST_EPOCH = 2**15 - 1
INIT_PRODUCER_ID_VERSIONS = range(6)
NO_TRANSACTION_TIMEOUT = 2**31 - 1


class ProducerState(SequenceCore):
    """Producer id and epoch of one producer, and the partitions whose sequence numbers are in doubt."""

    def __init__(self, *, transactional: bool = False) -> None:
        super().__init__(transactional=transactional)
        self._unresolved: set[PartitionQueue] = set()  # numbers were lost, and later batches have no outcome yet
        self._to_restart: set[PartitionQueue] = set()  # these will count from 0 under a new epoch
        self.fatal_error: KafkaError | None = None  # the reason why the producer can never send again
        # With a file: called with each new id, before anything goes under it. The producer then raises no epoch, but
        # takes a new id: the next epoch belongs to recovered batches (_sequences.pxd).
        self.on_new_id: Callable[[], object] | None = None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def has_unresolved_sequences(self) -> bool:
        return bool(self._unresolved)

    def set_producer_id_and_epoch(self, producer_id: int, producer_epoch: int) -> None:
        super().set_producer_id_and_epoch(producer_id, producer_epoch)
        self.needs_update = True
        if self.on_new_id is not None:
            self.on_new_id()

    # ---- after a batch failed or was refused (sending/recovery.py) ---------------------------------------------------

    def fail(self, error: KafkaError) -> None:
        """The producer can send nothing more."""
        self.fatal_error = self.fatal_error or error
        self.set_producer_id_and_epoch(-1, -1)

    def request_idempotent_epoch_bump_for_partition(self, queue: PartitionQueue) -> None:
        """From the next turn on, number this partition's batches from 0 under a new epoch."""
        self._to_restart.add(queue)
        self.needs_update = True

    def lose_numbers(self, queue: PartitionQueue) -> None:
        """Numbers are used, and perhaps unknown to the broker: resolve them once every batch has an outcome."""
        self._unresolved.add(queue)
        self.needs_update = True

    # ---- before a drain, if needs_update is set ----------------------------------------------------------------------

    def update(self) -> None:
        """Resolve the partitions whose numbers were lost, and begin a new epoch if a partition needs one."""
        self._resolve_sequences()
        self._bump_epoch()
        if self.has_producer_id:
            for queue in self._to_restart:
                self.start_sequences_at_beginning(queue)
                self._unresolved.discard(queue)
            self._to_restart.clear()
        self.needs_update = not self.has_producer_id or bool(self._unresolved)

    def _resolve_sequences(self) -> None:
        for queue in [queue for queue in self._unresolved if not queue.in_sequence]:
            if self.no_gap(queue):  # the broker acknowledged a later batch, so it had the lost batches too
                self.resolved(queue)
            else:
                self._to_restart.add(queue)
            self._unresolved.discard(queue)  # last: without memory the next turn tries again

    def _bump_epoch(self) -> None:
        # A partition with an older epoch has not used the present epoch: it can count from 0 under the present epoch.
        if not self.has_producer_id or all(self.is_stale(queue) for queue in self._to_restart):
            return
        if self.producer_epoch < LARGEST_EPOCH and self.on_new_id is None:
            self.set_producer_id_and_epoch(self.producer_id, self.producer_epoch + 1)
        else:
            self.set_producer_id_and_epoch(-1, -1)
        names = ", ".join(f"{queue.topic}-{queue.partition}" for queue in self._to_restart)
        log.info("the sequence of %s broke; the producer goes on with %r", names, self)

    def __repr__(self) -> str:
        return f"ProducerState(id {self.producer_id}, epoch {self.producer_epoch})"


class TransactionalState(ProducerState):
    """The state of a producer with transactions.

    A partition whose numbers are in doubt fails the transaction. TransactionManager then gets a new epoch from the
    coordinator, and under the new epoch every partition counts from 0.

    With `outlives_refusals` the transaction goes on after a batch that the broker refused because of its records: these
    records fail, and the batches behind take over their numbers in the same epoch (Kafka's
    adjustSequencesDueToFailedBatch). No record may come twice by that. The danger is a request that the producer no
    longer knows of and the broker carries out late: a batch that goes under new numbers would be another batch to the
    broker. Hence:

    - The refused batch must have had no attempt before whose outcome is unknown (`Batch.doubtful`). Else the broker may
      have the batch, and its numbers are used. Which place the batch has in the sequence does not matter: a batch
      before it keeps its numbers, and gets its outcome under them.
    - The batches behind the gap that are in flight come back with OUT_OF_ORDER_SEQUENCE. A leader takes a first batch
      with any number only if it does not know the producer, and such a leader gets one batch alone
      (`PartitionQueue.proven`). A leader that took a later batch all the same, because the topic was made again, has
      closed the gap: its acknowledgement sets `last_acked` behind the freed numbers.
    - No batch gets new numbers while a request for the partition is in flight, so that no request with old numbers is
      left. A batch behind the gap whose request had an unknown outcome keeps its number, and is refused for it when it
      goes again: then the transaction must be aborted.
    """

    def __init__(self) -> None:
        super().__init__(transactional=True)
        self.needs_update = False
        self.outlives_refusals = False
        self._with_gaps: set[PartitionQueue] = set()  # a refused batch has freed its numbers, and close_gaps is due

    def set_producer_id_and_epoch(self, producer_id: int, producer_epoch: int) -> None:
        self.update()  # a producer that joins its transaction again goes on counting
        super().set_producer_id_and_epoch(producer_id, producer_epoch)
        for queue in self._unresolved | self._with_gaps:
            self.start_sequences_at_beginning(queue)
        self._unresolved.clear()
        self._with_gaps.clear()
        self.needs_update = False

    def update(self) -> None:
        """Close the gaps that refused batches have left, where nothing is in flight."""
        for queue in [queue for queue in self._with_gaps if not queue.in_flight]:
            if queue not in self._unresolved:
                self.close_gaps(queue)
                self.resolved(queue)
            self._with_gaps.discard(queue)  # last: without memory the next turn tries again
        self.needs_update = bool(self._with_gaps)

    def lose_numbers(self, queue: PartitionQueue) -> None:
        """Numbers are used, and perhaps unknown to the broker: the next producer id or epoch resolves them."""
        self._unresolved.add(queue)

    def free_numbers(self, queue: PartitionQueue, batch: Batch) -> None:
        """The transaction outlives this refused batch: the batches behind it take over its numbers."""
        self._with_gaps.add(queue)
        self.needs_update = True
        self.release(queue, batch)

    def has_gap(self, queue: PartitionQueue) -> bool:
        """Whether a refused batch has freed its numbers, and the batches behind have yet to take them over."""
        return queue in self._with_gaps

    def fail(self, error: KafkaError) -> None:
        """Do nothing: the batch that fails with the error tells the TransactionManager."""


def producer_state(config: ProducerConfig) -> ProducerState | None:
    """The state with which a producer with these settings numbers its batches; None: its batches have no numbers."""
    if config.transactional_id is not None:
        return TransactionalState()
    return ProducerState() if config.enable_idempotence else None


class ProducerIdSource:
    """Asks brokers for a producer id until a broker gives one (InitProducerId without a transactional id).

    Calls `give_up(error)` when the buffered records must fail, or wait in their file: the user may not write
    idempotently, or no broker can give producer ids.
    """

    def __init__(
        self,
        state: ProducerState,
        client: NetworkClient,
        clock: Clock,
        backoff: ExponentialBackoff,
        give_up: Callable[[KafkaError], None],
    ) -> None:
        self._state = state
        self._client = client
        self._clock = clock
        self._backoff = backoff
        self._give_up = give_up
        self._under_way = False
        self._failures = 0
        self._not_before = 0.0
        # The node that was asked last and gave no id. The next request goes to another node, which may be better
        # connected to the controller.
        self._asked_last: int | None = None

    @property
    def answered(self) -> bool:
        """Whether there is an id, or the newest request for an id has failed."""
        return self._state.has_producer_id or self._failures > 0

    def run(self, now: float, *, urgent: bool) -> float:
        """Ask a broker if that is due. Returns the seconds until the next call is due.

        `urgent`: records wait, so that a new connection is worth its cost.
        """
        if self._under_way or (self._failures and not urgent):
            return float("inf")
        if now < self._not_before:
            return self._not_before - now
        node_id = self._client.least_loaded(connect=urgent, avoid=self._asked_last)
        if node_id is None:
            return self._backoff.delay(0) if urgent else float("inf")
        try:
            version = self._client.api_version(node_id, messages.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSIONS)
        except UnsupportedVersionError as error:
            text = f"enable.idempotence needs brokers of Kafka 0.11 or later: set it to false ({error})"
            self._fail(UnsupportedVersionError(text))
            return float("inf")
        entity = messages.build_request(
            messages.INIT_PRODUCER_ID,
            version,
            transactional_id=None,
            transaction_timeout=NO_TRANSACTION_TIMEOUT,
        )
        self._under_way = True
        self._asked_last = node_id
        try:
            self._client.send_entity(node_id, entity, self._on_completion)
        except BaseException:  # without memory, for instance: the next turn asks again
            self._under_way = False
            raise
        return float("inf")

    def _on_completion(self, completion: Completion) -> None:
        self._under_way = False
        try:
            response = completion.decode()
            code = int(response.error_code)
            if code:
                raise error_for_code(code)
            producer_id, epoch = int(response.producer_id), int(response.producer_epoch)
            if producer_id < 0 or epoch < 0:
                raise CorruptMessageError(f"a broker gave the invalid producer id {producer_id} with epoch {epoch}")
        except KafkaError as error:
            self._on_error(error)
            return
        self._failures = 0
        self._asked_last = None
        self._state.set_producer_id_and_epoch(producer_id, epoch)
        log.debug("the broker gave %r", self._state)

    def _on_error(self, error: KafkaError) -> None:
        if isinstance(error, ClosedError):  # the producer closes: this is no failure
            return
        self._not_before = self._clock.monotonic() + self._backoff.delay(self._failures)
        self._failures += 1
        if error.retriable:
            log.debug("a broker gave no producer id; the producer asks again: %s", error)
        elif isinstance(error, ClusterAuthorizationError):
            # The producer asks again for later records: by then the right may have been given.
            self._give_up(
                ClusterAuthorizationError(
                    f"no right to send idempotently: grant IdempotentWrite, or set enable.idempotence=false ({error})"
                )
            )
        elif isinstance(error, UnsupportedVersionError):
            self._fail(error)
        else:
            # Another broker may give an id, or this broker later: one response must not end the producer for good.
            text = f"there is no producer id, which enable.idempotence needs: InitProducerId was refused: {error}"
            self._give_up(type(error)(text))

    def _fail(self, error: KafkaError) -> None:
        self._state.fail(error)
        self._give_up(error)
