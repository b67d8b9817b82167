"""The metrics of a producer's file: the group producer-file-metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import BufferExhaustedError
from kafkabuf.metrics.labels import labelled
from kafkabuf.metrics.otlp import points
from kafkabuf.spool.counts import FileCounts
from kafkabuf.spool.evidence import Outcome, Verdict
from rigs.producer import TOPIC, Rig
from tests.needs import ROOT
from tests.spool.test_recovery import killed
from tests.waiting import PATIENCE

GROUP = "producer-file-metrics"
NAMES = """
waiting-records waiting-bytes record-drop-rate record-drop-total send-refuse-rate send-refuse-total
recovered-record-total recovered-byte-total recovered-acknowledged-total recovered-delivered-total
recovered-unproven-total recovered-kept-total recovered-failed-total recovered-pending recovered-uncommitted-total
recovered-damaged-total
""".split()
SMALL: dict[str, Any] = {"buffer_memory": 4096, "batch_size": 1024, "linger_ms": 0, "max_block_ms": 60_000}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


def counts(producer: KafkaProducer[Any, Any]) -> dict[str, float]:
    return producer.metrics()[GROUP]


def test_only_a_producer_with_a_file_has_the_group_and_it_has_these_names(cluster: EmbeddedCluster, path: Path) -> None:
    servers = cluster.bootstrap_servers
    with KafkaProducer(bootstrap_servers=servers) as without, KafkaProducer(
        bootstrap_servers=servers, buffer_path=path, client_id="me", buffer_memory=1 << 20
    ) as producer:  # fmt: skip
        assert GROUP not in without.metrics()
        assert sorted(counts(producer)) == sorted(NAMES)
        assert ("kafka_producer_file_waiting_bytes", {"client_id": "me"}, 0) in labelled(producer)
        names = {point.name for point in points(producer.metrics(), lambda _: True)}
        assert "org.apache.kafka.producer.file.recovered.record.total" in names


def test_page_on_the_file_names_each_metric() -> None:
    page = (ROOT / "docs" / "durability.md").read_text(encoding="utf-8")
    table = page.partition("| metric | what it counts |")[2].partition("\n\n")[0]
    firsts = [row.split("|")[1] for row in table.splitlines() if row.count("|") > 2]
    assert sorted(re.findall("`([a-z-]+)`", " ".join(firsts))) == sorted(NAMES)


def test_records_wait_until_the_broker_has_them(cluster: EmbeddedCluster, path: Path) -> None:
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, buffer_path=path, linger_ms=600_000, buffer_memory=1 << 20
    ) as producer:
        for _ in range(10):
            producer.send(TOPIC, bytes(100))
        assert counts(producer)["waiting-records"] == 10
        assert 1000 < counts(producer)["waiting-bytes"] < 1300
        producer.flush(PATIENCE)
        assert (counts(producer)["waiting-records"], counts(producer)["waiting-bytes"]) == (0, 0)


def test_full_file_counts_what_it_refuses(cluster: EmbeddedCluster, path: Path) -> None:
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, buffer_path=path, buffer_full="refuse", **SMALL
    ) as producer:
        producer.send(TOPIC, b"first").result(PATIENCE)
        cluster.kill_node(1)
        refused = 0
        for _ in range(10):
            try:
                producer.send(TOPIC, b"x" * 900)
            except BufferExhaustedError:
                refused += 1
        assert counts(producer)["send-refuse-total"] == refused > 0
        assert counts(producer)["record-drop-total"] == 0
        cluster.start_node(1)


def test_full_file_counts_what_it_drops(cluster: EmbeddedCluster, path: Path) -> None:
    with KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, buffer_path=path, buffer_full="drop_oldest", **SMALL
    ) as producer:
        producer.send(TOPIC, b"first").result(PATIENCE)
        cluster.kill_node(1)
        futures = [producer.send(TOPIC, b"%d" % number * 900) for number in range(10)]
        cluster.start_node(1)
        producer.flush(PATIENCE)
        dropped = sum(isinstance(future.exception(), BufferExhaustedError) for future in futures)
        assert counts(producer)["record-drop-total"] == dropped > 0
        assert counts(producer)["send-refuse-total"] == 0


def test_recovered_records_are_counted_by_what_came_of_them(path: Path) -> None:
    """Of four batches one was there, one cannot be proven and stays, one fails, and one is delivered."""
    rig = Rig(file=path)
    rig.fill(batches=4)
    verdicts = [Verdict(Outcome.THERE, base_offset=0), Verdict(Outcome.UNPROVEN, reason="nobody knows")]
    verdicts += [Verdict(Outcome.ABSENT)] * 2
    left = killed(rig, path.with_name("left"))
    after = Rig(file=left, buffer_path=str(left), buffer_unproven="keep", proven=lambda _: verdicts)
    assert after.recovered is not None
    read = FileCounts(after.recovered, after.accumulator)
    first = read()
    assert (first["recovered-record-total"], first["recovered-pending"], first["waiting-records"]) == (4, 2, 2)
    assert first["recovered-byte-total"] > 4 * 800 > first["waiting-bytes"] > 2 * 800
    failed = after.incomplete()[-1]
    after.accumulator.give_up(failed, BufferExhaustedError("full"))
    after.ack_all()
    expected = {"record": 4, "acknowledged": 1, "unproven": 1, "kept": 1, "failed": 1, "delivered": 1}
    last = read()
    assert {name: last[f"recovered-{name}-total"] for name in expected} == expected
    assert (last["recovered-pending"], last["waiting-records"]) == (0, 0)
    assert read() == last
