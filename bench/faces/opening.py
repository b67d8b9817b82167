"""What the first record costs a new process: import, a producer, one acknowledged record. And what an install costs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from bench.brokers import TOPIC, broker
from bench.claim import Case, Claim, Goal, Job, Measurement, Metric
from bench.harness import ROOT
from bench.rss import MIB

CPU = Metric("cpu_s", "s CPU", ".3f", more_is_better=False)
RSS = Metric("rss_mib", "MiB RSS", ".1f", more_is_better=False)
INSTALLED = Metric("installed_mib", "MiB installed", ".1f", more_is_better=False)
OURS, PYTHON = "kafkabuf", "Python alone"

# The producer stays open until the process has measured itself.
KAFKABUF = """
from kafkabuf import KafkaProducer
producer = KafkaProducer(bootstrap_servers=servers)
producer.send(topic, b"first").result(10)
"""
# kafkabuf.aio and aiokafka have the same names.
ASYNC = """
import asyncio
from {} import AIOKafkaProducer
async def main():
    producer = AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    await producer.send_and_wait(topic, b"first")
    measure()
    await producer.stop()
asyncio.run(main())
"""
CONFLUENT = """
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": servers})
producer.produce(topic, b"first")
assert producer.flush(10) == 0
"""
KAFKA_PYTHON = """
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers=servers)
producer.send(topic, b"first").get(10)
"""
MEASURED = """
import sys
servers, topic, *sys.path[:0] = sys.argv[1:]
def measure():
    import os, time
    cpu = time.process_time()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    print(f'[{cpu}, {pages * os.sysconf("SC_PAGE_SIZE")}]', flush=True)
"""


def _measure(distribution_name: str, program: str, job: Job) -> Measurement:
    with broker() as servers:
        opened = [_open(program, servers) for _ in range(job.amount + 1)][1:]  # the first one warms the page cache
    cpu, rss = zip(*opened, strict=True)
    installed = sum(installed_bytes(distribution_name, set())) if distribution_name else 0
    return {
        CPU.name: statistics.median(cpu),
        RSS.name: statistics.median(rss) / MIB,
        INSTALLED.name: installed / MIB,
    }


def _open(program: str, servers: str) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process that runs the program, its start included.

    -S: the .pth files of a development environment, which an application does not have, are not loaded. pip compiles
    the modules that it installs. So the first process writes the bytecode of this tree, whatever the environment says.
    """
    script = MEASURED + program + ("" if "measure()" in program else "measure()")
    places = [str(ROOT), sysconfig.get_path("purelib")]
    command = [sys.executable, "-S", "-c", script, servers, TOPIC, *places]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    cpu, resident = json.loads(done.stdout)
    return cpu, resident


def installed_bytes(name: str, seen: set[str]) -> Iterator[int]:
    """The bytes of a distribution in this environment, and of all that it needs without extras."""
    if name in seen:
        return
    seen.add(name)
    yield from _sizes(name)
    for line in _requires(name):
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            yield from installed_bytes(needed.name, seen)


def _requires(name: str) -> list[str]:
    if name == "kafkabuf":  # the environment may have been made from an older pyproject.toml
        return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    return distribution(name).requires or []


def _sizes(name: str) -> Iterator[int]:
    if name == "kafkabuf":  # the tree, without what a wheel leaves out
        files = [path for folder in ("kafkabuf", "pyspark_kafkabuf") for path in Path(ROOT, folder).rglob("*")]
        yield from (path.stat().st_size for path in files if path.is_file() and path.suffix not in (".c", ".html"))
    else:
        paths = [Path(str(file.locate())) for file in distribution(name).files or ()]
        yield from (path.stat().st_size for path in paths if path.exists())


CLAIM = Claim(
    name="import",
    title="A new process opens a producer and sends its first record",
    cases=[
        Case(name, partial(_measure, distribution_name, program))
        for name, distribution_name, program in (
            (OURS, "kafkabuf", KAFKABUF),
            ("kafkabuf.aio", "kafkabuf", ASYNC.format("kafkabuf.aio")),
            ("confluent-kafka", "confluent-kafka", CONFLUENT),
            ("aiokafka", "aiokafka", ASYNC.format("aiokafka")),
            ("kafka-python", "kafka-python", KAFKA_PYTHON),
            (PYTHON, "", ""),
            ("import kafkabuf", "kafkabuf", "import kafkabuf\n"),
        )
    ],
    metrics=[CPU, RSS, INSTALLED],
    baseline=OURS,
    amount=5,
    seconds=25,
    unit="openings",
    goals=[
        Goal("CPU to the first record", OURS, CPU.name, 0.27, at_most=True),
        Goal("memory at the first record", OURS, RSS.name, 40, at_most=True),
        Goal("installed, with NumPy", OURS, INSTALLED.name, 95, at_most=True),
        Goal("import kafkabuf loads nothing", "import kafkabuf", CPU.name, 0.05, at_most=True),
    ],
    needs_kafka=False,
    notes=[
        "CPU and memory are those of the whole process, Python's own start included; the median of several processes.",
        "Installed is the package with all that it needs, without extras, as it lies in this environment.",
        "The broker is the embedded one, in a process of its own.",
    ],
)
