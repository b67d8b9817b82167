"""Spark jobs of four sizes, and the table of what a micro-batch of each does to producers and brokers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.scale.costs import MEASURED
from bench.scale.load import Load, Pattern
from bench.scale.model import Outcome, Place, simulate
from kafkabuf.spark.worker.workers import batch_size

KIB, MIB = 1 << 10, 1 << 20
MAX_MESSAGE_BYTES = 1 * MIB
ARROW_ROWS = 10_000
# What a job is, not what it costs: three Arrow batches a task and micro-batch, of which Spark gives 50 a second.
ARROW_BATCHES = 3
EVERY_S = 0.02
# A network between machines: 0.25 ms one way, a millisecond for the followers, 10 Gbit/s at each broker.
NETWORK = Place(one_way_s=0.00025, commit_s=0.001, bytes_per_s=1.25e9)


@dataclass(frozen=True)
class Size:
    """A job: so many executors with three tasks each at a time."""

    name: str
    executors: int
    brokers: int
    partitions: int
    tasks: int = 3
    share: int = 1
    """One of so many tasks is simulated, and counts so many times: the tasks of a job are alike. 1: all are."""

    @property
    def workers(self) -> int:
        return self.executors * self.tasks


SIZES = (
    Size("laptop", 1, 1, 3),
    Size("10 executors", 10, 3, 30),
    Size("100 executors", 100, 10, 300),
    Size("1,000 executors", 1_000, 30, 3_000, share=10),
)


@dataclass(frozen=True)
class Way:
    """A way to write: which partitions a task writes, and the settings. A batch.size of 0 is what the sink chooses."""

    name: str
    pattern: Pattern
    batch_size: int = 0
    buffer_memory: int = 32 * MIB

    def load(self, size: Size) -> Load:
        written = 1 if self.pattern is Pattern.ALIGNED else size.partitions
        chosen = self.batch_size or batch_size(self.buffer_memory, written, MAX_MESSAGE_BYTES)
        return Load(
            self.pattern,
            producers=size.workers,
            brokers=size.brokers,
            partitions=size.partitions,
            rows=ARROW_ROWS,
            chunks=ARROW_BATCHES,
            every_s=EVERY_S,
            batch_size=chosen,
            buffer_memory=self.buffer_memory,
        )


KEYS = Way("keys", Pattern.KEYS)
WAYS = (
    KEYS,
    Way("keys, 128 MiB", Pattern.KEYS, buffer_memory=128 * MIB),
    Way("no keys", Pattern.STICKY),
    Way("no keys, 512 KiB", Pattern.STICKY, batch_size=512 * KIB),
    Way("aligned", Pattern.ALIGNED),
    Way("aligned, 16 KiB", Pattern.ALIGNED, batch_size=16 * KIB),
)
COLUMNS = (
    "a micro-batch",
    "tasks simulated",
    "batch.size",
    "rows/batch",
    "KiB/request",
    "requests/broker",
    "connections/broker",
    "MiB of buffer",
    "waits/task",
    "µs CPU/row",
    "Kafka CPU s/broker",
    "s",
)


def rows(sizes: Sequence[Size] = SIZES) -> list[list[str]]:
    """The table of docs/scale.md."""
    return [
        _row(size, way, simulate(way.load(size), MEASURED, NETWORK, share=size.share)) for size, way in chosen(sizes)
    ]


def chosen(sizes: Sequence[Size]) -> Iterator[tuple[Size, Way]]:
    """The ways that differ for a size: a batch.size that the sink chooses anyway makes no row."""
    for size in sizes:
        seen: set[Load] = set()
        for way in WAYS:
            load = way.load(size)
            if load not in seen and not (way.buffer_memory > KEYS.buffer_memory and size.partitions < 1_000):
                seen.add(load)
                yield size, way


def _row(size: Size, way: Way, outcome: Outcome) -> list[str]:
    counts = outcome.counts
    return [
        f"{size.name}: {way.name}",
        f"{size.workers // size.share:,} of {size.workers:,}",
        f"{way.load(size).batch_size // KIB} KiB",
        f"{counts.records / counts.batches:,.1f}",
        f"{counts.request_bytes / counts.requests / KIB:,.1f}",
        f"{counts.requests / size.brokers:,.0f}",
        f"{counts.connections / size.brokers:,.0f}",
        f"{outcome.memory / MIB:.1f}",
        f"{counts.waits / size.workers:,.0f}",
        f"{counts.cpu_s / counts.records * 1e6:.2f}",
        f"{outcome.broker_cpu_s / size.brokers:,.2f}",
        f"{counts.wall_s:.2f}",
    ]
