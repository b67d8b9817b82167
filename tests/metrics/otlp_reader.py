"""Reads OpenTelemetry's MetricsData with Google's protobuf. Only the layout of opentelemetry-proto's messages is here.

A test with real Kafka compares with the classes that Kafka has of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "MetricsData": {"resource_metrics": (1, "[]ResourceMetrics")},
    "ResourceMetrics": {"resource": (1, "Resource"), "scope_metrics": (2, "[]ScopeMetrics")},
    "Resource": {"attributes": (1, "[]KeyValue")},
    "ScopeMetrics": {"metrics": (2, "[]Metric")},
    "Metric": {
        "name": (1, "string"),
        "unit": (3, "string"),
        "gauge": (5, "Gauge"),
        "sum": (7, "Sum"),
        "histogram": (9, "Gauge"),  # with other points
    },
    "Gauge": {"data_points": (1, "[]NumberDataPoint")},
    "Sum": {"data_points": (1, "[]NumberDataPoint"), "temporality": (2, "int32"), "is_monotonic": (3, "bool")},
    "NumberDataPoint": {
        "attributes": (7, "[]KeyValue"),
        "start_time_unix_nano": (2, "fixed64"),
        "time_unix_nano": (3, "fixed64"),
        "as_double": (4, "double"),
        "as_int": (6, "sfixed64"),
    },
    "KeyValue": {"key": (1, "string"), "value": (2, "AnyValue")},
    "AnyValue": {
        "string_value": (1, "string"),
        "bool_value": (2, "bool"),
        "int_value": (3, "int64"),
        "double_value": (4, "double"),
    },
}
_TYPES = {"string": 9, "int32": 5, "bool": 8, "fixed64": 6, "double": 1, "int64": 3, "sfixed64": 16}


class Read(NamedTuple):
    """One data point."""

    value: float
    label: dict[str, str]
    temporality: int | None  # None: a gauge
    start: int
    time: int


def metrics_data() -> Any:
    """An empty MetricsData."""
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="read", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            simple = kind.removeprefix("[]")
            added = message.field.add(name=field, number=number, label=3 if kind != simple else 1)
            if simple in _TYPES:
                added.type = _TYPES[simple]
            else:
                added.type, added.type_name = 11, f".read.{simple}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("read.MetricsData"))()


def read(data: bytes) -> tuple[dict[str, str], dict[str, list[Read]]]:
    """The resource's attributes, and the data points by metric."""
    message = metrics_data()
    message.ParseFromString(data)
    found: dict[str, list[Read]] = {}
    (resource,) = message.resource_metrics
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            is_sum = metric.HasField("sum")
            for point in (metric.sum if is_sum else metric.gauge).data_points:
                label = {each.key: each.value.string_value for each in point.attributes}
                times = point.start_time_unix_nano, point.time_unix_nano
                kept = Read(point.as_double, label, metric.sum.temporality if is_sum else None, *times)
                found.setdefault(metric.name, []).append(kept)
    return {each.key: each.value.string_value for each in resource.resource.attributes}, found
