"""Helpers of the tests of kafkabuf.aio: a producer with little memory, a cluster that stops answering, a heartbeat."""

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
VALUE = b"x" * 900  # a record with this value fills a batch


def small(cluster: EmbeddedCluster, **settings: Any) -> AIOKafkaProducer:
    """A producer with memory for few records, so that records soon wait for memory."""
    defaults = {"batch_size": SLAB, "buffer_memory": SLABS * SLAB, "linger_ms": 1, "retry_backoff_ms": 10}
    return AIOKafkaProducer(defaults | settings, bootstrap_servers=cluster.bootstrap_servers)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE))


@asynccontextmanager
async def held_up(cluster: EmbeddedCluster) -> AsyncIterator[None]:
    """No broker answers inside the block."""
    for node in cluster.nodes():
        cluster.pause_node(node)
    try:
        yield
    finally:
        for node in cluster.nodes():
            cluster.resume_node(node)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def fill(producer: AIOKafkaProducer, topic: str) -> list[AIORecordFuture]:
    """Send so many records that the next record must wait for memory."""
    return [await producer.send(topic, VALUE, partition=0) for _ in range(SLABS)]


def waiting(producer: AIOKafkaProducer) -> Callable[[], bool]:
    return lambda: producer._started.pool.waiting > 0


async def read_back(cluster: EmbeddedCluster, topic: str, count: int, **settings: Any) -> list[Any]:
    """Records of all partitions, read by aiokafka."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", **settings
    )
    async with consumer:
        return [await consumer.getone() for _ in range(count)]


class Heartbeat:
    """A task that counts the turns of the loop, to show that nothing blocks it."""

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
        """Waits for ten more turns; times out with the test if the loop is blocked."""
        before = self.beats
        await until(lambda: self.beats > before + 10)
