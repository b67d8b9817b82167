"""Tests of users freeze `time`: kafkabuf goes on with the machine's clocks, wherever it was first imported.

Each test runs a program in a process of its own, which imports kafkabuf when it says so.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from kafkabuf.broker import EmbeddedCluster

PATIENCE = 120.0
FREEZERS = {
    "freezegun": "from freezegun import freeze_time as frozen",
    "time_machine": "import time_machine\ndef frozen(day): return time_machine.travel(day, tick=False)",
}
IMPORTED_WHILE_FROZEN = """
with frozen("2012-01-14"):
    from kafkabuf import KafkaProducer
    from kafkabuf.errors import TimeoutError
    with KafkaProducer(bootstrap_servers=SERVERS, linger_ms=20) as producer:
        producer.send("t", b"v").result(60)
        producer.send_many("t", [b"v"]).result(60)
        producer.send("t", b"v")
        producer.flush(60)
    with KafkaProducer(bootstrap_servers="127.0.0.1:1", max_block_ms=100) as producer:
        try:
            producer.send("t", b"v")
        except TimeoutError:
            print("time-out")
"""
FROZEN_WHILE_OPEN = """
from kafkabuf import KafkaProducer
producer = KafkaProducer(bootstrap_servers=SERVERS, linger_ms=20)
producer.send("t", b"before").result(60)
with frozen("2012-01-14"):
    producer.send("t", b"during").result(60)
with frozen("2092-01-14"):
    producer.send("t", b"during").result(60)
    late = producer.send("t", b"late")
late.result(60)
producer.send("t", b"after").result(60)
producer.close(60)
"""
EXPIRES = """
with frozen("2012-01-14"):
    from kafkabuf import KafkaProducer
    from kafkabuf.broker import EmbeddedCluster
    from kafkabuf.errors import TimeoutError
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        settings = dict(linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=200)
        with KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings) as producer:
            future = producer.send("t", b"v")
            future.result(60)
            cluster.kill_node(next(iter(cluster.nodes())))
            error = producer.send("t", b"v").exception(60)
            print(type(error).__name__)
"""
TIMESTAMP = """
with frozen("2012-01-14"):
    from kafkabuf import KafkaProducer
    with KafkaProducer(bootstrap_servers=SERVERS) as producer:
        print(producer.send("t", b"v").result(60).timestamp > 1_700_000_000_000)
        print(producer.send("t", b"v", timestamp_ms=5).result(60).timestamp)
"""

KEPT_REPORTS = """
import pathlib, tempfile
with frozen("2012-01-14"):
    from kafkabuf.spark.reports import kept_report
    folder = pathlib.Path(tempfile.mkdtemp())
    for _ in range(3):
        kept_report._add(folder, "query", 1, "{}")
    print(len(list((folder / "query").glob("*.json"))))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        yield cluster


def run(freezer: str, program: str, servers: str) -> list[str]:
    pytest.importorskip(freezer)
    text = f"SERVERS = {servers!r}\n{FREEZERS[freezer]}\n{program}\nprint('end')"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("freezer", FREEZERS)
def test_producer_of_a_frozen_world_sends_lingers_and_times_out(cluster: EmbeddedCluster, freezer: str) -> None:
    assert run(freezer, IMPORTED_WHILE_FROZEN, cluster.bootstrap_servers) == ["time-out", "end"]


@pytest.mark.parametrize("freezer", FREEZERS)
def test_producer_outlives_the_freeze(cluster: EmbeddedCluster, freezer: str) -> None:
    assert run(freezer, FROZEN_WHILE_OPEN, cluster.bootstrap_servers) == ["end"]


@pytest.mark.parametrize("freezer", FREEZERS)
def test_record_expires_and_an_embedded_cluster_works_while_time_stands_still(freezer: str) -> None:
    assert run(freezer, EXPIRES, "") == ["TimeoutError", "end"]


@pytest.mark.parametrize("freezer", FREEZERS)
def test_timestamp_is_the_machines_unless_the_caller_gives_one(cluster: EmbeddedCluster, freezer: str) -> None:
    assert run(freezer, TIMESTAMP, cluster.bootstrap_servers) == ["True", "5", "end"]


@pytest.mark.parametrize("freezer", FREEZERS)
def test_reports_of_spark_do_not_replace_each_other(freezer: str) -> None:
    pytest.importorskip("pyspark")
    assert run(freezer, KEPT_REPORTS, "") == ["3", "end"]
