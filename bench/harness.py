"""Running peers in turn and comparing them: ratios within one run, since the machine is shared and noisy."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import track
from rich.table import Table

console = Console(stderr=True)

# By peer: what it took in each round, {"wall": seconds, "cpu": seconds}.
Results = dict[str, list[dict[str, float]]]


def alternate(peers: Sequence[str], rounds: int, bootstrap: str, topic: str, records: int) -> Results:
    """Every peer once a round, each in a process of its own."""
    results: Results = {peer: [] for peer in peers}
    turns = [peer for _ in range(rounds) for peer in peers]
    for peer in track(turns, description=f"{records:,} records each", console=console):
        command = [sys.executable, "-m", "bench.peers", peer, bootstrap, topic, str(records)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{peer} failed:\n{done.stderr}")
        results[peer].append(json.loads(done.stdout.splitlines()[-1]))
    return results


def ratio(results: Results, peer: str, other: str, what: str) -> float:
    """Median over the rounds of how many times `other` needs what `peer` does."""
    pairs = zip(results[peer], results[other], strict=True)
    return statistics.median(theirs[what] / ours[what] for ours, theirs in pairs)


def table(results: Results, records: int, baseline: str) -> Table:
    found = Table(
        "producer",
        "M rec/s",
        "µs CPU/rec",
        "rate, ratio",
        "CPU, ratio",
        title=f"ratios to {baseline}",
    )
    for column in found.columns:
        column.no_wrap = True
        column.justify = "left" if column is found.columns[0] else "right"
    for peer, rounds in results.items():
        wall = statistics.median(result["wall"] for result in rounds)
        cpu = statistics.median(result["cpu"] for result in rounds)
        found.add_row(
            peer,
            f"{records / wall / 1e6:.2f}",
            f"{cpu / records * 1e6:.2f}",
            f"{ratio(results, peer, baseline, 'wall'):.2f}",
            f"{1 / ratio(results, peer, baseline, 'cpu'):.2f}",
        )
    return found
