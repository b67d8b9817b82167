"""Three embedded nodes with replicas beside one node without: rate and latency with acks=all, start, and idle CPU.

`python -m bench.broker.cluster BROKERS` runs the cluster in a process of its own. It prints a line of JSON with its
address and the time of its start. For each line that it reads it prints the seconds of CPU that it has used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle

from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.clients import VALUE
from bench.harness import ROOT
from bench.measure import BATCH_LARGE, CPU, RATE, cpu_seconds, warm_up_records
from bench.sending.latency import CALL_P50, CALL_P99, latencies, pace

TOPIC = "bench"
PARTITIONS = 3
RETENTION_BYTES = 64 << 20  # per partition
PACE = 1_000  # records a second, for latency
PACED_S = 4
PACED_WARM_UP_S = 1
IDLE_S = 3.0
THREE, ONE = "3 nodes, 3 copies", "1 node, 1 copy"
BROKER_CPU = Metric("broker_cpu_us", "µs broker CPU/record", ".3f", more_is_better=False)
UP = Metric("up_s", "s to come up", ".3f", more_is_better=False)
IMPORTED = Metric("import_s", "s to import kafkabuf.broker", ".3f", more_is_better=False)
RSS = Metric("rss_mib", "MiB of idle nodes", ".1f", more_is_better=False)
IDLE = Metric("idle_percent", "% CPU idle", ".3f", more_is_better=False)

# What a process takes that imports nothing but the cluster, and starts it.
_ALONE = """
import json, sys, time
began = time.perf_counter()
from kafkabuf.broker import EmbeddedCluster
imported = time.perf_counter() - began
with EmbeddedCluster(brokers=int(sys.argv[1])):
    from bench.rss import resident
    print(json.dumps([imported, resident() / 1048576]))
"""

# Returns the seconds of CPU that the cluster's process has used.
Used = Callable[[], float]


@contextmanager
def cluster(brokers: int) -> Iterator[tuple[str, float, Used]]:
    """The address of a cluster, the seconds of its start, and a function that returns its CPU time."""
    command = [sys.executable, "-m", "bench.broker.cluster", str(brokers)]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        commands, output = process.stdin, process.stdout

        def used() -> float:
            commands.write("\n")
            commands.flush()
            return float(output.readline())

        try:
            up = json.loads(output.readline())
            yield up["servers"], up["seconds"], used
        finally:
            process.kill()


def serve(brokers: int) -> None:
    from kafkabuf.broker import EmbeddedCluster

    began = time.perf_counter()
    with EmbeddedCluster(brokers=brokers, retention_bytes=RETENTION_BYTES) as running:
        up = time.perf_counter() - began
        running.create_topic(TOPIC, PARTITIONS)
        print(json.dumps({"servers": running.bootstrap_servers, "seconds": up}), flush=True)
        for _ in sys.stdin:
            print(cpu_seconds(), flush=True)


def _measure(brokers: int, job: Job) -> Measurement:
    with cluster(brokers) as (servers, up, used):
        figures = {UP.name: up, **_alone(brokers)}
        figures |= _latency(servers)
        figures |= _rate(servers, job.amount, used)
        before, began = used(), time.perf_counter()
        time.sleep(IDLE_S)
        figures[IDLE.name] = (used() - before) / (time.perf_counter() - began) * 100
    return figures


def _alone(brokers: int) -> Measurement:
    # As after an installation, the bytecode is there: the first run writes it.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", _ALONE, str(brokers)]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, env=environment)
    imported, mib = json.loads(done.stdout)
    return {IMPORTED.name: imported, RSS.name: mib}


def _latency(servers: str) -> Measurement:
    from kafkabuf import KafkaProducer

    acknowledged: list[int] = []
    failed: list[object] = []

    def delivered(metadata: object, error: object) -> None:
        acknowledged.append(time.perf_counter_ns())
        if error is not None:
            failed.append(error)

    with KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0) as producer:
        producer.partitions_for(TOPIC)
        turn = cycle(range(PARTITIONS))
        due, called = pace(
            lambda: producer.send(TOPIC, VALUE, partition=next(turn), callback=delivered),
            PACE,
            (PACED_WARM_UP_S + PACED_S) * PACE,
        )
        producer.flush()
    if failed or len(acknowledged) != len(called):
        raise RuntimeError(f"{len(acknowledged)} of {len(called)} records were acknowledged, errors: {failed[:3]}")
    counted = slice(PACED_WARM_UP_S * PACE, None)
    measured = latencies(due[counted], called[counted], sorted(acknowledged)[counted])
    return {metric.name: measured[metric.name] for metric in (CALL_P50, CALL_P99)}


def _rate(servers: str, records: int, used: Used) -> Measurement:
    from kafkabuf import KafkaProducer

    with KafkaProducer(bootstrap_servers=servers, acks="all", batch_size=BATCH_LARGE) as producer:

        def publish(count: int) -> None:
            send = producer.send
            for _ in range(count):
                send(TOPIC, VALUE)
            producer.flush()

        publish(warm_up_records(records))
        brokers, own, began = used(), cpu_seconds(), time.perf_counter()
        publish(records)
        wall, own, brokers = time.perf_counter() - began, cpu_seconds() - own, used() - brokers
        if lost := producer.metrics()["producer-metrics"]["record-error-total"]:
            raise RuntimeError(f"{lost:.0f} records were not delivered")
    per_record = 1e6 / records
    return {RATE.name: records / wall, CPU.name: own * per_record, BROKER_CPU.name: brokers * per_record}


CLAIM = Claim(
    name="cluster",
    title="Three copies cost an embedded cluster little",
    cases=[Case(THREE, partial(_measure, 3)), Case(ONE, partial(_measure, 1))],
    metrics=[RATE, CPU, BROKER_CPU, CALL_P50, CALL_P99, UP, IMPORTED, RSS, IDLE],
    baseline=ONE,
    amount=2_000_000,
    seconds=40,
    goals=[
        Goal("records/s, 3 copies, acks=all", THREE, RATE.name, 500_000),
        Goal(f"p99 ms from call at {PACE:,}/s, 3 copies, acks=all", THREE, CALL_P99.name, 5, at_most=True),
        Goal("seconds until 3 nodes are up", THREE, UP.name, 0.1, at_most=True),
        Goal("seconds to import kafkabuf.broker", THREE, IMPORTED.name, 0.20, at_most=True),
        Goal("MiB of 3 idle nodes", THREE, RSS.name, 60, at_most=True),
        Goal("% CPU of 3 idle nodes with a producer connected before", THREE, IDLE.name, 1, at_most=True),
    ],
    needs_kafka=False,
    notes=[
        f"One kafkabuf producer, values of 100 bytes, {PARTITIONS} partitions, 128 KiB batches (for latency 16 KiB, "
        "without linger). The cluster is in a process of its own, with its logs in memory.",
        "The time to come up does not include the start of Python and the import of kafkabuf. The import and the "
        "memory are those of a process that does nothing but start a cluster.",
    ],
)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
