"""A broker dies while every producer writes to it: Metadata requests until the partitions have other leaders.

The producer asks at once, and again after each response that still names the dead leader, with the back-off of
`kafkabuf/backoff.py`. What was in flight to the broker goes again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.scale.costs import Costs
from bench.scale.size import Size
from kafkabuf.backoff import ExponentialBackoff

# Until the controller has noticed: at once, where the broker's machine or process ends in order; else after
# broker.session.timeout.ms, whose default is 9 s.
ELECTION_S = {"stopped": 0.3, "dead": 9.0}
ROUND_TRIP_S = 0.0005
PEAK_S = 0.1
RETRY_BACKOFF_MS, RETRY_BACKOFF_MAX_MS = 100, 1_000
MAX_IN_FLIGHT = 5


@dataclass(frozen=True)
class Asked:
    requests: int
    peak: int
    """The most requests within a tenth of a second."""
    last_s: float
    """When the last producer knows the new leaders."""


def ask(workers: int, election_s: float, seed: int = 1) -> Asked:
    """The Metadata requests of so many producers, from the death of the broker at time 0."""
    generator = random.Random(seed)
    backoff = ExponentialBackoff(RETRY_BACKOFF_MS, RETRY_BACKOFF_MAX_MS, generator.random)
    planned = [(0.0, number, 0) for number in range(workers)]
    times = []
    last = 0.0
    while planned:
        now, number, failures = heapq.heappop(planned)
        times.append(now)
        if now >= election_s:
            last = max(last, now + ROUND_TRIP_S)
        else:
            heapq.heappush(planned, (now + ROUND_TRIP_S + backoff.delay(failures), number, failures + 1))
    return Asked(len(times), _peak(times), last)


def _peak(times: list[float]) -> int:
    most = first = 0
    for last, time in enumerate(times):
        while time - times[first] > PEAK_S:
            first += 1
        most = max(most, last - first + 1)
    return most


METADATA_COLUMNS = (
    "one of the brokers",
    "s until an election",
    "Metadata requests/other broker",
    "most in 0.1 s/other broker",
    "MiB of metadata/other broker",
    "requests sent again, at most",
    "s until all go on",
)


def metadata_rows(sizes: Sequence[Size], costs: Costs) -> list[list[str]]:
    rows = []
    for size in sizes:
        if size.brokers == 1:
            continue
        for how, election_s in ELECTION_S.items():
            asked, others = ask(size.workers, election_s), size.brokers - 1
            size_mib = costs.metadata_bytes * size.partitions / (1 << 20)
            rows.append(
                [
                    f"{size.name}: {how}",
                    f"{election_s:g}",
                    f"{asked.requests / others:,.0f}",
                    f"{asked.peak / others:,.0f}",
                    f"{asked.requests * size_mib / others:,.1f}",
                    f"{size.workers * MAX_IN_FLIGHT:,}",
                    f"{asked.last_s:.1f}",
                ]
            )
    return rows
