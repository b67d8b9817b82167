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
OURS, JAVA, NOTHING = "kafkabuf", "Java, warm", "Python's own loop"
SHARES = {n: Metric(f"share_{n}", f"{n} threads, of one", ".2f", ratio=False) for n in THREADS[1:]}
# How often a run compares each number of threads with one thread. A broker on the same cores makes a single comparison
# worth little: a fifth more or less.
PAIRS = 7
# Rounds in which Threads.java warms up: two, each with all threads and with one.
JAVA_WARM_UPS = 4


def _ours(job: Job) -> Measurement:
    from kafkabuf import KafkaProducer

    settings = {"batch_size": BATCH_LARGE, "linger_ms": LINGER_MS, "acks": "all"}
    with arrivals(job) as arrived, closing(KafkaProducer(settings, bootstrap_servers=job.bootstrap)) as producer:

        def send(records: int) -> None:
            for _ in range(records):
                producer.send(job.topic, VALUE)

        send(warm_up_records(job.amount))
        producer.flush()
        figures, sent = _compared(send, producer.flush, job)
        arrived.expected = warm_up_records(job.amount) + sent
    return figures


def _nothing(job: Job) -> Measurement:
    """The loop around a method of bytes: threads that take turns at the GIL lose so much without a producer."""

    def count(records: int) -> None:
        for _ in range(records):
            VALUE.count(b"x")

    return _compared(count, lambda: None, job)[0]


def _compared(work: Callable[[int], None], flush: Callable[[], None], job: Job) -> tuple[Measurement, int]:
    """Compare each number of threads with one thread. Returns the figures, and the number of all records."""
    alone: list[float] = []
    shares: dict[int, list[float]] = {threads: [] for threads in SHARES}
    done = 0
    for pair in range(PAIRS):
        for threads, found in shares.items():
            rates = {}
            for number in (1, threads) if pair % 2 else (threads, 1):
                records = job.amount // number
                done += records * number
                rates[number] = records * number / _timed(work, flush, records, number)
            alone.append(rates[1])
            found.append(rates[threads] / rates[1])
    medians = {metric.name: statistics.median(shares[threads]) for threads, metric in SHARES.items()}
    return {RATE.name: statistics.median(alone), **medians}, done


def _timed(work: Callable[[int], None], flush: Callable[[], None], records: int, threads: int) -> float:
    """Seconds until so many threads have sent so many records each, and all are acknowledged."""
    running = [threading.Thread(target=work, args=(records,)) for _ in range(threads)]
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
    cases=[Case(OURS, _ours), Case(NOTHING, _nothing), Case(JAVA, _java, check=java.require_compiler)],
    metrics=[RATE, *SHARES.values()],
    baseline=JAVA,
    amount=500_000,
    seconds=50,
    goals=[Goal(f"{n} threads, of one", OURS, metric.name, 0.95) for n, metric in SHARES.items()],
    notes=[
        "One producer, one topic of one partition, 128 KiB batches, always the same number of records in all.",
        f"A run of kafkabuf compares each number of threads {PAIRS} times with one thread, right before it or after "
        "it, and takes the median. A run of Java measures each number twice, forwards and backwards.",
        "records/s is the rate of one thread. Idempotence is on in both producers.",
        f"{NOTHING} calls a method of bytes instead of send(): this is what the threads' turns at the GIL leave.",
    ],
)
