"""Threads that share a producer: their rate together, against the rate of one thread."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing

from bench import java
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.clients import VALUE
from bench.measure import BATCH_LARGE, LINGER_MS, RATE, VALUE_SIZE, arrivals, warm_up_records

THREADS = (1, 2, 4, 8)
OURS, JAVA = "kafkabuf", "Java, warm"
SHARES = {n: Metric(f"share_{n}", f"{n} threads, of one", ".2f", ratio=False) for n in THREADS[1:]}
# How often a run compares each number of threads with one thread. A broker on the same cores makes a single comparison
# worth little: a fifth more or less.
PAIRS = 7
# Rounds in which Threads.java warms up: two, each with all threads and with one.
JAVA_WARM_UPS = 4


def _ours(job: Job) -> Measurement:
    from kafkabuf import KafkaProducer

    alone: list[float] = []
    shares: dict[int, list[float]] = {threads: [] for threads in SHARES}
    settings = {"batch_size": BATCH_LARGE, "linger_ms": LINGER_MS, "acks": "all"}
    with arrivals(job) as arrived, closing(KafkaProducer(settings, bootstrap_servers=job.bootstrap)) as producer:

        def send(records: int) -> None:
            for _ in range(records):
                producer.send(job.topic, VALUE)

        def rate(threads: int) -> float:
            records = job.amount // threads * threads
            arrived.expected += records
            return records / _timed(send, producer.flush, records // threads, threads)

        send(warm_up_records(job.amount))
        producer.flush()
        arrived.expected = warm_up_records(job.amount)
        for pair in range(PAIRS):
            for threads, found in shares.items():
                order = (1, threads) if pair % 2 else (threads, 1)
                rates = {number: rate(number) for number in order}
                alone.append(rates[1])
                found.append(rates[threads] / rates[1])
    medians = {metric.name: statistics.median(shares[threads]) for threads, metric in SHARES.items()}
    return {RATE.name: statistics.median(alone), **medians}


def _timed(send: Callable[[int], None], flush: Callable[[], None], records: int, threads: int) -> float:
    """Seconds until so many threads have sent so many records each, and all are acknowledged."""
    running = [threading.Thread(target=send, args=(records,)) for _ in range(threads)]
    started = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    flush()
    return time.perf_counter() - started


def _java(job: Job) -> Measurement:
    arguments = (job.bootstrap, job.topic, BATCH_LARGE, LINGER_MS, VALUE_SIZE, job.amount)
    with arrivals(job) as arrived:
        rates = java.run("Threads.java", *arguments, *THREADS)
        rounds = JAVA_WARM_UPS + 2 * len(THREADS)
        arrived.expected = rounds * (job.amount - job.amount % max(THREADS))
    shares = {metric.name: rates[str(threads)] / rates["1"] for threads, metric in SHARES.items()}
    return {RATE.name: rates["1"], **shares}


CLAIM = Claim(
    name="threads",
    title="Threads that share a producer do not slow each other down",
    cases=[Case(OURS, _ours), Case(JAVA, _java, check=java.require_compiler)],
    metrics=[RATE, *SHARES.values()],
    baseline=JAVA,
    amount=500_000,
    seconds=50,
    goals=[Goal(f"{n} threads, of one", OURS, metric.name, 0.95) for n, metric in SHARES.items()],
    notes=[
        "One producer, one topic of one partition, 128 KiB batches, always the same number of records in all.",
        f"A run of kafkabuf compares each number of threads {PAIRS} times with one thread, right before it or after "
        "it, and takes the median. A run of Java measures each number twice, forwards and backwards.",
        "records/s is the rate of one thread. Idempotence is on in both.",
    ],
)
