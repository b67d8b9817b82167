"""docs/grafana/kafkabuf.json: Grafana's own model takes it, and each metric that it asks for is really exported."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.metrics.prometheus import ProducerCollector
from rigs.producer import PATIENCE

FILE = Path(__file__).parents[2] / "docs" / "grafana" / "kafkabuf.json"
COLUMNS = 24  # of Grafana's grid

METRIC = re.compile(r"(kafka_producer_\w+)(?:\{(.*?)\})?")
LABEL = re.compile(r"(\w+)=~")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(FILE.read_text())
    return loaded


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    """Every expression of PromQL: of panels, and of the variables above them."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query")


def test_grafanas_model_takes_every_field(dashboard: dict[str, Any]) -> None:
    plugins.register_default_plugins()
    restored = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    for variable in restored["templating"]["list"]:
        del variable["id"]  # the model's own default
    assert restored == dashboard


def test_each_metric_is_exported_by_a_producer_under_load(dashboard: dict[str, Any]) -> None:
    with (
        EmbeddedCluster() as cluster,
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, compression_type="lz4", linger_ms=1) as producer,
    ):
        registry = CollectorRegistry()
        registry.register(ProducerCollector(producer))
        for number in range(2_000):
            producer.send(f"loaded-{number % 2}", b"value", key=b"%d" % number)
        producer.flush(PATIENCE)
        scraped = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]
    asked = [(name, set(LABEL.findall(labels))) for text in queries(dashboard) for name, labels in METRIC.findall(text)]
    assert len(asked) > 30
    for name, labels in asked:
        found = [sample for sample in samples if sample.name == name and labels <= sample.labels.keys()]
        assert found, f"no producer exports {name} with the labels {labels}"
        assert any(math.isfinite(sample.value) for sample in found), f"{name} has no value under load"


def test_counters_are_asked_for_rates_and_gauges_are_not(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            rated = set(re.findall(r"rate\((kafka_producer_\w+)", target["expr"]))
            names = {name for name, _ in METRIC.findall(target["expr"])}
            assert rated == {name for name in names if name.endswith("_total")}, target["expr"]


def test_panels_have_a_place_a_title_and_a_description_each(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    titles = [panel["title"] for panel in dashboard["panels"]]
    assert (len(set(ids)), len(set(titles))) == (len(ids), len(titles))
