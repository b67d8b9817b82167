"""Reading from the leader's replicas, for clients (the Fetch API) and for followers (fetcher.py).

A response has whole stored batches, from the batch that holds the offset up to the limits of the partition and of the
request, and up to MOST_BUFFERS. The first batch comes whatever its size (KIP-74). While a response has less than
`min_bytes`, the request waits for more, up to `max_wait_ms`. The wait ends early when a partition changes its leader or
has an error.

Clients read up to the high watermark. With read_committed a response ends at the last stable offset and names the
aborted transactions up to there. Followers read up to the log's end, and the offset that a follower asks for tells the
leader how far the follower is. A response to a follower leaves out a partition if the follower knows the start, the end
and the high watermark of its log already, as Kafka's fetch sessions do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol
from uuid import UUID

from kafkabuf.broker.log.leader_epochs import NO_EPOCH
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.records.batch import Data
from kafkabuf.broker.replica.delayed import DelayedResponse
from kafkabuf.broker.replica.replication import Partition, Replica
from kafkabuf.broker.replica.topics import Catalogue
from kafkabuf.broker.storage.batches import MOST_BUFFERS
from kafkabuf.broker.waiting._purgatory import RequestPurgatory
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.broker.wire.fetch import CONSUMER, FetchedPartition, FetchPartition, FetchRequest
from kafkabuf.errors import KafkaError, NotLeaderOrFollowerError, OffsetOutOfRangeError, error_for_code

Response = list[tuple[str | UUID, list[FetchedPartition]]]
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
) -> Response | Awaitable[Response]:
    """Returns the response, or parks the request in the node's purgatory and returns a future of the response.
    `injected` has the error codes of `fail_next`, by the topic as the request names it."""
    return finish(read_in_steps(node, request, injected))


def read_in_steps(
    node: Node, request: FetchRequest, injected: Mapping[str | UUID, int] = _NO_ERRORS
) -> Work[Response | Awaitable[Response]]:
    """As `read`, for a request with many partitions."""
    reading = _Read(node, request)
    yield from reading.begin(injected)
    # As in Kafka: a request that names no partition does not wait.
    if request.max_wait_ms <= 0 or not reading.partitions or reading.satisfied():
        return reading.response()
    parked = DelayedResponse(request.max_wait_ms / 1000, reading.satisfied, reading.response, reading.partitions)
    return parked.park(node.fetches)


class _RequestedPartition:
    """One partition of a request: `fetch` has its fields. `replica` is the leader's replica, and `epoch` the leader's
    epoch when the request came. If there is no such replica, `error` says why. Everything else about the replica may
    change while the request is parked."""

    __slots__ = ("epoch", "error", "fetch", "replica")

    def __init__(self, fetch: FetchPartition, replica: Replica | None, error: KafkaError | None) -> None:
        self.fetch = fetch
        self.replica = replica
        self.epoch = NO_EPOCH if replica is None else replica.known.epoch
        self.error = error

    @property
    def log(self) -> PartitionLog | None:
        """The log to read from; None if the partition has an error by now."""
        replica = self.replica
        if replica is None:
            return None
        if replica.known.epoch != self.epoch:
            # A client that does not name an epoch may go on in the next epoch of the same leader.
            if self.fetch.leader_epoch != NO_EPOCH or not replica.leads:
                return None
            self.epoch = replica.known.epoch
        log = replica.log
        return log if log.log_start_offset <= self.fetch.offset <= log.end_offset else None


class _Read:
    """One request: its partitions, whether it still waits, and its response."""

    def __init__(self, node: Node, request: FetchRequest) -> None:
        self._node = node
        self._request = request
        self._committed = request.isolation_level == _READ_COMMITTED
        self._follower = request.replica_id
        self._topics: list[tuple[str | UUID, list[_RequestedPartition]]] = []
        self._requested: list[_RequestedPartition] = []
        self.partitions: list[Partition] = []

    def begin(self, injected: Mapping[str | UUID, int]) -> Work[None]:
        """Finds the leader's replicas."""
        for topic, partitions in self._request.topics:
            requested = []
            for fetch in partitions:
                requested.append(self._begin(topic, fetch, injected.get(topic, 0)))
                yield
            self._topics.append((topic, requested))
            self._requested += requested
        self.partitions += (each.replica.partition for each in self._requested if each.replica is not None)

    def _begin(self, topic: str | UUID, fetch: FetchPartition, injected: int) -> _RequestedPartition:
        """Finds the leader's replica, and tells it the offset of a follower, once for each request."""
        try:
            replica = self._find(topic, fetch, injected)
        except KafkaError as error:
            # The traceback would keep the frames of thousands of partitions.
            return _RequestedPartition(fetch, None, error.with_traceback(None))
        if self._follower != CONSUMER:
            replica.fetched_by(self._follower, fetch.offset)
        return _RequestedPartition(fetch, replica, None)

    def _find(self, topic: str | UUID, fetch: FetchPartition, injected: int = 0) -> Replica:
        """The replica to read from. Raises the error for the response."""
        if injected:
            raise error_for_code(injected)
        partition = self._node.cluster.catalogue.topic(topic).partition(fetch.partition)
        replica = partition.led_by(self._node.node_id, fetch.leader_epoch)
        log = replica.log
        if not log.log_start_offset <= fetch.offset <= log.end_offset:
            raise OffsetOutOfRangeError(
                f"offset {fetch.offset} is outside of the log, which has {log.log_start_offset} to {log.end_offset}"
            )
        return replica

    def _limit(self, log: PartitionLog) -> int:
        """The reader gets records before this offset."""
        if self._follower != CONSUMER:
            return log.end_offset
        return log.last_stable_offset if self._committed else log.high_watermark

    def satisfied(self) -> bool:
        """Whether the response has enough bytes, or news that do not wait: an error, or for a follower a new start of
        the log."""
        available = 0
        for requested in self._requested:
            log, fetch = requested.log, requested.fetch
            if log is None:
                return True
            if log.log_start_offset > fetch.log_start_offset and self._follower != CONSUMER:
                return True
            limit = self._limit(log)
            if fetch.offset < limit:
                available += min(log.available(fetch.offset, limit), fetch.max_bytes)
        return available >= self._request.min_bytes

    def response(self) -> Response:
        room, buffers = self._request.max_bytes, MOST_BUFFERS
        empty = True
        response: Response = []
        for topic, partitions in self._topics:
            fetched_partitions = []
            for requested in partitions:
                fetched = self._fetch(topic, requested, room, empty)
                if fetched is not None:
                    buffers -= len(fetched.records)
                    room = room - fetched.nbytes if buffers > 0 else 0
                    empty = empty and not fetched.nbytes
                    fetched_partitions.append(fetched)
            response.append((topic, fetched_partitions))
        return response

    def _fetch(
        self, topic: str | UUID, requested: _RequestedPartition, room: int, at_least_one: bool
    ) -> FetchedPartition | None:
        """A partition's part of the response; None if the reader knows the state of the log already."""
        log, fetch = requested.log, requested.fetch
        if log is None:
            return FetchedPartition(fetch.partition, self._error(topic, requested).code)
        known = fetch.offset, fetch.high_watermark, fetch.log_start_offset
        if known == (log.end_offset, log.high_watermark, log.log_start_offset):
            return None
        limit = self._limit(log)
        batches: list[Data] = []
        if fetch.offset < limit:
            batches = log.read(fetch.offset, min(fetch.max_bytes, room), at_least_one, limit)
        return FetchedPartition(
            fetch.partition,
            0,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            self._aborted(log, fetch.offset) if self._committed else None,
            batches,
            sum(map(len, batches)),
        )

    def _error(self, topic: str | UUID, requested: _RequestedPartition) -> KafkaError:
        """The error that the partition has by now."""
        if requested.error is not None:
            return requested.error
        try:
            self._find(topic, requested.fetch)
        except KafkaError as error:
            return error
        return NotLeaderOrFollowerError(f"topic {topic} has been deleted and created again")

    @staticmethod
    def _aborted(log: PartitionLog, offset: int) -> list[tuple[int, int]]:
        return [(aborted.producer_id, aborted.first_offset) for aborted in log.aborted(offset, log.last_stable_offset)]
