"""Metrics for Prometheus: `REGISTRY.register(ProducerCollector(producer))`. Needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator

from kafkabuf.extras import needs
from kafkabuf.metrics.labels import Measured, labelled

with needs("prometheus", "kafkabuf.prometheus"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class ProducerCollector:
    """Reads producer.metrics() at each scrape.

    `record-send-total` of group producer-topic-metrics.orders becomes `kafka_producer_topic_record_send_total` with the
    labels client_id and topic.
    """

    def __init__(self, producer: Measured) -> None:
        self._producer = producer

    def describe(self) -> list[Metric]:
        return []  # metrics of topics and nodes appear only after the registration

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, labels, value in labelled(self._producer):
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = families.get(name)
            if family is None:
                family = families[name] = kind(name, f"Kafka's producer metric {name}", labels=list(labels))
            family.add_metric(list(labels.values()), value)
        yield from families.values()
