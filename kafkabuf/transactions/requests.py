"""The requests of a transactional producer, a class each: its coordinator, its fields, and what its answer means.

Kafka's TxnRequestHandlers. Thread: the Sender's, but for making them.
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
from kafkabuf.metadata.groups import Coordinator, GroupMetadata, OffsetAndMetadata, TopicPartition, by_topic
from kafkabuf.protocol import messages
from kafkabuf.transactions.idempotence import TransactionalState
from kafkabuf.transactions.result import Result

# The first AddPartitionsToTxn of a transaction comes while the markers of the one before are still being written, which
# takes some milliseconds: first and longest back-off. Java waits for the longest at once.
CONCURRENT_TRANSACTIONS_BACKOFF = 0.002
CONCURRENT_TRANSACTIONS_BACKOFF_MAX = 0.02


class Priority(IntEnum):
    """Which of several goes first. None overtakes another while that one backs off."""

    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2
    END_TXN = 3
    EPOCH_BUMP = 4


class Queue(Protocol):
    """What the requests need of the RequestQueue."""

    def found_coordinator(self, kind: Coordinator, node_id: int) -> None: ...
    def look_up(self, kind: Coordinator | None) -> None: ...
    def retry(self, request: TransactionalRequest, error: KafkaError, patience: float | None = None) -> None: ...
    def forget_trouble(self) -> None: ...


class Manager(Protocol):
    """What the requests need of the TransactionManager."""

    transactional_id: str
    transaction_timeout_ms: int
    producer_state: TransactionalState
    is_v2: bool
    partitions: set[TopicPartition]

    @property
    def queue(self) -> Queue: ...
    def initialized(self, producer_id: int, producer_epoch: int, request: InitProducerId) -> None: ...
    def added(self, partitions: frozenset[TopicPartition]) -> None: ...
    def offsets_added(self, commit: TxnOffsetCommit) -> None: ...
    def ended(self, request: EndTxn) -> None: ...
    def abort_with(self, error: KafkaError, request: TransactionalRequest | None = None) -> None: ...
    def fail(self, error: KafkaError, request: TransactionalRequest | None = None) -> None: ...


class TransactionalRequest:
    """Base: `result`, if there is one, ends when the request has."""

    api_key: int
    versions: range
    priority: Priority
    coordinator: Coordinator | None = Coordinator.TRANSACTION
    serves_offsets = False  # abort_transaction() gives it up
    # Errors of this request only, beside those of every request.
    abortable: tuple[type[KafkaError], ...] = ()
    fatal: tuple[type[KafkaError], ...] = ()

    def __init__(self, manager: Manager, result: Result | None = None) -> None:
        self.manager = manager
        self.result = result
        self.attempts = 0
        self.not_before = 0.0
        self.sent_to = -1  # the node, and when, once it is under way
        self.sent_at = 0.0

    def __str__(self) -> str:
        return f"{type(self).__name__}, attempt {self.attempts + 1}"

    def newest_version(self) -> int:
        """The highest of `versions` that may be used now."""
        return self.versions.stop - 1

    def values(self) -> dict[str, Any]:
        """The request's fields, whatever its version."""
        raise NotImplementedError

    def codes(self, response: Any) -> Iterable[int]:
        """Every error code of the answer."""
        return [int(response.error_code)]

    def succeeded(self, response: Any) -> None:
        raise NotImplementedError

    def answered(self, response: Any) -> None:
        """The broker's answer: done, or one of `refused`."""
        codes = [code for code in self.codes(response) if code]
        # That nothing was tried with a partition says nothing of why.
        telling = [code for code in codes if code != OperationNotAttemptedError.code] or codes
        if telling:
            self.refused(error_for_code(telling[0], getattr(response, "error_message", None)))
        else:
            if self.coordinator is not None:
                self.manager.queue.forget_trouble()
            self.succeeded(response)

    def refused(self, error: KafkaError) -> None:
        manager = self.manager
        if isinstance(error, InvalidProducerEpochError | ProducerFencedError):
            manager.fail(ProducerFencedError(f"a newer producer has the transactional id: {error}"), self)
        elif isinstance(error, self.fatal):
            manager.fail(error, self)
        elif self._asked_the_wrong_one(error):
            manager.queue.look_up(self.coordinator)
            manager.queue.retry(self, error)
        elif error.retriable:
            manager.queue.retry(self, error, self.patience_for(error))
        elif isinstance(error, (TransactionAbortableError, *self.abortable)):
            manager.abort_with(error, self)
        else:
            manager.fail(error, self)

    def patience_for(self, error: KafkaError) -> float | None:
        """Seconds until the next attempt; None: the usual back-off."""
        return None

    def _asked_the_wrong_one(self, error: KafkaError) -> bool:
        return self.coordinator is not None and isinstance(error, CoordinatorNotAvailableError | NotCoordinatorError)

    def _producer(self) -> dict[str, Any]:
        state = self.manager.producer_state
        return {
            "transactional_id": self.manager.transactional_id,
            "producer_id": state.producer_id,
            "producer_epoch": state.producer_epoch,
        }


class FindCoordinator(TransactionalRequest):
    """Which broker coordinates the transactional id, or a consumer group. Any broker knows."""

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
        return f"{super().__str__()}, which looks for the {self.kind.name.lower()} coordinator of {self.key!r}"

    def values(self) -> dict[str, Any]:
        return {"key": self.key, "key_type": self.kind.value, "coordinator_keys": [self.key]}

    def codes(self, response: Any) -> Iterable[int]:
        return [int(self._found(response).error_code)]

    def succeeded(self, response: Any) -> None:
        node_id = int(self._found(response).node_id)
        if node_id < 0:
            self.refused(CoordinatorNotAvailableError(f"broker {self.sent_to} names node {node_id}"))
        else:
            self.manager.queue.found_coordinator(self.kind, node_id)

    @staticmethod
    def _found(response: Any) -> Any:
        found = response.coordinators if hasattr(response, "coordinators") else [response]
        if len(found) != 1:
            raise CorruptMessageError(f"FindCoordinator of one key was answered with {len(found)} coordinators")
        return found[0]


class InitProducerId(TransactionalRequest):
    """A producer id, the first time; the next epoch of the one there is, after an error (KIP-360)."""

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
        first = {} if self.bump else {"producer_id": -1, "producer_epoch": -1}
        return {**self._producer(), **first, "transaction_timeout": self.manager.transaction_timeout_ms}

    def succeeded(self, response: Any) -> None:
        self.manager.initialized(int(response.producer_id), int(response.producer_epoch), self)


class AddPartitions(TransactionalRequest):
    """Tells the coordinator of partitions before anything is sent to them (transactions of version 1)."""

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
        named = {f"v3_and_below_{name}": value for name, value in self._producer().items()}
        return {**named, "v3_and_below_topics": topics}

    def codes(self, response: Any) -> Iterable[int]:
        for topic in response.results_by_topic_v3_and_below:
            for found in topic.results_by_partition:
                yield int(found.partition_error_code)

    def succeeded(self, response: Any) -> None:
        self.manager.added(self.partitions)

    def patience_for(self, error: KafkaError) -> float | None:
        if not isinstance(error, ConcurrentTransactionsError) or self.manager.partitions:
            return None
        # 2^16 of any unit is past the maximum; the cap keeps the power a number however often this one is asked.
        doubled = CONCURRENT_TRANSACTIONS_BACKOFF * 2.0 ** min(self.attempts, 16)
        return min(doubled, CONCURRENT_TRANSACTIONS_BACKOFF_MAX)


class AddOffsets(TransactionalRequest):
    """Tells the coordinator of the group whose offsets are to be committed (transactions of version 1)."""

    api_key = messages.ADD_OFFSETS_TO_TXN
    versions = range(5)
    priority = Priority.ADD_PARTITIONS_OR_OFFSETS
    abortable = (GroupAuthorizationError, UnknownProducerIdError, InvalidProducerIdMappingError)

    def __init__(self, manager: Manager, result: Result, commit: TxnOffsetCommit) -> None:
        super().__init__(manager, result)
        self.commit = commit

    def values(self) -> dict[str, Any]:
        return {**self._producer(), "group_id": self.commit.group.group_id}

    def succeeded(self, response: Any) -> None:
        self.manager.offsets_added(self.commit)


class TxnOffsetCommit(TransactionalRequest):
    """The offsets themselves, to the group's coordinator, which keeps them until the transaction ends."""

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
            self.versions = range(3, 6)  # older ones cannot say who commits, and would fence nobody

    def newest_version(self) -> int:
        return 5 if self.manager.is_v2 else 4

    def values(self) -> dict[str, Any]:
        topics = [
            {"name": name, "partitions": [self._partition(name, number) for number in numbers]}
            for name, numbers in by_topic(self.offsets).items()
        ]
        return {**self._producer(), **vars(self.group), "topics": topics}

    def _partition(self, topic: str, number: int) -> dict[str, Any]:
        found = self.offsets[topic, number]
        return {
            "partition_index": number,
            "committed_offset": found.offset,
            "committed_leader_epoch": found.leader_epoch,
            "committed_metadata": found.metadata,
        }

    def codes(self, response: Any) -> Iterable[int]:
        for topic in response.topics:
            for partition in topic.partitions:
                yield int(partition.error_code)

    def refused(self, error: KafkaError) -> None:
        if isinstance(error, UnknownMemberIdError | IllegalGenerationError):
            error = CommitFailedError(
                f"the consumer is no longer a member of group {self.group.group_id!r}, whose offsets were to be "
                f"committed: {error}"
            )
        super().refused(error)

    def _asked_the_wrong_one(self, error: KafkaError) -> bool:
        return isinstance(error, RequestTimedOutError) or super()._asked_the_wrong_one(error)

    def succeeded(self, response: Any) -> None:
        assert self.result is not None
        self.result.end()


class EndTxn(TransactionalRequest):
    """Commits or aborts; in transactions of version 2 the answer brings the next transaction's epoch."""

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

    def succeeded(self, response: Any) -> None:
        if getattr(response, "producer_id", -1) >= 0:
            state = self.manager.producer_state
            state.set_producer_id_and_epoch(int(response.producer_id), int(response.producer_epoch))
        self.manager.ended(self)
