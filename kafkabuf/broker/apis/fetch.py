"""Fetch (key 1), versions 4 to 18, for clients and for followers.

Whole stored batches from the one that holds the offset, up to the partition's and the request's limits; the first
batch of an answer comes whatever its size (KIP-74). Less than `min_bytes` waits for more, up to `max_wait_ms`, and
ends early when a partition changes its leader or has an error.

Clients read up to the high watermark. With read_committed an answer ends at the last stable offset and names the
aborted transactions within it. Followers read to the log's end, and the offset they ask for tells the leader how far
they are; they are told only of partitions with news, as in Kafka's fetch sessions.

Deviations: no fetch sessions (the session id is always 0, which makes clients send full requests); a replica id that
comes over a connection is not believed; magic 0 and 1 are never converted.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING
from uuid import UUID

from kafkabuf.broker.delayed import DelayedAnswer
from kafkabuf.broker.dispatch import Frame, api
from kafkabuf.broker.log import PartitionLog
from kafkabuf.broker.replication import Replica
from kafkabuf.broker.topics import Partition
from kafkabuf.errors import KafkaError, OffsetOutOfRangeError, error_for_code
from kafkabuf.protocol import fetch
from kafkabuf.protocol.fetch import CONSUMER, FetchedPartition, FetchPartition, FetchRequest
from kafkabuf.protocol.messages import FETCH, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster import Node

Answer = list[tuple[str | UUID, list[FetchedPartition]]]
_FETCH_SESSION_ID_NOT_FOUND = 70
_READ_COMMITTED = 1


def _encode(header: RequestHeader, answer: Answer | int, throttle_ms: int) -> Frame:
    if isinstance(answer, int):
        return fetch.encode_response(header, [], answer, throttle_ms)
    return fetch.encode_response(header, answer, 0, throttle_ms)


@api(FETCH, fetch.MIN_VERSION, fetch.MAX_VERSION, decode=fetch.decode_request, encode=_encode, own_errors=True)
def handle(node: Node, header: RequestHeader, request: FetchRequest) -> Answer | int | Awaitable[Answer]:
    if request.session_id != 0:
        return _FETCH_SESSION_ID_NOT_FOUND
    return read(node, request)


def read(node: Node, request: FetchRequest) -> Answer | Awaitable[Answer]:
    """The answer, or a future of it that is parked in the node's purgatory."""
    wanted = _Read(node, request)
    # As Kafka: who asks for nothing does not wait for it.
    if request.max_wait_ms <= 0 or not wanted.partitions or wanted.satisfied():
        return wanted.answer()
    parked = DelayedAnswer(request.max_wait_ms / 1000, wanted.satisfied, wanted.answer)
    return parked.park(node.fetches, wanted.partitions)


class _Read:
    """One request: what it asks of which partition, and whether that is there yet. `injected`: error codes by topic,
    None for all."""

    def __init__(self, node: Node, request: FetchRequest) -> None:
        self._node = node
        self._request = request
        self._committed = request.isolation_level == _READ_COMMITTED
        self._follower = request.replica_id
        self.partitions: list[Partition] = []
        self._injected: dict[str | None, int] = {}
        self._names: dict[str | UUID, str] = {}
        if self._follower == CONSUMER:
            self._names = {topic: self._name(topic) for topic, _ in request.topics}
            self._injected = node.cluster.faults.take_errors(FETCH, list(self._names.values()))
        self._begin()

    def _name(self, topic: str | UUID) -> str:
        try:
            return self._node.cluster.topic(topic).name
        except KafkaError:
            return str(topic)

    def _begin(self) -> None:
        """Finds the partitions; a follower's offsets are news for its leader, once."""
        for topic, partitions in self._request.topics:
            for asked in partitions:
                try:
                    copy = self._find(topic, asked)
                except KafkaError:
                    continue
                self.partitions.append(copy.partition)
                if self._follower != CONSUMER:
                    copy.fetched_by(self._follower, asked.offset)

    def _find(self, topic: str | UUID, asked: FetchPartition) -> Replica:
        """The copy to read from, or the error to answer with."""
        if self._injected and (code := self._injected.get(self._names[topic], self._injected.get(None, 0))):
            raise error_for_code(code)
        copy = self._node.cluster.topic(topic).partition(asked.partition).led_by(self._node.node_id, asked.leader_epoch)
        log = copy.log
        if not log.log_start_offset <= asked.offset <= log.end_offset:
            raise OffsetOutOfRangeError(
                f"offset {asked.offset}, the log holds {log.log_start_offset} to {log.end_offset}"
            )
        return copy

    def _limit(self, log: PartitionLog) -> int:
        if self._follower != CONSUMER:
            return log.end_offset
        return log.last_stable_offset if self._committed else log.high_watermark

    def satisfied(self) -> bool:
        """Whether there is enough to answer with, or an error, which does not wait."""
        found = 0
        for topic, partitions in self._request.topics:
            for asked in partitions:
                try:
                    log = self._find(topic, asked).log
                except KafkaError:
                    return True
                limit = self._limit(log)
                if asked.offset < limit:
                    found += min(log.available(asked.offset, limit), asked.max_bytes)
        return found >= self._request.min_bytes

    def answer(self) -> Answer:
        room = self._request.max_bytes
        empty = True
        answer: Answer = []
        for topic, partitions in self._request.topics:
            fetched = []
            for asked in partitions:
                one = self._fetch(topic, asked, room, empty)
                if one is not None:
                    room -= one.nbytes
                    empty = empty and not one.nbytes
                    fetched.append(one)
            answer.append((topic, fetched))
        return answer

    def _fetch(
        self, topic: str | UUID, asked: FetchPartition, room: int, at_least_one: bool
    ) -> FetchedPartition | None:
        try:
            copy = self._find(topic, asked)
        except KafkaError as error:
            return FetchedPartition(asked.partition, error.code)
        log = copy.log
        if (asked.offset, asked.high_watermark) == (log.end_offset, log.high_watermark):
            return None
        limit = self._limit(log)
        found = []
        if asked.offset < limit:
            found = log.read(asked.offset, min(asked.max_bytes, room), at_least_one, limit)
        return FetchedPartition(
            asked.partition,
            0,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            self._aborted(log, asked.offset) if self._committed else None,
            found,
            sum(map(len, found)),
        )

    @staticmethod
    def _aborted(log: PartitionLog, offset: int) -> list[tuple[int, int]]:
        return [(one.producer_id, one.first_offset) for one in log.aborted(offset, log.last_stable_offset)]
