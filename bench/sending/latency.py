"""How long a record waits for its acknowledgement at a steady rate, nothing lingering.

The sender follows an absolute schedule. Counted are the times from the call and from when the record was due: one that
the record before it held up is late, and that must show.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial

from bench import java
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.clients import VALUE, confluent_settings
from bench.measure import VALUE_SIZE, arrivals

RATES = (1_000, 10_000)
# Sent at the same pace before what is counted; Java's compiler gets a burst besides.
WARM_UP_S = 1
JAVA_WARM_UP = 200_000
CALL_P50, CALL_P99 = (Metric(f"call_{p}_ms", f"{p} ms from call", ".3f", more_is_better=False) for p in ("p50", "p99"))
DUE_P50, DUE_P99 = (Metric(f"due_{p}_ms", f"{p} ms from due", ".3f", more_is_better=False) for p in ("p50", "p99"))
SENT = Metric("records_per_s", "records/s", ",.0f", ratio=False)

# Sends one record, and waits for all.
Sending = tuple[Callable[[], object], Callable[[], object]]
# Opens a producer that calls back, in the order of sending, with whatever error there was.
Opener = Callable[[Job, Callable[[object], None]], AbstractContextManager[Sending]]


@contextmanager
def _kafkabuf(job: Job, on_delivery: Callable[[object], None]) -> Iterator[Sending]:
    from kafkabuf import KafkaProducer

    def delivered(metadata: object, error: object) -> None:
        on_delivery(error)

    settings = {"bootstrap.servers": job.bootstrap, "acks": "all", "linger.ms": 0}
    with closing(KafkaProducer(settings)) as producer:
        yield partial(producer.send, job.topic, VALUE, callback=delivered), producer.flush


@contextmanager
def _confluent(job: Job, on_delivery: Callable[[object], None]) -> Iterator[Sending]:
    """Polled by a thread of its own: from the sending loop, a callback would wait for the next record."""
    from confluent_kafka import Producer

    def delivered(error: object, message: object) -> None:
        on_delivery(error)

    def poll() -> None:
        while not done.is_set():
            producer.poll(0.1)

    done = threading.Event()
    producer = Producer(confluent_settings(job.bootstrap) | {"linger.ms": 0})
    poller = threading.Thread(target=poll)
    poller.start()
    try:
        yield partial(producer.produce, job.topic, VALUE, on_delivery=delivered), producer.flush
    finally:
        done.set()
        poller.join()


def _measure(open_: Opener, rate: int, job: Job) -> Measurement:
    acknowledged: list[int] = []
    failed: list[object] = []

    def on_delivery(error: object) -> None:
        acknowledged.append(time.perf_counter_ns())
        if error is not None:
            failed.append(error)

    with arrivals(job) as arrived, open_(job, on_delivery) as (send, flush):
        send()
        flush()
        acknowledged.clear()
        due, called = pace(send, rate, (WARM_UP_S + job.amount) * rate)
        flush()
        if failed or len(acknowledged) != len(called):
            raise RuntimeError(f"{len(acknowledged)} of {len(called)} records were acknowledged, errors: {failed[:3]}")
        arrived.expected = 1 + len(called)
    counted = slice(WARM_UP_S * rate, None)
    return latencies(due[counted], called[counted], acknowledged[counted])


def pace(send: Callable[[], object], rate: int, records: int) -> tuple[list[int], list[int]]:
    """Send at an absolute schedule; when each was due and when it was called, in nanoseconds."""
    start = time.perf_counter_ns()
    due = [start + number * 1_000_000_000 // rate for number in range(records)]
    called = []
    for when in due:
        while (left := when - time.perf_counter_ns()) > 0:
            time.sleep(left / 1e9)
        called.append(time.perf_counter_ns())
        send()
    return due, called


def latencies(due: list[int], called: list[int], acknowledged: list[int]) -> Measurement:
    """Median and 99th percentile of the acknowledgements from both beginnings, and the rate that was reached."""
    found = {SENT.name: (len(called) - 1) / (called[-1] - called[0]) * 1e9}
    for begin, p50, p99 in ((called, CALL_P50, CALL_P99), (due, DUE_P50, DUE_P99)):
        taken = [(end - start) / 1e6 for start, end in zip(begin, acknowledged, strict=True)]
        percentiles = statistics.quantiles(taken, n=100, method="inclusive")
        found |= {p50.name: percentiles[49], p99.name: percentiles[98]}
    return found


def _java(rate: int, job: Job) -> Measurement:
    with arrivals(job) as arrived:
        paced = (WARM_UP_S * rate, job.amount * rate)
        found = java.run("PacedSend.java", job.bootstrap, job.topic, VALUE_SIZE, rate, JAVA_WARM_UP, *paced)
        arrived.expected = JAVA_WARM_UP + sum(paced)
    return found


def _ours(rate: int) -> str:
    return f"kafkabuf, {rate:,}/s"


def _theirs(rate: int) -> str:
    return f"confluent-kafka, {rate:,}/s"


def _cases(rate: int) -> Iterator[Case]:
    theirs = _theirs(rate)
    yield Case(_ours(rate), partial(_measure, _kafkabuf, rate), baseline=theirs)
    yield Case(theirs, partial(_measure, _confluent, rate), baseline=theirs)
    yield Case(f"Java, {rate:,}/s", partial(_java, rate), baseline=theirs, check=java.require_compiler)


CLAIM = Claim(
    name="latency",
    title="Acknowledged no later than through confluent-kafka",
    cases=[case for rate in RATES for case in _cases(rate)],
    metrics=[CALL_P50, CALL_P99, DUE_P50, DUE_P99, SENT],
    baseline=_theirs(RATES[0]),
    amount=3,
    unit="seconds",
    goals=[
        Goal(f"{metric.heading} at {rate:,}/s", _ours(rate), metric.name, 1, _theirs(rate), at_most=True)
        for rate in RATES
        for metric in (CALL_P50, CALL_P99, DUE_P50, DUE_P99)
    ],
    notes=[
        "linger.ms 0, acks=all, values of 100 bytes, one partition.",
        "From call: since send() was called. From due: since the schedule asked for it, so that no delay hides one.",
        "A callback takes the time; confluent-kafka's are served by a thread that does nothing else.",
    ],
)
