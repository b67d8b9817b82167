"""Many cases: stretches of seeds, each on a fresh cluster, in several processes."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import count

from tests.spool.kills.killer import Fault, Killer
from tests.spool.kills.plan import drawn
from tests.spool.kills.reader import Reader
from tests.spool.kills.trouble import EmbeddedTrouble, Trouble

_KILLS = 50  # of a stretch: the cluster keeps all records in memory
_SEEDS = 1_000  # more than a stretch needs


@dataclass
class Done:
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __iadd__(self, other: Done) -> Done:
        self.counts += other.counts
        self.faults += other.faults
        return self

    def __str__(self) -> str:
        kills = self.counts["kills"]
        counts = ", ".join(f"{name} {number}" for name, number in sorted(self.counts.items()) if name != "kills")
        return f"{kills} kills, {len(self.faults)} faults; {counts}"


def run_cases(seeds: Iterable[int], kills: int | None, trouble: Trouble, splits: bool = True) -> Done:
    """Runs cases of these seeds on one cluster, which it starts, until there were so many kills."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.spool.kills.storm"])
    done = Done()
    with trouble, Reader(trouble.bootstrap_servers) as reader:
        killer = Killer(trouble, reader, processes)
        for seed in seeds:
            try:
                killer.run(drawn(seed, time.time_ns() // 1_000_000, splits=splits, real=trouble.real))
            except Fault as fault:
                again = f"--case {seed} --times 20{' --real' * trouble.real}"
                done.faults.append(f"{fault}\nreplay: python -m tests.spool.kills {again}")
            if kills is not None and killer.done["kills"] >= kills:
                break
        done.counts += killer.done
    return done


def run_stretch(first: int, kills: int, splits: bool) -> Done:
    return run_cases(count(first), kills, EmbeddedTrouble(), splits)


def run(kills: int, seed: int, jobs: int, *, splits: bool = True) -> Iterator[Done]:
    """What came of each stretch, as soon as it is over."""
    firsts = count(seed * 1_000_000, _SEEDS)
    sizes = [_KILLS] * (kills // _KILLS) + ([kills % _KILLS] if kills % _KILLS else [])
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        futures = [pool.submit(run_stretch, first, size, splits) for first, size in zip(firsts, sizes, strict=False)]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
