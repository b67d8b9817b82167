"""Ten threads send to a stalled broker: the memory that this costs."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

from bench.brokers import TOPIC, broker
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.rss import MIB, Growth

THREADS = 10
BUFFER_MIB = 32  # the default of Java and of kafkabuf
SMALL, LARGE = 10, 1024
# The longest wait of a call for memory. With Java's default the threads would sleep for the whole run.
MAX_BLOCK_MS = 1_000
GROWTH = Metric("growth_mib", "MiB RSS growth", ".1f", more_is_better=False)

# Sends a value and drops its future. Returns False if there was no memory for the value.
Send = Callable[[bytes], bool]
Opener = Callable[[str], AbstractContextManager[Send]]


@contextmanager
def _kafkabuf(bootstrap: str) -> Iterator[Send]:
    from kafkabuf import KafkaProducer
    from kafkabuf.errors import BufferExhaustedError

    def send(value: bytes) -> bool:
        try:
            producer.send(TOPIC, value)
        except BufferExhaustedError:
            return False
        return True

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, buffer_memory=BUFFER_MIB * MIB, max_block_ms=MAX_BLOCK_MS, acks="all"
    )
    yield send
    producer.close(0)


@contextmanager
def _confluent(bootstrap: str) -> Iterator[Send]:
    from confluent_kafka import Producer

    def send(value: bytes) -> bool:
        try:
            producer.produce(TOPIC, value)
        except BufferError:
            producer.poll(MAX_BLOCK_MS / 1000)
            return False
        return True

    # Without the second setting the limit would be 100,000 records of any size.
    limits = {"queue.buffering.max.kbytes": BUFFER_MIB * 1024, "queue.buffering.max.messages": 0}
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **limits})
    yield send
    producer.purge()


@contextmanager
def _kafka_python(bootstrap: str) -> Iterator[Send]:
    from kafka import KafkaProducer
    from kafka.errors import KafkaTimeoutError

    def send(value: bytes) -> bool:
        try:
            producer.send(TOPIC, value)
        except KafkaTimeoutError:
            return False
        return True

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=False, max_block_ms=MAX_BLOCK_MS
    )
    yield send
    with suppress(KafkaTimeoutError):  # it holds records that the broker will never acknowledge
        producer.close(timeout=0)


def _measure(module: str, open_: Opener, size: int, job: Job) -> Measurement:
    importlib.import_module(module)  # the memory of its code must not count as growth
    value = os.urandom(size)
    taken = [0] * THREADS

    def loop(number: int, send: Send, deadline: float) -> None:
        while time.monotonic() < deadline:
            taken[number] += send(value)

    with broker(stalled=True) as bootstrap, Growth() as growth, open_(bootstrap) as send:
        deadline = time.monotonic() + job.amount
        threads = [threading.Thread(target=loop, args=(number, send, deadline)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not any(taken):
            raise RuntimeError("the producer took no record")
    return {GROWTH.name: growth.mib, "records_taken": sum(taken), "payload_mib": sum(taken) * size / MIB}


def _name(client: str, size: int) -> str:
    return f"{client}, {size} B"


CLAIM = Claim(
    name="memory",
    title="A stalled broker costs buffer.memory and little more",
    cases=[
        Case(_name(client, size), partial(_measure, module, open_, size), share)
        for client, module, open_, share in (
            ("kafkabuf", "kafkabuf.producer", _kafkabuf, 1.0),
            ("confluent-kafka", "confluent_kafka", _confluent, 0.2),
            ("kafka-python", "kafka", _kafka_python, 0.2),
        )
        for size in (LARGE, SMALL)
    ],
    metrics=[GROWTH],
    baseline=_name("kafkabuf", LARGE),
    amount=60,
    seconds=45,
    brief=0.2,
    unit="seconds",
    rounds=1,
    goals=[
        Goal(f"RSS growth, {size}-byte records", _name("kafkabuf", size), GROWTH.name, bound, at_most=True)
        for size, bound in ((LARGE, 1.25 * BUFFER_MIB + 16), (SMALL, 1.5 * BUFFER_MIB + 16))
    ],
    needs_kafka=False,
    notes=[
        f"{THREADS} threads send into {BUFFER_MIB} MiB and drop the futures. Growth is the peak less the memory before "
        "the producer was made.",
        "The peers get a fifth of the time: confluent-kafka has then reached its limit; kafka-python 3 has no limit.",
        "One round: memory varies less than time.",
    ],
)
