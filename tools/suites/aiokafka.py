"""aiokafka's tests of producer, consumer, groups and admin client, from its repository: its sdist has none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tools.peers import clone, run_tests
from tools.peers_aiokafka import PEER
from tools.suites import Clusters, States, Suite, UnavailableError, Wanted

# The tests that need a broker.
_ABOUT = "admin client conn consumer coordinator pep492 producer transactional_consumer transactional_producer"
_FILES = tuple(f"tests/test_{name}.py" for name in _ABOUT.split())


def run(clusters: Clusters, tests: Iterable[str] | None) -> States:
    try:
        folder = clone(PEER, PEER.repository, PEER.commit)
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"git could not fetch {PEER.repository}") from error
    options = [] if tests is None else ["-k", " or ".join(test.rpartition(".")[2].partition("[")[0] for test in tests)]
    with clusters(Wanted()) as address:
        found = run_tests(PEER, folder, _FILES, address, ["--embedded", *options])
    return {test: state for test, state in found.items() if tests is None or test in set(tests)}


SUITE = Suite("aiokafka", run)
