"""What the tests of kafkabuf.aio share: a producer with little memory, a cluster that stops answering, a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiokafka

from kafkabuf.aio import AIOKafkaProducer, AIORecordFuture
from kafkabuf.broker import EmbeddedCluster
from rigs.producer import PATIENCE

SLAB = 1024
SLABS = 16
VALUE = b"x" * 900  # one fills a batch


def small(cluster: EmbeddedCluster, **settings: Any) -> AIOKafkaProducer:
    """Memory for few records, so that they wait for it soon."""
    defaults = {"batch_size": SLAB, "buffer_memory": SLABS * SLAB, "linger_ms": 1, "retry_backoff_ms": 10}
    return AIOKafkaProducer(defaults | settings, bootstrap_servers=cluster.bootstrap_servers)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE))


@asynccontextmanager
async def held_up(cluster: EmbeddedCluster) -> AsyncIterator[None]:
    """No broker answers."""
    for node in cluster.nodes():
        cluster.pause_node(node)
    try:
        yield
    finally:
        for node in cluster.nodes():
            cluster.resume_node(node)


async def until(what: Callable[[], object]) -> None:
    while not what():
        await asyncio.sleep(0.001)


async def fill(producer: AIOKafkaProducer, topic: str) -> list[AIORecordFuture]:
    """So many records that the next must wait for memory."""
    return [await producer.send(topic, VALUE, partition=0) for _ in range(SLABS)]


def waiting(producer: AIOKafkaProducer) -> Callable[[], bool]:
    return lambda: producer._started.pool.waiting > 0


async def read_back(cluster: EmbeddedCluster, topic: str, count: int, **settings: Any) -> list[Any]:
    """By aiokafka, from all partitions."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", **settings
    )
    async with consumer:
        return [await consumer.getone() for _ in range(count)]


class Heartbeat:
    """The longest time in which the loop did nothing else than what it should not have been kept by."""

    def __init__(self) -> None:
        self.beats = 0

    async def __aenter__(self) -> Heartbeat:
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.beats += 1

    async def goes_on(self) -> None:
        """Raises where the loop stands still."""
        before = self.beats
        await until(lambda: self.beats > before + 10)
