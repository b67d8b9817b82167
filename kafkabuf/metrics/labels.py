"""Names and labels of producer.metrics() for monitoring systems that have neither groups nor hyphens in names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig


class Measured(Protocol):
    """A KafkaProducer or an AIOKafkaProducer. Their modules import this folder."""

    @property
    def config(self) -> ProducerConfig: ...
    def metrics(self) -> dict[str, dict[str, float]]: ...


def labelled(producer: Measured) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of each metric: kafka_producer_x, and with topic_, node_ or file_ before the x."""
    for group, values in producer.metrics().items():
        kind, _, entity = group.removeprefix("producer-").partition("metrics")
        labels = {"client_id": producer.config.client_id}
        if entity:
            labels[kind.removesuffix("-")] = entity.removeprefix(".")
        for name, value in values.items():
            yield f"kafka_producer_{kind}{name}".replace("-", "_"), labels, value
