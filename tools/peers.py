"""What the tools share that run another client's own tests with the face of kafkabuf: tools/peers_*.py."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "peers"
PASSED, FAILED = "passed", "failed"


class Peer(NamedTuple):
    """`package` is the client's name in requirements.lock. The pytest plugin `plugin` puts kafkabuf in its place."""

    package: str
    repository: str
    plugin: str
    options: tuple[str, ...] = ()
    """Further arguments of pytest."""
    needs: tuple[str, ...] = ()
    """Packages that the tests need beside those of requirements.lock, as `name==release`."""


class Outcome(NamedTuple):
    """How the tests of a peer ended. `left_out` has the reason for each test that only the peer itself runs."""

    theirs: int
    ours: int
    failed: list[str]
    left_out: dict[str, str]


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


def sdist(peer: Peer, release: str) -> Path:
    """The files of the client's sdist, downloaded once."""
    folder = FOLDER / f"{peer.package.replace('-', '_')}-{release}"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*command, "--dest", str(FOLDER), f"{peer.package}=={release}"], check=True)
        with tarfile.open(FOLDER / f"{folder.name}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    return folder


def needed(peer: Peer) -> Path:
    """A folder with the packages that the tests need, installed once."""
    folder = FOLDER / f"{peer.package}-needs"
    if peer.needs and not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, *peer.needs], check=True)
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
    """Run the tests with the client and with kafkabuf, and print the difference. Returns the status to exit with.

    Each run has a broker of its own, because tests expect that their topics are empty.
    """
    with broker(embedded=embedded) as hosts:
        theirs = run_tests(peer, folder, files, hosts, options)
    with broker(embedded=embedded) as hosts:
        ours = run_tests(peer, folder, files, hosts, ["--kafkabuf", *options])
    passed = {name for name, state in theirs.items() if state == PASSED}
    states = {name: ours.get(name, f"{peer.plugin} leaves it out") for name in sorted(passed)}
    outcome = Outcome(
        theirs=len(passed),
        ours=sum(state == PASSED for state in ours.values()),
        failed=[name for name, state in states.items() if state == FAILED],
        left_out={name: state for name, state in states.items() if state not in (PASSED, FAILED)},
    )
    outcome_file(peer.package).write_text(json.dumps(outcome._asdict()))
    print(f"{peer.package}'s tests: {outcome.theirs} pass with {peer.package}, {outcome.ours} with kafkabuf")
    for name, reason in outcome.left_out.items():
        print(f"left out: {name}: {reason}")
    for name in outcome.failed:
        print(f"fails with kafkabuf only: {name}")
    return 1 if outcome.failed or not outcome.ours else 0


def outcome_file(package: str) -> Path:
    return FOLDER / f"{package}.json"


def run_tests(peer: Peer, folder: Path, files: tuple[str, ...], hosts: str, options: list[str]) -> dict[str, str]:
    """By the name of each test: PASSED, FAILED or the reason for which pytest skipped it."""
    report = FOLDER / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", peer.plugin, *peer.options]
    command += ["--rootdir", str(folder), "-c", "/dev/null", "--kafka-hosts", hosts, f"--junitxml={report}", *options]
    # The client's folder comes first: its package `tests` hides ours.
    path = os.pathsep.join(map(str, (folder, ROOT, needed(peer))))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([*command, *files], check=False, cwd=folder, env=environment)
    cases = ET.parse(report).getroot().iter("testcase")
    return {f"{case.get('classname')}.{case.get('name')}": state_of(case) for case in cases}


def state_of(case: ET.Element) -> str:
    skipped = case.find("skipped")
    if skipped is not None:
        return skipped.get("message", "")
    return FAILED if any(child.tag in ("failure", "error") for child in case) else PASSED
