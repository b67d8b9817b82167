"""The buffer pool alone: memory for a batch taken and given back, by one thread and by two that compete for it."""

from __future__ import annotations

import threading
import time
from functools import partial

from bench import java
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.measure import BATCH_SMALL

TOTAL = 32 * 1024 * 1024
LARGE = 40_000  # more than a slab: a run of three here, memory outside the pool in Java
PAIR = Metric("ns", "ns/pair", ".1f", more_is_better=False)


def _ours(size: int, threads: int, job: Job) -> Measurement:
    from kafkabuf import BufferPool

    pool = BufferPool(TOTAL, BATCH_SMALL)
    loops = [threading.Thread(target=pool._bench_pairs, args=(job.amount, size)) for _ in range(threads)]
    started = time.perf_counter()
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    elapsed = time.perf_counter() - started
    pool.check()
    return {PAIR.name: elapsed / job.amount / threads * 1e9}


def _java(size: int, threads: int, job: Job) -> Measurement:
    return java.run("Pool.java", TOTAL, BATCH_SMALL, size, threads, job.amount)


def _pair(text: str, size: int, threads: int, share: float) -> tuple[Case, Case]:
    """Ours and Java's; `share` is Java's, which is slower."""
    return (
        Case(f"kafkabuf, {text}", partial(_ours, size, threads)),
        Case(f"Java, {text}", partial(_java, size, threads), share, check=java.require_compiler),
    )


ONE, JAVA_ONE = _pair("1 thread", BATCH_SMALL, 1, 0.5)
TWO, JAVA_TWO = _pair("2 threads", BATCH_SMALL, 2, 0.2)
RUN, JAVA_RUN = _pair("40,000 bytes", LARGE, 1, 0.05)

CLAIM = Claim(
    name="pool",
    title="The pool allocates faster than Java's BufferPool",
    cases=[ONE, JAVA_ONE, TWO, JAVA_TWO, RUN, JAVA_RUN],
    metrics=[PAIR],
    baseline=JAVA_ONE.name,
    amount=10_000_000,
    unit="pairs",
    goals=[
        Goal("allocate + deallocate, one thread", ONE.name, PAIR.name, 1 / 2, JAVA_ONE.name, at_most=True),
        Goal("allocate + deallocate, two threads", TWO.name, PAIR.name, 1, JAVA_TWO.name, at_most=True),
        Goal("runs of 40,000 bytes", RUN.name, PAIR.name, 1 / 50, JAVA_RUN.name, at_most=True),
    ],
    needs_kafka=False,
    notes=["Wall time by pairs of all threads; a loop without the GIL here, a warm one there; 16 KiB slabs of 32 MiB."],
)
