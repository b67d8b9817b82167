"""Reads what clients push: OpenTelemetry's MetricsData (protobuf, v1), gauges and sums.

    MetricsData     1: ResourceMetrics
    ResourceMetrics 1: Resource (1: attributes)   2: ScopeMetrics (2: Metric)
    Metric          1: name   5: Gauge (1: points)   7: Sum (1: points, 2: temporality, 3: is monotonic)
    NumberDataPoint 2: start, 3: time (fixed64, ns since the epoch)   4: double, 6: sfixed64   7: attributes
    KeyValue        1: key   2: AnyValue (1: text, 2: bool, 3: int, 4: double)

Histograms and every unknown field are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from kafkabuf.errors import CorruptMessageError

Value = str | int | float | bool
# A push has no more fields: each costs time, and a point costs memory.
MOST_FIELDS = 1_000_000
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 70
_U64, _I64, _F64 = struct.Struct("<Q"), struct.Struct("<q"), struct.Struct("<d")
_GAUGE, _SUM = 5, 7
_TEMPORALITY, _DELTA = 2, 1


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of a metric. `labels` tell apart the values with the same name, such as those of topics. `kind`: a sum
    counts from `start_ns` on, which for "delta" is the push before. Times are nanoseconds since the epoch."""

    name: str
    value: float
    labels: dict[str, Value]
    kind: Literal["gauge", "sum", "delta"]
    start_ns: int
    time_ns: int


class _Reader:
    """The fields of one push. Malformed bytes raise ValueError, IndexError or struct.error."""

    def __init__(self) -> None:
        self._left = MOST_FIELDS

    def fields(self, data: memoryview) -> Iterator[tuple[int, Any]]:
        """(number, value) of each field of a message: an int, eight or four bytes, or the bytes of the field."""
        at, end = 0, len(data)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise ValueError(f"more than {MOST_FIELDS} fields")
            tag, at = _varint(data, at)
            wire_type = tag & 7
            if wire_type == _VARINT:
                value, at = _varint(data, at)
                yield tag >> 3, value
                continue
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type)
            if wire_type == _LENGTH_DELIMITED:
                size, at = _varint(data, at)
            if size is None or size > end - at:
                raise ValueError(f"a field with the wire type {wire_type} is cut short or unknown")
            yield tag >> 3, data[at : at + size]
            at += size

    def nested(self, data: memoryview, *numbers: int) -> Iterator[memoryview]:
        """The fields at a path of field numbers."""
        number, *rest = numbers
        for key, value in self.fields(data):
            if key == number:
                if rest:
                    yield from self.nested(_message(value), *rest)
                else:
                    yield _message(value)

    def attributes(self, data: memoryview, number: int) -> dict[str, Value]:
        return dict(self._attribute(item) for item in self.nested(data, number))

    def _attribute(self, data: memoryview) -> tuple[str, Value]:
        key: str = ""
        value: Value = ""
        for number, content in self.fields(data):
            if number == 1:
                key = _text(content)
            elif number == 2:
                for kind, content_of_value in self.fields(_message(content)):
                    if kind in _ANY_VALUE:
                        value = _ANY_VALUE[kind](content_of_value)
        return key, value

    def points(self, metric: memoryview) -> Iterator[MetricPoint]:
        name, bodies = "", []
        for number, content in self.fields(metric):
            if number == 1:
                name = _text(content)
            elif number in (_GAUGE, _SUM):
                bodies.append((number, _message(content)))
        for number, body in bodies:
            temporality = next((value for key, value in self.fields(body) if key == _TEMPORALITY and number == _SUM), 0)
            kind: Any = "gauge" if number == _GAUGE else "delta" if temporality == _DELTA else "sum"
            for point in self.nested(body, 1):
                yield self._point(name, kind, point)

    def _point(self, name: str, kind: Any, data: memoryview) -> MetricPoint:
        start = time = 0
        value = 0.0
        for number, content in self.fields(data):
            match number:
                case 2:
                    (start,) = _U64.unpack(content)
                case 3:
                    (time,) = _U64.unpack(content)
                case 4:
                    (value,) = _F64.unpack(content)
                case 6:
                    (value,) = _I64.unpack(content)
        return MetricPoint(name, value, self.attributes(data, 7), kind, start, time)


@dataclass(slots=True)
class Metrics:
    """`labels` are those of the client, such as its transactional_id."""

    labels: dict[str, Value] = field(default_factory=dict)
    points: list[MetricPoint] = field(default_factory=list)


def decode(data: bytes | bytearray | memoryview) -> Metrics:
    """Any thread. Raises CorruptMessageError for bytes that are no MetricsData, or too many fields."""
    reader, metrics = _Reader(), Metrics()
    try:
        for resource in reader.nested(memoryview(data), 1):
            for attributes in reader.nested(resource, 1):
                metrics.labels |= reader.attributes(attributes, 1)
            for metric in reader.nested(resource, 2, 2):
                metrics.points += reader.points(metric)
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise CorruptMessageError(f"{len(data)} bytes are no metrics of OpenTelemetry: {error}") from error
    return metrics


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    result = shift = 0
    while shift < _LONGEST_VARINT:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
    raise ValueError("a number has more than ten bytes")


def _message(value: Any) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a message is needed")
    return memoryview(value)


def _text(value: Any) -> str:
    return str(_message(value), "utf-8", "replace")


def _signed(value: Any) -> int:
    return int(value) - (1 << 64) if value >= 1 << 63 else int(value)


_ANY_VALUE: dict[int, Callable[[Any], Value]] = {1: _text, 2: bool, 3: _signed, 4: lambda value: _F64.unpack(value)[0]}
