"""A few questions to the cluster, asked and awaited in the caller's own thread: what a group has committed, what a
leader knows of its producers, what a coordinator knows of a transaction.

They are those that exactly-once delivery needs (spark/); Kafka's Admin has them under the names given below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import (
    CoordinatorNotAvailableError,
    KafkaError,
    LeaderNotAvailableError,
    NetworkError,
    NotCoordinatorError,
    TimeoutError,
    error_for_code,
)
from kafkabuf.metadata.groups import Coordinator, OffsetAndMetadata, TopicPartition, by_topic
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.metadata.snapshot import NO_LEADER
from kafkabuf.network._request import Completion
from kafkabuf.network.client import NetworkClient
from kafkabuf.protocol import messages

# Version 7 is the first that can ask for stable offsets; later ones ask for several groups.
OFFSET_FETCH_VERSIONS = range(7, 10)

# Who answered so, or did not, may not be whom to ask any more.
_ELSEWHERE = (NotCoordinatorError, CoordinatorNotAvailableError, NetworkError)


@dataclass(frozen=True)
class ActiveProducer:
    """What a partition's leader knows of one producer. `transaction_start` is the first offset of its open
    transaction, -1 where none is; `last_sequence` is -1 where it wrote nothing under `producer_epoch`."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    transaction_start: int


@dataclass(frozen=True)
class TransactionDescription:
    """What its coordinator knows of a transactional id. `state` is Kafka's: Empty, Ongoing, CompleteCommit..."""

    state: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class Admin:
    """A connection to the cluster of a producer's settings, for one thread. A context manager.

    Every question takes up to `max.block.ms`, is asked again after errors that pass, and raises the error that does
    not, or TimeoutError.
    """

    def __init__(self, config: ProducerConfig, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._timeout = config.max_block_ms / 1000
        self._informant: int | None = None  # the broker that was asked last, of those that are as good as any
        self._trouble: KafkaError | None = None  # what went wrong last
        self._metadata = Metadata(config, self._clock)
        self._client = NetworkClient(config, self._clock, self._metadata)
        self._request_timeout = config.request_timeout_ms / 1000
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)

    def close(self) -> None:
        """Close the connections."""
        self._metadata.close()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- questions ---------------------------------------------------------------------------------------------------

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Admin.listConsumerGroupOffsets: what the group has committed; None where nothing.

        Stable offsets only (KIP-447): while a transaction that commits some is open, it is waited for.
        """
        topics = [{"name": name, "partition_indexes": numbers} for name, numbers in by_topic(partitions).items()]
        response = self._ask_coordinator(
            Coordinator.GROUP,
            group,
            messages.OFFSET_FETCH,
            OFFSET_FETCH_VERSIONS,
            _offset_codes,
            {
                "group_id": group,
                "topics": topics,
                "groups": [{"group_id": group, "topics": topics}],
                "require_stable": True,
            },
        )
        return {
            (str(topic.name), int(found.partition_index)): _committed(found)
            for topic in _group_of(response).topics
            for found in topic.partitions
        }

    def active_producers(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer]]:
        """Admin.describeProducers: what the partitions' leaders know of those who wrote to them."""
        found: dict[TopicPartition, list[ActiveProducer]] = {}
        deadline = self._clock.monotonic() + self._timeout
        while missing := [place for place in partitions if place not in found]:
            leaders = {place: self._leader(*place) for place in missing}
            node_id = next((leader for leader in leaders.values() if leader is not None), None)
            if node_id is None:
                if self._clock.monotonic() >= deadline:
                    raise LeaderNotAvailableError(f"{missing[0][0]}-{missing[0][1]} has no leader")
                self._metadata.request_update()
                self._pump(deadline)
                continue
            led = [place for place in missing if leaders[place] == node_id]
            try:
                found |= self._producers_at(node_id, led, deadline)
            except NetworkError:
                # The leader may be gone for good: metadata is asked who leads now.
                if self._clock.monotonic() >= deadline:
                    raise
                self._metadata.request_update()
                self._pause(0, deadline)
        return found

    def _producers_at(
        self, node_id: int, places: list[TopicPartition], deadline: float
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """What one leader knows; without the partitions that it does not lead any more. NetworkError: it is gone."""
        response = self._ask(
            lambda: node_id,
            messages.DESCRIBE_PRODUCERS,
            range(1),
            lambda answer: [code for code in _partition_codes(answer) if not error_for_code(code).invalid_metadata],
            {"topics": [{"name": name, "partition_indexes": numbers} for name, numbers in by_topic(places).items()]},
            deadline,
            moved=True,
        )
        if any(_partition_codes(response)):
            self._metadata.request_update()
        return {
            (str(topic.name), int(found.partition_index)): [_producer(one) for one in found.active_producers]
            for topic in response.topics
            for found in topic.partitions
            if not found.error_code
        }

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """Admin.describeTransactions: where the transactional id stands. TransactionalIdNotFoundError if unknown."""
        response = self._ask_coordinator(
            Coordinator.TRANSACTION,
            transactional_id,
            messages.DESCRIBE_TRANSACTIONS,
            range(1),
            lambda answer: [int(answer.transaction_states[0].error_code)],
            {"transactional_ids": [transactional_id]},
        )
        found = response.transaction_states[0]
        return TransactionDescription(
            str(found.transaction_state),
            int(found.producer_id),
            int(found.producer_epoch),
            frozenset((str(topic.topic), int(number)) for topic in found.topics for number in topic.partitions),
        )

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has. UnknownTopicOrPartitionError where there is none."""
        deadline = self._clock.monotonic() + self._timeout
        while True:
            self._metadata.add_topic(topic)
            info = self._metadata.snapshot.topics.get(topic)
            if info is not None and info.partitions:
                return len(info.partitions)
            if info is not None and info.error is not None and not info.error.retriable:
                raise info.error
            if self._clock.monotonic() >= deadline:
                raise self._metadata.missing(topic, self._timeout)
            self._pump(deadline)

    def connect(self) -> None:
        """Wait until a broker has told of the cluster."""
        deadline = self._clock.monotonic() + self._timeout
        while not self._metadata.snapshot.brokers:
            if self._clock.monotonic() >= deadline:
                raise self._late("a broker")
            self._pump(deadline)

    # ---- whom to ask -------------------------------------------------------------------------------------------------

    def _leader(self, topic: str, number: int) -> int | None:
        self._metadata.add_topic(topic)
        info = self._metadata.snapshot.topics.get(topic)
        if info is None or number >= len(info.partitions):
            return None
        leader = info.partitions[number].leader
        return None if leader == NO_LEADER else leader

    def _ask_coordinator(
        self,
        kind: Coordinator,
        key: str,
        api_key: int,
        versions: range,
        codes: Callable[[Any], Iterable[int]],
        values: dict[str, Any],
    ) -> Any:
        """Look the coordinator up, ask it, and look it up again where it says that it is not, or is not there. A broker
        that has not heard of that yet names it again: another is asked next."""
        deadline = self._clock.monotonic() + self._timeout
        attempts = 0
        while True:
            response = self._ask(
                self._any_broker,
                messages.FIND_COORDINATOR,
                range(1, 7),
                lambda answer: [int(_first_coordinator(answer).error_code)],
                {"key": key, "key_type": kind.value, "coordinator_keys": [key]},
                deadline,
            )
            node_id = int(_first_coordinator(response).node_id)
            try:
                return self._ask(partial(int, node_id), api_key, versions, codes, values, deadline, moved=True)
            except _ELSEWHERE:
                if self._clock.monotonic() >= deadline:
                    raise
            self._pause(attempts, deadline)
            attempts += 1

    def _any_broker(self) -> int | None:
        """Rather not the one of before."""
        node_id = self._client.least_loaded(connect=True, rather_not=self._informant)
        if node_id is None:
            self._client.nobody()  # raises where all refuse us
        else:
            self._informant = node_id
        return node_id

    # ---- asking ------------------------------------------------------------------------------------------------------

    def _ask(
        self,
        whom: Callable[[], int | None],
        api_key: int,
        versions: range,
        codes: Callable[[Any], Iterable[int]],
        values: dict[str, Any],
        deadline: float,
        *,
        moved: bool = False,
    ) -> Any:
        """The answer without an error. `moved`: errors that say that somebody else is to be asked are raised."""
        attempts = 0
        while True:
            try:
                response = self._once(whom, api_key, versions, values, deadline)
                code = next((code for code in codes(response) if code), 0)
                if not code:
                    return response
                raise error_for_code(code)
            except KafkaError as error:
                self._trouble = error
                elsewhere = moved and isinstance(error, _ELSEWHERE)
                if elsewhere or not error.retriable or self._clock.monotonic() >= deadline:
                    raise
                if error.invalid_metadata:
                    self._metadata.request_update()
            self._pause(attempts, deadline)
            attempts += 1

    def _once(
        self, whom: Callable[[], int | None], api_key: int, versions: range, values: dict[str, Any], deadline: float
    ) -> Any:
        """One question, one answer. NetworkError where whoever is to be asked cannot be, or is lost on the way."""
        while (node_id := whom()) is None or not self._client.ready(node_id):
            if node_id is not None:
                self._check_reachable(node_id)
            if self._clock.monotonic() >= deadline:
                raise self._late("a broker" if node_id is None else f"broker {node_id}")
            self._pump(deadline)
        version = self._client.api_version(node_id, api_key, versions)
        answered: list[Completion] = []
        entity = messages.build_request(api_key, version, **values)
        left = max(deadline - self._clock.monotonic(), 0.001)
        self._client.send_entity(node_id, entity, timeout=min(left, self._request_timeout))
        while not answered:  # the request's time-out ends this
            answered = self._client.poll(None)
        return answered[0].decode()

    def _check_reachable(self, node_id: int) -> None:
        self._client.connection_delay(node_id)  # raises where the node will not have us
        error = self._client.unreachable(node_id)
        if error is not None:
            raise type(error)(*error.args)

    def _pump(self, deadline: float) -> None:
        """Let connections and metadata get on. Raises AuthenticationError where we are refused."""
        self._client.poll(min(max(deadline - self._clock.monotonic(), 0.0), 0.05))
        self._metadata.check()

    def _pause(self, attempts: int, deadline: float) -> None:
        until = min(self._clock.monotonic() + self._backoff.delay(attempts), deadline)
        while (left := until - self._clock.monotonic()) > 0:
            self._client.poll(left)

    def _late(self, what: str) -> TimeoutError:
        waited = f"within max.block.ms ({self._timeout * 1000:.0f} ms)"
        return TimeoutError(f"no answer of {what} {waited}{self._metadata.circumstances(self._trouble)}")


def _first_coordinator(response: Any) -> Any:
    return response.coordinators[0] if hasattr(response, "coordinators") else response


def _group_of(response: Any) -> Any:
    return response.groups[0] if hasattr(response, "groups") else response


def _offset_codes(response: Any) -> Iterable[int]:
    group = _group_of(response)
    yield int(group.error_code)
    for topic in group.topics:
        for found in topic.partitions:
            yield int(found.error_code)


def _partition_codes(response: Any) -> Iterable[int]:
    return [int(found.error_code) for topic in response.topics for found in topic.partitions]


def _producer(found: Any) -> ActiveProducer:
    return ActiveProducer(
        int(found.producer_id),
        int(found.producer_epoch),
        int(found.last_sequence),
        int(found.current_txn_start_offset),
    )


def _committed(found: Any) -> OffsetAndMetadata | None:
    if found.committed_offset < 0:
        return None
    return OffsetAndMetadata(int(found.committed_offset), str(found.metadata or ""), int(found.committed_leader_epoch))
