"""Reading from the leader's copies, for clients (the Fetch API) and for followers (fetcher.py).

An answer has whole stored batches, from the batch that holds the offset up to the limits of the partition and of the
request. The first batch comes whatever its size (KIP-74). An answer of less than `min_bytes` waits for more, up to
`max_wait_ms`; the wait ends early when a partition changes its leader or has an error.

Clients read up to the high watermark. With read_committed an answer ends at the last stable offset and names the
aborted transactions within it. Followers read up to the log's end, and the offset that a follower asks for tells the
leader how far the follower is. An answer leaves out the partitions without news for a follower, as Kafka's fetch
sessions do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol
from uuid import UUID

from kafkabuf.broker.log.leader_epochs import NO_EPOCH
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.log.storage.batches import Data
from kafkabuf.broker.replica.delayed import DelayedAnswer
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.replica.topics import Catalogue
from kafkabuf.broker.waiting._purgatory import RequestPurgatory
from kafkabuf.errors import KafkaError, NotLeaderOrFollowerError, OffsetOutOfRangeError, error_for_code
from kafkabuf.protocol.fetch import CONSUMER, FetchedPartition, FetchPartition, FetchRequest

Answer = list[tuple[str | UUID, list[FetchedPartition]]]
_READ_COMMITTED = 1
_NO_ERRORS: Mapping[str | UUID, int] = {}


class Cluster(Protocol):
    """What a read needs of the cluster."""

    @property
    def catalogue(self) -> Catalogue: ...


class Node(Protocol):
    """What a read needs of the leader's node."""

    node_id: int
    fetches: RequestPurgatory

    @property
    def cluster(self) -> Cluster: ...


def read(
    node: Node, request: FetchRequest, injected: Mapping[str | UUID, int] = _NO_ERRORS
) -> Answer | Awaitable[Answer]:
    """The answer, or a future of it that is parked in the node's purgatory. `injected` has the error codes that were
    asked for on purpose, by the topic as the request names it."""
    wanted = _Read(node, request, injected)
    # As Kafka: a request that names no partition does not wait.
    if request.max_wait_ms <= 0 or not wanted.partitions or wanted.satisfied():
        return wanted.answer()
    parked = DelayedAnswer(request.max_wait_ms / 1000, wanted.satisfied, wanted.answer)
    return parked.park(node.fetches, wanted.partitions)


class _Wanted:
    """What a request asks of one partition. `copy` is the leader's copy and `epoch` the leader's epoch when the request
    came; without a copy `error` says why. Everything else about the copy may change while the request is parked."""

    __slots__ = ("asked", "copy", "epoch", "error")

    def __init__(self, asked: FetchPartition, copy: Replica | None, error: KafkaError | None) -> None:
        self.asked = asked
        self.copy = copy
        self.epoch = NO_EPOCH if copy is None else copy.known.epoch
        self.error = error

    @property
    def log(self) -> PartitionLog | None:
        """The log to read from, None if the partition has an error by now."""
        copy = self.copy
        if copy is None:
            return None
        if copy.known.epoch != self.epoch:
            # A client that does not name an epoch may go on in the next epoch of the same leader.
            if self.asked.leader_epoch != NO_EPOCH or not copy.leads:
                return None
            self.epoch = copy.known.epoch
        log = copy.log
        return log if log.log_start_offset <= self.asked.offset <= log.end_offset else None


class _Read:
    """One request: what it asks of which partition, and whether the answer is there yet."""

    def __init__(self, node: Node, request: FetchRequest, injected: Mapping[str | UUID, int]) -> None:
        self._node = node
        self._request = request
        self._committed = request.isolation_level == _READ_COMMITTED
        self._follower = request.replica_id
        self._topics = [
            (topic, [self._want(topic, asked, injected.get(topic, 0)) for asked in partitions])
            for topic, partitions in request.topics
        ]
        self._wanted = [wanted for _, every in self._topics for wanted in every]
        self.partitions = [wanted.copy.partition for wanted in self._wanted if wanted.copy is not None]

    def _want(self, topic: str | UUID, asked: FetchPartition, injected: int) -> _Wanted:
        """Tells the leader the offset of a follower, once for each request."""
        try:
            copy = self._find(topic, asked, injected)
        except KafkaError as error:
            return _Wanted(asked, None, error)
        if self._follower != CONSUMER:
            copy.fetched_by(self._follower, asked.offset)
        return _Wanted(asked, copy, None)

    def _find(self, topic: str | UUID, asked: FetchPartition, injected: int = 0) -> Replica:
        """The copy to read from. Raises the error to answer with."""
        if injected:
            raise error_for_code(injected)
        partition = self._node.cluster.catalogue.topic(topic).partition(asked.partition)
        copy = partition.led_by(self._node.node_id, asked.leader_epoch)
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
        """Whether there are enough bytes to answer with, or an error, which does not wait."""
        found = 0
        for wanted in self._wanted:
            log, asked = wanted.log, wanted.asked
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
        for topic, every in self._topics:
            fetched = []
            for wanted in every:
                found = self._fetch(topic, wanted, room, empty)
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
        """The error that the partition has by now."""
        if wanted.error is not None:
            return wanted.error
        try:
            self._find(topic, wanted.asked)
        except KafkaError as error:
            return error
        return NotLeaderOrFollowerError(f"{topic} has been deleted, and made again")

    @staticmethod
    def _aborted(log: PartitionLog, offset: int) -> list[tuple[int, int]]:
        return [(aborted.producer_id, aborted.first_offset) for aborted in log.aborted(offset, log.last_stable_offset)]
