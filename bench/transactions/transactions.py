"""Transactions of a thousand records, one after the other: begin, send, commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from bench.claim import Case, Claim, Goal
from bench.clients import VALUE, confluent_settings
from bench.measure import BATCH_LARGE, CPU, LINGER_MS, RATE, Publish, measure

RECORDS = 1_000
PATIENCE_S = 60.0
OURS, THEIRS = "kafkabuf", "confluent-kafka"


def _sizes(records: int) -> Iterator[int]:
    """The sizes of the transactions that so many records need."""
    for start in range(0, records, RECORDS):
        yield min(RECORDS, records - start)


@contextmanager
def _kafkabuf(bootstrap: str, topic: str) -> Iterator[Publish]:
    from kafkabuf import KafkaProducer

    def publish(records: int) -> int:
        send = producer.send
        for size in _sizes(records):
            producer.begin_transaction()
            for _ in range(size):
                send(topic, VALUE)
            producer.commit_transaction()
        return records

    settings = {"batch_size": BATCH_LARGE, "linger_ms": LINGER_MS, "transactional_id": str(uuid.uuid4())}
    with closing(KafkaProducer(settings, bootstrap_servers=bootstrap)) as producer:
        producer.init_transactions()
        yield publish


@contextmanager
def _confluent(bootstrap: str, topic: str) -> Iterator[Publish]:
    from confluent_kafka import Producer

    def publish(records: int) -> int:
        produce = producer.produce
        for size in _sizes(records):
            producer.begin_transaction()
            for _ in range(size):
                produce(topic, VALUE)
            producer.commit_transaction(PATIENCE_S)
        return records

    producer = Producer(confluent_settings(bootstrap) | {"transactional.id": str(uuid.uuid4())})
    producer.init_transactions(PATIENCE_S)
    yield publish


CLAIM = Claim(
    name="transactions",
    title="Transactions are begun, filled and committed faster",
    cases=[Case(OURS, partial(measure, _kafkabuf)), Case(THEIRS, partial(measure, _confluent))],
    metrics=[RATE, CPU],
    baseline=THEIRS,
    amount=1_000_000,  # with fewer records, Kafka's warm-up would dominate
    seconds=60,
    goals=[Goal("records/s in transactions", OURS, RATE.name, 1.5, THEIRS)],
    notes=[
        f"Transactions of {RECORDS:,} records of 100 bytes into one partition, each committed before the next begins.",
        "batch.size 128 KiB and linger.ms 5 in both; no callbacks. Kafka 4 gives kafkabuf transactions of version 2.",
    ],
)
