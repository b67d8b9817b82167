"""Peers in Java: a source file each in bench/java, which java compiles and runs with Kafka's own jars."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.claim import Measurement
from bench.measure import CPU, RATE, children_cpu_seconds
from rigs.jars import JarsUnavailableError, java, resolve_kafka, resolve_kafka_tests, resolve_kafka_tools
from rigs.real_kafka import KAFKA_3_9, KAFKA_4, logging

SOURCES = Path(__file__).parent / "java"


@functools.cache
def require_compiler() -> None:
    """Raises JarsUnavailableError if Java is missing or cannot compile: source files need jdk.compiler."""
    modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if not any(line.startswith("jdk.compiler") for line in modules.splitlines()):
        raise JarsUnavailableError(
            f"{java()} is a runtime without a compiler, which the Java peers need. Install a JDK, version 17 or newer"
            " (on Debian or Ubuntu: apt install openjdk-17-jdk-headless), point JAVA_HOME at one, or leave these"
            " cases out with --case."
        )


@functools.cache
def require_tools() -> Path:
    """The folder of the jars of Kafka's command-line tools, fetched at first use."""
    return resolve_kafka_tools(KAFKA_4)


@functools.cache
def require_kafka_tests() -> str:
    """The class path of Kafka 3.9's own tests, fetched at first use. Later releases lack the purgatory's benchmark."""
    return f"{resolve_kafka_tests(KAFKA_3_9)}/*:{resolve_kafka(KAFKA_3_9)}/*"


def kafka_test(main: str, options: Mapping[str, object]) -> list[str]:
    """Run a program of Kafka's own tests; returns the words of the last line that it prints."""
    command = [java(), "-Xmx512m", *logging("warn"), "-cp", require_kafka_tests(), main]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        raise RuntimeError(f"{main} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()[-1].split()


def producer_performance(
    bootstrap: str, topic: str, records: int, value_size: int, settings: Mapping[str, object]
) -> Measurement:
    """Run ProducerPerformance of kafka-tools in a cold process. Its CPU time includes the start, its rate does not."""
    properties = {"bootstrap.servers": bootstrap, **settings}
    command = [java(), "-Xmx512m", *logging("warn"), "-cp", f"{require_tools()}/*"]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records)]
    command += ["--record-size", str(value_size), "--throughput", "-1", "--producer-props"]
    command += [f"{name}={value}" for name, value in properties.items()]
    before = children_cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    used = children_cpu_seconds() - before
    summary = re.search(rf"^{records} records sent, ([0-9.]+) records/sec", done.stdout, re.MULTILINE)
    if done.returncode or summary is None:
        raise RuntimeError(f"ProducerPerformance failed:\n{done.stdout}{done.stderr}")
    return {RATE.name: float(summary[1]), CPU.name: used / records * 1e6}


def run(source: str, *arguments: object, jvm: tuple[str, ...] = ("-Xmx512m",)) -> Measurement:
    """Run bench/java/`source` with `arguments`. The last line that it prints is a JSON object of figures."""
    done = subprocess.run(command(source, *arguments, jvm=jvm), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source} failed:\n{done.stdout}{done.stderr}")
    figures: Measurement = json.loads(done.stdout.splitlines()[-1])
    return figures


def command(source: str, *arguments: object, jvm: tuple[str, ...] = ("-Xmx512m",), log: str = "warn") -> list[str]:
    """The command line that runs bench/java/`source` with `arguments`."""
    require_compiler()
    classpath = f"{resolve_kafka(KAFKA_4)}/*"
    return [java(), *jvm, *logging(log), "-cp", classpath, str(SOURCES / source), *map(str, arguments)]
