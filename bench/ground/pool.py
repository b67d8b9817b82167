"""The buffer pool alone: one thread, or two that compete, allocate and release the memory of a batch."""

from __future__ import annotations

import threading
import time
from functools import partial

from bench import compiled, java
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.measure import BATCH_SMALL

TOTAL = 32 * 1024 * 1024
LARGE = 40_000  # more than a slab: kafkabuf takes a run of three, Java takes memory outside its pool
PAIR = Metric("ns", "ns/pair", ".1f", more_is_better=False)


def _ours(size: int, threads: int, job: Job) -> Measurement:
    from kafkabuf import BufferPool

    pool = BufferPool(TOTAL, BATCH_SMALL)
    loop_in_c = compiled.load("core").allocate_pairs
    loops = [threading.Thread(target=loop_in_c, args=(pool, job.amount, size)) for _ in range(threads)]
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
    """Our case and Java's. `share` is that of Java, which is slower."""
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
    seconds=33,
    unit="pairs",
    goals=[
        Goal("allocate + deallocate, one thread", ONE.name, PAIR.name, 1 / 2, JAVA_ONE.name, at_most=True),
        Goal("allocate + deallocate, two threads", TWO.name, PAIR.name, 1, JAVA_TWO.name, at_most=True),
        Goal("runs of 40,000 bytes", RUN.name, PAIR.name, 1 / 50, JAVA_RUN.name, at_most=True),
    ],
    needs_kafka=False,
    notes=[
        "Wall time by the pairs of all threads, for 16 KiB slabs of 32 MiB. kafkabuf's loop runs without the GIL, and "
        "Java's is warm."
    ],
)
