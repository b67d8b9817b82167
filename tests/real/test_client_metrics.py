"""KIP-714 with Apache Kafka 4.1.2: a plugin decodes, with OpenTelemetry's classes, what kafkabuf pushes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from rigs.real_kafka import KAFKA_4, RealKafka

_SINK = Path(__file__).with_name("TelemetrySink.java")
_PATIENCE = 60.0
_PREFIX = "org.apache.kafka.producer."
# By KIP-714.
_REQUIRED = (
    "connection.creation.rate connection.creation.total node.request.latency.avg node.request.latency.max "
    "produce.throttle.time.avg produce.throttle.time.max record.queue.time.avg record.queue.time.max"
)


class WatchingKafka(RealKafka):
    """A node with the plugin, and a subscription to all metrics of producers."""

    ready_timeout = 240.0  # Java compiles the plugin first

    def __init__(self, file: Path) -> None:
        options = {"metric.reporters": "TelemetrySink"}
        jvm = ("-XX:+UseSerialGC", f"-Dtelemetry.file={file}")
        super().__init__(KAFKA_4, options=options, jvm_options=jvm, program=str(_SINK))
        self._file = file

    def subscribe(self) -> None:
        configs = f"metrics=[{_PREFIX}],interval.ms=200"
        to = ("--bootstrap-server", self.bootstrap_servers, "--entity-type", "client-metrics", "--entity-name", "all")
        self._run_tool("kafka.admin.ConfigCommand", *to, "--alter", "--add-config", configs)

    def pushed(self) -> list[dict[str, Any]]:
        """All data points that arrived."""
        text = self._file.read_text() if self._file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchingKafka]:
    with WatchingKafka(tmp_path_factory.mktemp("metrics") / "points") as server:
        assert isinstance(server, WatchingKafka)
        server.subscribe()
        server.create_topic("t")
        yield server


def test_metrics_arrive_at_the_plugin_of_the_broker(kafka: WatchingKafka) -> None:
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type="gzip") as producer:
        deadline = time.monotonic() + _PATIENCE
        names: set[str] = set()
        required = {_PREFIX + name for name in _REQUIRED.split()}
        while not required <= names:
            producer.send("t", b"value").result(30)
            names = {point.get("name", "") for point in kafka.pushed()}
            assert time.monotonic() < deadline, required - names
        sent = producer.metrics()["producer-metrics"]["record-send-total"]
    points = kafka.pushed()
    assert not any("error" in point for point in points)
    last = [point for point in points if point["terminating"]]
    total = next(point for point in last if point["name"] == f"{_PREFIX}record.send.total" and not point["labels"])
    assert total["temporality"] == "AGGREGATION_TEMPORALITY_DELTA"  # Kafka's brokers ask for it
    added = [p["value"] for p in points if p["name"] == f"{_PREFIX}record.send.total" and not p["labels"]]
    assert sum(added) == sent
    assert any(point["labels"] == "topic=t" for point in last)
