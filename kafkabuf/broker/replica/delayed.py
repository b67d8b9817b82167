"""Requests parked until their partitions have news: a Produce that waits for copies, a Fetch that waits for records
(Kafka's DelayedProduce and DelayedFetch). Each is completed once, by what it waits for, by an error, or by its
time-out; then its future has the answer. A connection that ends cancels the future, which takes the operation out of
the purgatory."""

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

Answer = TypeVar("Answer")


class DelayedAnswer(DelayedOperation, Generic[Answer]):
    """`ready` says whether the answer is there, `answer` gives it."""

    def __init__(self, timeout: float, ready: Callable[[], bool], answer: Callable[[], Answer]) -> None:
        super().__init__(timeout)
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._ready = ready
        self._answer = answer

    def try_complete(self) -> bool:
        return self._ready() and self.force_complete()

    def on_complete(self) -> None:
        if not self.future.done():
            self.future.set_result(self._answer())

    def park(self, purgatory: RequestPurgatory, partitions: Sequence[Partition]) -> asyncio.Future[Answer]:
        """A future of the answer, which is done already if `ready`."""
        if not purgatory.try_complete_else_watch(self, partitions):
            self.future.add_done_callback(self._done)
        return self.future

    def _done(self, future: asyncio.Future[Answer]) -> None:
        if future.cancelled():
            self.force_complete()


@dataclass(slots=True)
class Pending:
    """Records of one partition, those before `offset`, appended in `epoch`, that some copy in sync does not have
    yet."""

    replica: Replica
    epoch: int
    offset: int
    error: KafkaError | None = None

    @property
    def waits(self) -> bool:
        """Whether a copy in sync still lacks the records. If not, `error` says why the wait is over, None if every copy
        in sync has them."""
        replica = self.replica
        if replica.known.epoch != self.epoch or not replica.leads:
            self.error = self._lost_leader()
        elif not replica.enough_in_sync:
            self.error = NotEnoughReplicasAfterAppendError(
                f"appended, but of partition {replica.partition.index} only {len(replica.known.isr)} copies are in sync"
            )
        else:
            return replica.log.high_watermark < self.offset
        return False

    def _lost_leader(self) -> KafkaError:
        partition = self.replica.partition
        if not partition.topic.deleted:
            return NotLeaderOrFollowerError(f"partition {partition.index} has got another leader meanwhile")
        return UnknownTopicOrPartitionError(f"topic {partition.topic.name} has been deleted meanwhile")


class ReplicationWait:
    """The wait of one Produce request with acks=all."""

    def __init__(self, pending: list[Pending]) -> None:
        self._all = pending
        self._pending = list(pending)

    def over(self) -> bool:
        self._pending = [pending for pending in self._pending if pending.waits]
        return not self._pending

    def errors(self) -> list[KafkaError | None]:
        """The error of each partition, None if every copy in sync has its records. A partition that still waits has run
        out of time."""
        for one in self._pending:
            one.error = RequestTimedOutError(f"not all copies in sync had offset {one.offset - 1} in time")
        return [one.error for one in self._all]
