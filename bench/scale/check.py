"""The model beside real runs of the same small loads on this machine; then the tables of large jobs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from bench.claim import Case, Claim, Goal, Job, Measurement, Metric, Results, Sheet
from bench.measure import CPU
from bench.scale import costs, jobs, kafka
from bench.scale.costs import Costs
from bench.scale.load import Load, Pattern
from bench.scale.model import Place, simulate
from bench.scale.real import Counts, cluster, run

MIB = 1 << 20
# The rates leave the machine time, so that a disturbance changes no rate. The period of the Arrow batches and linger.ms
# do not fall together, where a little disturbance would decide what goes with what.
LOADS = {
    "keys, 12 partitions": Load(Pattern.KEYS, 3, 3, 12, rows=500, every_s=0.004, linger_s=0.01, chunks=500),
    "no keys, 12 partitions": Load(Pattern.STICKY, 3, 3, 12, rows=500, every_s=0.004, linger_s=0.01, chunks=500),
    "aligned, full batches": Load(Pattern.ALIGNED, 3, 3, 12, rows=2_000, every_s=0.02, chunks=100),
    "keys, 999 partitions, 4 MiB": Load(
        Pattern.KEYS, 2, 3, 999, rows=1_000, every_s=0.12, chunks=20, buffer_memory=4 * MIB
    ),
}
BATCHES = Metric("batches_per_s", "batches/s", ",.0f")
REQUESTS = Metric("requests_per_s", "requests/s", ",.0f")
REQUEST_BYTES = Metric("request_bytes", "bytes/request", ",.0f")
BYTES = Metric("bytes_per_s", "MB/s", ".2f")
CONNECTIONS = Metric("connections", "connections", ".0f")
METRICS = [BATCHES, REQUESTS, REQUEST_BYTES, BYTES, CONNECTIONS, CPU]
MEASURED, PREDICTED = "measured", "predicted"
WITHIN = 0.2


def figures(counts: Counts) -> Measurement:
    return {
        BATCHES.name: counts.batches / counts.wall_s,
        REQUESTS.name: counts.requests / counts.wall_s,
        REQUEST_BYTES.name: counts.request_bytes / counts.requests,
        BYTES.name: counts.request_bytes / counts.wall_s / 1e6,
        CONNECTIONS.name: counts.connections,
        CPU.name: counts.cpu_s / counts.records * 1e6,
    }


def _measure(load: Load, job: Job) -> Measurement:
    with cluster(load.brokers) as running:
        return figures(run(share_of(load, job), running))


def _predict(load: Load, job: Job) -> Measurement:
    found = _costs()
    place = Place(shared_cores=len(os.sched_getaffinity(0)))
    return figures(simulate(share_of(load, job), found, place).counts) | costs.as_figures(found)


def share_of(load: Load, job: Job) -> Load:
    """The load with so many percent of its Arrow batches."""
    return replace(load, chunks=max(load.chunks * job.amount // 100, 1))


@functools.cache
def _costs() -> Costs:
    """Measured once for all predictions of a round."""
    return costs.measure()


def _cases() -> Iterator[Case]:
    for name, load in LOADS.items():
        yield Case(f"{name}: {MEASURED}", partial(_measure, load))
    for name, load in LOADS.items():
        case = f"{name}: {PREDICTED}"
        yield Case(case, partial(_predict, load), baseline=f"{name}: {MEASURED}", group=PREDICTED)


def _goals() -> Iterator[Goal]:
    for name in LOADS:
        for metric in METRICS:
            yield Goal(f"{metric.heading}, {name}", f"{name}: {PREDICTED}", metric.name, WITHIN,
                       f"{name}: {MEASURED}", within=True)  # fmt: skip


def _sheets(results: Results) -> Sequence[Sheet]:
    """The tables of large jobs, from the median of each cost."""
    rounds = [figures for case, rounds in results.items() if case.endswith(PREDICTED) for figures in rounds]
    return jobs.sheets(costs.from_figures(rounds), kafka.measure()) if rounds else ()


CLAIM = Claim(
    name="scale",
    title="A model of a thousand executors predicts small runs",
    cases=list(_cases()),
    metrics=METRICS,
    baseline=f"{next(iter(LOADS))}: {MEASURED}",
    amount=100,
    unit="percent",
    goals=list(_goals()),
    rounds=3,
    needs_kafka=False,
    notes=[
        "Measured: two or three producers in processes of their own send Arrow batches to an embedded cluster of three "
        "nodes on the same machine. CPU is that of the producers.",
        "Predicted: the model of the same load, with costs that the command has measured in other loads, of one or "
        "three producers (bench/scale/costs.py). Nothing of the model is fitted to the loads of this table.",
        "Every load has a pace. Without one, a load's rates are those of the processor, which the producers, the "
        "cluster and all other programs of the machine share: the model does not claim to predict them.",
    ],
    sheets=_sheets,
)
