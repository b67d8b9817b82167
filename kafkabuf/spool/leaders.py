"""The cluster's side of the proof: what leaders remember of producers, what their logs have, and how a commit ended.

Connections, security and back-off are those of the producer's settings, in a thread of its own beside the Sender. Each
call makes one attempt, which lasts up to request.timeout.ms. `proof.prove` repeats it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafkabuf.admin.admin import Admin, producer_in
from kafkabuf.clock import Clock
from kafkabuf.errors import (
    ClosedError,
    CorruptMessageError,
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    ThrottlingQuotaExceededError,
    TimeoutError,
    error_for_code,
)
from kafkabuf.metadata.snapshot import NO_LEADER, UNKNOWN_EPOCH, PartitionInfo
from kafkabuf.network._request import Completion
from kafkabuf.protocol import messages
from kafkabuf.spool.commits import Commit
from kafkabuf.spool.evidence import Answer, Stretch
from kafkabuf.spool.headers import batch_headers
from kafkabuf.spool.proof import passes
from kafkabuf.transactions.groups import Coordinator, TopicPartition, by_topic

if TYPE_CHECKING:
    import ssl

    from kafkabuf.config import ProducerConfig

_LATEST = -1
_EARLIEST = -2
_LIST_OFFSETS_VERSIONS = range(2, 8)
# Version 5 is the first with the log's start. Version 13 names topics by their ids.
_FETCH_VERSIONS = range(5, 13)
_FETCH_VERSIONS_BY_ID = range(5, 14)
_FETCH_BYTES = 1 << 20
# A leader names all producers of a partition: a response to more partitions may be too large.
_PARTITIONS_OF_A_REQUEST = 100


class Leaders(Admin):
    """A cluster as `proof.Cluster` and `commits.Coordinators`. One thread calls it. Any thread may call `stop`."""

    def __init__(
        self, config: ProducerConfig, clock: Clock | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(config, clock, ssl_context=ssl_context)
        # A topic that was deleted is made again by the user, or by the Sender.
        self._metadata.creates_topics = False
        self._timeout = self._request_timeout  # of a call
        self._stopped = False

    def stop(self) -> None:
        """End the call that is under way, and all later calls, with ClosedError."""
        self._stopped = True
        self._client.wakeup()

    def _poll(self, timeout: float | None) -> list[Completion]:
        if self._stopped:
            raise ClosedError("the producer was closed while it asked the cluster for the batches of its buffer's file")
        return super()._poll(timeout)

    # ---- the calls of proof.Cluster ----------------------------------------------------------------------------------

    def ask(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Answer | KafkaError]:
        """DescribeProducers, one request for each leader and a hundred partitions."""
        self._learn({topic for topic, _ in partitions})
        answers: dict[TopicPartition, Answer | KafkaError] = {}
        led: dict[int, list[tuple[TopicPartition, Answer]]] = {}
        for place in partitions:
            try:
                info = self._leader_of(place)
            except KafkaError as error:
                answers[place] = error if error.retriable else Answer(None, UNKNOWN_EPOCH, error)
            else:
                snapshot = self._metadata.snapshot
                answer = Answer(snapshot.topics[place[0]].topic_id, info.leader_epoch, {}, snapshot.cluster_id)
                led.setdefault(info.leader, []).append((place, answer))
        for leader, asked in led.items():
            for first in range(0, len(asked), _PARTITIONS_OF_A_REQUEST):
                answers |= self._describe(leader, dict(asked[first : first + _PARTITIONS_OF_A_REQUEST]))
        return answers

    def ends(self, partition: TopicPartition, answer: Answer) -> tuple[int, int]:
        """A consumer is told the high watermark and not the log's end. But a Fetch at an offset behind the end is
        refused, and one between the two is not."""
        high_watermark = self._list_offset(partition, _LATEST, answer.leader_epoch)
        step = 1
        while self._has(partition, answer, high_watermark + step):
            step *= 2
        return high_watermark, high_watermark + step - 1

    def read(self, partition: TopicPartition, topic_id: UUID | None, offset: int) -> Stretch:
        try:
            fetched = self._fetch(partition, topic_id, offset, _FETCH_BYTES)
        except OffsetOutOfRangeError:
            log_start = self._list_offset(partition, _EARLIEST)
            if log_start <= offset:
                raise
            return Stretch(log_start, log_start, ())
        headers = tuple(batch_headers(fetched.records or b""))
        return Stretch(int(fetched.log_start_offset), int(fetched.high_watermark), headers)

    def pause(self, failures: int) -> None:
        self._pause(self._backoff.delay(failures), float("inf"))

    # ---- the calls of commits.Coordinators, with Admin.transaction ---------------------------------------------------

    def abort(self, commit: Commit) -> None:
        """Abort the transaction under its own numbers, as its producer would."""
        self._ask_coordinator(
            Coordinator.TRANSACTION,
            commit.transactional_id,
            messages.END_TXN,
            range(5, 6) if commit.is_v2 else range(5),
            lambda reply: [int(reply.error_code)],
            {
                "transactional_id": commit.transactional_id,
                "producer_id": commit.producer_id,
                "producer_epoch": commit.producer_epoch,
                "committed": False,
            },
        )

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _learn(self, topics: Collection[str]) -> None:
        """Wait until metadata says something of each topic, or for the time of a request."""
        deadline = self._deadline()
        for topic in topics:
            self._metadata.add_topic(topic)
        while not self._metadata.snapshot.topics.keys() >= set(topics) and self._clock.monotonic() < deadline:
            self._pump(deadline)

    def _leader_of(self, place: TopicPartition) -> PartitionInfo:
        """Raises the error of the topic's metadata, or LeaderNotAvailableError."""
        topic, number = place
        self._metadata.add_topic(topic)
        info = self._metadata.snapshot.topics.get(topic)
        if info is not None and number < len(info.partitions) and info.partitions[number].leader != NO_LEADER:
            return info.partitions[number]
        self._metadata.request_update()
        if info is not None and info.error is not None:
            raise info.error
        raise LeaderNotAvailableError(f"{topic}-{number} has no leader")

    def _describe(
        self, leader: int, asked: Mapping[TopicPartition, Answer]
    ) -> dict[TopicPartition, Answer | KafkaError]:
        """Completes the answers, which name the leader's epoch and the topic's id already."""
        topics = [{"name": name, "partition_indexes": numbers} for name, numbers in by_topic(asked).items()]
        try:
            response = self._ask_leader(leader, messages.DESCRIBE_PRODUCERS, range(1), {"topics": topics})
        except KafkaError as error:
            return {place: self._not_told(answer, error) for place, answer in asked.items()}
        answers: dict[TopicPartition, Answer | KafkaError] = {}
        for topic in response.topics:
            for described in topic.partitions:
                place = str(topic.name), int(described.partition_index)
                if place not in asked:
                    continue
                if described.error_code:
                    answers[place] = self._not_told(asked[place], error_for_code(int(described.error_code)))
                else:
                    producers = {int(state.producer_id): producer_in(state) for state in described.active_producers}
                    answers[place] = replace(asked[place], producers=producers)
        return answers

    def _not_told(self, answer: Answer, error: KafkaError) -> Answer | KafkaError:
        if isinstance(error, ClosedError):
            raise error
        if error.invalid_metadata:
            self._metadata.request_update()
        return error if passes(error) else replace(answer, producers=error)

    def _list_offset(self, place: TopicPartition, timestamp: int, leader_epoch: int = UNKNOWN_EPOCH) -> int:
        topic, number = place
        wanted = {"partition_index": number, "current_leader_epoch": leader_epoch, "timestamp": timestamp}
        values = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [wanted]}]}
        leader = self._leader_of(place).leader
        response = self._ask_leader(leader, messages.LIST_OFFSETS, _LIST_OFFSETS_VERSIONS, values)
        return int(self._only_partition(response.topics).offset)

    def _has(self, place: TopicPartition, answer: Answer, offset: int) -> bool:
        """Whether the log's end is at the offset or behind it."""
        try:
            self._fetch(place, answer.topic_id, offset, 1, answer.leader_epoch)
        except OffsetOutOfRangeError:
            return False
        return True

    def _fetch(
        self,
        place: TopicPartition,
        topic_id: UUID | None,
        offset: int,
        nbytes: int,
        leader_epoch: int = UNKNOWN_EPOCH,
    ) -> Any:
        topic, number = place
        wanted = {"partition": number, "fetch_offset": offset, "partition_max_bytes": nbytes}
        wanted["current_leader_epoch"] = leader_epoch
        values = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": nbytes,
            "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [wanted]}],
        }
        versions = _FETCH_VERSIONS if topic_id is None else _FETCH_VERSIONS_BY_ID
        response = self._ask_leader(self._leader_of(place).leader, messages.FETCH, versions, values)
        self._raise(int(getattr(response, "error_code", 0)))
        if not response.responses:
            raise ThrottlingQuotaExceededError(f"the broker sends nothing of {topic}-{number} for a while")
        return self._only_partition(response.responses)

    def _ask_leader(self, leader: int, api_key: int, versions: range, values: dict[str, Any]) -> Any:
        try:
            return self._ask_once(partial(int, leader), api_key, versions, values, self._deadline())
        except KafkaError as error:
            if error.invalid_metadata:
                self._metadata.request_update()
            raise

    def _only_partition(self, topics: Any) -> Any:
        """The one partition of a response. Raises its error."""
        if len(topics) != 1 or len(topics[0].partitions) != 1:
            raise CorruptMessageError("the response to a request for one partition has another number of them")
        partition = topics[0].partitions[0]
        self._raise(int(partition.error_code))
        return partition

    def _raise(self, code: int) -> None:
        if code:
            error = error_for_code(code)
            if error.invalid_metadata:
                self._metadata.request_update()
            raise error

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._request_timeout

    def _timed_out(self, broker: str) -> TimeoutError:
        waited = f"within request.timeout.ms ({self._request_timeout * 1000:.0f} ms)"
        return TimeoutError(f"no response from {broker} {waited}{self._metadata.circumstances(self._last_error)}")
