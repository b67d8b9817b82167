"""Names and labels of producer.metrics() for systems that know neither groups nor hyphens."""

from __future__ import annotations

from collections.abc import Iterator

from kafkabuf.producer import KafkaProducer


def labelled(producer: KafkaProducer) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of each metric: kafka_producer_x, kafka_producer_topic_x, kafka_producer_node_x."""
    for group, values in producer.metrics().items():
        kind, _, of = group.removeprefix("producer-").partition("metrics")
        labels = {"client_id": producer.config.client_id}
        if of:
            labels[kind.removesuffix("-")] = of.removeprefix(".")
        for name, value in values.items():
            yield f"kafka_producer_{kind}{name}".replace("-", "_"), labels, value
