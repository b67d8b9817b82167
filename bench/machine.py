"""The machine and the versions of a measurement, without which its figures mean nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import kafkabuf
from rigs.jars import JarsUnavailableError, java

ROOT = Path(__file__).parent.parent
PEERS = ("confluent-kafka", "aiokafka", "kafka-python", "pyarrow", "cramjam", "numpy")


def describe(kafka: str) -> dict[str, object]:
    """Call it before the first run, so that the load is that of other processes."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "kafkabuf": kafkabuf.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "kafka": kafka,
        "java": _java(),
        "peers": {name: _version(name) for name in PEERS},
    }


def _commit() -> str:
    """The commit, with "-dirty" if tracked files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip() or "unknown: not a git checkout"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _java() -> str:
    try:
        banner = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    except JarsUnavailableError:
        return "none"
    return banner.splitlines()[0]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
