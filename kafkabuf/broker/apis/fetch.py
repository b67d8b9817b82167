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

from kafkabuf.broker.apis.dispatch import Frame, api
from kafkabuf.broker.log.leader_epochs import NO_EPOCH
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.storage.batches import Data
from kafkabuf.broker.replica.delayed import DelayedAnswer
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.errors import KafkaError, NotLeaderOrFollowerError, OffsetOutOfRangeError, error_for_code
from kafkabuf.protocol import fetch
from kafkabuf.protocol.fetch import CONSUMER, FetchedPartition, FetchPartition, FetchRequest
from kafkabuf.protocol.messages import FETCH, RequestHeader

if TYPE_CHECKING:
    from kafkabuf.broker.cluster.cluster import Node

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


class _Wanted:
    """What is asked of one partition. `copy` is the leader's, `epoch` the one in which it was found to be, or `error`
    says why there is none; all else about it may change while the request is parked."""

    __slots__ = ("asked", "copy", "epoch", "error")

    def __init__(self, asked: FetchPartition, copy: Replica | None, error: KafkaError | None) -> None:
        self.asked = asked
        self.copy = copy
        self.epoch = NO_EPOCH if copy is None else copy.known.epoch
        self.error = error

    @property
    def log(self) -> PartitionLog | None:
        """To read from; None where there is an error by now."""
        copy = self.copy
        if copy is None:
            return None
        if copy.known.epoch != self.epoch:
            # Who does not say in which epoch it believes may go on with the same leader's next.
            if self.asked.leader_epoch != NO_EPOCH or not copy.leads:
                return None
            self.epoch = copy.known.epoch
        log = copy.log
        return log if log.log_start_offset <= self.asked.offset <= log.end_offset else None


class _Read:
    """One request: what it asks of which partition, and whether that is there yet."""

    def __init__(self, node: Node, request: FetchRequest) -> None:
        self._node = node
        self._request = request
        self._committed = request.isolation_level == _READ_COMMITTED
        self._follower = request.replica_id
        names: dict[str | UUID, str] = {}
        injected: dict[str | None, int] = {}
        if self._follower == CONSUMER:
            names = {topic: self._name(topic) for topic, _ in request.topics}
            injected = node.cluster.faults.take_errors(FETCH, list(names.values()))
        self._topics: list[tuple[str | UUID, list[_Wanted]]] = []
        for topic, partitions in request.topics:
            code = injected.get(names[topic], injected.get(None, 0)) if injected else 0
            self._topics.append((topic, [self._want(topic, one, code) for one in partitions]))
        self._wanted = [one for _, wanted in self._topics for one in wanted]
        self.partitions = [one.copy.partition for one in self._wanted if one.copy is not None]

    def _name(self, topic: str | UUID) -> str:
        try:
            return self._node.cluster.topic(topic).name
        except KafkaError:
            return str(topic)

    def _want(self, topic: str | UUID, asked: FetchPartition, injected: int) -> _Wanted:
        """A follower's offset is news for its leader, once."""
        try:
            copy = self._find(topic, asked, injected)
        except KafkaError as error:
            return _Wanted(asked, None, error)
        if self._follower != CONSUMER:
            copy.fetched_by(self._follower, asked.offset)
        return _Wanted(asked, copy, None)

    def _find(self, topic: str | UUID, asked: FetchPartition, injected: int = 0) -> Replica:
        """The copy to read from, or the error to answer with."""
        if injected:
            raise error_for_code(injected)
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
        for one in self._wanted:
            log, asked = one.log, one.asked
            if log is None:
                return True
            if log.log_start_offset > asked.log_start_offset and self._follower != CONSUMER:
                return True
            limit = self._limit(log)
            if asked.offset < limit:
                found += min(log.available(asked.offset, limit), asked.max_bytes)
        return found >= self._request.min_bytes

    def answer(self) -> Answer:
        room = self._request.max_bytes
        empty = True
        answer: Answer = []
        for topic, wanted in self._topics:
            fetched = []
            for one in wanted:
                found = self._fetch(topic, one, room, empty)
                if found is not None:
                    room -= found.nbytes
                    empty = empty and not found.nbytes
                    fetched.append(found)
            answer.append((topic, fetched))
        return answer

    def _fetch(self, topic: str | UUID, wanted: _Wanted, room: int, at_least_one: bool) -> FetchedPartition | None:
        log, asked = wanted.log, wanted.asked
        if log is None:
            return FetchedPartition(asked.partition, self._error(topic, wanted).code)
        known = asked.offset, asked.high_watermark, asked.log_start_offset
        if known == (log.end_offset, log.high_watermark, log.log_start_offset):
            return None
        limit = self._limit(log)
        found: list[Data] = []
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

    def _error(self, topic: str | UUID, wanted: _Wanted) -> KafkaError:
        """What is wrong by now."""
        if wanted.error is not None:
            return wanted.error
        try:
            self._find(topic, wanted.asked)
        except KafkaError as error:
            return error
        return NotLeaderOrFollowerError(f"{topic} has been deleted, and made again")

    @staticmethod
    def _aborted(log: PartitionLog, offset: int) -> list[tuple[int, int]]:
        return [(one.producer_id, one.first_offset) for one in log.aborted(offset, log.last_stable_offset)]
