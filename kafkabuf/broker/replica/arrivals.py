"""Reads a topic for the process that runs the cluster, piece by piece, and waits for more. Thread: the event loop.

A reader gets what a consumer would get: the records of the leader's log from its start up to the high watermark, or
with read_committed up to the last stable offset. A piece is bounded, so that the nodes serve their clients between two
pieces. The reader decodes the piece in its own thread (log/decoding.py): stored batches never change.

A wait parks an operation in the purgatory of each node, beside the Fetch requests. The leader completes these
operations when it appends, when the high watermark rises and when a transaction ends. No append pays for a wait that
does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from kafkabuf.broker.records.batch import Data
from kafkabuf.broker.replica.delayed import DelayedResponse
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.broker.waiting._purgatory import RequestPurgatory

# A piece has about this many bytes.
PIECE = 1 << 20
# A wait is parked again after this time on the cluster's clock. Its own time-out is in real time.
_PARKED_SECONDS = 3600.0


class Catalogue(Protocol):
    """What a wait needs of the catalogue."""

    def find(self, name: str) -> Topic | None: ...
    def changed(self) -> asyncio.Future[None]: ...


class Node(Protocol):
    """What a wait needs of a node."""

    fetches: RequestPurgatory


class Bounds(NamedTuple):
    """The offsets of one partition: readers get the records from `start` up to `end`, which a transaction may hold
    back from `high_watermark`."""

    start: int
    end: int
    high_watermark: int


class Piece(NamedTuple):
    """Buffers of whole batches, from the batch that holds `offset` on, and the aborted transactions among them."""

    offset: int
    buffers: list[Data]
    aborted: list[tuple[int, int]] | None


def bounds(partition: Partition, committed: bool) -> Bounds:
    log = partition.log
    end = log.last_stable_offset if committed else log.high_watermark
    return Bounds(log.log_start_offset, end, log.high_watermark)


def read_piece(partition: Partition, offset: int, end: int, committed: bool) -> Piece:
    """The batches from `offset` up to `end`, as many as a piece has. Records before the log's start are gone."""
    log = partition.log
    start, known_end, _ = bounds(partition, committed)
    offset, end = max(offset, start), min(end, known_end)
    if offset >= end:
        return Piece(offset, [], None)
    aborted = [(ended.producer_id, ended.first_offset) for ended in log.aborted(offset, end)] if committed else None
    return Piece(offset, log.read(offset, PIECE, True, end), aborted)


def chosen(topic: Topic, partition: int | None) -> list[Partition]:
    """One partition of a topic, or all. Raises UnknownTopicOrPartitionError."""
    return topic.partitions if partition is None else [topic.partition(partition)]


async def wait_until(
    catalogue: Catalogue, nodes: Iterable[Node], name: str, partition: int | None, ready: Callable[[], bool]
) -> None:
    """Returns when `ready` holds. The cluster calls it again whenever the partitions may have more to read, and when
    the topic is created, gets partitions or is deleted. `ready` must not raise."""
    while not ready():
        topic = catalogue.find(name)
        partitions = [] if topic is None else chosen(topic, partition)
        news: list[asyncio.Future[None]] = [catalogue.changed()]
        for node in nodes if partitions else ():
            parked: DelayedResponse[None] = DelayedResponse(_PARKED_SECONDS, ready, _nothing, partitions)
            news.append(parked.park(node.fetches))
        try:
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in news:
                future.cancel()


def _nothing() -> None:
    """The wait is over: its reader reads on by itself."""
