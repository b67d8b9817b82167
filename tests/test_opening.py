"""The first record of a process: what opening a producer loads, and what it does not touch."""

from __future__ import annotations

import json
import subprocess
import sys

from kafkabuf.broker import EmbeddedCluster

# What a producer without compression, TLS and bulk sends has no use for. It takes most of the time where it is loaded.
NEEDLESS = {
    "asyncio", "click", "concurrent.futures", "cramjam", "crc32c", "decimal", "email", "hypothesis",
    "importlib.metadata", "kio", "pydantic", "rich", "ssl", "urllib.request",
}  # fmt: skip
PROGRAM = """
import json, sys
before = {*sys.modules}
from kafkabuf import KafkaProducer
with KafkaProducer(bootstrap_servers=sys.argv[1], buffer_memory=256 << 20, **json.loads(sys.argv[2])) as producer:
    producer.send("t", b"first").result(10)
    [resident] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps([sorted({*sys.modules} - before), int(resident.split()[1])]))
"""


def opened(settings: dict[str, str]) -> tuple[set[str], int]:
    """The modules that a process loads up to its first record, and its largest resident memory in KiB."""
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        command = [sys.executable, "-c", PROGRAM, cluster.bootstrap_servers, json.dumps(settings)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    modules, resident = json.loads(done.stdout)
    return set(modules), int(resident)


def test_first_record_loads_only_what_it_needs() -> None:
    modules, _ = opened({})
    assert "kafkabuf.producer" in modules
    assert NEEDLESS & modules == set()


def test_first_record_touches_little_of_the_memory() -> None:
    """The producer has 256 MiB for records."""
    _, resident = opened({})
    assert resident < 64 << 10


def test_codec_loads_its_library() -> None:
    modules, _ = opened({"compression_type": "gzip"})
    assert "cramjam" in modules
