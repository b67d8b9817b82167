"""What the tools share that run another client's own tests with the face of kafkabuf: tools/peers_*.py."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "peers"


class Peer(NamedTuple):
    """`package` is the client's name in requirements.lock, `plugin` the pytest plugin that puts kafkabuf in its place."""

    package: str
    repository: str
    plugin: str
    options: tuple[str, ...] = ()
    """Further arguments of pytest."""


def arguments_of(peer: Peer, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedded", action="store_true", help="use the embedded cluster instead of Apache Kafka")
    parser.add_argument("--repository", default=peer.repository, help="the client's git repository, or a copy of it")
    parser.add_argument("--release", default=locked_release(peer.package), help="the release that the tests are of")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest")
    return parser.parse_args()


def locked_release(package: str) -> str:
    """The release of a package in requirements.lock."""
    found = re.search(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert found is not None, f"requirements.lock does not name {package}"
    return found[1]


def clone(peer: Peer, repository: str, release: str) -> Path:
    """A clone of the client's repository at a release, made once."""
    folder = FOLDER / f"{peer.package}-{release}"
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", f"v{release}", repository, str(folder)]
        subprocess.run(command, check=True)
    return folder


@contextmanager
def broker(*, embedded: bool) -> Iterator[str]:
    """The address of a broker whose topics have two partitions by default."""
    if embedded:
        from kafkabuf.broker import EmbeddedCluster

        with EmbeddedCluster(default_partitions=2) as cluster:
            yield cluster.bootstrap_servers
    else:
        from rigs.real_kafka import TEST_JVM, RealKafka

        with RealKafka(options={"num.partitions": "2"}, jvm_options=TEST_JVM) as kafka:
            yield kafka.bootstrap_servers


def compared(peer: Peer, folder: Path, files: tuple[str, ...], *, embedded: bool, options: list[str]) -> int:
    """Run the tests with the client and with kafkabuf, and print the difference. Returns the status to exit with."""
    with broker(embedded=embedded) as hosts:
        theirs = passed(peer, folder, files, hosts, options)
        ours = passed(peer, folder, files, hosts, ["--kafkabuf", *options])
    failed = sorted(name for name, ok in ours.items() if not ok and theirs.get(name))
    name = peer.package
    print(f"{name}'s producer tests: {sum(theirs.values())} pass with {name}, {sum(ours.values())} with kafkabuf")
    print(f"left out, because they look into {name}'s producer: {len(theirs.keys() - ours.keys())}")
    for test in failed:
        print(f"fails with kafkabuf only: {test}")
    return 1 if failed or not any(ours.values()) else 0


def passed(peer: Peer, folder: Path, files: tuple[str, ...], hosts: str, options: list[str]) -> dict[str, bool]:
    """By the name of each test that ran: whether it passed."""
    report = FOLDER / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", peer.plugin, *peer.options]
    command += ["--rootdir", str(folder), "-c", "/dev/null", "--kafka-hosts", hosts, f"--junitxml={report}", *options]
    # The client's folder comes first: its package `tests` hides ours.
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    subprocess.run([*command, *files], check=False, cwd=folder, env=environment)
    cases = ET.parse(report).getroot().iter("testcase")
    return {
        f"{case.get('classname')}.{case.get('name')}": not any(child.tag in ("failure", "error") for child in case)
        for case in cases
        if case.find("skipped") is None
    }
