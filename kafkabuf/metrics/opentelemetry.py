"""Metrics and spans for OpenTelemetry: `observe(producer, meter)` and `TracingInterceptor`. Needs opentelemetry-api."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from kafkabuf.extras import needs
from kafkabuf.interceptors import ProducerRecord, pairs_of
from kafkabuf.metrics.labels import Measured, labelled
from kafkabuf.record_metadata import RecordMetadata
from kafkabuf.version import __version__

with needs("opentelemetry", "kafkabuf.opentelemetry"):
    from opentelemetry import propagate
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from opentelemetry.util.types import AttributeValue

# The version of the conventions that have these names of attributes.
SCHEMA = "https://opentelemetry.io/schemas/1.37.0"
_W3C = TraceContextTextMapPropagator()


def observe(producer: Measured, meter: Meter) -> None:
    """Create an observable gauge or counter for each present metric of the producer. Call it after the first records.

    Topics and nodes are attributes; topics and nodes that appear later are observed too.
    """
    for name in sorted({name for name, _, _ in labelled(producer)}):
        make: Callable[..., Any] = (
            meter.create_observable_counter if name.endswith("_total") else meter.create_observable_gauge
        )
        make(name.removesuffix("_total"), callbacks=[partial(_observations, producer, name)])


def _observations(producer: Measured, wanted: str, _: CallbackOptions) -> Iterable[Observation]:
    for name, labels, value in labelled(producer):
        if name == wanted and value == value:  # not NaN
            yield Observation(value, labels)


class TracingInterceptor:
    """A span for each record, from send() to its outcome: `interceptor_classes=[TracingInterceptor()]`.

    The span has the kind PRODUCER, the name `send TOPIC` and the attributes of OpenTelemetry's conventions for
    messaging and Kafka. It is a child of the caller's current span. The record gets the header `traceparent` of the
    W3C Trace Context, and the headers of the global propagator. Headers of these names that the record had already are
    replaced, and the span gets a link to the span that they named.

    Give each producer an object of its own, as the last of its interceptors, which then do not remove its header: a
    span without its header never ends. `tracer_provider` is by default OpenTelemetry's global one. send_arrow() calls
    no interceptor, so such rows have no spans.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("kafkabuf", __version__, tracer_provider, SCHEMA)
        self._client_id: str | None = None

    def configure(self, config: Any) -> None:
        self._client_id = config.client_id

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Start the record's span, and add its context to the headers."""
        headers = pairs_of(record.headers)
        span = self._tracer.start_span(
            f"send {record.topic}",
            kind=SpanKind.PRODUCER,
            attributes=self._attributes_of(record),
            links=_links_of(headers),
        )
        carrier: dict[str, str] = {}
        context = set_span_in_context(span)
        propagate.inject(carrier, context)
        _W3C.inject(carrier, context)  # the user may have chosen global propagators without it
        if not carrier:
            return record  # no SDK is set up: the span has no context
        headers = [pair for pair in headers if pair[0] not in carrier]
        # The header itself holds the span: a table of spans would keep those of a forked parent for ever.
        headers += [(name, _Context(value, span)) for name, value in carrier.items()]
        return record._replace(headers=headers)

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None, headers: Any) -> None:
        """End the record's span, with the partition and offset, or with the error."""
        for _, value in headers:
            if isinstance(value, _Context):
                _end(value.span, metadata, error)
                return

    def _attributes_of(self, record: ProducerRecord) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": record.topic,
        }
        if self._client_id is not None:
            attributes["messaging.client.id"] = self._client_id
        if (key := _text_of(record.key)) is not None:
            attributes["messaging.kafka.message.key"] = key
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        return attributes


class _Context(bytes):
    """The value of a header that names a span, with the span."""

    span: Span

    def __new__(cls, value: str, span: Span) -> _Context:
        self = super().__new__(cls, value.encode())
        self.span = span
        return self


def _links_of(headers: Iterable[tuple[Any, Any]]) -> list[Link]:
    """A link to the span that the record's own headers name: a record that was read elsewhere, and is sent on."""
    carrier = {
        name: bytes(value).decode("latin-1")
        for name, value in headers
        if name in _W3C.fields and isinstance(value, (bytes, bytearray, memoryview))
    }
    if not carrier:
        return []
    named = get_current_span(_W3C.extract(carrier, context={})).get_span_context()  # type: ignore[arg-type]
    return [Link(named)] if named.is_valid else []


def _text_of(key: Any) -> str | None:
    """The key as text; None for a key that has no text of its own, which the conventions leave out."""
    if isinstance(key, (str, int, UUID)):
        return str(key)
    if not isinstance(key, (bytes, bytearray, memoryview)):
        return None
    try:
        return bytes(key).decode()
    except UnicodeDecodeError:
        return None


def _end(span: Span, metadata: RecordMetadata, error: BaseException | None) -> None:
    if span.is_recording():
        if metadata.partition >= 0:
            span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
        if metadata.offset >= 0:
            span.set_attribute("messaging.kafka.offset", metadata.offset)
        if metadata.serialized_value_size >= 0:
            span.set_attribute("messaging.message.body.size", metadata.serialized_value_size)
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR, str(error))
    span.end()
