"""A million batches through one producer: no batch may leave memory behind."""

from __future__ import annotations

import gc
from contextlib import closing
from typing import Any

from bench.brokers import TOPIC, broker
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.measure import cpu_seconds
from bench.rss import Growth

# A request has so many batches, of one record each.
PARTITIONS = 1_000
VALUE = b"x" * 100
# A batch has no room for a second record.
BATCH_SIZE = 256
BUFFER_BYTES = 4 * PARTITIONS * BATCH_SIZE
WARM_UP = 0.1
NAME = "kafkabuf"
GROWTH = Metric("growth_mib", "MiB RSS growth", ".2f", more_is_better=False)
BATCHES = Metric("batches", "batches", ",.0f", ratio=False)
CPU = Metric("cpu_us", "µs CPU/batch", ".1f", more_is_better=False)


def _ours(job: Job) -> Measurement:
    from kafkabuf import KafkaProducer

    settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "buffer_memory": BUFFER_BYTES, "linger_ms": 0, "acks": "all"}
    with (
        broker(PARTITIONS) as bootstrap,
        closing(KafkaProducer(bootstrap_servers=bootstrap, **settings)) as producer,
    ):
        _publish(producer, round(job.amount * WARM_UP))
        gc.collect()
        used = cpu_seconds()
        with Growth() as growth:
            batches = _publish(producer, job.amount)
        used = cpu_seconds() - used
    return {GROWTH.name: growth.mib, BATCHES.name: batches, CPU.name: used / batches * 1e6}


def _publish(producer: Any, records: int) -> int:
    """Send records to the partitions in turn, and wait for all acknowledgements; returns the number of batches."""
    first = last = producer.send(TOPIC, VALUE, partition=0)
    for number in range(1, records):
        last = producer.send(TOPIC, VALUE, partition=number % PARTITIONS)
    producer.flush()
    if failed := producer.metrics()["producer-metrics"]["record-error-total"]:
        raise RuntimeError(f"{failed:.0f} records were not delivered")
    return int(last.batch.number - first.batch.number) + 1


CLAIM = Claim(
    name="batches",
    title="Batches leave no memory behind",
    cases=[Case(NAME, _ours)],
    metrics=[GROWTH, BATCHES, CPU],
    baseline=NAME,
    amount=1_000_000,
    seconds=50,
    rounds=1,
    goals=[Goal(f"RSS growth of 1 M batches after {WARM_UP:.0%} of warm-up", NAME, GROWTH.name, 1, at_most=True)],
    needs_kafka=False,
    notes=[
        f"Batches of one record, {PARTITIONS:,} partitions in turn, to an embedded broker in a process of its own.",
        "One round: a leak shows in every round.",
    ],
)
