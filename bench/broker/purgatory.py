"""The purgatory beside Apache Kafka's, under the load of Kafka's own TestPurgatoryPerformance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy

from bench import compiled, java
from bench.broker.purgatory_swept import SweptPurgatory
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from kafkabuf.broker import DelayedOperation, ExpirationReaper, RequestPurgatory, TimingWheel
from kafkabuf.clock import SystemClock

KEYS, POSSIBLE_KEYS = 3, 100
TIMEOUT_MS = 200
PARKED = 1_000_000
PARKED_S = 3_600.0
NORMAL_PCT75 = 0.674490  # the upper quartile of the standard normal distribution
CPU = Metric("cpu_us", "µs CPU/request", ".2f", more_is_better=False)
RATE = Metric("requests_per_s", "requests/s", ",.0f", ratio=False)
LOAD = "broker.purgatory_load"
Park = Callable[[DelayedOperation, list[str]], bool]


@dataclass(frozen=True)
class Latency:
    """Percentiles in milliseconds of the log-normal time after which a request is completed."""

    name: str
    pct50: int
    pct75: int

    def draw(self, rng: numpy.random.Generator, requests: int) -> numpy.ndarray[Any, Any]:
        sigma = numpy.log(self.pct75 / self.pct50) / NORMAL_PCT75
        return rng.lognormal(numpy.log(self.pct50), sigma, requests).astype(numpy.int64)


LOW, HIGH = Latency("low latency", 20, 60), Latency("high latency", 200, 400)
FULL, SLOW = 150_000, 20_000


class Parked(DelayedOperation):
    """An operation that waits during the whole run."""

    def try_complete(self) -> bool:
        return False


def _python_request() -> type[DelayedOperation]:
    """A request with methods in Python, like the embedded cluster's."""
    now = compiled.load(LOAD).now

    class Request(DelayedOperation):
        def __init__(self, timeout: float, completes_at: int, tally: Any) -> None:
            super().__init__(timeout)
            self.completes_at, self.tally = completes_at, tally

        def try_complete(self) -> bool:
            return now() >= self.completes_at and self.force_complete()

        def on_complete(self) -> None:
            self.tally.count()

    return Request


@contextmanager
def _purgatory() -> Iterator[RequestPurgatory]:
    wheel = TimingWheel(SystemClock())
    with ExpirationReaper(wheel):
        purgatory = RequestPurgatory(wheel)
        yield purgatory
        purgatory.cancel_all()


def _keys(rng: numpy.random.Generator) -> list[str]:
    return [f"fakeKey{number}" for number in rng.integers(POSSIBLE_KEYS, size=KEYS)]


def _ours(latency: Latency, rate: int, job: Job, *, parked: int = 0, python: bool = False) -> Measurement:
    keys = _keys(numpy.random.default_rng())
    with _purgatory() as purgatory:
        for _ in range(parked):
            purgatory.try_complete_else_watch(Parked(PARKED_S), keys)
        figures = _run(purgatory, keys, latency, rate, job, python=python)
        if (purgatory.delayed, purgatory.watched) != (parked, parked * KEYS):
            raise RuntimeError(f"{purgatory.delayed} operations are parked after the run, and {parked} should be")
    return figures


def _swept(latency: Latency, rate: int, job: Job) -> Measurement:
    with closing(SweptPurgatory(SystemClock())) as purgatory:
        return _run(purgatory, _keys(numpy.random.default_rng()), latency, rate, job)


def _run(
    purgatory: Any, keys: list[str], latency: Latency, rate: int, job: Job, *, python: bool = False
) -> Measurement:
    rng, load = numpy.random.default_rng(), compiled.load(LOAD)
    arrivals = rng.exponential(1000 / rate, job.amount).cumsum().astype(numpy.int64)
    make = _python_request() if python else load.Request
    reached, used = load.run(purgatory, keys, arrivals, latency.draw(rng, job.amount), TIMEOUT_MS, make)
    return {CPU.name: used / job.amount * 1e6, RATE.name: reached}


def _java(latency: Latency, rate: int, job: Job) -> Measurement:
    options = {
        "num": job.amount,
        "rate": rate,
        "keys": KEYS,
        "key-space-size": POSSIBLE_KEYS,
        "timeout": TIMEOUT_MS,
        "pct50": latency.pct50,
        "pct75": latency.pct75,
        "size": 1000,
        "verbose": "false",
    }
    _elapsed, _target, reached, cpu_ms, *_ = java.kafka_test("kafka.TestPurgatoryPerformance", options)
    return {CPU.name: float(cpu_ms) / job.amount * 1e3, RATE.name: float(reached)}


def _pair(latency: Latency, rate: int, share: float) -> tuple[Case, Case]:
    text = f"{latency.name}, {rate:,}/s"
    theirs = Case(f"Kafka 3.9, {text}", partial(_java, latency, rate), share, check=java.require_kafka_tests)
    ours = Case(f"kafkabuf, {text}", partial(_ours, latency, rate), share, theirs.name, check=_compile)
    return ours, theirs


def _compile() -> None:
    compiled.load(LOAD)


OURS_LOW, JAVA_LOW = _pair(LOW, FULL, 1.0)
OURS_HIGH, JAVA_HIGH = _pair(HIGH, FULL, 1.0)
OURS_SLOW, JAVA_SLOW = _pair(LOW, SLOW, 0.15)
PYTHON = Case("kafkabuf, requests in Python", partial(_ours, LOW, FULL, python=True), 1.0, JAVA_LOW.name, apart=True)
CROWDED = Case("kafkabuf, a million parked", partial(_ours, LOW, FULL, parked=PARKED), 1.0, OURS_LOW.name)
SWEPT = Case("Kafka 0.8's design, in Python", partial(_swept, LOW, SLOW), 0.15, OURS_SLOW.name, apart=True)

CLAIM = Claim(
    name="purgatory",
    title="A request parked and completed costs half of what it costs in Kafka",
    cases=[OURS_LOW, JAVA_LOW, OURS_HIGH, JAVA_HIGH, OURS_SLOW, JAVA_SLOW, PYTHON, CROWDED, SWEPT],
    metrics=[CPU, RATE],
    baseline=JAVA_LOW.name,
    amount=1_000_000,
    seconds=60,
    unit="requests",
    rounds=3,
    goals=[
        *(
            Goal(f"CPU per request, {text}", ours.name, CPU.name, 1 / 2, theirs.name, at_most=True)
            for text, ours, theirs in (
                ("low latency", OURS_LOW, JAVA_LOW),
                ("high latency", OURS_HIGH, JAVA_HIGH),
                (f"{SLOW:,} requests/s", OURS_SLOW, JAVA_SLOW),
            )
        ),
        Goal("a million parked requests cost the others", CROWDED.name, CPU.name, 1.1, OURS_LOW.name, at_most=True),
    ],
    needs_kafka=False,
    notes=[
        f"kafka.TestPurgatoryPerformance and its parameters: {KEYS} keys a request, {TIMEOUT_MS} ms timeout, Poisson"
        f" arrivals, log-normal latencies (median and upper quartile {LOW.pct50}/{LOW.pct75} and"
        f" {HIGH.pct50}/{HIGH.pct75} ms), completed by a second thread or expired by a third.",
        "CPU is that of the whole process from the first arrival to the last completion, including the generator and"
        " the completion queue. Java's CPU includes that of its cold compiler, as Kafka's benchmark counts it.",
        "Our generator, queue and requests are compiled (purgatory_load.pyx), so that they do not hide the purgatory."
        " 'requests in Python' uses a subclass in Python, as the embedded cluster does, with the same generator.",
    ],
)
