"""Ten thousand partitions, of which one is busy: idle partitions cost nothing."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial

from bench.brokers import TOPIC, broker
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.clients import VALUE
from bench.measure import BATCH_LARGE, CPU, LINGER_MS, RATE, cpu_seconds, warm_up_records

FEW, MANY = "10 partitions", "10,000 partitions"


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


CLAIM = Claim(
    name="partitions",
    title="Idle partitions cost nothing",
    cases=[Case(FEW, partial(_ours, 10)), Case(MANY, partial(_ours, 10_000))],
    metrics=[RATE, CPU],
    baseline=FEW,
    amount=1_000_000,
    goals=[Goal("rate with 10,000 partitions, one busy", MANY, RATE.name, 0.9, FEW)],
    needs_kafka=False,
    notes=[
        "An embedded broker in a process of its own: Apache Kafka would need minutes to make so many partitions.",
        "Every partition gets a record before the clock runs.",
    ],
)
