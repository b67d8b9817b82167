"""The few Admin requests that exactly-once delivery needs (spark/), in the caller's own thread.

They return a group's committed offsets, the producers of a partition, and the state of a transaction. The docstrings
give the names of the methods in Kafka's Admin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.errors import (
    CoordinatorNotAvailableError,
    KafkaError,
    LeaderNotAvailableError,
    NetworkError,
    NotCoordinatorError,
    TimeoutError,
    UnstableOffsetCommitError,
    error_for_code,
)
from kafkabuf.metadata.metadata import Metadata
from kafkabuf.metadata.snapshot import NO_LEADER
from kafkabuf.network._request import Completion
from kafkabuf.network.client import NetworkClient
from kafkabuf.network.metadata_updater import METADATA_VERSIONS
from kafkabuf.process.threads import aside
from kafkabuf.protocol import messages
from kafkabuf.transactions.groups import Coordinator, OffsetAndMetadata, TopicPartition, by_topic

if TYPE_CHECKING:
    import ssl

    from kafkabuf.config import ProducerConfig

# Version 7 is the first that can ask for stable offsets. From version 8 on a request names several groups.
OFFSET_FETCH_VERSIONS = range(7, 10)
DESCRIBE_CONFIGS_VERSIONS = range(1, 5)
_TOPIC = 2  # the type of a resource with configs

# Seconds that a response takes at least.
_LEAST_TIME = 0.005

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# After these errors another broker may be the coordinator or leader.
_MOVED = (NotCoordinatorError, CoordinatorNotAvailableError, NetworkError)


@dataclass(frozen=True)
class ActiveProducer:
    """What a partition's leader knows of one producer.

    `transaction_start` is the first offset of the producer's open transaction, or -1. `last_sequence` is -1 if the
    producer wrote nothing under `producer_epoch`. `last_timestamp` is the time of its newest batch: milliseconds since
    1970, or -1.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    transaction_start: int
    last_timestamp: int = -1


@dataclass(frozen=True)
class TransactionDescription:
    """What the coordinator knows of a transactional id. `state` is Kafka's: Empty, Ongoing, CompleteCommit...

    `started_ms` is when the newest transaction began: milliseconds since 1970, or -1 before the first. `timeout_ms` is
    the producer's transaction.timeout.ms.
    """

    state: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    started_ms: int = -1
    timeout_ms: int = -1


class Admin:
    """A connection to the cluster that a producer's settings name, for one thread or greenlet. A context manager.

    Every call takes up to `max.block.ms` and retries after retriable errors. It raises the first fatal error, or
    TimeoutError.
    """

    def __init__(
        self, config: ProducerConfig, clock: Clock | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._timeout = config.max_block_ms / 1000
        self.answered_by: tuple[int, str, int] = (-1, "", 0)  # id (below 0: a bootstrap server), host and port
        self._last_asked: int | None = None  # the broker that got the newest request that any broker can answer
        self._last_error: KafkaError | None = None
        self._coordinators: dict[tuple[Coordinator, str], int] = {}  # the nodes that brokers have named
        self._metadata = Metadata(config, self._clock)
        self._client = NetworkClient(config, self._clock, self._metadata, ssl_context=ssl_context)
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

    # ---- calls -------------------------------------------------------------------------------------------------------

    def committed(
        self, group: str, partitions: Collection[TopicPartition], *, wait: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Admin.listConsumerGroupOffsets: the group's committed offsets; None for a partition without an offset.

        Only stable offsets (KIP-447): while an open transaction commits offsets of the group, the call waits for it, or
        raises UnstableOffsetCommitError at once without `wait`.
        """

        def codes(reply: Any) -> list[int]:
            return [code for code in _offset_codes(reply) if wait or code != UnstableOffsetCommitError.code]

        topics = [{"name": name, "partition_indexes": numbers} for name, numbers in by_topic(partitions).items()]
        response = self._ask_coordinator(
            Coordinator.GROUP,
            group,
            messages.OFFSET_FETCH,
            OFFSET_FETCH_VERSIONS,
            codes,
            {
                "group_id": group,
                "topics": topics,
                "groups": [{"group_id": group, "topics": topics}],
                "require_stable": True,
            },
        )
        if UnstableOffsetCommitError.code in _offset_codes(response):
            raise UnstableOffsetCommitError(f"an open transaction commits offsets of group {group!r}")
        return {
            (str(topic.name), int(partition.partition_index)): offset_in(partition)
            for topic in group_in(response).topics
            for partition in topic.partitions
        }

    def active_producers(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer]]:
        """Admin.describeProducers: what the leaders of the partitions know of the producers that wrote to them."""

        def values(led: Mapping[str, list[int]]) -> dict[str, Any]:
            return {"topics": [{"name": name, "partition_indexes": numbers} for name, numbers in led.items()]}

        answers = self._from_leaders(partitions, messages.DESCRIBE_PRODUCERS, range(1), values)
        return {partition: list(map(producer_in, answer.active_producers)) for partition, answer in answers.items()}

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """Admin.describeTransactions: a transactional id's state. Raises TransactionalIdNotFoundError."""
        response = self._ask_coordinator(
            Coordinator.TRANSACTION,
            transactional_id,
            messages.DESCRIBE_TRANSACTIONS,
            range(1),
            lambda reply: [int(reply.transaction_states[0].error_code)],
            {"transactional_ids": [transactional_id]},
        )
        state = response.transaction_states[0]
        return TransactionDescription(
            str(state.transaction_state),
            int(state.producer_id),
            int(state.producer_epoch),
            frozenset((str(topic.topic), int(number)) for topic in state.topics for number in topic.partitions),
            milliseconds(state.transaction_start_time),
            round(state.transaction_timeout.total_seconds() * 1000),
        )

    def describe_cluster(self, topics: Collection[str] | None = None) -> Any:
        """The response to a Metadata request for these topics (None: all): brokers, controller, topics with errors.

        Creates no topic.
        """
        names = None if topics is None else [{"name": name} for name in topics]
        return self._ask(
            self._any_broker,
            messages.METADATA,
            METADATA_VERSIONS,
            lambda reply: [int(getattr(reply, "error_code", 0))],
            {"topics": names, "allow_auto_topic_creation": False},
            self._clock.monotonic() + self._timeout,
        )

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has. Raises UnknownTopicOrPartitionError if the topic does not exist."""
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

    def refresh(self) -> None:
        """Ask for the metadata of the known topics again."""
        deadline, known = self._clock.monotonic() + self._timeout, self._metadata.snapshot.version
        self._metadata.request_update()
        while self._metadata.snapshot.version == known:
            if self._clock.monotonic() >= deadline:
                raise self._timed_out("any broker")
            self._pump(deadline)

    def topic_configs(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        """Admin.describeConfigs: these configs of a topic, or their defaults, as far as the broker knows them.

        Raises TopicAuthorizationError without the right to describe configs.
        """
        return self._configs(self._any_broker, _TOPIC, topic, names)

    def _configs(
        self, choose_node: Callable[[], int | None], resource_type: int, name: str, names: Sequence[str]
    ) -> dict[str, str]:
        response = self._ask(
            choose_node,
            messages.DESCRIBE_CONFIGS,
            DESCRIBE_CONFIGS_VERSIONS,
            lambda reply: [int(result.error_code) for result in reply.results],
            {"resources": [{"resource_type": resource_type, "resource_name": name, "configuration_keys": names}]},
            self._clock.monotonic() + self._timeout,
        )
        configs = response.results[0].configs
        return {str(config.name): str(config.value) for config in configs if config.value is not None}

    def connect(self) -> None:
        """Wait until a broker has sent metadata."""
        deadline = self._clock.monotonic() + self._timeout
        while not self._metadata.snapshot.brokers:
            if self._clock.monotonic() >= deadline:
                raise self._timed_out("a broker")
            self._pump(deadline)

    # ---- which broker to ask -----------------------------------------------------------------------------------------

    def _from_leaders(
        self,
        partitions: Collection[TopicPartition],
        api_key: int,
        versions: range,
        values: Callable[[Mapping[str, list[int]]], dict[str, Any]],
    ) -> dict[TopicPartition, Any]:
        """What the response of its leader says of each partition. `values` makes a request from numbers by topic."""
        answers: dict[TopicPartition, Any] = {}
        deadline = self._clock.monotonic() + self._timeout
        while missing := [partition for partition in partitions if partition not in answers]:
            leaders = {partition: self._leader(*partition) for partition in missing}
            node_id = next((leader for leader in leaders.values() if leader is not None), None)
            if node_id is None:
                if self._clock.monotonic() >= deadline:
                    raise LeaderNotAvailableError(f"{missing[0][0]}-{missing[0][1]} has no leader")
                self._metadata.request_update()
                self._pump(deadline)
                continue
            led = by_topic(partition for partition in missing if leaders[partition] == node_id)
            try:
                answers |= self._from_leader(node_id, api_key, versions, values(led), deadline)
            except NetworkError:
                # The leader may be gone for good: new metadata names the current one.
                if self._clock.monotonic() >= deadline:
                    raise
                self._metadata.request_update()
                self._pause(self._backoff.delay(0), deadline)
        return answers

    def _from_leader(
        self, node_id: int, api_key: int, versions: range, values: dict[str, Any], deadline: float
    ) -> dict[TopicPartition, Any]:
        """What one leader says, without the partitions that it no longer leads. Raises NetworkError if it is gone."""
        response = self._ask(
            partial(int, node_id),
            api_key,
            versions,
            lambda reply: [code for code in _partition_codes(reply) if not error_for_code(code).invalid_metadata],
            values,
            deadline,
            moved=True,
        )
        if any(_partition_codes(response)):
            self._metadata.request_update()
        return {
            (str(topic.name), int(partition.partition_index)): partition
            for topic in response.topics
            for partition in topic.partitions
            if not partition.error_code
        }

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
        """Ask the coordinator. Look it up if it is unknown, is no longer the coordinator, or is unreachable.

        A broker that does not know the change yet names the old coordinator, so the next lookup asks another broker.
        """
        deadline = self._clock.monotonic() + self._timeout
        attempts = 0
        while True:
            was_known = (kind, key) in self._coordinators
            if not was_known:
                self._coordinators[kind, key] = self._find_coordinator(kind, key, deadline)
            node_id = self._coordinators[kind, key]
            try:
                return self._ask(partial(int, node_id), api_key, versions, codes, values, deadline, moved=True)
            except _MOVED:
                self._coordinators.pop((kind, key), None)
                if self._clock.monotonic() >= deadline:
                    raise
            if not was_known:
                self._pause(self._backoff.delay(attempts), deadline)
                attempts += 1

    def _find_coordinator(self, kind: Coordinator, key: str, deadline: float) -> int:
        response = self._ask(
            self._any_broker,
            messages.FIND_COORDINATOR,
            range(1, 7),
            lambda reply: [int(_first_coordinator(reply).error_code)],
            {"key": key, "key_type": kind.value, "coordinator_keys": [key]},
            deadline,
        )
        return int(_first_coordinator(response).node_id)

    def _any_broker(self) -> int | None:
        """A ready broker, if possible another than in the last call."""
        node_id = self._client.least_loaded(connect=True, avoid=self._last_asked)
        if node_id is None:
            self._client.connection_error()  # raises if every broker refuses to authenticate this client
        else:
            self._last_asked = node_id
        return node_id

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _ask(
        self,
        choose_node: Callable[[], int | None],
        api_key: int,
        versions: range,
        codes: Callable[[Any], Iterable[int]],
        values: dict[str, Any],
        deadline: float,
        *,
        moved: bool = False,
    ) -> Any:
        """Send a request until its response has no error. With `moved` the errors in _MOVED are raised at once."""
        attempts = 0
        while True:
            try:
                response = self._ask_once(choose_node, api_key, versions, values, deadline)
                code = next((code for code in codes(response) if code), 0)
                if not code:
                    return response
                raise error_for_code(code)
            except KafkaError as error:
                self._last_error = error
                has_moved = moved and isinstance(error, _MOVED)
                # The error says more than the time-out of a further request without the time for a response.
                pause = self._backoff.delay(attempts)
                too_late = self._clock.monotonic() + pause + _LEAST_TIME >= deadline
                if has_moved or not error.retriable or too_late:
                    raise
                if error.invalid_metadata:
                    self._metadata.request_update()
            self._pause(pause, deadline)
            attempts += 1

    def _ask_once(
        self,
        choose_node: Callable[[], int | None],
        api_key: int,
        versions: range,
        values: dict[str, Any],
        deadline: float,
    ) -> Any:
        """Send one request and wait for its response. Raises NetworkError if the connection fails."""
        while (node_id := choose_node()) is None or not self._client.ready(node_id):
            if node_id is not None:
                self._check_reachable(node_id)
            if self._clock.monotonic() >= deadline:
                raise self._timed_out("a broker" if node_id is None else f"broker {node_id}")
            self._pump(deadline)
        version = self._client.api_version(node_id, api_key, versions)
        completions: list[Completion] = []
        entity = messages.build_request(api_key, version, **values)
        left = max(deadline - self._clock.monotonic(), 0.001)
        self._client.send_entity(node_id, entity, timeout=min(left, self._request_timeout))
        while not completions:  # the request's time-out ends this loop
            completions = self._poll(None)
        node = self._client.requests.nodes.get(node_id)
        if node is not None:
            self.answered_by = node_id, node.host, node.port
        return completions[0].decode()

    def _check_reachable(self, node_id: int) -> None:
        self._client.connection_delay(node_id)  # raises if the node refuses to authenticate this client
        error = self._client.unreachable(node_id)
        if error is not None:
            raise type(error)(*error.args)

    def _pump(self, deadline: float) -> None:
        """Let connections and metadata make progress. Raises AuthenticationError if the brokers refuse this client."""
        self._poll(min(max(deadline - self._clock.monotonic(), 0.0), 0.05))
        self._metadata.check()

    def _pause(self, seconds: float, deadline: float) -> None:
        until = min(self._clock.monotonic() + seconds, deadline)
        while (left := until - self._clock.monotonic()) > 0:
            self._poll(left)

    def _poll(self, timeout: float | None) -> list[Completion]:
        """NetworkClient.poll. A greenlet waits alone: a thread polls for it."""
        client = self._client
        return aside(lambda: client.poll(timeout), "kafkabuf-admin", client.wakeup)

    def _timed_out(self, broker: str) -> TimeoutError:
        waited = f"within max.block.ms ({self._timeout * 1000:.0f} ms)"
        return TimeoutError(f"no response from {broker} {waited}{self._metadata.circumstances(self._last_error)}")


def _first_coordinator(response: Any) -> Any:
    return response.coordinators[0] if hasattr(response, "coordinators") else response


def group_in(response: Any) -> Any:
    """The one group of a response to OffsetFetch."""
    return response.groups[0] if hasattr(response, "groups") else response


def _offset_codes(response: Any) -> Iterable[int]:
    group = group_in(response)
    yield int(group.error_code)
    for topic in group.topics:
        for partition in topic.partitions:
            yield int(partition.error_code)


def _partition_codes(response: Any) -> Iterable[int]:
    return [int(partition.error_code) for topic in response.topics for partition in topic.partitions]


def producer_in(state: Any) -> ActiveProducer:
    return ActiveProducer(
        int(state.producer_id),
        int(state.producer_epoch),
        int(state.last_sequence),
        int(state.current_txn_start_offset),
        int(state.last_timestamp),
    )


def milliseconds(time: datetime | None) -> int:
    """Milliseconds since 1970, -1 for no time."""
    return -1 if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


def offset_in(partition: Any) -> OffsetAndMetadata | None:
    """The committed offset in a partition of a response to OffsetFetch."""
    if partition.committed_offset < 0:
        return None
    return OffsetAndMetadata(
        int(partition.committed_offset), str(partition.metadata or ""), int(partition.committed_leader_epoch)
    )
