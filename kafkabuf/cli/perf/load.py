"""The load of `kafkabuf perf`, what became of it, and kafkabuf's own way to send it.

A client gets the records in chunks. The first record of a chunk carries the time of its send(): kafkabuf brings it
back in `on_acknowledged`, a peer in a callback of that record. The others cost nothing here beside the client's send().
"""

from __future__ import annotations

import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Protocol

import click

from kafkabuf.errors import KafkaError
from kafkabuf.process import threads
from kafkabuf.process._time import monotonic

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig
    from kafkabuf.record_metadata import BatchOutcome

# Records of a chunk; at a pace a chunk has a millisecond's records, and each record is a chunk of its own up to SLOW
# records a second.
CHUNK = 256
SLOW = 10_000
_LONGEST_SLEEP = 3600.0  # seconds; much more is no time for the operating system
_WAITING = "waiting for the last acknowledgements; a second Ctrl-C ends the command at once"
PERCENTILES = (50.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True)
class Load:
    """What every client of a run sends. `throughput`: records a second; 0: as fast as the client takes them."""

    topic: str
    values: Sequence[bytes]
    records: int
    throughput: float = 0.0
    transaction_size: int = 0

    @property
    def chunk(self) -> int:
        if not self.throughput:
            return CHUNK
        return 1 if self.throughput <= SLOW else min(int(self.throughput / 1000), CHUNK)

    @property
    def value_size(self) -> float:
        return sum(map(len, self.values)) / len(self.values)


@dataclass(frozen=True)
class Window:
    """What was acknowledged in a part of the run, `seconds` long. Latencies are in seconds."""

    seconds: float
    records: int
    latencies: Sequence[float]


@dataclass
class Tally:
    """What became of the records so far. The thread that runs callbacks writes to it, the main thread reads."""

    acknowledged: int = 0
    failed: int = 0
    first_error: str | None = None
    latencies: array[float] = field(default_factory=lambda: array("d"))

    def on_batch(self, outcome: BatchOutcome) -> None:
        """Kafkabuf's `on_acknowledged`."""
        now = monotonic()
        if outcome.error is not None:
            self.fail(outcome.record_count, outcome.error)
            return
        self.acknowledged += outcome.record_count
        self.latencies.extend(now - sent for sent in filter(None, outcome.opaques))

    def on_record(self, sent: float | None) -> None:
        """A peer has delivered one record."""
        self.acknowledged += 1
        if sent is not None:
            self.latencies.append(monotonic() - sent)

    def await_outcomes(self, records: int, seconds: float = 5.0) -> None:
        """Wait for the last callbacks: a client may wake its caller before it calls them."""
        deadline = monotonic() + seconds
        while self.acknowledged + self.failed < records and monotonic() < deadline:
            threads.sleep(0.001)

    def clear(self) -> None:
        self.acknowledged = self.failed = 0
        self.first_error = None
        del self.latencies[:]

    def fail(self, records: int, error: object) -> None:
        self.failed += records
        self.first_error = self.first_error or str(error)


class Sending(Protocol):
    """A connected client. `send` sends a chunk of values; the first tells `sent`, the time of the call, at its end."""

    def send(self, values: Sequence[bytes], sent: float) -> None: ...

    def flush(self) -> None: ...

    def sleep(self, seconds: float) -> None: ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def give_up(self) -> None:
        """Ends the wait for the outcomes of what was sent: flush() and the end of the client do not wait either."""
        ...


class OwnSending:
    """Kafkabuf's KafkaProducer.send()."""

    def __init__(self, config: ProducerConfig, load: Load, tally: Tally) -> None:
        from kafkabuf.producer import KafkaProducer

        changes: dict[str, Any] = {"on_acknowledged": tally.on_batch}
        if load.transaction_size and config.transactional_id is None:
            changes["transactional_id"] = f"kafkabuf-perf-{uuid.uuid4()}"
        self.producer = KafkaProducer(config.replaced(changes))
        if load.transaction_size:
            self.producer.init_transactions()
        self._topic = load.topic
        self.flush = self.producer.flush
        self.sleep = threads.sleep
        self.begin = self.producer.begin_transaction
        self.commit = self.producer.commit_transaction

    def send(self, values: Sequence[bytes], sent: float) -> None:
        topic, send = self._topic, self.producer.send
        send(topic, values[0], opaque=sent)
        for value in values[1:]:
            send(topic, value)

    def give_up(self) -> None:
        self.producer.close(0)


@contextmanager
def own_sending(config: ProducerConfig, load: Load, tally: Tally) -> Iterator[Sending]:
    sending = OwnSending(config, load, tally)
    try:
        yield sending
    finally:
        sending.producer.close(5.0)


class Driver:
    """Sends a load with one client, and calls `on_window` about every second."""

    def __init__(self, load: Load, tally: Tally, on_window: Callable[[Window], None], every: float = 1.0) -> None:
        self.windows: list[Window] = []
        self.seconds = 0.0
        self.interrupted = False
        self._load, self._tally, self._on_window, self._every = load, tally, on_window, every
        self._began = self._window_began = monotonic()
        self._counted = self._measured = 0
        # The values in a ring: a chunk is a slice of it.
        self._ring = [*load.values, *islice(cycle(load.values), load.chunk)]

    def run(self, sending: Sending) -> None:
        """Ctrl-C ends the load: what was sent is acknowledged. A second Ctrl-C does not wait for that, and what has
        been acknowledged counts.

        Raises the KafkaError of a send() that fails at once.
        """
        self._began = self._window_began = monotonic()
        try:
            self._send_all(sending)
            sending.flush()
        except KeyboardInterrupt:
            self.interrupted = True
            self._await_outcomes(sending)
        self.seconds = monotonic() - self._began
        self._end_window()

    def _await_outcomes(self, sending: Sending) -> None:
        try:
            click.echo(f"{_WAITING:<79}", err=True)
            sending.flush()
        except KeyboardInterrupt:
            sending.give_up()

    def _send_all(self, sending: Sending) -> None:
        load = self._load
        in_transaction = load.transaction_size or load.records
        for first in range(0, load.records, in_transaction):
            if load.transaction_size:
                sending.begin()
            self._send(sending, first, min(first + in_transaction, load.records))
            if load.transaction_size:
                sending.commit()

    def _send(self, sending: Sending, first: int, end: int) -> None:
        ring, count, chunk, pace = self._ring, len(self._load.values), self._load.chunk, self._load.throughput
        while first < end:
            until = min(first + chunk, end)
            if pace:
                self._await(sending, first / pace)
            now = monotonic()
            if now - self._window_began >= self._every:
                self._end_window()
            start = first % count
            sending.send(ring[start : start + until - first], now)
            first = until

    def _await(self, sending: Sending, seconds: float) -> None:
        while (left := self._began + seconds - monotonic()) > 0:
            sending.sleep(min(left, _LONGEST_SLEEP))

    def _end_window(self) -> None:
        now, tally = monotonic(), self._tally
        records, measured = tally.acknowledged, len(tally.latencies)
        window = Window(now - self._window_began, records - self._counted, tally.latencies[self._measured : measured])
        self._window_began, self._counted, self._measured = now, records, measured
        self.windows.append(window)
        self._on_window(window)


@dataclass(frozen=True)
class Result:
    """One client's run. Latencies are in seconds, from the call of send() to the acknowledgement."""

    client: str
    records: int
    failed: int
    first_error: str | None
    seconds: float
    value_size: float
    cpu_s: float | None
    """CPU time of this process; None: the client ran in another process."""
    latency: dict[str, float]
    windows: list[Window] = field(repr=False, default_factory=list)
    interrupted: bool = False

    @property
    def rate(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0


def summary(latencies: Sequence[float]) -> dict[str, float]:
    """mean, max and percentiles of a sample; empty for an empty sample."""
    if not latencies:
        return {}
    ordered = sorted(latencies)
    figures = {"mean": sum(ordered) / len(ordered), "max": ordered[-1]}
    for percent in PERCENTILES:
        figures[f"p{percent:g}"] = ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]
    return figures


def measure(
    client: str,
    open_: Callable[[ProducerConfig, Load, Tally], Any],
    config: ProducerConfig,
    load: Load,
    on_window: Callable[[Window], None],
) -> Result:
    """Send a load with one client. The clock runs once the client is connected and has sent a record."""
    tally = Tally()
    with open_(config, load, tally) as sending:
        _warm_up(sending, load)
        tally.await_outcomes(1)
        tally.clear()
        driver = Driver(load, tally, on_window)
        cpu = time.process_time()
        driver.run(sending)
        cpu = time.process_time() - cpu
        if not driver.interrupted:
            tally.await_outcomes(load.records)
    missing = load.records - tally.acknowledged - tally.failed
    if missing and not driver.interrupted:
        tally.fail(missing, KafkaError("the client said nothing of these records"))
    return Result(
        client, tally.acknowledged, tally.failed, tally.first_error, driver.seconds, load.value_size, cpu,
        summary(tally.latencies), driver.windows, driver.interrupted,
    )  # fmt: skip


def _warm_up(sending: Sending, load: Load) -> None:
    """One record, so that connections and metadata are there."""
    if load.transaction_size:
        sending.begin()
    sending.send(load.values[:1], monotonic())
    if load.transaction_size:
        sending.commit()
    sending.flush()
