"""Parked requests: a Produce request that waits for followers, a Fetch request that waits for records.

Kafka's DelayedProduce and DelayedFetch. A parked request is completed once: when its condition holds, on an error, or
at its time-out. Its future has the response then. A connection that ends cancels the future, which takes the request
out of the purgatory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kafkabuf.broker.replica.replication import Partition, Replica
from kafkabuf.broker.waiting._purgatory import DelayedOperation, RequestPurgatory
from kafkabuf.errors import (
    KafkaError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)

Response = TypeVar("Response")
MANY = 200


class DelayedResponse(DelayedOperation, Generic[Response]):
    """`ready` says whether the request need not wait any more. `respond` makes the response.

    A change of any of the request's `partitions` is a reason to ask `ready`, which looks at all of them. For MANY
    partitions it is asked once in a turn of the event loop, after all changes of the turn.
    """

    def __init__(
        self,
        timeout: float,
        ready: Callable[[], bool],
        respond: Callable[[], Response],
        partitions: Sequence[Partition],
    ) -> None:
        super().__init__(timeout)
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Response] = self._loop.create_future()
        self._partitions = partitions
        self._check: asyncio.Handle | None = None
        self._ready = ready
        self._respond = respond

    def try_complete(self) -> bool:
        if len(self._partitions) < MANY:
            return self._ready() and self.force_complete()
        if self._check is None:
            self._check = self._loop.call_soon(self._complete_if_ready)
        return False

    def _complete_if_ready(self) -> None:
        self._check = None
        if not self.is_completed and self._ready():
            self.force_complete()

    def on_complete(self) -> None:
        if not self.future.done():
            self.future.set_result(self._respond())

    def park(self, purgatory: RequestPurgatory) -> asyncio.Future[Response]:
        """Parks the request until its partitions change. Returns the future of the response, which is done already if
        `ready` holds."""
        if not purgatory.try_complete_else_watch(self, self._partitions):
            self.future.add_done_callback(self._done)
        return self.future

    def _done(self, future: asyncio.Future[Response]) -> None:
        if future.cancelled():
            self.force_complete()


@dataclass(slots=True)
class Pending:
    """The wait of one partition: until every replica in sync has the records before `offset`. The leader appended them
    in `epoch`."""

    replica: Replica
    epoch: int
    offset: int
    error: KafkaError | None = None

    @property
    def waits(self) -> bool:
        """Whether a replica in sync still lacks the records. When the wait is over, `error` is its reason, or None if
        every replica in sync has the records."""
        replica = self.replica
        if replica.known.epoch != self.epoch or not replica.leads:
            self.error = self._lost_leader()
        elif not replica.enough_in_sync:
            self.error = NotEnoughReplicasAfterAppendError(
                f"appended, but partition {replica.partition.index} has only {len(replica.known.isr)} replicas in sync"
            )
        else:
            return replica.log.high_watermark < self.offset
        return False

    def _lost_leader(self) -> KafkaError:
        partition = self.replica.partition
        if not partition.topic.deleted:
            return NotLeaderOrFollowerError(f"partition {partition.index} has another leader meanwhile")
        return UnknownTopicOrPartitionError(f"topic {partition.topic.name} has been deleted meanwhile")


class ReplicationWait:
    """The wait of one Produce request with acks=all: until the wait of each of its partitions is over."""

    def __init__(self, partitions: list[Pending]) -> None:
        self._partitions = partitions
        self._pending = list(partitions)

    def over(self) -> bool:
        self._pending = [pending for pending in self._pending if pending.waits]
        return not self._pending

    def errors(self) -> list[KafkaError | None]:
        """The error of each partition; None if every replica in sync has its records. A partition that still waits has
        timed out."""
        for pending in self._pending:
            pending.error = RequestTimedOutError(f"not all replicas in sync had offset {pending.offset - 1} in time")
        return [partition.error for partition in self._partitions]
