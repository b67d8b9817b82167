"""Runs a load for real: a cluster in a process of its own, and producers in processes of their own.

`python -m bench.scale.real cluster BROKERS` serves a cluster, `python -m bench.scale.real producer` has a producer.
Both take commands, a line of JSON each, and answer with a line. A producer's process serves one load after the other:
its start takes longer than a load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from bench import rss
from bench.harness import ROOT
from bench.measure import cpu_seconds
from bench.scale.load import KEY_BYTES, Load, Pattern

RETENTION_BYTES = 1 << 20  # per partition
DIFFERENT_CHUNKS = 4
WARM_UP_CHUNKS = 2


@dataclass(frozen=True)
class Counts:
    """What producers did between the start and the last acknowledgement. Times are seconds."""

    records: float = 0.0
    batches: float = 0.0
    batch_bytes: float = 0.0
    requests: float = 0.0
    request_bytes: float = 0.0
    turns: float = 0.0
    """Turns of the Sender."""
    calls: float = 0.0
    """Calls of send_arrow()."""
    naps: float = 0.0
    """Sleeps of the load itself, between two calls."""
    waits: float = 0.0
    """Times that the caller waited for memory."""
    keys: float = 0.0
    connections: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def __add__(self, other: Self) -> Self:
        """The counts of both, which ran at the same time."""
        total = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return type(self)(**{**total, "wall_s": max(self.wall_s, other.wall_s)})

    def times(self, number: int) -> Self:
        """The counts of so many that did the same at the same time."""
        total = {field.name: getattr(self, field.name) * number for field in fields(self)}
        return type(self)(**{**total, "wall_s": self.wall_s})


# ---- processes that take commands ------------------------------------------------------------------------------------


class Commanded:
    """A process of this module that answers commands."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, command: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps({"command": command, **arguments}), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """The answer to the oldest command without one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the load has ended early")
        return json.loads(line)

    def __call__(self, command: str, **arguments: Any) -> Any:
        self.begin(command, **arguments)
        return self.answer()


@contextmanager
def _started(*arguments: str) -> Iterator[Commanded]:
    command = [sys.executable, "-m", "bench.scale.real", *arguments]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Commanded(process)
        finally:
            process.kill()


class Cluster:
    """A running embedded cluster. All its nodes share one thread."""

    def __init__(self, process: Commanded) -> None:
        self._process = process
        self.servers: str = process.answer()

    def topic(self, partitions: int) -> str:
        """The name of a new topic, with one copy of each partition."""
        return str(self._process("topic", name=f"scale-{uuid.uuid4().hex[:8]}", partitions=partitions))

    def cpu_s(self) -> float:
        """The CPU time that the cluster has used."""
        return float(self._process("cpu"))


@contextmanager
def cluster(brokers: int) -> Iterator[Cluster]:
    with _started("cluster", str(brokers)) as process:
        yield Cluster(process)


def _serve_cluster(brokers: int) -> None:
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=brokers, replication_factor=1, retention_bytes=RETENTION_BYTES) as running:
        print(json.dumps(running.bootstrap_servers), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["command"] == "topic":
                running.create_topic(asked["name"], asked["partitions"])
            print(json.dumps(asked["name"] if asked["command"] == "topic" else cpu_seconds()), flush=True)


def cpu_of(process_id: int, without: tuple[str, ...] = ()) -> float:
    """The CPU time that the threads of a process have used, without those whose names begin so."""
    ticks = 0
    for thread in Path(f"/proc/{process_id}/task").iterdir():
        name, _, figures = (thread / "stat").read_text().partition("(")[2].rpartition(")")
        if not name.startswith(without or ("\0",)):
            user, system = figures.split()[11:13]
            ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


# ---- a load ----------------------------------------------------------------------------------------------------------


@contextmanager
def workers(number: int) -> Iterator[Sequence[Commanded]]:
    """So many processes for producers."""
    with ExitStack() as stack:
        yield [stack.enter_context(_started("producer")) for _ in range(number)]


def run(load: Load, cluster: Cluster, among: Sequence[Commanded] = ()) -> Counts:
    """The sum of the load's producers, which begin at the same time. Each has a process: of `among`, or a new one."""
    if not among:
        with workers(load.producers) as own:
            return run(load, cluster, own)
    topic, chosen = cluster.topic(load.partitions), among[: load.producers]
    for number, process in enumerate(chosen):
        process.begin("load", servers=cluster.servers, topic=topic, load=load.as_json(), number=number)
    for process in chosen:
        process.answer()
    for process in chosen:
        process.begin("go")
    counts = [Counts(**process.answer()) for process in chosen]
    return sum(counts[1:], start=counts[0])


def worker_memory(servers: str, topic: str, load: Load) -> float:
    """The resident bytes of a process with pyarrow and a warm producer."""
    with _started("producer") as process:
        return float(process("load", servers=servers, topic=topic, load=load.as_json(), number=0))


def _serve_producers() -> None:
    while line := sys.stdin.readline():
        asked = json.loads(line)
        load = Load.from_json(asked["load"])
        with producing(asked["servers"], asked["topic"], load, asked["number"]) as publish:
            print(rss.resident(), flush=True)
            sys.stdin.readline()  # "go"
            print(json.dumps(asdict(publish())), flush=True)


@contextmanager
def producing(servers: str, topic: str, load: Load, number: int = 0) -> Iterator[Any]:
    """A warm producer of this process, as a function that sends the load's Arrow batches and returns the counts."""
    from kafkabuf import KafkaProducer

    chunks = _chunks(load, number)
    with closing(KafkaProducer(load.settings(), bootstrap_servers=servers)) as producer:
        for _ in range(WARM_UP_CHUNKS):
            producer.send_arrow(chunks[0], topic)
            producer.flush()

        def publish() -> Counts:
            before, started = _count(producer), time.perf_counter()
            naps = _send(
                load, number, lambda turn: producer.send_arrow(chunks[turn % len(chunks)], topic), producer.flush
            )
            producer.flush()
            wall, after = time.perf_counter() - started, _count(producer)
            moved = {name: after[name] - before[name] for name in after}
            if moved["records"] != load.chunks * load.rows:
                raise RuntimeError(f"{moved['records']} of {load.chunks * load.rows} records were sent")
            if lost := producer.metrics()["producer-metrics"]["record-error-total"]:
                raise RuntimeError(f"{lost:.0f} records were not delivered")
            connections = producer.metrics()["producer-metrics"]["connection-count"]
            keys = moved["records"] if load.keyed else 0
            return Counts(**moved, calls=load.chunks, naps=naps, keys=keys, connections=connections, wall_s=wall)

        yield publish


def _send(load: Load, number: int, send: Any, flush: Any) -> int:
    """Send every Arrow batch at its time. Returns the number of sleeps."""
    naps = 0
    begun = time.perf_counter() + load.every_s * number / load.producers
    for turn in range(load.chunks):
        wait = begun + turn * load.every_s - time.perf_counter() if load.every_s else 0.0
        if wait > 0:
            time.sleep(wait)
            naps += 1
        send(turn)
        if load.wait_each:
            flush()
    return naps


def _count(producer: Any) -> dict[str, float]:
    stats = producer._sender.stats
    return {
        "records": stats.records.total,
        "batches": stats.batch_size.count,
        "batch_bytes": stats.batch_size.total,
        "requests": stats.requests.count,
        "request_bytes": stats.requests.total,
        "turns": stats.io_waits.count,
        "waits": stats.waits.count,
        "cpu_s": cpu_seconds(),
    }


def _chunks(load: Load, number: int) -> Sequence[Any]:
    import pyarrow as pa

    value, rows = pa.array([os.urandom(load.value_bytes)] * load.rows, pa.binary()), load.rows
    made = []
    for _ in range(DIFFERENT_CHUNKS):
        columns = {"value": value}
        if load.keyed:
            columns["key"] = pa.array([os.urandom(KEY_BYTES) for _ in range(rows)], pa.binary())
        if load.pattern is Pattern.ALIGNED:
            columns["partition"] = pa.array([number % load.partitions] * rows, pa.int32())
        made.append(pa.record_batch(columns))
    return made


def main(what: str, *arguments: str) -> None:
    if what == "cluster":
        _serve_cluster(int(arguments[0]))
    else:
        _serve_producers()


if __name__ == "__main__":
    main(*sys.argv[1:])
