"""Runs aiokafka's own producer tests with kafkabuf.compat.aiokafka: `python -m tools.peers_aiokafka [--embedded]`.

The tests come from aiokafka's repository, of the release in requirements.lock, because its sdist has none. The command
runs them with aiokafka first, and fails if a test that passes there fails with kafkabuf's producer. Some tests are left
out: those that look into aiokafka's producer, or need its certificates (rigs/aiokafka_tests.py). The broker is a real
Apache Kafka, or the embedded cluster.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "peers"
REPOSITORY = "https://github.com/aio-libs/aiokafka"
TESTS = ("test_producer.py", "test_transactional_producer.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedded", action="store_true", help="use the embedded cluster instead of Apache Kafka")
    parser.add_argument("--repository", default=REPOSITORY, help="aiokafka's git repository, or a copy of it")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest")
    arguments = parser.parse_args()
    source = own_tests(arguments.repository)
    with broker(embedded=arguments.embedded) as hosts:
        theirs = passed(source, hosts, arguments.pytest)
        ours = passed(source, hosts, ["--kafkabuf", *arguments.pytest])
    failed = sorted(name for name, ok in ours.items() if not ok and theirs.get(name))
    print(f"aiokafka's producer tests: {sum(theirs.values())} pass with aiokafka, {sum(ours.values())} with kafkabuf")
    print(f"left out, because they look into aiokafka's producer: {len(theirs.keys() - ours.keys())}")
    for name in failed:
        print(f"fails with kafkabuf only: {name}")
    return 1 if failed or not any(ours.values()) else 0


def own_tests(repository: str) -> Path:
    """aiokafka's tests, of the release in requirements.lock, under a name of their own, because `tests` is ours."""
    release = re.search(r"^aiokafka==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert release is not None, "requirements.lock does not name aiokafka"
    folder = FOLDER / "aiokafka_own_tests"
    if not folder.exists():
        clone = FOLDER / f"aiokafka-{release[1]}"
        FOLDER.mkdir(parents=True, exist_ok=True)
        if not clone.exists():
            command = ["git", "clone", "--quiet", "--depth", "1", "--branch", f"v{release[1]}", repository, str(clone)]
            subprocess.run(command, check=True)
        shutil.copytree(clone / "tests", folder)
        (folder / "conftest.py").unlink()  # rigs/aiokafka_tests.py takes its place
    return folder


@contextmanager
def broker(*, embedded: bool) -> Iterator[str]:
    if embedded:
        from kafkabuf.broker import EmbeddedCluster

        with EmbeddedCluster(default_partitions=2) as cluster:
            yield cluster.bootstrap_servers
    else:
        from rigs.real_kafka import TEST_JVM, RealKafka

        with RealKafka(options={"num.partitions": "2"}, jvm_options=TEST_JVM) as kafka:
            yield kafka.bootstrap_servers


def passed(source: Path, hosts: str, arguments: list[str]) -> dict[str, bool]:
    """By the name of each test that ran: whether it passed."""
    report = FOLDER / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "rigs.aiokafka_tests"]
    command += ["--rootdir", str(source), "-c", "/dev/null", "--kafka-hosts", hosts]
    files = [str(source / name) for name in TESTS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, f"--junitxml={report}", *arguments, *files], check=False, cwd=source, env=environment)
    cases = ET.parse(report).getroot().iter("testcase")
    return {
        f"{case.get('classname')}.{case.get('name')}": not any(child.tag in ("failure", "error") for child in case)
        for case in cases
        if case.find("skipped") is None
    }


if __name__ == "__main__":
    sys.exit(main())
