"""Reads a topic of any cluster, for `kafkabuf consume`: a fetch loop of a few steps, without a group.

kafkabuf has no consumer. The choice was between the Consumer of confluent-kafka and a loop over kafkabuf's own network
client, and the loop has two advantages: the connection takes the settings of the other commands (librdkafka has no
keystores of Java, no sasl.jaas.config and no AWS MSK IAM), and the records come through the embedded broker's decoder,
with the rules of read_committed. The decoder needs the extra `broker`.

Each turn sends a Fetch to every leader that has none in flight, and takes the responses that have come. Errors of a
leader, and of a connection, make the client ask for metadata again. An offset that the log does not have any more, or
not yet, becomes the nearest offset that it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafkabuf.admin.admin import Admin
from kafkabuf.broker.log.decoding import ConsumerRecord, Decoder
from kafkabuf.errors import (
    KafkaError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    error_for_code,
)
from kafkabuf.network._request import Completion
from kafkabuf.protocol import messages
from kafkabuf.transactions.groups import TopicPartition

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig
    from kafkabuf.metadata.snapshot import TopicInfo

_LATEST = -1
_EARLIEST = -2
# Version 2 is the first with isolation levels. Fetch names topics up to version 12, and has topic ids from then on.
_LIST_OFFSETS_VERSIONS = range(2, 8)
_FETCH_VERSIONS = range(4, 13)
_MAX_WAIT_MS = 500
_MAX_BYTES = 8 << 20
_PARTITION_MAX_BYTES = 1 << 20
# A turn lasts at most this long, so that connections and metadata make progress.
_TURN_SECONDS = 0.1


class TopicReader(Admin):
    """Reads one topic, or some of its partitions, in the thread of the caller. A context manager.

    `offsets` has the offset to read on from, by partition. `notes` are sentences for the user, who takes them out.
    """

    def __init__(self, config: ProducerConfig, topic: str, *, committed: bool) -> None:
        super().__init__(config)
        self._metadata.creates_topics = False
        self.offsets: dict[int, int] = {}
        self.notes: list[str] = []
        self._topic = topic
        self._committed = committed
        # What `open` found: a topic that is deleted and made again has another id.
        self._topic_id: UUID | None = None
        self._reads_new = True
        # Brokers with a Fetch in flight, and when to ask a broker again after an error.
        self._fetching: set[int] = set()
        self._not_before: dict[int, float] = {}
        self._lost: set[int] = set()
        self._unknown_since: float | None = None

    # ---- where to read

    def open(self, partitions: Collection[int], *, from_beginning: bool) -> None:
        """Finds the partitions (none: all) and the offsets to begin with.

        Raises UnknownTopicOrPartitionError if the cluster has no such topic or partition.
        """
        (described,) = self.describe_cluster([self._topic]).topics
        if described.error_code == UnknownTopicOrPartitionError.code:
            raise UnknownTopicOrPartitionError(f"there is no topic {self._topic!r}")
        if described.error_code and not described.partitions:
            raise error_for_code(int(described.error_code))
        numbers = sorted(int(partition.partition_index) for partition in described.partitions)
        if unknown := set(partitions) - {*numbers}:
            raise UnknownTopicOrPartitionError(
                f"topic {self._topic} has no partition {min(unknown)}: its partitions are 0 to {numbers[-1]}"
            )
        self._reads_new = not partitions
        self.offsets = self._ask_offsets({*partitions} or numbers, _EARLIEST if from_beginning else _LATEST)

    def ends(self) -> dict[int, int]:
        """The offsets up to which a reader can read now. Call it before the first `poll`. New partitions are left out
        from now on."""
        self._reads_new = False
        return self._ask_offsets(self.offsets, _LATEST)

    def _ask_offsets(self, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
        def values(led: Mapping[str, list[int]]) -> dict[str, Any]:
            items = [{"partition_index": number, "timestamp": timestamp} for number in led[self._topic]]
            topics = [{"name": self._topic, "partitions": items}]
            return {"replica_id": -1, "isolation_level": int(self._committed), "topics": topics}

        wanted: list[TopicPartition] = [(self._topic, number) for number in partitions]
        answers = self._from_leaders(wanted, messages.LIST_OFFSETS, _LIST_OFFSETS_VERSIONS, values)
        return {number: int(answer.offset) for (_, number), answer in answers.items()}

    # ---- reading

    def poll(self, seconds: float) -> list[ConsumerRecord]:
        """The records of the next responses; none if no record has come within `seconds`.

        Raises AuthenticationError, TopicAuthorizationError and other errors that a retry does not end, and
        UnknownTopicOrPartitionError if the topic has been missing for max.block.ms.
        """
        deadline = self._clock.monotonic() + seconds
        while True:
            if self._lost and not self._fetching:
                self._find_lost()
            self._send_fetches()
            left = max(deadline - self._clock.monotonic(), 0.0)
            records = [r for end in self._client.poll(min(left, _TURN_SECONDS)) for r in self._take(end)]
            self._metadata.check()
            if records or left <= 0.0:
                return records

    def _send_fetches(self) -> None:
        """Sends a Fetch to each leader that has none in flight, unless an offset is to be looked up first."""
        info = self._metadata.snapshot.topics.get(self._topic)
        if info is not None:
            self._take_news(info)
        by_leader: dict[int, list[int]] = {}
        for number in () if self._lost else self.offsets:
            if (leader := self._leader(self._topic, number)) is None:
                self._metadata.request_update()
            elif leader not in self._fetching and self._not_before.get(leader, 0.0) <= self._clock.monotonic():
                by_leader.setdefault(leader, []).append(number)
        for leader, numbers in by_leader.items():
            if self._client.ready(leader):
                self._send_fetch(leader, numbers)
            elif self._client.unreachable(leader) is not None:
                self._client.connection_delay(leader)  # raises if the broker refuses to authenticate this client
                self._wait_for_news(leader)

    def _take_news(self, topic: TopicInfo) -> None:
        """Reads new partitions from their start. Raises UnknownTopicOrPartitionError if the topic was made again: the
        offsets belong to the topic that is gone."""
        if topic.error is not None:
            self._check(topic.error)
            return
        self._topic_id = self._topic_id or topic.topic_id
        if topic.topic_id not in (None, self._topic_id):
            raise UnknownTopicOrPartitionError(f"topic {self._topic} was deleted while its records were read")
        if self._reads_new:
            for partition in topic.partitions:
                self.offsets.setdefault(partition.partition, 0)

    def _send_fetch(self, leader: int, numbers: Iterable[int]) -> None:
        partitions = [
            {"partition": number, "fetch_offset": self.offsets[number], "partition_max_bytes": _PARTITION_MAX_BYTES}
            for number in numbers
        ]
        version = self._client.api_version(leader, messages.FETCH, _FETCH_VERSIONS)
        request = messages.build_request(
            messages.FETCH,
            version,
            max_wait=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            isolation_level=int(self._committed),
            topics=[{"topic": self._topic, "partitions": partitions}],
        )
        self._client.send_entity(leader, request, timeout=self._request_timeout)
        self._fetching.add(leader)

    def _wait_for_news(self, leader: int) -> None:
        """After an error: asks for metadata, and leaves the broker alone for the time of the back-off."""
        self._metadata.request_update()
        self._not_before[leader] = self._clock.monotonic() + self._backoff.delay(0)

    # ---- responses

    def _take(self, completion: Completion) -> list[ConsumerRecord]:
        self._fetching.discard(completion.node_id)
        try:
            response = completion.decode()
            if code := int(getattr(response, "error_code", 0)):
                raise error_for_code(code)
        except KafkaError as error:
            if not error.retriable:
                raise
            self._wait_for_news(completion.node_id)
            return []
        partitions = [partition for topic in response.responses for partition in topic.partitions]
        return [record for partition in partitions for record in self._records(completion.node_id, partition)]

    def _records(self, leader: int, partition: Any) -> list[ConsumerRecord]:
        number = int(partition.partition_index)
        if code := int(partition.error_code):
            self._failed(leader, number, error_for_code(code))
            return []
        self._unknown_since = None
        if not partition.records:
            return []
        aborted = [(int(each.producer_id), int(each.first_offset)) for each in partition.aborted_transactions or ()]
        decoder = Decoder(self._topic, number, self.offsets[number], aborted if self._committed else None)
        records = decoder.records(partition.records)
        self.offsets[number] = decoder.offset
        return records

    def _failed(self, leader: int, number: int, error: KafkaError) -> None:
        if isinstance(error, OffsetOutOfRangeError):
            self._lost.add(number)
            return
        self._check(error)
        self._wait_for_news(leader)

    def _check(self, error: KafkaError) -> None:
        """Raises the error unless a retry may end it. A topic may be missing for a while, as a broker is not told of
        all topics at once."""
        if not error.retriable:
            raise error
        if isinstance(error, UnknownTopicOrPartitionError):
            now = self._clock.monotonic()
            self._unknown_since = now if self._unknown_since is None else self._unknown_since
            if now - self._unknown_since >= self._timeout:
                raise UnknownTopicOrPartitionError(f"topic {self._topic} was deleted: {error}")

    def _find_lost(self) -> None:
        """Goes on at the start of a log that has dropped the offset, or at the end of a log that does not have it."""
        lost, self._lost = self._lost, set()
        starts, ends = self._ask_offsets(lost, _EARLIEST), self._ask_offsets(lost, _LATEST)
        for number in sorted(lost):
            before = self.offsets[number]
            self.offsets[number] = min(max(before, starts[number]), max(ends[number], starts[number]))
            self.notes.append(
                f"partition {number} has no offset {before} any more: reading goes on at offset {self.offsets[number]}"
            )
