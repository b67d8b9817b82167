"""Follower fetchers (Kafka's ReplicaFetcherThread).

A follower fetches records from the leader's node as clients do (reading.py), with a replica id and without a
connection. The leader parks the request while there is nothing to fetch.

There is a fetcher for each pair of following node and leading node, with one request in flight. Responses and changes
of the cluster drive the fetcher; it has no thread and no timer of its own. In a new epoch a replica first cuts off the
records that its leader does not have, epoch by epoch (OffsetForLeaderEpoch; KIP-101, KIP-279).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from kafkabuf.broker.log.leader_epochs import NO_EPOCH
from kafkabuf.broker.log.log import PartitionLog
from kafkabuf.broker.replica import reading
from kafkabuf.broker.replica.delayed import MANY
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.waiting.slices import Slices, Work, finish
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.broker.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from kafkabuf.errors import KafkaError, OffsetOutOfRangeError, error_for_code

log = logging.getLogger("kafkabuf.broker")

# Kafka's replica.fetch.max.bytes and replica.fetch.response.max.bytes.
_PARTITION_BYTES = 1_048_576
_RESPONSE_BYTES = 10_485_760
# Kafka's replica.fetch.wait.max.ms. A follower waits for this time while the leader's high watermark may have risen
# above its own. Once every high watermark is at the log's end, the follower waits without a limit for new records.
_HIGH_WATERMARK_WAIT_MS = 500
_LONG_WAIT_MS = 2**31 - 1
# While a large topic is created or deleted, its replicas come and go one by one. A new request for MANY replicas waits
# until they have been the same for a pause, but for at most _MOST_PAUSES pauses.
_PAUSE_SECONDS = 0.02
_MOST_PAUSES = 100
# Kafka's replica.fetch.backoff.ms.
_BACKOFF_SECONDS = 1.0


class Cluster(reading.Cluster, Protocol):
    """What a fetcher needs of the cluster."""

    loop: asyncio.AbstractEventLoop
    timer: Timer
    slices: Slices

    @property
    def nodes(self) -> Mapping[int, Node]: ...


class Node(reading.Node, Protocol):
    """What a fetcher needs of the follower's node and of the leader's."""

    replica_lag: float

    @property
    def cluster(self) -> Cluster: ...
    @property
    def connected(self) -> bool: ...


class Fetchers:
    """The fetchers of one node, one fetcher for each leading node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_leader: dict[int, Fetcher] = {}

    def follow(self, replica: Replica) -> None:
        leader = replica.known.leader
        if leader not in self._by_leader:
            self._by_leader[leader] = Fetcher(self._node, self._node.cluster.nodes[leader])
        self._by_leader[leader].add(replica)

    def leave(self, replica: Replica) -> None:
        for fetcher in self._by_leader.values():
            fetcher.remove(replica)

    def refresh(self) -> None:
        for fetcher in self._by_leader.values():
            fetcher.refresh()


class Fetcher:
    """Fetches the replicas of one node that follow the same leading node. `_flight` is the number of the last request:
    the fetcher ignores the response to any other request."""

    def __init__(self, node: Node, leader: Node) -> None:
        self._node = node
        self._leader = leader
        self._replicas: dict[tuple[str, int], Replica] = {}
        # The replicas that have cut off the records that the leader does not have.
        self._aligned: set[Replica] = set()
        self._flight = 0
        self._parked: asyncio.Future[reading.Response] | None = None
        self._sending: asyncio.Handle | None = None
        # Counts the replicas that came and went.
        self._changes = 0

    def add(self, replica: Replica) -> None:
        self._replicas[_key(replica)] = replica
        if len(self._replicas) < MANY:
            self.refresh()
        else:
            self._schedule()

    def remove(self, replica: Replica) -> None:
        if self._replicas.pop(_key(replica), None) is not None:
            self._aligned.discard(replica)
            self.refresh()

    def refresh(self) -> None:
        """Gives up the request in flight, and sends a new request in the event loop's next turn. All changes of one
        turn lead to one request."""
        self._give_up()
        self._schedule()

    def _give_up(self) -> None:
        self._flight += 1
        if self._parked is not None:
            self._parked.cancel()
            self._parked = None

    def _schedule(self) -> None:
        self._changes += 1
        if self._sending is None and self._replicas and self._linked:
            if len(self._replicas) < MANY:
                self._sending = self._node.cluster.loop.call_soon(self._start)
            else:
                self._start_after_pause(_MOST_PAUSES)

    def _start_after_pause(self, pauses: int) -> None:
        changes = self._changes

        def start() -> None:
            if (changes != self._changes or self._node.cluster.slices.changing) and pauses:
                self._start_after_pause(pauses - 1)
            else:
                self._start()

        self._sending = self._node.cluster.loop.call_later(_PAUSE_SECONDS, start)

    @property
    def _linked(self) -> bool:
        return self._node.connected and self._leader.connected

    def _start(self) -> None:
        self._sending = None
        self._give_up()
        self._send()

    def _send(self) -> None:
        sending = self._send_in_steps()
        if len(self._replicas) < MANY:
            finish(sending)
        else:
            self._node.cluster.slices.run(sending, goes_on=True)

    # ---- one request

    def _send_in_steps(self) -> Work[None]:
        self._flight += 1
        flight = self._flight
        for replica in [replica for replica in self._replicas.values() if replica not in self._aligned]:
            if self._linked and self._replicas.get(_key(replica)) is replica:
                self._try(self._align, replica)
            yield
        if not self._linked or not self._replicas or flight != self._flight:
            return
        request = yield from self._request()
        response = yield from reading.read_in_steps(self._leader, request)
        arrive = partial(self._arrive, flight)
        if not isinstance(response, asyncio.Future):
            self._node.cluster.loop.call_soon(arrive, response)
        elif flight == self._flight:
            self._parked = response
            response.add_done_callback(arrive)
        else:
            response.cancel()

    def _request(self) -> Work[FetchRequest]:
        by_topic: dict[str, list[FetchPartition]] = {}
        wait_ms = _LONG_WAIT_MS
        for (topic, index), replica in tuple(self._replicas.items()):
            yield
            own_log = replica.log
            end, high_watermark = own_log.end_offset, own_log.high_watermark
            epoch, start = replica.known.epoch, own_log.log_start_offset
            partition = FetchPartition(index, epoch, end, _PARTITION_BYTES, high_watermark, start)
            by_topic.setdefault(topic, []).append(partition)
            if high_watermark < end:
                wait_ms = _HIGH_WATERMARK_WAIT_MS
        topics = list(by_topic.items())
        return FetchRequest(wait_ms, 1, _RESPONSE_BYTES, 0, 0, -1, topics, replica_id=self._node.node_id)

    def _arrive(self, flight: int, response: asyncio.Future[reading.Response] | reading.Response) -> None:
        if flight != self._flight:
            return
        self._parked = None
        topics = response.result() if isinstance(response, asyncio.Future) else response
        if self._node.replica_lag:
            self._node.cluster.timer.after(self._node.replica_lag, lambda: self._take(flight, topics))
        else:
            self._take(flight, topics)

    def _take(self, flight: int, response: reading.Response) -> None:
        if flight != self._flight:
            return
        for topic, partitions in response:
            assert isinstance(topic, str)
            for fetched in partitions:
                replica = self._replicas.get((topic, fetched.partition))
                if replica is not None:
                    self._try(self._append, replica, fetched)
        if self._sending is None or len(self._replicas) >= MANY:
            self._send()

    def _append(self, replica: Replica, fetched: FetchedPartition) -> None:
        if fetched.error_code == OffsetOutOfRangeError.code:
            self._restart(replica)
        elif fetched.error_code:
            raise error_for_code(fetched.error_code)
        else:
            self._take_over(replica.log, fetched)

    @staticmethod
    def _take_over(own_log: PartitionLog, fetched: FetchedPartition) -> None:
        for data in fetched.records:
            own_log.append_as_follower(data)
        own_log.high_watermark = min(fetched.high_watermark, own_log.end_offset)
        if fetched.log_start_offset > own_log.log_start_offset:
            own_log.delete_before(min(fetched.log_start_offset, own_log.high_watermark))

    def _try(self, action: Callable[..., None], replica: Replica, *more: object) -> None:
        """Leaves a replica out for a back-off if the disk or the leader refuses. The others do not wait for it."""
        try:
            action(replica, *more)
        except KafkaError as error:
            log.error("%r does not follow its leader for %s s: %s", replica, _BACKOFF_SECONDS, error)
            self.remove(replica)
            self._node.cluster.timer.after(_BACKOFF_SECONDS, partial(self._return, replica, replica.known.epoch))

    def _return(self, replica: Replica, epoch: int) -> None:
        if replica.known.epoch == epoch:
            self.add(replica)

    # ---- records that the leader does not have

    def _align(self, replica: Replica) -> None:
        """Cuts off the records that the leader does not have (KIP-279). Finds the last epoch that both logs have; the
        log is cut where that epoch ends, in the log in which it ends first."""
        own_log, leader = replica.log, replica.partition.replicas[self._leader.node_id].log
        epoch = own_log.leader_epochs.latest
        while epoch != NO_EPOCH:
            latest, (epoch, leader_end) = epoch, leader.leader_epochs.end_offset_for(epoch)
            if epoch == NO_EPOCH:
                log.info("%r: its leader does not know epoch %d", replica, latest)
                own_log.truncate_to(own_log.high_watermark)
                break
            own_epoch, own_end = own_log.leader_epochs.end_offset_for(epoch)
            if own_epoch == epoch:
                own_log.truncate_to(min(own_end, leader_end))
                break
            own_log.truncate_to(own_end)
            epoch = own_epoch
        self._aligned.add(replica)

    def _restart(self, replica: Replica) -> None:
        """Moves the log's end: back to its leader's end, or forward to its leader's start."""
        own_log, leader = replica.log, replica.partition.replicas[self._leader.node_id].log
        if own_log.end_offset > leader.end_offset:
            own_log.truncate_to(leader.end_offset)
        else:
            own_log.restart_at(leader.log_start_offset)


def _key(replica: Replica) -> tuple[str, int]:
    return replica.partition.topic.name, replica.partition.index
