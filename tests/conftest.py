"""Fixtures that more than one test file needs: real Kafka servers, one of each version for the whole run.

Here tests also get the markers that tests/needs.py finds, and the marker `slow` where `SLOW` names their file.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.capture import CaptureManager
from hypothesis import HealthCheck, settings

from kafkabuf.network._io import BACKENDS
from rigs.jars import resolve_kafka
from rigs.real_cluster import RealCluster
from rigs.real_kafka import KAFKA_3_9, KAFKA_4, TEST_JVM, RealKafka
from tests import needs
from tests.effort import EFFORT, effort

# Files of `make test-all` alone, each with the reason. A single test elsewhere has the marker `slow` and its reason.
SLOW = {
    "tests/spark/test_clusters.py": "starts a master, workers and a Connect server: a minute for each kind of cluster",
    "tests/spark/test_kills.py": "kills Spark at each step of each guarantee; .ci/run has a kill of each guarantee",
    "tests/spark/test_versions.py": "needs two other PySparks, 1 GB of downloads",
    "tests/real/test_failover.py": "starts three nodes of Kafka for each version and kills them",
}
# Tests that `make quick` leaves out when it runs all folders: `python -m tools.slowest --over 0.45` prints their names.
LENGTHY = frozenset(Path(__file__).with_name("lengthy.txt").read_text(encoding="utf-8").split())
# The files that take longest start first, so that the other workers do not wait for them at the end.
LONG = {
    "tests/virtual/test_virtual.py",
    "tests/hostile/fuzz_api/test_fuzz_api.py",
    "tests/hostile/fuzz_requests/test_faults.py",
    "tests/sending/greenlets/test_greenlets.py",
    "tests/cli/test_spark.py",
    "tests/cli/test_kills.py",
    "tests/broker/replica/test_simulation.py",
    "tests/memory/test_memory.py",
}

# A shell lets commands in the background, and their children, ignore Ctrl-C. Tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark's Python workers must be the interpreter that runs the tests, not whatever `python3` is on the PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

# Examples are counted, not timed: the machine may be busy with two Kafka servers and Spark, or sanitizers slow it down.
settings.register_profile(
    "kafkabuf",
    deadline=None,
    print_blob=True,
    max_examples=effort(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kafkabuf")


@pytest.fixture(params=BACKENDS)
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test over each back-end of the Poller that this build has, its child processes too."""
    monkeypatch.setenv("KAFKABUF_POLLER", request.param)
    return str(request.param)


def _running(version: str, request: pytest.FixtureRequest) -> Iterator[RealKafka]:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    with capture.global_and_fixture_disabled():  # the first run downloads for a minute: let its progress be seen
        resolve_kafka(version)
    with RealKafka(version, jvm_options=TEST_JVM) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def kafka_4(request: pytest.FixtureRequest) -> Iterator[RealKafka]:
    """Apache Kafka 4.1.2: magic 2 only."""
    yield from _running(KAFKA_4, request)


@pytest.fixture(scope="session")
def kafka_3_9(request: pytest.FixtureRequest) -> Iterator[RealKafka]:
    """Apache Kafka 3.9.2: checks magic 1, then stores it as magic 2."""
    yield from _running(KAFKA_3_9, request)


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3_9])
def real_cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """Three nodes of each version in turn, for the length of a test file: it may kill them."""
    with RealCluster(request.param) as cluster:
        yield cluster


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        needs.mark(item)
        if item.path.relative_to(config.rootpath).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
        if item.nodeid.partition("[")[0] in LENGTHY:
            item.add_marker(pytest.mark.lengthy)
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        items.sort(key=lambda item: item.path.relative_to(config.rootpath).as_posix() not in LONG)


def pytest_report_header(config: pytest.Config) -> str:
    selected = config.getoption("markexpr") or "all tests"
    return f"effort: {EFFORT} (tests/effort.py); markers: {selected}; slow tests are left to make test-all"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if needs.starts_a_jvm(item):
        return (yield)
    with needs.forbid_java():
        return (yield)
