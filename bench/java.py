"""Peers in Java: one source file each in bench/java, run by the launcher from source against Kafka's own jars."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path

from bench.claim import Measurement
from tests.jars import JarsUnavailableError, java, resolve_kafka
from tests.real_kafka import KAFKA_4, logging

SOURCES = Path(__file__).parent / "java"


@functools.cache
def require_compiler() -> None:
    """Raises JarsUnavailableError where Java is missing or cannot compile: source files need jdk.compiler."""
    modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if not any(line.startswith("jdk.compiler") for line in modules.splitlines()):
        raise JarsUnavailableError(
            f"{java()} is a runtime without a compiler, which the Java peers need. Install a JDK, version 17 or newer"
            " (on Debian or Ubuntu: apt install openjdk-17-jdk-headless), point JAVA_HOME at one, or leave these"
            " cases out with --case."
        )


def run(source: str, *arguments: object, jvm: tuple[str, ...] = ("-Xmx512m",)) -> Measurement:
    """bench/java/`source` with `arguments`; it prints its figures as one JSON object on its last line."""
    require_compiler()
    classpath = f"{resolve_kafka(KAFKA_4)}/*"
    command = [java(), *jvm, *logging("warn"), "-cp", classpath, str(SOURCES / source), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source} failed:\n{done.stdout}{done.stderr}")
    found: Measurement = json.loads(done.stdout.splitlines()[-1])
    return found
