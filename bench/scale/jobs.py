"""Spark jobs of four sizes, and the tables of what each does to producers, brokers and coordinators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.claim import Sheet
from bench.scale.costs import Costs
from bench.scale.failure import METADATA_COLUMNS, metadata_rows
from bench.scale.kafka import KafkaCosts
from bench.scale.load import Load, Pattern
from bench.scale.model import Outcome, Place, simulate
from bench.scale.transactions import COORDINATOR_COLUMNS, coordinator_rows
from kafkabuf.spark.worker.workers import batch_size

KIB, MIB = 1 << 10, 1 << 20
MAX_MESSAGE_BYTES = 1 * MIB
ARROW_ROWS = 10_000
# What a job is, not what it costs: three Arrow batches a task and micro-batch, of which Spark gives 50 a second.
ARROW_BATCHES = 3
EVERY_S = 0.02
# A network between machines: 0.25 ms one way, a millisecond for the followers, 10 Gbit/s at each broker.
NETWORK = Place(one_way_s=0.00025, commit_s=0.001, bytes_per_s=1.25e9)
SAMPLE_SHARE = 10


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
    Size("1,000 executors", 1_000, 30, 3_000, share=SAMPLE_SHARE),
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


def sheets(costs: Costs, kafka: KafkaCosts, sizes: Sequence[Size] = SIZES) -> list[Sheet]:
    """What the document docs/scale.md shows."""
    of_kafka = replace(
        costs, broker_batch_s=kafka.batch_s, broker_request_s=kafka.request_s, broker_byte_s=kafka.byte_s
    )
    outcomes = {
        (size, way): simulate(way.load(size), of_kafka, NETWORK, share=size.share) for size, way in chosen(sizes)
    }
    return [
        _costs_sheet(costs, kafka),
        Sheet(
            f"A micro-batch of {ARROW_BATCHES * ARROW_ROWS:,} rows a task, predicted",
            COLUMNS,
            [_row(size, way, outcome) for (size, way), outcome in outcomes.items()],
        ),
        Sheet(
            "Fewer tasks simulated: what they predict, divided by the prediction of the table before",
            SAMPLE_COLUMNS,
            list(_sample_rows(outcomes, of_kafka)),
        ),
        Sheet("Memory of an executor's Python workers, predicted", MEMORY_COLUMNS, _memory_rows(costs, outcomes)),
        Sheet("Coordinators, a micro-batch, computed", COORDINATOR_COLUMNS, coordinator_rows(sizes, kafka)),
        Sheet("A broker dies, predicted", METADATA_COLUMNS, metadata_rows(sizes, costs)),
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


SAMPLE_COLUMNS = ("", "tasks", "batches", "requests", "bytes", "waits", "CPU", "Kafka CPU", "MiB of buffer", "s")
SAMPLE_COUNTS = ("batches", "requests", "request_bytes", "waits", "cpu_s")


def _sample_rows(outcomes: dict[tuple[Size, Way], Outcome], costs: Costs) -> Iterator[list[str]]:
    """A tenth of all tasks, where all were simulated."""
    for (size, way), found in outcomes.items():
        if size.workers < SAMPLE_SHARE or size.share > 1:
            continue
        sample = simulate(way.load(size), costs, NETWORK, share=SAMPLE_SHARE)
        pairs = [
            *((getattr(sample.counts, name), getattr(found.counts, name)) for name in SAMPLE_COUNTS),
            (sample.broker_cpu_s, found.broker_cpu_s),
            (sample.memory, found.memory),
            (sample.counts.wall_s, found.counts.wall_s),
        ]
        ratios = [f"{mine / its:.2f}" if its else "" for mine, its in pairs]
        yield [f"{size.name}: {way.name}", f"{size.workers // SAMPLE_SHARE:,}", *ratios]


MEMORY_COLUMNS = (
    "an executor with 3 tasks at a time",
    "Python, pyarrow, producer",
    "partitions",
    "buffer",
    "MiB together",
)


def _memory_rows(costs: Costs, outcomes: dict[tuple[Size, Way], Outcome]) -> list[list[str]]:
    rows = []
    for (size, way), outcome in outcomes.items():
        parts = [costs.worker_bytes, costs.worker_partition_bytes * size.partitions, outcome.memory]
        mib = [part * size.tasks / MIB for part in parts]
        rows.append([f"{size.name}: {way.name}", *(f"{part:,.1f}" for part in mib), f"{sum(mib):,.0f}"])
    return rows


def _costs_sheet(costs: Costs, kafka: KafkaCosts) -> Sheet:
    def micro(seconds: float) -> str:
        return f"{seconds * 1e6:,.3g} µs"

    rows = [
        ["a call of send_arrow()", micro(costs.call_s)],
        ["a record of a table, its key", f"{micro(costs.record_s)}, {micro(costs.key_s)}"],
        ["a batch, without its records", micro(costs.batch_s)],
        ["a Produce request, without its batches", micro(costs.request_s)],
        ["a turn of the Sender", micro(costs.turn_s)],
        ["a wait for memory", micro(costs.memory_wait_s)],
        ["a KiB to a socket, with its checksum", micro(costs.byte_s * KIB)],
        ["a further connection", micro(costs.connection_s)],
        ["a pause of the load, with the cold caches after it", micro(costs.nap_s)],
        ["a worker process with pyarrow and a producer", f"{costs.worker_bytes / MIB:.0f} MiB"],
        ["each partition of the topic, in a worker", f"{costs.worker_partition_bytes:.0f} bytes"],
        ["each partition of the topic, in a Metadata response", f"{costs.metadata_bytes:.0f} bytes"],
        ["a record of 16 + 100 bytes, in a batch", f"{costs.record_bytes:.0f} bytes"],
        ["an empty batch, an empty request", f"{costs.batch_bytes:.0f}, {costs.request_bytes:.0f} bytes"],
        ["Kafka: a request, a batch", f"{micro(kafka.request_s)}, {micro(kafka.batch_s)}"],
        ["Kafka: a KiB", micro(kafka.byte_s * KIB)],
        ["Kafka: a transaction", micro(kafka.transaction_s)],
        ["Kafka: each partition of a transaction", micro(kafka.transaction_partition_s)],
    ]
    return Sheet("What was measured, CPU time and bytes", ("", "cost"), rows)
