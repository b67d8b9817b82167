"""A cluster without sockets and threads: the test turns its event loop, on a manual clock.

Requests go straight to the handlers. So nothing depends on the machine's speed, and every run is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kafkabuf.broker import apis
from kafkabuf.broker.apis.records import fetch, produce
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.nodes.node import Node
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.broker.wire._partition_result import PartitionResult
from kafkabuf.broker.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from kafkabuf.broker.wire.produce import ProduceRequest
from kafkabuf.clock import ManualClock
from kafkabuf.protocol import messages
from kafkabuf.protocol.messages import RequestHeader
from tests.broker.raw_client import batch
from tests.virtual.loop import VirtualLoop

TOPIC = "t"
# Seconds.
NEVER = 10_000.0


class NoSocket:
    """Stands for a node's listening socket."""

    def __init__(self, node: Node) -> None:
        self.port = 9092

    async def close(self) -> None:
        pass


class Parked:
    """The response of a request that may still be parked."""

    def __init__(self, answer: Any, loop: VirtualLoop) -> None:
        self.answer = answer
        if isinstance(answer, Awaitable):
            self.answer = asyncio.ensure_future(answer, loop=loop)

    @property
    def done(self) -> bool:
        return not isinstance(self.answer, asyncio.Future) or self.answer.done()

    @property
    def value(self) -> Any:
        return self.answer.result() if isinstance(self.answer, asyncio.Future) else self.answer


class Rig:
    """`nodes` nodes and the topic "t", with a replica on each node. Node 1 is the preferred leader."""

    def __init__(
        self, nodes: int = 3, *, partitions: int = 1, configs: dict[str, str] | None = None, **more: Any
    ) -> None:
        apis.load()
        self.clock = ManualClock()
        self.loop = VirtualLoop(self.clock)
        config = ClusterConfig(
            brokers=nodes,
            auto_create_topics=False,
            max_message_bytes=1 << 20,
            host="localhost",
            replication_factor=nodes,
            **more,
        )
        self.cluster = Cluster(config, self.clock, self.loop, NoSocket)
        self.loop.enter()
        self.run(self.cluster.start)
        placed = {index: tuple(range(1, nodes + 1)) for index in range(partitions)}
        self.run(lambda: self.cluster.catalogue.create_topic(TOPIC, configs=configs, assignment=placed))

    def close(self) -> None:
        self.run(self.cluster.stop)
        self.loop.close()

    def run(self, call: Callable[[], Any]) -> Any:
        """Runs `call`, and returns when everything that follows from it is over."""
        return self.loop.do(call)

    def advance(self, seconds: float) -> None:
        """Moves the clock in steps of 0.5 s, the shortest interval that matters, and runs what is due after each."""
        left = seconds
        while left > 1e-9:
            step = min(left, 0.5)
            self.clock.advance(step)
            self.run(self.cluster.timer.advance)
            left -= step

    # ---- requests

    def node(self, node_id: int) -> Node:
        return self.cluster.nodes[node_id]

    def replica(self, node_id: int, partition: int = 0) -> Replica:
        return self.cluster.catalogue.replica(TOPIC, partition, node_id)

    def produce(
        self,
        node_id: int,
        *values: bytes,
        acks: int = -1,
        timeout: float = 1.0,
        partition: int = 0,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> Parked:
        records = bytearray(batch(list(values) or [b"v"], producer=producer))
        request = ProduceRequest(None, acks, round(timeout * 1000), [(TOPIC, [(partition, records)])])
        header = RequestHeader(messages.PRODUCE, 9, 1, "test", 0)
        return self._ask(lambda: produce.handle(self.node(node_id), header, request))

    def fetch(
        self,
        node_id: int,
        offset: int,
        *,
        wait: float = 0.0,
        min_bytes: int = 1,
        epoch: int = -1,
        committed: bool = False,
    ) -> Parked:
        asked = [FetchPartition(0, epoch, offset, 1 << 20)]
        request = FetchRequest(round(wait * 1000), min_bytes, 1 << 20, committed, 0, -1, [(TOPIC, asked)])
        header = RequestHeader(messages.FETCH, 12, 1, "test", 0)
        return self._ask(lambda: fetch.handle(self.node(node_id), header, request))

    def _ask(self, handle: Callable[[], Any]) -> Parked:
        parked = self.run(lambda: Parked(handle(), self.loop))
        assert isinstance(parked, Parked)
        return parked

    # ---- the state

    @property
    def leader(self) -> int:
        return self.cluster.catalogue.topic(TOPIC).partition(0).leader

    @property
    def isr(self) -> list[int]:
        return list(self.cluster.catalogue.topic(TOPIC).partition(0).isr)

    def ends(self) -> list[int]:
        return [self.replica(node_id).log.end_offset for node_id in self.cluster.nodes]

    def high_watermarks(self) -> list[int]:
        return [self.replica(node_id).log.high_watermark for node_id in self.cluster.nodes]

    def log(self, node_id: int) -> bytes:
        """Every byte of a replica."""
        return b"".join(bytes(one.data) for one in self.replica(node_id).log.batches())


def result(parked: Parked) -> PartitionResult:
    """The only partition's result in the response of a Produce request."""
    ((_, (partition,)),) = parked.value.topics
    assert isinstance(partition, PartitionResult)
    return partition


def fetched(parked: Parked) -> FetchedPartition:
    """The only partition in the response of a Fetch request."""
    ((_, (partition,)),) = parked.value
    assert isinstance(partition, FetchedPartition)
    return partition


# ---- trouble


def lag(rig: Rig, seconds: float, *nodes: int) -> None:
    for node_id in nodes:
        rig.run(partial(rig.node(node_id).lag_by, seconds))


def kill(rig: Rig, node_id: int) -> None:
    rig.run(rig.node(node_id).kill)


def start(rig: Rig, node_id: int) -> None:
    rig.run(rig.node(node_id).start)


def isolate(rig: Rig, node_id: int) -> None:
    rig.run(lambda: rig.node(node_id).isolate(False))


def heal(rig: Rig, node_id: int) -> None:
    rig.run(rig.node(node_id).heal)


def write_transaction(rig: Rig) -> None:
    """Writes a record of producer 7, and opens its transaction in every replica."""
    rig.run(lambda: rig.cluster.transactions.init("tx", 60_000, None))
    rig.produce(1, producer=(7, 0, 0))
    producers = [rig.replica(node_id).log.producers for node_id in rig.cluster.nodes]
    for states in producers:
        entry = dict(states)[7]
        entry.transaction_start = states._open[7] = 0
