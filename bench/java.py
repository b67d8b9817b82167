"""Peers in Java: one source file each in bench/java, run by the launcher from source against Kafka's own jars."""

from __future__ import annotations

import functools
import json
import re
import resource
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.claim import Measurement
from bench.measure import CPU, RATE
from rigs.jars import JarsUnavailableError, java, resolve_kafka, resolve_kafka_tests, resolve_kafka_tools
from rigs.real_kafka import KAFKA_3_9, KAFKA_4, logging

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


@functools.cache
def require_tools() -> Path:
    """The jars of Kafka's command-line tools, fetched the first time."""
    return resolve_kafka_tools(KAFKA_4)


@functools.cache
def require_kafka_tests() -> str:
    """The class path of Kafka 3.9's own tests, the last that have its benchmark of the purgatory; fetched at first."""
    return f"{resolve_kafka_tests(KAFKA_3_9)}/*:{resolve_kafka(KAFKA_3_9)}/*"


def kafka_test(main: str, options: Mapping[str, object]) -> list[str]:
    """The words of the last line that a program out of Kafka's own tests prints."""
    command = [java(), "-Xmx512m", *logging("warn"), "-cp", require_kafka_tests(), main]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        raise RuntimeError(f"{main} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()[-1].split()


def producer_performance(
    bootstrap: str, topic: str, records: int, value_size: int, settings: Mapping[str, object]
) -> Measurement:
    """kafka-tools' ProducerPerformance as it comes: a cold process, whose start its CPU time includes, its rate not."""
    properties = {"bootstrap.servers": bootstrap, **settings}
    command = [java(), "-Xmx512m", *logging("warn"), "-cp", f"{require_tools()}/*"]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records)]
    command += ["--record-size", str(value_size), "--throughput", "-1", "--producer-props"]
    command += [f"{name}={value}" for name, value in properties.items()]
    before = _children_cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    used = _children_cpu_seconds() - before
    summary = re.search(rf"^{records} records sent, ([0-9.]+) records/sec", done.stdout, re.MULTILINE)
    if done.returncode or summary is None:
        raise RuntimeError(f"ProducerPerformance failed:\n{done.stdout}{done.stderr}")
    return {RATE.name: float(summary[1]), CPU.name: used / records * 1e6}


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(source: str, *arguments: object, jvm: tuple[str, ...] = ("-Xmx512m",)) -> Measurement:
    """bench/java/`source` with `arguments`; it prints its figures as one JSON object on its last line."""
    done = subprocess.run(command(source, *arguments, jvm=jvm), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source} failed:\n{done.stdout}{done.stderr}")
    found: Measurement = json.loads(done.stdout.splitlines()[-1])
    return found


def command(source: str, *arguments: object, jvm: tuple[str, ...] = ("-Xmx512m",), log: str = "warn") -> list[str]:
    """How to run bench/java/`source` with `arguments`."""
    require_compiler()
    classpath = f"{resolve_kafka(KAFKA_4)}/*"
    return [java(), *jvm, *logging(log), "-cp", classpath, str(SOURCES / source), *map(str, arguments)]
