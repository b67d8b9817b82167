"""What `kafkabuf perf` takes of the rate that it measures: beside a plain loop of send()."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from bench import clients
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.measure import BATCH_LARGE, CPU, LINGER_MS, RATE, VALUE_SIZE, measure

COMMAND, LOOP = "kafkabuf perf", "send() in a loop"


def _perf(job: Job) -> Measurement:
    command = [sys.executable, "-m", "kafkabuf", "perf", job.topic, "-b", job.bootstrap, "--json", "-"]
    command += ["-n", str(job.amount), "--record-size", str(VALUE_SIZE)]
    command += ["-X", f"batch.size={BATCH_LARGE}", "-X", f"linger.ms={LINGER_MS}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)
    if found["failed"] or found["records"] != job.amount:
        raise RuntimeError(f"{found['records']} of {job.amount} records were delivered")
    return {RATE.name: found["records_per_s"], CPU.name: found["cpu_s"] / found["records"] * 1e6}


CLAIM = Claim(
    name="perf",
    title="kafkabuf perf measures the producer, not itself",
    cases=[Case(COMMAND, _perf), Case(LOOP, partial(measure, clients.kafkabuf(BATCH_LARGE)))],
    metrics=[RATE, CPU],
    baseline=LOOP,
    amount=2_000_000,
    seconds=10,
    goals=[Goal("the rate of kafkabuf perf", COMMAND, RATE.name, 0.95, LOOP)],
    notes=[f"Values of {VALUE_SIZE} bytes, batch.size 128 KiB, linger.ms {LINGER_MS}, acks=all."],
)
