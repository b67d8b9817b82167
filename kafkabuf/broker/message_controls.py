"""Methods of `EmbeddedCluster` for the records that have arrived. Any thread may call them.

The cluster's thread hands out stored batches in pieces (replica/arrivals.py). The caller's thread decodes them, so that
a topic of any size does not keep the nodes from their clients.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import Iterator, Sequence
from typing import Literal

from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.arguments import require_int, require_text, require_timeout
from kafkabuf.broker.controls import Caller
from kafkabuf.broker.log.decoding import ConsumerRecord, Decoder
from kafkabuf.broker.messages import Messages, describe
from kafkabuf.broker.replica import arrivals
from kafkabuf.broker.replica.arrivals import Bounds, Piece
from kafkabuf.broker.replica.topics import Topic
from kafkabuf.errors import ClosedError, ConfigError, TimeoutError, UnknownTopicOrPartitionError
from kafkabuf.process._time import monotonic

IsolationLevel = Literal["read_committed", "read_uncommitted"]
_COMMITTED: IsolationLevel = "read_committed"
_LEVELS = ("read_uncommitted", _COMMITTED)
# An error lists at most this many records.
_LISTED = 10


class MessageControls(Caller):
    """Every method raises ConfigError for an argument of a wrong type or value, such as a topic that is no str."""

    def messages(
        self, topic: str, partition: int | None = None, *, isolation_level: IsolationLevel = _COMMITTED
    ) -> Messages:
        """The records that a consumer would get now, of one partition or of all, by partition and offset.

        A consumer gets the records up to the high watermark. With `read_committed` it gets no record behind the start
        of an open transaction, and no record of an aborted transaction. Raises UnknownTopicOrPartitionError if there is
        no such topic or partition, CorruptMessageError if a file of the `data_dir` was damaged or a batch cannot be
        unpacked, and InvalidRecordError for a record that is not whole.
        """
        reading = _Reading(self, topic, partition, isolation_level)
        if not reading.topic_exists():
            raise UnknownTopicOrPartitionError(reading.missing())
        reading.read_all()
        return reading.messages()

    def wait_for_messages(
        self,
        topic: str,
        n: int = 1,
        timeout: float = 10.0,
        *,
        partition: int | None = None,
        isolation_level: IsolationLevel = _COMMITTED,
    ) -> Messages:
        """Waits until there are at least `n` records, and returns all records as `messages` does.

        Records before the call count. The topic need not exist yet. Raises TimeoutError after `timeout` seconds of real
        time, whatever the cluster's clock is. The error says which records have arrived, and whether an open
        transaction holds records back. Raises the errors of `messages` for what cannot be read.
        """
        require_int("n", n)
        require_timeout("timeout", timeout)
        reading = _Reading(self, topic, partition, isolation_level)
        deadline = monotonic() + timeout
        while reading.read_all() < n:
            if not reading.wait(n - reading.count, deadline):
                raise TimeoutError(reading.shortfall(n, timeout))
        return reading.messages()

    def consume(
        self,
        topic: str,
        partition: int | None = None,
        *,
        timeout: float | None = 10.0,
        isolation_level: IsolationLevel = _COMMITTED,
    ) -> Iterator[ConsumerRecord]:
        """An iterator over the records from the start of the log on, which waits for more at the log's end.

        It ends when no record has come for `timeout` seconds of real time (None: it waits for ever), and when the
        cluster stops. The topic need not exist yet. The records of a partition come in the order of their offsets;
        partitions take turns. Raises UnknownTopicOrPartitionError if the topic is deleted meanwhile, or has no such
        partition, and the errors of `messages` for what cannot be read.
        """
        if timeout is not None:
            require_timeout("timeout", timeout)
        reading = _Reading(self, topic, partition, isolation_level)
        self._running()
        reading.topic_exists()
        return reading.follow(timeout)


class _Reading:
    """What one call has read of a topic. It belongs to the thread of the caller, except for `_topic` and `_offsets`
    while the cluster's thread runs a function for the call. `count` is the number of records so far."""

    def __init__(self, caller: Caller, topic: str, partition: int | None, isolation_level: IsolationLevel) -> None:
        require_text("topic", topic)
        if partition is not None:
            require_int("partition", partition)
        if isolation_level not in _LEVELS:
            raise ConfigError(f"isolation_level={isolation_level!r}: one of {', '.join(_LEVELS)} is needed")
        self.count = 0
        self._pid = os.getpid()
        self._caller = caller
        self._name = topic
        self._partition = partition
        self._committed = isolation_level == _COMMITTED
        self._topic: Topic | None = None
        # The offset to read on from, and the records so far, by partition.
        self._offsets: dict[int, int] = {}
        self._records: dict[int, list[ConsumerRecord]] = {}

    # ---- in the caller's thread

    def topic_exists(self) -> bool:
        """Whether the topic exists. Raises UnknownTopicOrPartitionError if it has no such partition."""
        self._bounds()
        return self._topic is not None

    def messages(self) -> Messages:
        return Messages(record for index in sorted(self._records) for record in self._records[index])

    def read_all(self) -> int:
        """Reads what there is at the time of the call. Returns `count`."""
        for index, (_, end, _) in self._bounds().items():
            kept = self._records.setdefault(index, [])
            while self._offsets[index] < end:
                records = self._read(index, end)
                kept += records
                self.count += len(records)
        return self.count

    def follow(self, timeout: float | None) -> Iterator[ConsumerRecord]:
        try:
            while True:
                deadline = None if timeout is None else monotonic() + timeout
                while not (records := self._read_next()):
                    if not self.wait(1, deadline):
                        return
                yield from records
        except ClosedError:
            # The cluster has stopped, unless this is a forked child.
            if self._pid != os.getpid():
                raise

    def _read_next(self) -> list[ConsumerRecord]:
        """A piece of each partition that has more."""
        bounds = self._bounds().items()
        return [
            record for index, (_, end, _) in bounds if self._offsets[index] < end for record in self._read(index, end)
        ]

    def _read(self, index: int, end: int) -> list[ConsumerRecord]:
        """The records of the next piece of a partition."""
        piece = self._caller._call(lambda cluster: self._piece(cluster, index, end))
        decoder = Decoder(self._name, index, piece.offset, piece.aborted)
        records = [record for buffer in piece.buffers for record in decoder.records(buffer)]
        # Without batches the offsets up to the end have been dropped meanwhile.
        self._offsets[index] = decoder.offset if piece.buffers else end
        return records

    def wait(self, offsets: int, deadline: float | None) -> bool:
        """Waits until there are this many offsets to read. Returns False if the deadline has passed before.

        There are at least as many offsets as records: control records and aborted records have offsets too.
        """

        async def wait() -> bool:
            cluster = self._caller._running()
            seconds = None if deadline is None else max(deadline - monotonic(), 0.0)
            nodes = cluster.nodes.values()
            try:
                async with asyncio.timeout(seconds):
                    await arrivals.wait_until(
                        cluster.catalogue, nodes, self._name, self._partition, lambda: self._ready(cluster, offsets)
                    )
            except builtins.TimeoutError:
                return False
            return True

        return self._caller._await(wait())

    # ---- in the cluster's thread

    def _bounds(self) -> dict[int, Bounds]:
        return self._caller._call(self._find_bounds)

    def _find_topic(self, cluster: Cluster) -> Topic | None:
        """None before the topic exists. Raises UnknownTopicOrPartitionError if it was deleted since the last call."""
        topic = cluster.catalogue.find(self._name)
        if self._topic is None:
            self._topic = topic
        elif topic is not self._topic:
            raise UnknownTopicOrPartitionError(f"topic {self._name} was deleted while its records were read")
        return topic

    def _find_bounds(self, cluster: Cluster) -> dict[int, Bounds]:
        """The bounds of each partition to read; none before the topic exists. Raises UnknownTopicOrPartitionError if
        the topic has no such partition, or was deleted since the last call."""
        topic = self._find_topic(cluster)
        if topic is None:
            return {}
        by_partition = {p.index: arrivals.bounds(p, self._committed) for p in arrivals.chosen(topic, self._partition)}
        for index, bounds in by_partition.items():
            self._offsets.setdefault(index, bounds.start)
        return by_partition

    def _piece(self, cluster: Cluster, index: int, end: int) -> Piece:
        # Not _find_bounds: a look at all partitions for each piece would take the square of their number.
        topic = self._find_topic(cluster)
        assert topic is not None
        return arrivals.read_piece(topic.partition(index), self._offsets[index], end, self._committed)

    def _ready(self, cluster: Cluster, offsets: int) -> bool:
        """Whether the wait is over: there are that many offsets to read, or the next look raises an error."""
        try:
            by_partition = self._find_bounds(cluster)
        except UnknownTopicOrPartitionError:
            return True
        left = (end - max(self._offsets[index], start) for index, (start, end, _) in by_partition.items())
        return sum(count for count in left if count > 0) >= offsets

    # ---- words

    def missing(self) -> str:
        every = self._caller._call(lambda cluster: list(cluster.catalogue.topics.values()))
        topics = sorted(topic.name for topic in every if not topic.internal)
        known = f"the cluster has {_listed(topics)}" if topics else "the cluster has no topic"
        return f"there is no topic {self._name!r}: {known}"

    def shortfall(self, expected: int, seconds: float) -> str:
        """Why `expected` records are not there."""
        where = f"topic {self._name!r}" if self._partition is None else f"{self._name}-{self._partition}"
        text = f"{self.count} of {expected} messages arrived in {where} within {seconds:g} s"
        bounds = self._bounds()
        if self._topic is None:
            return f"{text}; {self.missing()}"
        for index, (_, end, high_watermark) in bounds.items():
            if end < high_watermark:
                text += f"; an open transaction holds back partition {index} from offset {end} to {high_watermark - 1}"
        shown = [describe(record) for record in self.messages()[:_LISTED]]
        more = [f"... and {self.count - _LISTED:,} more"] if self.count > _LISTED else []
        return "\n  ".join([text, *shown, *more])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more
