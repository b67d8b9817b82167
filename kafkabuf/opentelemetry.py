"""Metrics for OpenTelemetry: `observe(producer, meter)`. Needs opentelemetry-api."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kafkabuf.extras import needs
from kafkabuf.metric_names import labelled
from kafkabuf.producer import KafkaProducer

with needs("opentelemetry", "kafkabuf.opentelemetry"):
    from opentelemetry.metrics import CallbackOptions, Meter, Observation


def observe(producer: KafkaProducer, meter: Meter) -> None:
    """Create an observable gauge or counter for each present metric of the producer. Call it after the first records.

    Topics and nodes are attributes; topics and nodes that appear later are observed too.
    """
    for name in sorted({name for name, _, _ in labelled(producer)}):
        make: Callable[..., Any] = (
            meter.create_observable_counter if name.endswith("_total") else meter.create_observable_gauge
        )
        make(name.removesuffix("_total"), callbacks=[partial(_observations, producer, name)])


def _observations(producer: KafkaProducer, wanted: str, _: CallbackOptions) -> Iterable[Observation]:
    for name, labels, value in labelled(producer):
        if name == wanted and value == value:  # not NaN
            yield Observation(value, labels)
