"""The time from a record to its acknowledgement at a steady rate, with the buffer in a file and without."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.sending.latency import CALL_P50, CALL_P99, DUE_P50, DUE_P99, SENT, kafkabuf, measure

RATE = 10_000
PLAIN, FILE = f"kafkabuf, {RATE:,}/s", f"kafkabuf, {RATE:,}/s, file"


def _in_file(job: Job) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"kafkabuf.buffer.path": str(Path(folder, "buffer"))}
        return measure(partial(kafkabuf, settings=settings), RATE, job)


CLAIM = Claim(
    name="spool-latency",
    title="A buffer that outlives the process delays no record",
    cases=[Case(PLAIN, partial(measure, kafkabuf, RATE)), Case(FILE, _in_file)],
    metrics=[CALL_P50, CALL_P99, DUE_P50, DUE_P99, SENT],
    baseline=PLAIN,
    amount=5,
    seconds=70,
    unit="seconds",
    embedded=True,
    goals=[
        Goal(f"{metric.heading} with a file", FILE, metric.name, 1.1, PLAIN, at_most=True)
        for metric in (CALL_P99, DUE_P99)
    ],
    notes=["linger.ms 0, acks=all, values of 100 bytes, one partition. A callback takes the time."],
)
