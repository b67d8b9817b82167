"""Measures a producer: the clock runs from a warm, connected producer to the last acknowledgement."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from bench.claim import Job, Measurement, Metric

if TYPE_CHECKING:
    from kafkabuf import BatchOutcome

VALUE_SIZE = 100
BATCH_SMALL = 16 * 1024  # the default of Java and of kafkabuf
BATCH_LARGE = 128 * 1024
# Every peer has acks=all and Java's default linger.ms, unless its case says otherwise.
LINGER_MS = 5

RATE = Metric("records_per_s", "records/s", ",.0f")
CPU = Metric("cpu_us", "µs CPU/record", ".3f", more_is_better=False)

# Sends so many records, waits until all are acknowledged, and returns their number, which a replay of ready-made
# batches rounds up. Raises an error if a record is not delivered.
Publish = Callable[[int], int]
# A connected producer for the time of a `with`, from the bootstrap address and the topic.
Client = Callable[[str, str], AbstractContextManager[Publish]]


def measure(client: Client, job: Job) -> Measurement:
    """The rate and the CPU time of the whole process, after a warm-up with a fiftieth of the records."""
    with arrivals(job) as arrived:
        with client(job.bootstrap, job.topic) as publish:
            warm_up = publish(warm_up_records(job.amount))
            used, started = cpu_seconds(), time.perf_counter()
            published = publish(job.amount)
            wall, used = time.perf_counter() - started, cpu_seconds() - used
        arrived.expected = warm_up + published
    return {RATE.name: published / wall, CPU.name: used / published * 1e6}


def warm_up_records(records: int) -> int:
    return max(records // 50, 1)


class arrivals:
    """Checks by the broker's end offset that all records of the `with` arrived, whatever the producer says."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._before = 0
        self.expected = 0

    def __enter__(self) -> arrivals:
        self._before = self._end_offset()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            self.check(self._end_offset() - self._before)

    def check(self, arrived: int) -> None:
        """Raises RuntimeError if records are missing. More records are no error: a retry may have repeated some."""
        if arrived < self.expected:
            raise RuntimeError(f"{arrived} of {self.expected} records arrived at the broker")

    def _end_offset(self) -> int:
        admin = AdminClient({"bootstrap.servers": self._job.bootstrap, "log_level": 0})
        partition = TopicPartition(self._job.topic, 0)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return int(admin.list_offsets({partition: latest})[partition].result().offset)


class Delivered:
    """Callbacks that count deliveries. `check` raises an error if a delivery is missing."""

    def __init__(self) -> None:
        self._count = 0

    def on_kafkabuf(self, metadata: object, error: object) -> None:
        if error is None:
            self._count += 1

    def on_acknowledged(self, outcome: BatchOutcome) -> None:
        if outcome.error is None:
            self._count += len(outcome.opaques)

    def on_confluent(self, error: object, message: object) -> None:
        if error is None:
            self._count += 1

    def check(self, records: int) -> None:
        if self._count != records:
            raise RuntimeError(f"{self._count} of {records} records were delivered")
        self._count = 0


def children_cpu_seconds() -> float:
    """Of the processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_seconds() -> float:
    """User and system time of this process with all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
