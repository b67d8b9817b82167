"""Threads that share a producer: their rate together, against the rate of one thread."""

from __future__ import annotations

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
# Rounds in which Threads.java warms up: two, each with all threads and with one.
JAVA_WARM_UPS = 4


def _ours(job: Job) -> Measurement:
    from kafkabuf import KafkaProducer

    seconds = dict.fromkeys(THREADS, 0.0)
    settings = {"batch_size": BATCH_LARGE, "linger_ms": LINGER_MS, "acks": "all"}
    with arrivals(job) as arrived, closing(KafkaProducer(settings, bootstrap_servers=job.bootstrap)) as producer:

        def send(records: int) -> None:
            for _ in range(records):
                producer.send(job.topic, VALUE)

        send(warm_up_records(job.amount))
        producer.flush()
        arrived.expected = warm_up_records(job.amount)
        for threads in (*THREADS, *reversed(THREADS)):
            seconds[threads] += _timed(send, producer.flush, job.amount // threads, threads)
            arrived.expected += job.amount // threads * threads
    return _figures({threads: job.amount // threads * threads * 2 / seconds[threads] for threads in THREADS})


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
    return _figures({threads: rates[str(threads)] for threads in THREADS})


def _figures(rates: dict[int, float]) -> Measurement:
    shares = {metric.name: rates[threads] / rates[1] for threads, metric in SHARES.items()}
    return {RATE.name: rates[1], **shares}


CLAIM = Claim(
    name="threads",
    title="Threads that share a producer do not slow each other down",
    cases=[Case(OURS, _ours), Case(JAVA, _java, check=java.require_compiler)],
    metrics=[RATE, *SHARES.values()],
    baseline=JAVA,
    amount=1_000_000,
    goals=[Goal(f"{n} threads, of one", OURS, metric.name, 0.9) for n, metric in SHARES.items()],
    notes=[
        "One producer, one topic of one partition, 128 KiB batches. A run measures each number of threads twice, "
        "forwards and backwards, always with the same number of records in all.",
        "records/s is the rate of one thread. Idempotence is on in both.",
    ],
)
