"""`kafkabuf produce` of JSON lines, beside send_arrow() and the command-line producers kcat and Kafka's own."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import clients
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.measure import BATCH_LARGE, CPU, LINGER_MS, RATE, arrivals, children_cpu_seconds, measure
from bench.rss import MIB
from rigs.jars import java, resolve_kafka_tools
from rigs.real_kafka import KAFKA_4

PEAK = Metric("peak_mib", "MiB at most", ".0f", more_is_better=False)
COMMAND, ARROW, KCAT, CONSOLE = "kafkabuf produce", "send_arrow()", "kcat -P", "kafka-console-producer"
# A line has 100 bytes with its line feed. Slow peers get fewer lines; their start counts less than 5 % all the same.
LINES_OF_A_BLOCK = 10_000

# The command that sends the lines of its standard input.
Command = Callable[[Job], Sequence[str]]


def _produce(job: Job) -> list[str]:
    command = [sys.executable, "-m", "kafkabuf", "produce", job.topic, "--format", "jsonl", "-b", job.bootstrap]
    return [*command, "-X", f"batch.size={BATCH_LARGE}", "-X", f"linger.ms={LINGER_MS}"]


def _kcat(job: Job) -> list[str]:
    settings = f"linger.ms={LINGER_MS}", f"batch.size={BATCH_LARGE}", "enable.idempotence=true"
    options = [option for setting in settings for option in ("-X", setting)]
    return [_kcat_path(), "-P", "-t", job.topic, "-b", job.bootstrap, *options]


def _kcat_path() -> str:
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None:
        raise RuntimeError("kcat is missing: install the package kcat, or leave its case out with --case")
    return found


def _console(job: Job) -> list[str]:
    classpath = f"{resolve_kafka_tools(KAFKA_4)}/*"
    command = [java(), "-cp", classpath, "org.apache.kafka.tools.ConsoleProducer", "--topic", job.topic]
    command += ["--bootstrap-server", job.bootstrap, "--max-partition-memory-bytes", str(BATCH_LARGE)]
    return [*command, "--producer-property", f"linger.ms={LINGER_MS}"]


def _run(command: Command, job: Job) -> Measurement:
    """The rate from the start of the process to its end, with CPU time and memory of the process."""
    with tempfile.TemporaryDirectory() as folder, arrivals(job) as arrived:
        lines = Path(folder) / "lines.jsonl"
        _write(lines, job.amount)
        before = children_cpu_seconds()
        began = time.perf_counter()
        with lines.open("rb") as source:
            subprocess.run(command(job), stdin=source, stdout=subprocess.DEVNULL, check=True)
        wall = time.perf_counter() - began
        arrived.expected = job.amount
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MIB
    used = children_cpu_seconds() - before
    return {RATE.name: job.amount / wall, CPU.name: used / job.amount * 1e6, PEAK.name: peak}


def _send_arrow(job: Job) -> Measurement:
    found = measure(clients.kafkabuf_arrow(BATCH_LARGE), job)
    return found | {PEAK.name: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB}


def _write(path: Path, lines: int) -> None:
    block = b"".join(b'{"id":%09d,"name":"%s"}\n' % (number, b"x" * 72) for number in range(LINES_OF_A_BLOCK))
    whole, rest = divmod(lines, LINES_OF_A_BLOCK)
    with path.open("wb") as file:
        for _ in range(whole):
            file.write(block)
        file.write(block[: rest * (len(block) // LINES_OF_A_BLOCK)])


CLAIM = Claim(
    name="produce",
    title="kafkabuf produce sends JSON lines several times as fast as other command lines",
    cases=[
        Case(COMMAND, partial(_run, _produce)),
        Case(ARROW, _send_arrow),
        Case(KCAT, partial(_run, _kcat), share=0.2, check=_kcat_path),
        Case(CONSOLE, partial(_run, _console), share=0.2, check=lambda: resolve_kafka_tools(KAFKA_4)),
    ],
    metrics=[RATE, CPU, PEAK],
    baseline=KCAT,
    amount=10_000_000,
    rounds=3,
    seconds=30,
    brief=0.2,
    goals=[
        Goal("of the rate of send_arrow()", COMMAND, RATE.name, 0.5, ARROW),
        Goal("times the rate of kcat", COMMAND, RATE.name, 5, KCAT),
        Goal("times the rate of Kafka's console producer", COMMAND, RATE.name, 5, CONSOLE),
        Goal("MiB of memory at most", COMMAND, PEAK.name, 200, at_most=True),
    ],
    notes=[
        "Lines of 100 bytes from a file, batch.size 128 KiB, linger.ms 5, acks=all, idempotent.",
        "The clock of a command runs from the start of its process to its end; that of send_arrow() from a warm, "
        "connected producer on. The peers get a fifth of the lines.",
    ],
)
