"""A producer's metrics as OpenTelemetry's MetricsData (protobuf, v1), under the names of KIP-714.

    MetricsData     1: ResourceMetrics
    ResourceMetrics 1: Resource (1: attributes)   2: ScopeMetrics (2: Metric)
    Metric          1: name   5: Gauge (1: points)   7: Sum (1: points, 2: temporality, 3: is monotonic)
    NumberDataPoint 2: start, 3: time (fixed64, ns since the epoch)   4: value (double)   7: attributes
    KeyValue        1: key   2: AnyValue (1: text)

A name is org.apache.kafka.GROUP.NAME with dots for hyphens, as Kafka's TelemetryMetricNamingConvention makes it. A
metric whose name ends with -total is a sum, every other one a gauge. A value that is not a number is left out.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

PREFIX = "org.apache.kafka."
DELTA, CUMULATIVE = 1, 2  # AggregationTemporality
_GROUPS = {
    "producer-metrics": None,
    "producer-file-metrics": None,
    "producer-topic-metrics": "topic",
    "producer-node-metrics": "node_id",
}
_LENGTH_DELIMITED, _FIXED64, _VARINT = 2, 1, 0
_TIMES_AND_VALUE = struct.Struct("<BQBQBd")
_START, _TIME, _VALUE = (number << 3 | _FIXED64 for number in (2, 3, 4))


class Point(NamedTuple):
    """One value. `label`: name and value of its attribute, such as ("topic", "flights")."""

    name: str
    label: tuple[str, str] | None
    value: float
    is_sum: bool


def points(snapshot: Mapping[str, Mapping[str, float]], wanted: Callable[[str], bool]) -> Iterator[Point]:
    """The wanted metrics of `producer.metrics()`, those of the whole producer first."""
    names: dict[tuple[str, str], str | None] = {}
    for group, values in sorted(snapshot.items()):
        kind, _, entity = group.partition(".")
        if kind not in _GROUPS:
            continue
        attribute = _GROUPS[kind]
        label = None if attribute is None else (attribute, entity)
        for metric, value in values.items():
            if (kind, metric) not in names:
                name = f"{PREFIX}{kind.removesuffix('-metrics')}.{metric}".replace("-", ".").lower()
                names[kind, metric] = name if wanted(name) else None
            full_name = names[kind, metric]
            if full_name is not None and math.isfinite(value):
                yield Point(full_name, label, value, metric.endswith("-total"))


def encode(
    values: Iterable[Point], resource: Mapping[str, str], start_ns: int, now_ns: int, *, delta: bool, largest: int
) -> bytes:
    """The points that fit into `largest` bytes, as MetricsData. `delta`: the sums' values are increases."""
    attributes = b"".join(_field(1, _key_value(key, text)) for key, text in resource.items())
    head = _field(1, attributes)
    metrics, size = [], len(head) + 16  # the lengths of the outer messages
    for point in values:
        metric = _field(2, _metric(point, start_ns, now_ns, DELTA if delta else CUMULATIVE))
        size += len(metric)
        if size > largest:
            break
        metrics.append(metric)
    return _field(1, head + _field(2, b"".join(metrics)))


def _metric(point: Point, start_ns: int, now_ns: int, temporality: int) -> bytes:
    label = b"" if point.label is None else _field(7, _key_value(*point.label))
    data = _field(1, _TIMES_AND_VALUE.pack(_START, start_ns, _TIME, now_ns, _VALUE, point.value) + label)
    name = _field(1, point.name.encode())
    if not point.is_sum:
        return name + _field(5, data)
    return name + _field(7, data + bytes((2 << 3 | _VARINT, temporality, 3 << 3 | _VARINT, True)))


def _key_value(key: str, text: str) -> bytes:
    return _field(1, key.encode()) + _field(2, _field(1, text.encode(errors="replace")))


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes((number << 3 | _LENGTH_DELIMITED,)) + length + content
