"""The time from a record to its acknowledgement at a steady rate, without linger.

The sender follows an absolute schedule. The bench takes the time from the call, and from the moment at which the record
was due: a record that its predecessor delays is late, and that must show.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from bench import java
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.clients import VALUE, confluent_settings
from bench.measure import VALUE_SIZE, arrivals

RATES = (1_000, 10_000)
# Seconds at the same pace that do not count. Java's compiler gets a burst of records before them.
WARM_UP_S = 1
JAVA_WARM_UP = 200_000
CALL_P50, CALL_P99 = (Metric(f"call_{p}_ms", f"{p} ms from call", ".3f", more_is_better=False) for p in ("p50", "p99"))
DUE_P50, DUE_P99 = (Metric(f"due_{p}_ms", f"{p} ms from due", ".3f", more_is_better=False) for p in ("p50", "p99"))
SENT = Metric("records_per_s", "records/s", ",.0f", ratio=False)

# A function that sends a record, and a function that waits for all records.
Sending = tuple[Callable[[], object], Callable[[], object]]
# Opens a producer that calls back for each record, in the order of sending, with its error or None.
Opener = Callable[[Job, Callable[[object], None]], AbstractContextManager[Sending]]


@contextmanager
def kafkabuf(
    job: Job, on_delivery: Callable[[object], None], settings: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Sending]:
    from kafkabuf import KafkaProducer

    def delivered(metadata: object, error: object) -> None:
        on_delivery(error)

    ours = {"bootstrap.servers": job.bootstrap, "acks": "all", "linger.ms": 0}
    with closing(KafkaProducer(ours | dict(settings))) as producer:
        yield partial(producer.send, job.topic, VALUE, callback=delivered), producer.flush


@contextmanager
def _confluent(job: Job, on_delivery: Callable[[object], None]) -> Iterator[Sending]:
    """A thread of its own polls: if the sending loop polled, a callback would wait for the next record."""
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


def measure(open_: Opener, rate: int, job: Job) -> Measurement:
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
    """Send on an absolute schedule. Returns when each record was due, and when it was sent, in nanoseconds."""
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
    """Median and 99th percentile of the time from the call and from the due time, and the real rate."""
    figures = {SENT.name: (len(called) - 1) / (called[-1] - called[0]) * 1e9}
    for begin, p50, p99 in ((called, CALL_P50, CALL_P99), (due, DUE_P50, DUE_P99)):
        milliseconds = [(end - start) / 1e6 for start, end in zip(begin, acknowledged, strict=True)]
        percentiles = statistics.quantiles(milliseconds, n=100, method="inclusive")
        figures |= {p50.name: percentiles[49], p99.name: percentiles[98]}
    return figures


def _java(rate: int, job: Job) -> Measurement:
    with arrivals(job) as arrived:
        paced = (WARM_UP_S * rate, job.amount * rate)
        figures = java.run("PacedSend.java", job.bootstrap, job.topic, VALUE_SIZE, rate, JAVA_WARM_UP, *paced)
        arrived.expected = JAVA_WARM_UP + sum(paced)
    return figures


def _ours(rate: int) -> str:
    return f"kafkabuf, {rate:,}/s"


def _theirs(rate: int) -> str:
    return f"confluent-kafka, {rate:,}/s"


def _cases(rate: int) -> Iterator[Case]:
    theirs = _theirs(rate)
    yield Case(_ours(rate), partial(measure, kafkabuf, rate), baseline=theirs)
    yield Case(theirs, partial(measure, _confluent, rate), baseline=theirs)
    yield Case(f"Java, {rate:,}/s", partial(_java, rate), baseline=theirs, check=java.require_compiler)


CLAIM = Claim(
    name="latency",
    title="Acknowledged no later than through confluent-kafka",
    cases=[case for rate in RATES for case in _cases(rate)],
    metrics=[CALL_P50, CALL_P99, DUE_P50, DUE_P99, SENT],
    baseline=_theirs(RATES[0]),
    amount=3,
    seconds=80,
    unit="seconds",
    goals=[
        Goal(f"{metric.heading} at {rate:,}/s", _ours(rate), metric.name, 1, _theirs(rate), at_most=True)
        for rate in RATES
        for metric in (CALL_P50, CALL_P99, DUE_P50, DUE_P99)
    ],
    notes=[
        "linger.ms 0, acks=all, values of 100 bytes, one partition.",
        "From call: since the call of send(). From due: since the schedule wanted the record, so that every delay "
        "shows.",
        "A callback takes the time. A thread that does nothing else serves confluent-kafka's callbacks.",
    ],
)
