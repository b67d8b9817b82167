"""The costs that the model is fed with: each is measured, by a few short runs of a real producer.

The runs send the same bytes in different portions: few and many records in a batch, few and many batches in a request,
few and many requests, with and without waits for memory. A cost is what fits the CPU times of all runs best (least
squares of the relative errors, no cost below 0).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np

from bench.measure import cpu_seconds
from bench.scale.load import KEY_BYTES, VALUE_BYTES, Load, Pattern
from bench.scale.real import Cluster, Commanded, Counts, cluster, producing, run, worker_memory, workers

# Short runs that differ as much as possible. Each takes some tenths of a second.
RUNS: Sequence[Load] = (
    Load(Pattern.STICKY, chunks=50),
    Load(Pattern.STICKY, chunks=100, batch_size=128 * 1024),
    Load(Pattern.KEYS, partitions=12, chunks=40),
    Load(Pattern.KEYS, partitions=3, chunks=60, batch_size=128 * 1024),
    Load(Pattern.ALIGNED, partitions=12, chunks=40),
    Load(Pattern.STICKY, chunks=200, rows=100, value_bytes=10_000, batch_size=128 * 1024),
    Load(Pattern.STICKY, chunks=600, rows=1, wait_each=True),
    Load(Pattern.KEYS, partitions=300, chunks=40, rows=900, wait_each=True),
    Load(Pattern.KEYS, partitions=30, chunks=200, rows=90, wait_each=True),
    Load(Pattern.STICKY, chunks=10_000, rows=10),
    Load(Pattern.KEYS, partitions=300, chunks=4, rows=3_000, buffer_memory=1 << 20),
    Load(Pattern.STICKY, 3, chunks=150, rows=100, every_s=0.004, linger_s=0.0),
    Load(Pattern.KEYS, 3, partitions=12, chunks=150, rows=300, every_s=0.005, linger_s=0.002),
    Load(Pattern.KEYS, 3, partitions=12, chunks=100, rows=1_000, every_s=0.006, linger_s=0.02),
    Load(Pattern.STICKY, 3, partitions=6, chunks=150, rows=700, every_s=0.005, linger_s=0.012),
    Load(Pattern.KEYS, 3, partitions=24, chunks=80, rows=400, every_s=0.007, linger_s=0.016),
    # A buffer of 64 batches for 300 partitions: the caller waits for memory again and again, and sleeps in between.
    Load(Pattern.KEYS, 2, partitions=300, chunks=20, rows=600, every_s=0.06, buffer_memory=1 << 20),
    Load(Pattern.KEYS, 2, partitions=600, chunks=15, rows=800, every_s=0.08, buffer_memory=2 << 20),
    Load(Pattern.KEYS, 2, partitions=300, chunks=20, rows=600, every_s=0.06),
)
REPEATS = 3  # of a load without a pace: one with a pace is longer, and its start too
ALONE = RUNS[6]  # a request with one record, and nothing else under way
PRODUCER_PARTS = ("calls", "naps", "waits", "records", "keys", "batches", "requests", "turns", "request_bytes")
BROKER_PARTS = ("batches", "requests", "request_bytes")


@dataclass(frozen=True)
class Costs:
    """Seconds of CPU time, and bytes. The producer's costs come first, then the broker's."""

    call_s: float
    """A call of send_arrow()."""
    nap_s: float
    """A pause of the load between two calls: the sleep, and the cold caches after it."""
    memory_wait_s: float
    """The caller's wait for memory, in which it sleeps."""
    record_s: float
    """A record of a table, without a key."""
    key_s: float
    """The key of a record and its choice among several partitions."""
    batch_s: float
    request_s: float
    turn_s: float
    """A turn of the Sender: it wakes up, looks for batches that may go, and polls."""
    byte_s: float
    """A byte of a request: checksum and socket."""
    connection_s: float
    """Opening a connection: the handshake, and the socket."""
    broker_batch_s: float
    broker_request_s: float
    broker_byte_s: float
    wait_s: float
    """How long a message between a producer and a broker takes, apart from CPU time: on one machine, a wake-up."""
    record_bytes: float
    """A record of 16 bytes of key and 100 bytes of value in a batch."""
    value_overhead_bytes: float
    """What a record without a key adds to its value in a batch."""
    batch_bytes: float
    """An empty batch."""
    request_bytes: float
    """An empty Produce request."""
    entry_bytes: float
    """A partition of a Produce request, without its batch."""
    slab_bytes: float
    """The memory that a batch of one record takes, where batch.size is 16 KiB."""
    other_connections: float
    """Connections of a producer beside those to leaders."""
    worker_bytes: float
    """The resident memory of a Python process with pyarrow and a producer, before the first large batch."""
    worker_partition_bytes: float
    """What each partition of the topic adds to it."""
    metadata_bytes: float
    """Each partition of the topic in a response to a Metadata request."""

    def size(self, load: Load) -> float:
        """The bytes of a record of this load in a batch."""
        if load.keyed:
            return self.record_bytes + load.value_bytes - VALUE_BYTES
        return self.value_overhead_bytes + load.value_bytes


def measure(on: Cluster | None = None) -> Costs:
    """Measure every cost, on an embedded cluster of one node unless `on` is given. It takes some ten seconds."""
    if on is None:
        with cluster(1) as own:
            return measure(own)
    with workers(max(load.producers for load in RUNS)) as started:
        runs = [typical(load, on, started) for load in RUNS]
    counted = [counts for counts, _ in runs]
    ours = fit(counted, [counts.cpu_s for counts in counted], PRODUCER_PARTS)
    theirs = fit(counted, [used for _, used in runs], BROKER_PARTS)
    alone = counted[RUNS.index(ALONE)]
    busy = sum(ours[part] * getattr(alone, part) for part in ours) + runs[RUNS.index(ALONE)][1]
    sizes = request_sizes(counted)
    return Costs(
        call_s=ours["calls"],
        nap_s=ours["naps"],
        memory_wait_s=ours["waits"],
        record_s=ours["records"],
        key_s=ours["keys"],
        batch_s=ours["batches"],
        request_s=ours["requests"],
        turn_s=ours["turns"],
        byte_s=ours["request_bytes"],
        connection_s=connection(on),
        broker_batch_s=theirs["batches"],
        broker_request_s=theirs["requests"],
        broker_byte_s=theirs["request_bytes"],
        wait_s=max(alone.wall_s - busy, 0.0) / alone.requests / 2,
        **record_sizes(),
        request_bytes=sizes[0],
        entry_bytes=sizes[1],
        slab_bytes=slab(),
        other_connections=alone.connections - 1,
        **_per_partition(on),
    )


def typical(load: Load, on: Cluster, started: Sequence[Commanded]) -> tuple[Counts, float]:
    """The run with the middle CPU time of several."""
    repeats = 1 if load.every_s else REPEATS
    runs = sorted((_run(load, on, started) for _ in range(repeats)), key=lambda run: run[0].cpu_s)
    return runs[repeats // 2]


def _run(load: Load, on: Cluster, started: Sequence[Commanded]) -> tuple[Counts, float]:
    """The counts of a run, and the CPU time of the cluster."""
    if load.producers > 1:
        before = on.cpu_s()
        counts = run(load, on, started)
        return counts, on.cpu_s() - before
    with producing(on.servers, on.topic(load.partitions), load) as publish:
        before = on.cpu_s()
        counts = publish()
        return counts, on.cpu_s() - before


def fit(runs: Sequence[Counts], seconds: Sequence[float], parts: Sequence[str]) -> dict[str, float]:
    """The seconds of each part that fit the seconds of all runs best."""
    table = np.array([[getattr(run, part) for part in parts] for run in runs]) / np.array(seconds)[:, None]
    scale = table.max(axis=0)
    found = _not_negative(table / scale, np.ones(len(runs))) / scale
    return dict(zip(parts, found.tolist(), strict=True))


def _not_negative(table: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares without negative numbers: the best of all sets of columns whose solution has none."""
    columns = table.shape[1]
    best, least = np.zeros(columns), float(target @ target)
    for number in range(1, columns + 1):
        for kept in map(list, combinations(range(columns), number)):
            solution = np.linalg.lstsq(table[:, kept], target, rcond=None)[0]
            missed = table[:, kept] @ solution - target
            if solution.min() >= 0 and missed @ missed < least:
                best, least = np.zeros(columns), float(missed @ missed)
                best[kept] = solution
    return best


def request_sizes(runs: Sequence[Counts]) -> tuple[float, float]:
    """The bytes of a Produce request without partitions, and those of each partition beside its batch."""
    table = np.array([[run.requests, run.batches] for run in runs])
    empty = np.array([run.request_bytes - run.batch_bytes for run in runs])
    weights = 1 / empty
    request, entry = np.linalg.lstsq(table * weights[:, None], empty * weights, rcond=None)[0]
    return float(request), float(entry)


def record_sizes() -> dict[str, float]:
    """The bytes of a batch and of its records, from the encoder."""
    from kafkabuf import MemoryRecordsBuilder

    def encoded(records: int, key: bytes | None) -> int:
        builder = MemoryRecordsBuilder(write_limit=1 << 20)
        for _ in range(records):
            builder.append(0, key, bytes(VALUE_BYTES))
        return len(builder.close())

    empty = 2 * encoded(1, None) - encoded(2, None)
    keyed, plain = (encoded(1001, key) - encoded(1, key) for key in (bytes(KEY_BYTES), None))
    return {
        "batch_bytes": float(empty),
        "record_bytes": keyed / 1000,
        "value_overhead_bytes": plain / 1000 - VALUE_BYTES,
    }


def slab() -> float:
    """The memory that a batch of one record takes: bytes of the pool, with batch.size 16 KiB."""
    from bench.kernels import Producer
    from rigs.producer import TOPIC

    batches = 64
    producer = Producer(partitions=batches, busy=batches)
    free = producer.accumulator.pool.free_bytes
    for partition in range(batches):
        producer.send(TOPIC, bytes(1), partition=partition)
    taken = free - producer.accumulator.pool.free_bytes
    producer.finish()
    return taken / batches


MANY = 2_000  # partitions


def _per_partition(on: Cluster) -> dict[str, float]:
    """The memory of a producer, and what each partition of its topic adds to its memory and to metadata."""
    from kafkabuf import KafkaProducer

    tiny = Load(Pattern.STICKY, rows=1)
    few, many = on.topic(1), on.topic(MANY)
    memory = [worker_memory(on.servers, topic, tiny) for topic in (few, many)]
    answered = []
    for topic in (few, many):
        with KafkaProducer(bootstrap_servers=on.servers) as producer:
            producer.partitions_for(topic)
            answered.append(producer._sender.stats.responses.total)
    return {
        "worker_bytes": memory[0],
        "worker_partition_bytes": max(memory[1] - memory[0], 0.0) / (MANY - 1),
        "metadata_bytes": (answered[1] - answered[0]) / (MANY - 1),
    }


def connection(on: Cluster, times: int = 10) -> float:
    """CPU seconds of another connection of a producer: the median of several producers."""
    from kafkabuf import KafkaProducer

    topic, found = on.topic(1), []
    for _ in range(times):
        with KafkaProducer(bootstrap_servers=on.servers, linger_ms=0) as producer:
            producer.partitions_for(topic)  # over the first connection
            used = []
            for _ in range(2):  # the first record opens the connection to the leader
                before = cpu_seconds()
                producer.send(topic, bytes(1)).result(10)
                used.append(cpu_seconds() - before)
            found.append(used[0] - used[1])
    return max(statistics.median(found), 0.0)


def as_figures(costs: Costs) -> dict[str, float]:
    """The costs as figures of a case."""
    return {f"cost_{name}": figure for name, figure in asdict(costs).items()}


def from_figures(figures: Sequence[Mapping[str, float]]) -> Costs:
    """The median of each cost."""
    names = list(Costs.__dataclass_fields__)
    return Costs(**{name: statistics.median(row[f"cost_{name}"] for row in figures) for name in names})
