"""An event loop awaits each of many records with 100-byte values: kafkabuf.aio, its compat face, and aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from bench.claim import Case, Claim, Goal
from bench.clients import VALUE
from bench.measure import BATCH_SMALL, CPU, LINGER_MS, RATE, Client, Publish, measure

TASKS = 1_000
FUTURES, AT_ONCE, WAITING = "await each future", "gather() all futures", f"{TASKS} tasks of send_and_wait()"

# Sends so many records, and awaits each. The producers of both libraries have methods of the same names.
Sends = Callable[[Any, str, int], Awaitable[None]]


async def _await_each(producer: Any, topic: str, records: int) -> None:
    futures = [await producer.send(topic, VALUE) for _ in range(records)]
    for future in futures:
        await future


async def _gather(producer: Any, topic: str, records: int) -> None:
    await asyncio.gather(*[await producer.send(topic, VALUE) for _ in range(records)])


async def _send_and_wait(producer: Any, topic: str, records: int) -> None:
    async def task(share: int) -> None:
        for _ in range(share):
            await producer.send_and_wait(topic, VALUE)

    remainder = records % TASKS
    await asyncio.gather(*[task(records // TASKS + (number < remainder)) for number in range(TASKS)])


def kafkabuf(sends: Sends) -> Client:
    def producer(bootstrap: str) -> Any:
        from kafkabuf.aio import AIOKafkaProducer

        return AIOKafkaProducer(bootstrap_servers=bootstrap, batch_size=BATCH_SMALL, linger_ms=LINGER_MS)

    return partial(_open, producer, sends)


def _with_their_arguments(module: str, sends: Sends) -> Client:
    def producer(bootstrap: str) -> Any:
        settings: dict[str, Any] = {"acks": "all", "enable_idempotence": True, "linger_ms": LINGER_MS}
        kind = import_module(module).AIOKafkaProducer
        return kind(bootstrap_servers=bootstrap, max_batch_size=BATCH_SMALL, **settings)

    return partial(_open, producer, sends)


face = partial(_with_their_arguments, "kafkabuf.compat.aiokafka")
aiokafka = partial(_with_their_arguments, "aiokafka")


@contextmanager
def _open(new: Callable[[str], Any], sends: Sends, bootstrap: str, topic: str) -> Iterator[Publish]:
    async def start() -> Any:
        producer = new(bootstrap)
        await producer.start()
        return producer

    async def send(records: int) -> int:
        await sends(producer, topic, records)
        return records

    with asyncio.Runner() as runner:
        producer = runner.run(start())
        yield lambda records: runner.run(send(records))
        runner.run(producer.stop())


STYLES: dict[str, Sends] = {FUTURES: _await_each, AT_ONCE: _gather, WAITING: _send_and_wait}
OURS, FACE, PEER = "kafkabuf, {}", "kafkabuf.compat.aiokafka, {}", "aiokafka, {}"

CLAIM = Claim(
    name="aio",
    title="Records awaited on an event loop",
    cases=[
        Case(name.format(style), partial(measure, client(sends)))
        for style, sends in STYLES.items()
        for name, client in ((OURS, kafkabuf), (FACE, face), (PEER, aiokafka))
    ],
    metrics=[RATE, CPU],
    baseline=PEER.format(FUTURES),
    amount=100_000,
    goals=[
        *(
            Goal(f"against aiokafka: {style}", OURS.format(style), RATE.name, goal, PEER.format(style))
            for style, goal in ((FUTURES, 10), (AT_ONCE, 4), (WAITING, 2))
        ),
        Goal(f"compat against aiokafka: {FUTURES}", FACE.format(FUTURES), RATE.name, 5, PEER.format(FUTURES)),
        Goal(f"compat against kafkabuf.aio: {FUTURES}", FACE.format(FUTURES), RATE.name, 0.85, OURS.format(FUTURES)),
        Goal(f"CPU: {FUTURES}", OURS.format(FUTURES), CPU.name, 1 / 10, PEER.format(FUTURES), at_most=True),
    ],
    notes=[
        "acks=all, idempotent, one partition, values of 100 bytes, batch.size 16 KiB, linger.ms 5 in both.",
        "Every record's future is awaited for its offset.",
        f"{TASKS:,} tasks: each sends its next record after the acknowledgement of the last.",
    ],
)
