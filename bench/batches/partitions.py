"""Many partitions: idle partitions cost nothing, and ten thousand busy partitions share 32 MiB in batches of some size.

The records of a busy case go to its partitions in turn. Every partition was written before the clock runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial

from bench import clients, harness, java
from bench.brokers import TOPIC, broker
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.clients import VALUE
from bench.measure import (
    BATCH_LARGE,
    BATCH_SMALL,
    CPU,
    LINGER_MS,
    RATE,
    VALUE_SIZE,
    Delivered,
    cpu_seconds,
    warm_up_records,
)

FEW, MANY = "10 partitions", "10,000 partitions"
MEMORY = 32 << 20
WARM_UPS = 3
# The first entry in each of a partition's two index files, sparse files of 10 MB, can cost a kernel some 20 ms, and so
# a thousand partitions most of a minute. Small files cost nothing.
BUSY_LIMITS = {**harness.TOPIC_LIMITS, "segment.index.bytes": str(1 << 16)}
# Publishes so many records, one to each partition in turn, and waits until all are acknowledged.
Spread = Callable[[int], None]
# kafkabuf or confluent-kafka, connected, for the time of a `with`: from address, topic and number of partitions.
Spreader = Callable[[str, str, int], AbstractContextManager[Spread]]


def _ours(partitions: int, job: Job) -> Measurement:
    from kafkabuf import KafkaProducer

    def publish(records: int) -> None:
        send = producer.send
        for _ in range(records):
            send(TOPIC, VALUE, partition=0)
        producer.flush()

    settings = {"batch_size": BATCH_LARGE, "linger_ms": LINGER_MS, "acks": "all"}
    with (
        broker(partitions) as bootstrap,
        closing(KafkaProducer(settings, bootstrap_servers=bootstrap)) as producer,
    ):
        for number in range(partitions):  # every partition gets a queue
            producer.send(TOPIC, VALUE, partition=number)
        publish(warm_up_records(job.amount))
        used, started = cpu_seconds(), time.perf_counter()
        publish(job.amount)
        wall, used = time.perf_counter() - started, cpu_seconds() - used
        if failed := producer.metrics()["producer-metrics"]["record-error-total"]:
            raise RuntimeError(f"{failed:.0f} records were not delivered")
    return {RATE.name: job.amount / wall, CPU.name: used / job.amount * 1e6}


# ---- busy partitions -------------------------------------------------------------------------------------------------


@contextmanager
def _kafkabuf(bootstrap: str, topic: str, partitions: int) -> Iterator[Spread]:
    from kafkabuf import KafkaProducer

    def publish(records: int) -> None:
        send = producer.send
        for number in range(records):
            send(topic, VALUE, partition=number % partitions)
        producer.flush()

    settings = {"batch_size": BATCH_SMALL, "linger_ms": LINGER_MS, "acks": "all", "buffer_memory": MEMORY}
    with closing(KafkaProducer(settings, bootstrap_servers=bootstrap)) as producer:
        yield publish
        if failed := producer.metrics()["producer-metrics"]["record-error-total"]:
            raise RuntimeError(f"{failed:.0f} records were not delivered")


@contextmanager
def _confluent(bootstrap: str, topic: str, partitions: int) -> Iterator[Spread]:
    from confluent_kafka import Producer

    def publish(records: int) -> None:
        produce, poll = producer.produce, producer.poll
        for number in range(records):
            while True:
                try:
                    produce(topic, VALUE, partition=number % partitions, on_delivery=delivered.on_confluent)
                    break
                except BufferError:
                    poll(0.01)
            if number % clients.POLL_EVERY == 0:
                poll(0)
        producer.flush()
        delivered.check(records)

    delivered = Delivered()
    bound = {"batch.size": BATCH_SMALL, "queue.buffering.max.kbytes": MEMORY >> 10}
    producer = Producer(clients.confluent_settings(bootstrap) | bound)
    yield publish
    producer.flush()


def _spread(open_: Spreader, partitions: int, job: Job) -> Measurement:
    """With the claim's Kafka, in a topic of its own; without, with an embedded broker."""
    with _busy_topic(job, partitions) as (bootstrap, topic), open_(bootstrap, topic, partitions) as publish:
        for _ in range(WARM_UPS if job.bootstrap else 1):
            publish(_warm_up(partitions, job))
        used, started = cpu_seconds(), time.perf_counter()
        publish(job.amount)
        wall, used = time.perf_counter() - started, cpu_seconds() - used
    return {RATE.name: job.amount / wall, CPU.name: used / job.amount * 1e6}


def _java(partitions: int, job: Job) -> Measurement:
    with _busy_topic(job, partitions) as (bootstrap, topic):
        settings = (partitions, BATCH_SMALL, LINGER_MS, MEMORY, VALUE_SIZE)
        return java.run("Spread.java", bootstrap, topic, *settings, _warm_up(partitions, job), job.amount)


@contextmanager
def _busy_topic(job: Job, partitions: int) -> Iterator[tuple[str, str]]:
    if job.bootstrap:
        with harness.topic(job.bootstrap, BUSY_LIMITS, partitions=partitions) as topic:
            yield job.bootstrap, topic
    else:
        with broker(partitions) as bootstrap:
            yield bootstrap, TOPIC


def _warm_up(partitions: int, job: Job) -> int:
    """Records of one warm-up. On Kafka each partition gets more than log.index.interval.bytes (4 KiB), so that a batch
    of the next warm-up enters its indexes."""
    return max((8192 // VALUE_SIZE if job.bootstrap else 2) * partitions, job.amount // 10)


def _embedded(run: Callable[[int, Job], Measurement], partitions: int) -> Callable[[Job], Measurement]:
    return partial(_without_kafka, partial(run, partitions))


def _without_kafka(run: Callable[[Job], Measurement], job: Job) -> Measurement:
    return run(Job(job.amount))


BUSY = {number: f"kafkabuf, {number:,} busy, embedded" for number in (100, 1_000, 10_000)}
BUSY_CONFLUENT = {number: f"confluent-kafka, {number:,} busy, embedded" for number in (100, 10_000)}
BUSY_JAVA = "Java, 10,000 busy, embedded"
KAFKA = {number: f"kafkabuf, {number:,} busy, Kafka" for number in (1, 100, 1_000)}
KAFKA_CONFLUENT = {number: f"confluent-kafka, {number:,} busy, Kafka" for number in (1, 100, 1_000)}

ours, theirs = partial(_spread, _kafkabuf), partial(_spread, _confluent)

CLAIM = Claim(
    name="partitions",
    title="Idle partitions cost nothing, and ten thousand busy partitions share 32 MiB",
    cases=[
        Case(FEW, partial(_ours, 10)),
        Case(MANY, partial(_ours, 10_000)),
        *(Case(name, partial(ours, number), baseline=KAFKA[100]) for number, name in KAFKA.items()),
        *(Case(name, partial(theirs, number), 0.2, KAFKA[number]) for number, name in KAFKA_CONFLUENT.items()),
        *(Case(name, _embedded(ours, number), 3, BUSY[100]) for number, name in BUSY.items()),
        *(Case(name, _embedded(theirs, number), 0.2, BUSY[number]) for number, name in BUSY_CONFLUENT.items()),
        Case(BUSY_JAVA, _embedded(_java, 10_000), 0.2, BUSY[10_000], check=java.require_compiler),
    ],
    metrics=[RATE, CPU],
    baseline=FEW,
    amount=1_000_000,
    seconds=65,
    brief=0.4,
    goals=[
        Goal("rate with 10,000 partitions, one busy", MANY, RATE.name, 0.9, FEW),
        Goal("10,000 busy partitions in 32 MiB", BUSY[10_000], RATE.name, 0.4, BUSY[100]),
        Goal("10,000 busy, against confluent-kafka", BUSY[10_000], RATE.name, 3, BUSY_CONFLUENT[10_000]),
        Goal("10,000 busy, against Java", BUSY[10_000], RATE.name, 3, BUSY_JAVA),
    ],
    notes=[
        "10 and 10,000 partitions, and all embedded cases: an embedded broker in a process of its own. Apache Kafka "
        "would need minutes to make 10,000 partitions.",
        "One busy: batch.size is 128 KiB. All busy: batch.size 16 KiB, and 32 MiB of buffer.memory, or of confluent-"
        "kafka's queue.buffering.max.kbytes, which counts keys and values only.",
        "Every partition gets records before the clock runs. confluent-kafka and Java get a fifth of the records, "
        "kafkabuf's embedded cases three times as many: the memory is filled twice before batches have their size.",
    ],
)
