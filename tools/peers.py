"""What the tools share that run another client's own tests with the face of kafkabuf: tools/peers_*.py."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "peers"
PASSED, FAILED = "passed", "failed"


class Peer(NamedTuple):
    """`package` is the client's name in requirements/test.lock; the pytest plugin `plugin` puts ours in its place."""

    package: str
    repository: str
    plugin: str
    options: tuple[str, ...] = ()
    """Further arguments of pytest."""
    needs: bool = False
    """Whether the tests need the packages of requirements/peers.lock, too."""
    commit: str = ""
    """The commit of the repository whose tests run, since a tag can be moved; "" for a client whose sdist has them."""


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
    parser.add_argument("--commit", default=peer.commit, help="the commit of the repository that has the tests")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest")
    return parser.parse_args()


class Locked(NamedTuple):
    """A package in requirements/test.lock. `entry` is its text there, with the hashes of its files."""

    release: str
    entry: str


def locked(package: str) -> Locked:
    text = (ROOT / "requirements/test.lock").read_text()
    found = re.search(rf"^{package}==(\S+) (?:\\\n    --hash=\S+ ?)+", text, re.MULTILINE)
    assert found is not None, f"requirements/test.lock does not name {package}"
    return Locked(found[1], found[0])


def clone(peer: Peer, repository: str, commit: str) -> Path:
    """The client's repository at a commit, fetched once. git checks that what comes has this hash."""
    assert re.fullmatch("[0-9a-f]{40}", commit), "a commit is needed: a tag can be moved to other code"
    folder = FOLDER / f"{peer.package}-{commit}"
    if not folder.exists():
        unfinished = FOLDER / f"{folder.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for command in (["init"], ["fetch", "--depth", "1", repository, commit], ["checkout", "FETCH_HEAD"]):
            subprocess.run(["git", command[0], "--quiet", *command[1:]], check=True, cwd=unfinished)
        head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, cwd=unfinished, capture_output=True, text=True)
        assert head.stdout.strip() == commit
        unfinished.rename(folder)
    return folder


def sdist(peer: Peer) -> Path:
    """The files of the client's sdist, downloaded once. Its hash is in requirements/test.lock."""
    found = locked(peer.package)
    folder = FOLDER / f"{peer.package.replace('-', '_')}-{found.release}"
    if not folder.exists():
        pip("download", found.entry, "--no-deps", "--no-binary", ":all:", "--dest", str(FOLDER))
        with tarfile.open(FOLDER / f"{folder.name}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    return folder


def needed(peer: Peer) -> Path:
    """A folder with the packages that the tests need, installed once."""
    requirements = (ROOT / "requirements/peers.lock").read_text()
    folder = FOLDER / f"needs-{hashlib.sha256(requirements.encode()).hexdigest()[:8]}"
    if peer.needs and not folder.exists():
        pip("install", requirements, "--no-deps", "--target", str(folder))
    return folder


def pip(command: str, requirements: str, *options: str) -> None:
    """Run pip, which refuses a file whose hash the requirements do not have."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        arguments = ["--quiet", "--require-hashes", "--requirement", file.name, *options]
        subprocess.run([sys.executable, "-m", "pip", command, *arguments], check=True)


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
