"""Jars for the tests (Apache Kafka, Spark's Kafka source, a Schema Registry), fetched once into a user cache.

pyspark's own Ivy fetches them. Cache: $XDG_CACHE_HOME/kafkabuf, else ~/.cache/kafkabuf; one folder per set of jars. A
folder is renamed into place only when it is complete, under one file lock, so any number of processes may ask at the
same time.

rigs/jars.sha256 has the SHA-256 of every jar, as `sha256sum` writes it. A set whose jars are others is refused.
`python -m rigs.jars --accept SET ...` writes the checksums of sets such as kafka-4.2.0, which it fetches if need be.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHECKSUMS = Path(__file__).with_suffix(".sha256")
_CHECKED = ".sha256"  # in a folder of jars: the checksums that were compared
ATTEMPTS = 3  # a public repository drops a connection now and then; Ivy keeps what it already has


class JarsUnavailableError(RuntimeError):
    """Jars, or the Java to run them, are missing. The message says what to do. Tests fail on it and never skip."""


@dataclass(frozen=True)
class Module:
    """A Maven coordinate, with its dependencies if `transitive`."""

    organisation: str
    name: str
    revision: str
    transitive: bool = True
    classifier: str = ""
    extension: str = "jar"

    def as_ivy(self) -> str:
        kind = f'type="{self.extension}" ext="{self.extension}"'
        artifact = f'<artifact name="{self.name}" {kind} m:classifier="{self.classifier}"/>' if self.classifier else ""
        return (
            f'<dependency org="{self.organisation}" name="{self.name}" rev="{self.revision}"'
            f' conf="default" transitive="{str(self.transitive).lower()}">{artifact}</dependency>'
        )

    @property
    def jar(self) -> str:
        return "-".join(filter(None, (self.name, self.revision, self.classifier))) + f".{self.extension}"


def kafka_modules(version: str) -> list[Module]:
    """A whole broker with its tools. slf4j-simple logs to standard error."""
    return [Module("org.apache.kafka", "kafka_2.13", version), Module("org.slf4j", "slf4j-simple", "1.7.36")]


def kafka_tools_modules(version: str) -> list[Module]:
    """Kafka's command-line tools that are not part of the broker, such as ProducerPerformance."""
    return [Module("org.apache.kafka", "kafka-tools", version), Module("org.slf4j", "slf4j-simple", "1.7.36")]


def kafka_test_modules(version: str) -> list[Module]:
    """Kafka's tests and benchmarks of the broker. They need the jars of the same release, too."""
    return [Module("org.apache.kafka", "kafka_2.13", version, transitive=False, classifier="test")]


def registry_modules(version: str) -> list[Module]:
    """A whole Apicurio Registry, in one archive."""
    return [Module("io.apicurio", "apicurio-registry-app", version, False, "all", "tar.gz")]


SPARK_KAFKA = "spark-kafka-4.2.0"
# The jars that `format("kafka")` needs beside Spark's own, each with its version.
SPARK_KAFKA_MODULES = [
    Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", transitive=False),
    Module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", transitive=False),
    Module("org.apache.kafka", "kafka-clients", "3.9.1", transitive=False),
    Module("org.apache.commons", "commons-pool2", "2.12.0", transitive=False),
]
# `to_avro` in the plan. Public repositories had no 4.2.0 of it. That of 4.1 runs on Spark 4.2: it is the expression
# alone, and calls the encoder of Spark's own jars.
SPARK_AVRO = "spark-avro-4.1.1"
SPARK_AVRO_MODULES = [Module("org.apache.spark", "spark-avro_2.13", "4.1.1", transitive=False)]


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kafkabuf"


def resolve_kafka(version: str) -> Path:
    """The folder of jars of one Apache Kafka release."""
    return resolve(f"kafka-{version}", kafka_modules(version))


def resolve_kafka_tools(version: str) -> Path:
    """The folder of jars of one release's command-line tools, with their dependencies."""
    return resolve(f"kafka-tools-{version}", kafka_tools_modules(version))


def resolve_kafka_tests(version: str) -> Path:
    """The folder with the jar of one release's own tests."""
    return resolve(f"kafka-tests-{version}", kafka_test_modules(version))


def resolve_registry(version: str) -> Path:
    """The folder of one unpacked release of Apicurio Registry."""
    name = f"apicurio-registry-{version}"
    archive = next(resolve(name, registry_modules(version)).glob("*.tar.gz"))

    def unpack(part: Path) -> None:
        with tarfile.open(archive) as opened:
            opened.extractall(part, filter="data")

    return cached(f"{name}-unpacked", unpack)


def resolve_spark_kafka_jars() -> list[str]:
    """Paths for `spark.jars`: Spark's own Kafka source and sink, to compare with and to read back through."""
    return [str(jar) for jar in sorted(resolve(SPARK_KAFKA, SPARK_KAFKA_MODULES).glob("*.jar"))]


def resolve_spark_avro_jars() -> list[str]:
    """Paths for `spark.jars`: Spark's own to_avro, to compare with."""
    return [str(jar) for jar in sorted(resolve(SPARK_AVRO, SPARK_AVRO_MODULES).glob("*.jar"))]


def resolve(name: str, modules: list[Module]) -> Path:
    """The cached folder `name` with the jars of `modules`, fetched if it is not there yet. Checks the jars' sums."""
    folder = cached(name, lambda part: _fetch(name, modules, part))
    _check(folder)
    return folder


def checksums(name: str) -> str:
    """The lines of rigs/jars.sha256 for one set of jars."""
    lines = CHECKSUMS.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.split()[1].startswith(f"{name}/"))


def _checksums_of(folder: Path) -> str:
    jars = sorted([*folder.glob("*.jar"), *folder.glob("*.tar.gz")])
    return "".join(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {folder.name}/{jar.name}\n" for jar in jars)


def _check(folder: Path) -> None:
    """Compare the jars with the checksums of the repository: once, and again after the checksums have changed."""
    expected = checksums(folder.name)
    checked = folder / _CHECKED
    if expected and checked.exists() and checked.read_text() == expected:
        return
    actual = _checksums_of(folder)
    if actual != expected:
        different = sorted({line.split()[1] for line in {*actual.splitlines()} ^ {*expected.splitlines()}})
        raise JarsUnavailableError(
            f"{CHECKSUMS.name} has other checksums than the jars in {folder}, or none: {', '.join(different)}."
            f" Remove the folder, so that the jars are fetched again. If these are the jars that you want, run"
            f" `python -m rigs.jars --accept {folder.name}`."
        )
    checked.write_text(expected)


def _accept(name: str) -> None:
    """Make the checksums of a set those of the jars that this machine has, or fetches."""
    folder = cached(name, lambda part: _fetch(name, _modules(name), part))
    former = set(checksums(name).splitlines())
    others = [line for line in CHECKSUMS.read_text().splitlines() if line not in former]
    lines = [*others, *_checksums_of(folder).splitlines()]
    CHECKSUMS.write_text("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.split()[1])))


def _modules(name: str) -> list[Module]:
    """The modules of a set of jars, by the name of its folder."""
    kind, _, version = name.rpartition("-")
    sets = {"kafka": kafka_modules, "kafka-tools": kafka_tools_modules, "kafka-tests": kafka_test_modules}
    sets["apicurio-registry"] = registry_modules
    of_spark = {SPARK_KAFKA: SPARK_KAFKA_MODULES, SPARK_AVRO: SPARK_AVRO_MODULES}
    return of_spark[name] if name in of_spark else sets[kind](version)


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """The cached folder `name`. If it is missing, `fill` puts the files into an empty folder first."""
    folder = cache_dir() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / ".lock"):
        if not folder.is_dir():  # another process may have made it while this one waited
            _make(folder, fill)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, fill: Callable[[Path], None]) -> None:
    """The caller holds the cache's file lock."""
    for abandoned in folder.parent.glob(".part-*"):  # of a killed process: no other process can be writing now
        shutil.rmtree(abandoned, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    try:
        fill(part)
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fetch(name: str, modules: list[Module], part: Path) -> None:
    started = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        output = _run_ivy(name, modules, part)
        if output is None:
            break
        progress(f"fetching {name}: attempt {attempt} of {ATTEMPTS} failed", end="\n")
        if attempt == ATTEMPTS:
            raise JarsUnavailableError(_advice(cache_dir() / name, modules, output))
    (part / "ivy.xml").unlink()
    sizes = [jar.stat().st_size for jar in part.iterdir()]
    seconds = time.monotonic() - started
    progress(f"fetched {name}: {len(sizes)} jars, {sum(sizes) / 1e6:.0f} MB, {seconds:.0f} s", end="\n")


def _run_ivy(name: str, modules: list[Module], target: Path) -> str | None:
    """Resolve and copy `modules` into `target`. None if all jars arrived, else the last lines that Ivy printed."""
    description = target / "ivy.xml"
    description.write_text(
        f'<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        f'<info organisation="kafkabuf" module="{name}"/>'
        f'<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(module.as_ivy() for module in modules)}</dependencies></ivy-module>"
    )
    # Java takes user.home from the password file. The property makes HOME decide where Ivy's own cache lies.
    command = [java(), f"-Divy.default.ivy.user.dir={Path.home() / '.ivy2'}", "-jar", str(_ivy_jar())]
    if settings := os.environ.get("KAFKABUF_IVY_SETTINGS"):
        command += ["-settings", settings]
    command += ["-ivy", str(description), "-confs", "default"]
    command += ["-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]"]
    lines: list[str] = []
    fetched = 0
    progress(f"fetching {name} (once, into {cache_dir()}) ...", end="\n" if not sys.stderr.isatty() else "")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            lines = [*lines[-39:], line]
            if "[SUCCESSFUL" in line:
                fetched += 1
            if sys.stderr.isatty():
                progress(f"fetching {name}: {fetched} jars downloaded ...")
    complete = ivy.returncode == 0 and all((target / module.jar).is_file() for module in modules)
    return None if complete else "".join(lines)


def _advice(folder: Path, modules: list[Module], output: str) -> str:
    wanted = ", ".join(f"{m.organisation}:{m.name}:{m.revision}" for m in modules)
    return (
        f"Cannot fetch {wanted} (Ivy's last lines are below). Tests against real Apache Kafka need these jars once:"
        " give this machine access to Maven Central, or set KAFKABUF_IVY_SETTINGS to an ivysettings.xml that names a"
        f" mirror, or copy the jars by hand into {folder}.\n{output}"
    )


def progress(text: str, end: str = "") -> None:
    """Print a line on standard error. On a terminal it replaces the line before."""
    start, clear = ("\r", "\x1b[K") if sys.stderr.isatty() else ("", "")
    print(f"{start}kafkabuf: {text}{clear}", end=end, file=sys.stderr, flush=True)


def java() -> str:
    """The java command: $JAVA_HOME/bin/java, else java on the PATH. Kafka 4 and Spark 4 need 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None or not os.access(command, os.X_OK):
        raise JarsUnavailableError(
            f"No Java found (looked at {command or 'java on the PATH'}). Install a Java runtime, version 17 or newer"
            " (on Debian or Ubuntu: apt install openjdk-17-jre-headless), or point JAVA_HOME at one."
        )
    banner = subprocess.run([command, "-version"], capture_output=True, text=True, check=True).stderr
    version = re.search(r'version "(\d+)', banner)
    if version is None or int(version[1]) < 17:
        raise JarsUnavailableError(f"{command} is too old: version 17 or newer is needed, this is\n{banner}")
    return command


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsUnavailableError("pyspark, whose Ivy fetches the jars, is not installed. Run `make build`.")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not jars:
        raise JarsUnavailableError(f"pyspark in {Path(spec.origin).parent} has no jars/ivy-*.jar. Reinstall it.")
    return jars[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m rigs.jars", description="Accept the checksums of sets of jars.")
    parser.add_argument("--accept", nargs="+", required=True, metavar="SET", help="such as kafka-4.1.2")
    for accepted in parser.parse_args().accept:
        _accept(accepted)
