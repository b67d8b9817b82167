"""Fetch (key 1), versions 4 to 16.

Whole stored batches from the one that holds the offset, up to the partition's and the request's limits; the first
batch of an answer comes whatever its size (KIP-74). Less than `min_bytes` waits for more, up to `max_wait_ms`, and
ends early when a partition changes its leader or has an error.

With read_committed an answer ends at the last stable offset and names the aborted transactions within it.

Deviations: no fetch sessions (the session id is always 0, which makes clients send full requests); followers do not
fetch; magic 0 and 1 are never converted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING
from uuid import UUID

from kafkabuf.broker.dispatch import Frame, api
from kafkabuf.broker.log import PartitionLog
from kafkabuf.broker.topics import Partition
from kafkabuf.errors import KafkaError, OffsetOutOfRangeError, error_for_code
from kafkabuf.protocol import fetch
from kafkabuf.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest
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
    read = _Read(node, request)
    return read.answer() if read.satisfied() or request.max_wait_ms <= 0 else read.wait()


class _Read:
    """One request: what it asks of which partition, and whether that is there yet."""

    def __init__(self, node: Node, request: FetchRequest) -> None:
        self._node = node
        self._request = request
        self._committed = request.isolation_level == _READ_COMMITTED
        names = {topic: self._name(topic) for topic, _ in request.topics}
        self._injected = node.cluster.faults.take_errors(FETCH, list(names.values()))
        self._names = names

    def _name(self, topic: str | UUID) -> str:
        try:
            return self._node.cluster.topic(topic).name
        except KafkaError:
            return str(topic)

    def _find(self, topic: str | UUID, asked: FetchPartition) -> Partition:
        """The partition to read from, or the error to answer with."""
        code = self._injected.get(self._names[topic], self._injected.get(None, 0))
        if code:
            raise error_for_code(code)
        partition = self._node.cluster.topic(topic).partition(asked.partition)
        if (error := partition.check_leader(self._node.node_id, asked.leader_epoch)) is not None:
            raise error
        if not partition.log.log_start_offset <= asked.offset <= partition.log.high_watermark:
            raise OffsetOutOfRangeError(
                f"offset {asked.offset}, the log holds {partition.log.log_start_offset} to {partition.log.end_offset}"
            )
        return partition

    def _limit(self, log: PartitionLog) -> int:
        return log.last_stable_offset if self._committed else log.high_watermark

    def satisfied(self) -> bool:
        """Whether there is enough to answer with, or an error, which does not wait."""
        found = 0
        for topic, partitions in self._request.topics:
            for asked in partitions:
                try:
                    log = self._find(topic, asked).log
                    found += min(log.available(asked.offset, self._limit(log)), asked.max_bytes)
                except KafkaError:
                    return True
        return found >= self._request.min_bytes

    async def wait(self) -> Answer:
        """Parked: looks again whenever one of its partitions has news, gives up after `max_wait_ms`."""
        news = asyncio.Event()
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            news.set()

        logs = self._logs()
        timeout = self._node.cluster.timer.after(self._request.max_wait_ms / 1000, expire)
        for one in logs:
            one.watchers.add(news.set)
        try:
            while not expired and not self.satisfied():
                news.clear()
                await news.wait()
        finally:
            timeout.cancel()
            for one in logs:
                one.watchers.discard(news.set)
        return self.answer()

    def _logs(self) -> list[PartitionLog]:
        return [
            self._node.cluster.topic(topic).partition(asked.partition).log
            for topic, partitions in self._request.topics
            for asked in partitions
        ]

    def answer(self) -> Answer:
        room = self._request.max_bytes
        empty = True
        answer: Answer = []
        for topic, partitions in self._request.topics:
            fetched = []
            for asked in partitions:
                one = self._fetch(topic, asked, room, empty)
                room -= one.nbytes
                empty = empty and not one.nbytes
                fetched.append(one)
            answer.append((topic, fetched))
        return answer

    def _fetch(self, topic: str | UUID, asked: FetchPartition, room: int, at_least_one: bool) -> FetchedPartition:
        try:
            log = self._find(topic, asked).log
        except KafkaError as error:
            return FetchedPartition(asked.partition, error.code)
        found = log.read(asked.offset, min(asked.max_bytes, room), at_least_one, self._limit(log))
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
