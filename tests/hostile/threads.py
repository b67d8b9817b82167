"""Threads that share a producer: `python -m tests.hostile.threads [--seconds N] [--threads N] [--bootstrap-servers S]`.

The threads send in every way that there is, wait, flush and read metrics at the same time. At the end each record has
one offset, each callback has run once, and the pool has all its memory. Any interpreter can run this. Only an
interpreter without a GIL gives every lock of the producer (kafkabuf/process/_lock.h) something to do: build the
extensions with it, and set PYTHON_GIL=0, because kafkabuf turns the GIL on again otherwise (DESIGN.md, "Free-threaded
Python").
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kafkabuf import KafkaProducer, RecordFuture
from kafkabuf.compat.confluent import Producer

PATIENCE = 30.0  # seconds
TOPICS = {"threads-6": 6, "threads-3": 3}
# A buffer that is often full, and batches that are often full.
SETTINGS: dict[str, Any] = {"buffer_memory": 1 << 20, "batch_size": 4096, "linger_ms": 1}


class Sharer(threading.Thread):
    """One of the threads, with what it sent and learned."""

    def __init__(self, producer: KafkaProducer, seed: int, until: float) -> None:
        super().__init__(daemon=True)
        self.producer = producer
        self.random = random.Random(seed)
        self.until = until
        self.sent = self.with_callback = self.called = 0
        self.offsets: list[tuple[str, int, int]] = []
        self.error: BaseException | None = None
        self._pending: deque[RecordFuture] = deque()

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                self._step()
                self._settle(200)
            self._settle(0)
        except BaseException as error:
            self.error = error

    def _step(self) -> None:
        topic = self.random.choice(list(TOPICS))
        choice = self.random.random()
        if choice < 0.3:
            self.with_callback += 1
            self._keep(self.producer.send(topic, self._value(), callback=self._on_outcome))
        elif choice < 0.6:
            self._keep(self.producer.send(topic, self._value(), key=b"%d" % self.random.randrange(50)))
        elif choice < 0.9:
            self._keep(self.producer.send(topic, self._value()))
        elif choice < 0.95:
            report = self.producer.send_many(topic, [self._value() for _ in range(20)])
            result = report.result(PATIENCE)
            rows = zip(result.partition.tolist(), result.offset.tolist(), strict=True)
            self.offsets += [(topic, partition, offset) for partition, offset in rows]
        elif choice < 0.98:
            self.producer.flush(PATIENCE)
        else:
            self.producer.metrics()

    def _value(self) -> bytes:
        self.sent += 1
        return b"%d" % self.sent

    def _keep(self, future: RecordFuture) -> None:
        self._pending.append(future)

    def _on_outcome(self, _: object, error: object) -> None:
        self.called += 1

    def _settle(self, pending: int) -> None:
        while len(self._pending) > pending:
            metadata = self._pending.popleft().result(PATIENCE)
            self.offsets.append((metadata.topic, metadata.partition, metadata.offset))


def share(bootstrap_servers: str, seconds: float, threads: int) -> int:
    """Returns how many records were sent. The caller has made TOPICS. Raises an ExceptionGroup or AssertionError."""
    with KafkaProducer(bootstrap_servers=bootstrap_servers, **SETTINGS) as producer:
        until = time.monotonic() + seconds
        sharers = [Sharer(producer, seed, until) for seed in range(threads)]
        for sharer in sharers:
            sharer.start()
        for sharer in sharers:
            sharer.join(seconds + 4 * PATIENCE)
        if any(sharer.is_alive() for sharer in sharers):
            raise AssertionError("a thread hangs")
        if errors := [sharer.error for sharer in sharers if sharer.error is not None]:
            raise BaseExceptionGroup("threads failed", errors)
        producer.flush(PATIENCE)
        _check(producer, sharers)
        return sum(sharer.sent for sharer in sharers)


def _check(producer: KafkaProducer, sharers: list[Sharer]) -> None:
    sent = sum(sharer.sent for sharer in sharers)
    offsets = {offset for sharer in sharers for offset in sharer.offsets}
    assert producer.records_sent == sent, f"{producer.records_sent} counted, {sent} sent"
    assert len(offsets) == sent, f"{sent} sent, {len(offsets)} have an offset of their own"
    for sharer in sharers:
        assert sharer.called == sharer.with_callback, f"{sharer.called} of {sharer.with_callback} callbacks"
    producer.pool.check()
    states = producer.pool.accounting()
    assert states["open"] == states["closed"] == states["in_flight"] == 0, states


def share_with_polls(bootstrap_servers: str, seconds: float, threads: int) -> int:
    """As `share`, with confluent-kafka's face: each thread calls produce(), poll() and flush()."""
    settings = {"queue.buffering.max.messages": 5_000, "linger.ms": 1}
    producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
    until = time.monotonic() + seconds
    reports: list[tuple[object, int, int]] = []

    def on_delivery(error: object, message: Any) -> None:
        reports.append((error, message.partition(), message.offset()))

    def run(seed: int) -> int:
        choices, sent = random.Random(seed), 0
        while time.monotonic() < until:
            try:
                producer.produce("threads-6", b"v", on_delivery=on_delivery)
                sent += 1
            except BufferError:
                producer.poll(0.01)
            if choices.random() < 0.05:
                producer.poll(0)
            if choices.random() < 0.001:
                producer.flush(PATIENCE)
        return sent

    with ThreadPoolExecutor(threads) as pool:
        sent = sum(pool.map(run, range(threads), timeout=seconds + 4 * PATIENCE))
    assert producer.flush(PATIENCE) == len(producer) == 0
    assert len(reports) == len(set(reports)) == sent, f"{sent} sent, {len(reports)} reports, {len(set(reports))} differ"
    assert not any(error for error, _, _ in reports)
    return sent


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=1) as embedded:
        for topic, partitions in TOPICS.items():
            embedded.create_topic(topic, partitions)
        yield embedded.bootstrap_servers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.threads", description="Share a producer.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--bootstrap-servers", help=f"a cluster with the topics {TOPICS}; default: an embedded one")
    arguments = parser.parse_args()
    servers = arguments.bootstrap_servers
    with contextlib.nullcontext(servers) if servers else cluster() as bootstrap_servers:
        sent = share(bootstrap_servers, arguments.seconds / 2, arguments.threads)
        sent += share_with_polls(bootstrap_servers, arguments.seconds / 2, arguments.threads)
    gil = "with" if getattr(sys, "_is_gil_enabled", lambda: True)() else "without"
    print(f"{arguments.threads} threads sent {sent} records {gil} the GIL: each arrived once")


if __name__ == "__main__":
    main()
