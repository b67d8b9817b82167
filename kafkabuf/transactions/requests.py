"""The requests of a transactional producer. Each class names the coordinator and the fields, and handles the response.

Kafka's TxnRequestHandlers. Any thread makes a request. Only the Sender's thread uses it afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any, Protocol

from kafkabuf.errors import (
    CommitFailedError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    CorruptMessageError,
    FencedInstanceIdError,
    GroupAuthorizationError,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    KafkaError,
    NotCoordinatorError,
    OperationNotAttemptedError,
    ProducerFencedError,
    RequestTimedOutError,
    TopicAuthorizationError,
    TransactionAbortableError,
    UnknownMemberIdError,
    UnknownProducerIdError,
    error_for_code,
)
from kafkabuf.protocol import messages
from kafkabuf.transactions.groups import Coordinator, GroupMetadata, OffsetAndMetadata, TopicPartition, by_topic
from kafkabuf.transactions.idempotence import TransactionalState
from kafkabuf.transactions.result import Result

# The first AddPartitionsToTxn of a transaction may come while the coordinator still writes the control records of the
# previous transaction, for some milliseconds. These are the first and the longest back-off, in seconds. Java waits for
# the longest at once.
CONCURRENT_TRANSACTIONS_BACKOFF = 0.002
CONCURRENT_TRANSACTIONS_BACKOFF_MAX = 0.02


class Priority(IntEnum):
    """The order in which requests go. No request overtakes a request that backs off."""

    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2
    END_TXN = 3
    EPOCH_BUMP = 4


class Queue(Protocol):
    """The methods of RequestQueue that the requests need."""

    def found_coordinator(self, kind: Coordinator, key: str, node_id: int) -> None: ...
    def look_up(self, kind: Coordinator | None) -> None: ...
    def retry(self, request: TransactionalRequest, error: KafkaError, longest_delay: float | None = None) -> None: ...
    def forget_trouble(self) -> None: ...


class Manager(Protocol):
    """The members of TransactionManager that the requests need."""

    transactional_id: str
    transaction_timeout_ms: int
    producer_state: TransactionalState
    is_v2: bool
    partitions: set[TopicPartition]

    @property
    def queue(self) -> Queue: ...
    def on_initialized(self, producer_id: int, producer_epoch: int, request: InitProducerId) -> None: ...
    def on_partitions_added(self, partitions: frozenset[TopicPartition]) -> None: ...
    def on_offsets_added(self, commit: TxnOffsetCommit) -> None: ...
    def on_ended(self, request: EndTxn) -> None: ...
    def abort_with(self, error: KafkaError, request: TransactionalRequest | None = None) -> None: ...
    def fail(self, error: KafkaError, request: TransactionalRequest | None = None) -> None: ...


class TransactionalRequest:
    """Base class. When the request ends, it also ends `result`, if it has one."""

    api_key: int
    versions: range
    priority: Priority
    coordinator: Coordinator | None = Coordinator.TRANSACTION
    serves_offsets = False  # True: abort_transaction() drops the request
    # Errors of this request only. `on_error` has the errors of every request.
    abortable: tuple[type[KafkaError], ...] = ()
    fatal: tuple[type[KafkaError], ...] = ()

    def __init__(self, manager: Manager, result: Result | None = None) -> None:
        self.manager = manager
        self.result = result
        self.attempts = 0
        self.not_before = 0.0
        self.sent_to = -1  # node id; -1: never sent
        self.sent_at = 0.0

    def __str__(self) -> str:
        return f"{type(self).__name__}, attempt {self.attempts + 1}"

    def newest_version(self) -> int:
        """The highest of `versions` that the producer may use now."""
        return self.versions.stop - 1

    def values(self) -> dict[str, Any]:
        """The request's fields, of all versions."""
        raise NotImplementedError

    def codes(self, response: Any) -> Iterable[int]:
        """Every error code of the response."""
        return [int(response.error_code)]

    def on_success(self, response: Any) -> None:
        raise NotImplementedError

    def on_response(self, response: Any) -> None:
        """The broker has responded: call `on_success` or `on_error`."""
        codes = [code for code in self.codes(response) if code]
        # OPERATION_NOT_ATTEMPTED names no cause: the error of another partition does.
        causes = [code for code in codes if code != OperationNotAttemptedError.code] or codes
        if causes:
            self.on_error(error_for_code(causes[0], getattr(response, "error_message", None)))
        else:
            if self.coordinator is not None:
                self.manager.queue.forget_trouble()
            self.on_success(response)

    def on_error(self, error: KafkaError) -> None:
        manager = self.manager
        if isinstance(error, InvalidProducerEpochError | ProducerFencedError):
            manager.fail(ProducerFencedError(f"a newer producer has the transactional id: {error}"), self)
        elif isinstance(error, self.fatal):
            manager.fail(error, self)
        elif self._needs_lookup(error):
            manager.queue.look_up(self.coordinator)
            manager.queue.retry(self, error)
        elif error.retriable:
            manager.queue.retry(self, error, self.longest_delay_for(error))
        elif isinstance(error, (TransactionAbortableError, *self.abortable)):
            manager.abort_with(error, self)
        else:
            manager.fail(error, self)

    def longest_delay_for(self, error: KafkaError) -> float | None:
        """The longest back-off before the next attempt, in seconds; None: the usual back-off."""
        return None

    def _needs_lookup(self, error: KafkaError) -> bool:
        return self.coordinator is not None and isinstance(error, CoordinatorNotAvailableError | NotCoordinatorError)

    def _producer(self) -> dict[str, Any]:
        state = self.manager.producer_state
        return {
            "transactional_id": self.manager.transactional_id,
            "producer_id": state.producer_id,
            "producer_epoch": state.producer_epoch,
        }


class FindCoordinator(TransactionalRequest):
    """Asks any broker which broker coordinates the transactional id, or a consumer group."""

    api_key = messages.FIND_COORDINATOR
    versions = range(1, 7)
    priority = Priority.FIND_COORDINATOR
    coordinator = None
    abortable = (GroupAuthorizationError,)

    def __init__(self, manager: Manager, kind: Coordinator, key: str) -> None:
        super().__init__(manager)
        self.kind = kind
        self.key = key
        self.serves_offsets = kind is Coordinator.GROUP

    def __str__(self) -> str:
        return f"{super().__str__()}, which looks up the {self.kind.name.lower()} coordinator of {self.key!r}"

    def values(self) -> dict[str, Any]:
        return {"key": self.key, "key_type": self.kind.value, "coordinator_keys": [self.key]}

    def codes(self, response: Any) -> Iterable[int]:
        return [int(self._coordinator_of(response).error_code)]

    def on_success(self, response: Any) -> None:
        node_id = int(self._coordinator_of(response).node_id)
        if node_id < 0:
            self.on_error(CoordinatorNotAvailableError(f"broker {self.sent_to} names node {node_id}"))
        else:
            self.manager.queue.found_coordinator(self.kind, self.key, node_id)

    @staticmethod
    def _coordinator_of(response: Any) -> Any:
        coordinators = response.coordinators if hasattr(response, "coordinators") else [response]
        if len(coordinators) != 1:
            raise CorruptMessageError(
                f"the response to FindCoordinator of one key names {len(coordinators)} coordinators"
            )
        return coordinators[0]


class InitProducerId(TransactionalRequest):
    """Asks for a producer id, or after an error for the next epoch of the producer id (KIP-360)."""

    api_key = messages.INIT_PRODUCER_ID
    versions = range(6)
    priority = Priority.INIT_PRODUCER_ID

    def __init__(self, manager: Manager, result: Result, *, bump: bool = False) -> None:
        super().__init__(manager, result)
        self.bump = bump
        if bump:
            self.priority = Priority.EPOCH_BUMP
            self.versions = range(3, 6)

    def values(self) -> dict[str, Any]:
        no_producer_id = {} if self.bump else {"producer_id": -1, "producer_epoch": -1}
        return {**self._producer(), **no_producer_id, "transaction_timeout": self.manager.transaction_timeout_ms}

    def on_success(self, response: Any) -> None:
        self.manager.on_initialized(int(response.producer_id), int(response.producer_epoch), self)


class AddPartitions(TransactionalRequest):
    """Tells the coordinator of partitions before the Sender sends to them (transactions of version 1)."""

    api_key = messages.ADD_PARTITIONS_TO_TXN
    versions = range(4)
    priority = Priority.ADD_PARTITIONS_OR_OFFSETS
    abortable = (
        TopicAuthorizationError,
        OperationNotAttemptedError,
        UnknownProducerIdError,
        InvalidProducerIdMappingError,
    )

    def __init__(self, manager: Manager, partitions: Collection[TopicPartition]) -> None:
        super().__init__(manager)
        self.partitions = frozenset(partitions)

    def values(self) -> dict[str, Any]:
        topics = [{"name": name, "partitions": numbers} for name, numbers in by_topic(self.partitions).items()]
        producer = {f"v3_and_below_{name}": value for name, value in self._producer().items()}
        return {**producer, "v3_and_below_topics": topics}

    def codes(self, response: Any) -> Iterable[int]:
        for topic in response.results_by_topic_v3_and_below:
            for partition in topic.results_by_partition:
                yield int(partition.partition_error_code)

    def on_success(self, response: Any) -> None:
        self.manager.on_partitions_added(self.partitions)

    def longest_delay_for(self, error: KafkaError) -> float | None:
        if not isinstance(error, ConcurrentTransactionsError) or self.manager.partitions:
            return None
        # 2^16 times the first back-off is past the maximum. The cap keeps the power finite after many attempts.
        doubled = CONCURRENT_TRANSACTIONS_BACKOFF * 2.0 ** min(self.attempts, 16)
        return min(doubled, CONCURRENT_TRANSACTIONS_BACKOFF_MAX)


class AddOffsets(TransactionalRequest):
    """Tells the coordinator of the group whose offsets the transaction commits (transactions of version 1)."""

    api_key = messages.ADD_OFFSETS_TO_TXN
    versions = range(5)
    priority = Priority.ADD_PARTITIONS_OR_OFFSETS
    abortable = (GroupAuthorizationError, UnknownProducerIdError, InvalidProducerIdMappingError)

    def __init__(self, manager: Manager, result: Result, commit: TxnOffsetCommit) -> None:
        super().__init__(manager, result)
        self.commit = commit

    def values(self) -> dict[str, Any]:
        return {**self._producer(), "group_id": self.commit.group.group_id}

    def on_success(self, response: Any) -> None:
        self.manager.on_offsets_added(self.commit)


class TxnOffsetCommit(TransactionalRequest):
    """Sends the offsets to the group's coordinator, which keeps them until the transaction ends."""

    api_key = messages.TXN_OFFSET_COMMIT
    versions = range(6)
    priority = Priority.ADD_PARTITIONS_OR_OFFSETS
    coordinator = Coordinator.GROUP
    serves_offsets = True
    abortable = (GroupAuthorizationError, FencedInstanceIdError, CommitFailedError, TopicAuthorizationError)

    def __init__(
        self,
        manager: Manager,
        result: Result,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
    ) -> None:
        super().__init__(manager, result)
        self.offsets = dict(offsets)
        self.group = group
        if (group.generation_id, group.member_id, group.group_instance_id) != (-1, "", None):
            self.versions = range(3, 6)  # older versions do not name the group's member, so no old member is fenced

    def newest_version(self) -> int:
        return 5 if self.manager.is_v2 else 4

    def values(self) -> dict[str, Any]:
        topics = [
            {"name": name, "partitions": [self._partition(name, number) for number in numbers]}
            for name, numbers in by_topic(self.offsets).items()
        ]
        return {**self._producer(), **vars(self.group), "topics": topics}

    def _partition(self, topic: str, number: int) -> dict[str, Any]:
        committed = self.offsets[topic, number]
        return {
            "partition_index": number,
            "committed_offset": committed.offset,
            "committed_leader_epoch": committed.leader_epoch,
            "committed_metadata": committed.metadata,
        }

    def codes(self, response: Any) -> Iterable[int]:
        for topic in response.topics:
            for partition in topic.partitions:
                yield int(partition.error_code)

    def on_error(self, error: KafkaError) -> None:
        if isinstance(error, UnknownMemberIdError | IllegalGenerationError):
            error = CommitFailedError(
                f"the consumer is no longer a member of group {self.group.group_id!r} and cannot commit its offsets: "
                f"{error}"
            )
        super().on_error(error)

    def _needs_lookup(self, error: KafkaError) -> bool:
        return isinstance(error, RequestTimedOutError) or super()._needs_lookup(error)

    def on_success(self, response: Any) -> None:
        assert self.result is not None
        self.result.end()


class EndTxn(TransactionalRequest):
    """Commits or aborts. In transactions of version 2 the response brings the next transaction's epoch."""

    api_key = messages.END_TXN
    versions = range(6)
    priority = Priority.END_TXN
    abortable = (UnknownProducerIdError, InvalidProducerIdMappingError)

    def __init__(self, manager: Manager, result: Result, *, committed: bool) -> None:
        super().__init__(manager, result)
        self.committed = committed

    def newest_version(self) -> int:
        return 5 if self.manager.is_v2 else 4

    def values(self) -> dict[str, Any]:
        return {**self._producer(), "committed": self.committed}

    def on_success(self, response: Any) -> None:
        if getattr(response, "producer_id", -1) >= 0:
            state = self.manager.producer_state
            state.set_producer_id_and_epoch(int(response.producer_id), int(response.producer_epoch))
        self.manager.on_ended(self)
