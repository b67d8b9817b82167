"""TracingInterceptor: each record has one span, which ends with the record's outcome, and whose context goes along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.baggage import set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import InvalidPartitionsError, KafkaError
from kafkabuf.interceptors import ProducerRecord
from kafkabuf.metrics.opentelemetry import SCHEMA, TracingInterceptor
from rigs.producer import TOPIC, Rig, assert_whole
from tests.aio.support import read_back, run

pytest_plugins = ["tests.aio.fixtures"]

# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, parent id, flags.
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Spans(SpanProcessor):
    """The spans that have begun, and those that have ended."""

    def __init__(self) -> None:
        self.begun: list[ReadableSpan] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.begun.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    provider = TracerProvider()
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> Spans:
    spans = Spans()
    provider.add_span_processor(spans)
    return spans


def traced(provider: Any, **settings: Any) -> Rig:
    return Rig(interceptor_classes=[TracingInterceptor(provider)], **settings)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def only_traceparent(headers: list[tuple[str, bytes | None]]) -> tuple[str, str, bool]:
    (value,) = [value for name, value in headers if name == "traceparent"]
    assert value is not None
    found = TRACEPARENT.fullmatch(value.decode())
    assert found is not None
    trace_id, span_id, flags = found.groups()
    return trace_id, span_id, bool(int(flags, 16) & 1)  # the lowest flag: sampled


def test_span_of_a_delivered_record_has_the_attributes_of_the_conventions(
    provider: TracerProvider, spans: Spans
) -> None:
    rig = traced(provider, client_id="shop")
    rig.send(b"before")
    rig.send(b"value", key=b"k\xc3\xb6ln")
    assert spans.ended == []
    rig.ack_all()
    span = spans.ended[1]
    assert (span.name, span.kind, span.status.status_code) == (f"send {TOPIC}", SpanKind.PRODUCER, StatusCode.UNSET)
    assert attributes(span) == {
        names.MESSAGING_SYSTEM: "kafka",
        names.MESSAGING_OPERATION_NAME: "send",
        names.MESSAGING_OPERATION_TYPE: "send",
        names.MESSAGING_DESTINATION_NAME: TOPIC,
        names.MESSAGING_DESTINATION_PARTITION_ID: "0",
        names.MESSAGING_CLIENT_ID: "shop",
        names.MESSAGING_KAFKA_MESSAGE_KEY: "köln",
        names.MESSAGING_KAFKA_OFFSET: 1,
        names.MESSAGING_MESSAGE_BODY_SIZE: 5,
    }
    assert span.instrumentation_scope is not None
    assert (span.instrumentation_scope.name, span.instrumentation_scope.schema_url) == ("kafkabuf", SCHEMA)
    assert_whole(rig.pool)


def test_header_names_the_span(provider: TracerProvider, spans: Spans) -> None:
    rig = traced(provider)
    rig.send(b"v", headers=[("mine", b"1")])
    rig.ack_all()
    headers = rig.log[TOPIC, 0][0].headers
    assert headers[0] == ("mine", b"1")
    context = spans.ended[0].context
    assert only_traceparent(headers) == (f"{context.trace_id:032x}", f"{context.span_id:016x}", True)


def test_span_is_a_child_of_the_callers_span(provider: TracerProvider, spans: Spans) -> None:
    rig = traced(provider)
    with provider.get_tracer("test").start_as_current_span("request") as request:
        rig.send(b"v")
    rig.ack_all()
    parent = spans.ended[-1].parent
    assert parent is not None
    assert parent.span_id == request.get_span_context().span_id


def test_context_that_the_record_has_already_becomes_a_link(provider: TracerProvider, spans: Spans) -> None:
    rig = traced(provider)
    read = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
    rig.send(b"v", headers={name: value.encode() for name, value in read.items()})
    rig.ack_all()
    (link,) = spans.ended[0].links
    assert (link.context.trace_id, link.context.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    trace_id, span_id, _ = only_traceparent(rig.log[TOPIC, 0][0].headers)
    assert (trace_id, span_id) != ("a" * 32, "b" * 16)


@pytest.mark.parametrize("value", [None, b"\xff", b"00-zz", b""])
def test_header_that_names_no_span_gives_no_link(value: bytes | None, provider: TracerProvider, spans: Spans) -> None:
    rig = traced(provider)
    rig.send(b"v", headers=[("traceparent", value)])
    rig.ack_all()
    assert spans.ended[0].links == ()
    only_traceparent(rig.log[TOPIC, 0][0].headers)


def test_headers_of_the_global_propagator_go_along(provider: TracerProvider) -> None:
    rig = traced(provider)
    token = attach(set_baggage("tenant", "7"))
    try:
        rig.send(b"v")
    finally:
        detach(token)
    rig.ack_all()
    assert ("baggage", b"tenant=7") in rig.log[TOPIC, 0][0].headers


@pytest.mark.parametrize(
    ("key", "text"), [(None, None), ("text", "text"), (b"\xff\x00", None), (7, "7"), ((1, 2), None)]
)
def test_key_without_a_text_of_its_own_is_left_out(
    key: Any, text: str | None, provider: TracerProvider, spans: Spans
) -> None:
    rig = traced(provider, key_serializer=lambda key: b"k")
    rig.send(None, key=key)
    rig.ack_all()
    assert attributes(spans.ended[0]).get(names.MESSAGING_KAFKA_MESSAGE_KEY) == text
    assert attributes(spans.ended[0])[names.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] is True


def test_span_of_a_record_that_send_refuses_ends_with_the_error(provider: TracerProvider, spans: Spans) -> None:
    rig = traced(provider)
    with pytest.raises(InvalidPartitionsError) as raised:
        rig.send(b"v", partition=7)
    (span,) = spans.ended
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, str(raised.value))
    assert attributes(span)[ERROR_TYPE] == "InvalidPartitionsError"
    assert names.MESSAGING_KAFKA_OFFSET not in attributes(span)


def test_span_of_a_record_that_fails_later_ends_with_the_error(provider: TracerProvider, spans: Spans) -> None:
    rig = traced(provider)
    future = rig.send(b"v")
    rig.accumulator.abort()
    (span,) = spans.ended
    assert span.status.description == str(future.exception(0))
    assert attributes(span)[ERROR_TYPE] == type(future.exception(0)).__name__
    assert attributes(span)[names.MESSAGING_DESTINATION_PARTITION_ID] == "0"


def test_each_record_of_send_many_has_a_span(provider: TracerProvider, spans: Spans) -> None:
    rig = traced(provider, max_request_size=1_000)
    report = rig.producer.send_many(TOPIC, [b"a", b"b" * 2_000, b"c"], keys=[b"1", b"2", b"3"])
    rig.ack_all()
    assert len(spans.begun) == 3
    outcome = {
        attributes(span)[names.MESSAGING_KAFKA_MESSAGE_KEY]: attributes(span).get(names.MESSAGING_KAFKA_OFFSET)
        for span in spans.ended
    }
    assert outcome == {"1": 0, "2": None, "3": 1}
    assert report.exception(0) is not None
    sent = {only_traceparent(record.headers)[1] for record in rig.log[TOPIC, 0]}
    failed = next(span for span in spans.ended if ERROR_TYPE in attributes(span))
    assert sent == {f"{span.context.span_id:016x}" for span in spans.begun} - {f"{failed.context.span_id:016x}"}
    assert_whole(rig.pool)


def test_other_interceptors_and_the_users_callback_are_called_too(provider: TracerProvider, spans: Spans) -> None:
    class Renaming:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(value=b"other", headers=[*record.headers, ("more", b"1")])

    called: list[Any] = []
    rig = Rig(interceptor_classes=[TracingInterceptor(provider), Renaming()])
    rig.send(b"v", callback=lambda metadata, error: called.append((len(spans.ended), metadata.offset, error)))
    rig.ack_all()
    assert called == [(1, 0, None)]
    assert [name for name, _ in rig.log[TOPIC, 0][0].headers] == ["traceparent", "more"]


def test_record_that_is_not_sampled_says_so_in_its_header() -> None:
    provider, spans = TracerProvider(sampler=ALWAYS_OFF), Spans()
    provider.add_span_processor(spans)
    rig = traced(provider)
    rig.send(b"v")
    rig.ack_all()
    assert only_traceparent(rig.log[TOPIC, 0][0].headers)[2] is False
    assert spans.begun == []
    provider.shutdown()


def test_record_goes_out_unchanged_without_an_sdk() -> None:
    rig = traced(NoOpTracerProvider())
    rig.send(b"v", headers=[("mine", b"1")])
    rig.ack_all()
    assert rig.log[TOPIC, 0][0].headers == [("mine", b"1")]


def test_no_span_is_kept_after_its_record(provider: TracerProvider, spans: Spans) -> None:
    rig = traced(provider, delivery_timeout_ms=30_000, request_timeout_ms=20_000)
    for number in range(50):
        rig.send(b"v")
        if number % 10 == 0:
            rig.ack_all()
    rig.clock.advance(31)  # the rest expires
    rig.ack_all()
    assert [span.context.span_id for span in spans.ended] == [span.context.span_id for span in spans.begun]
    assert len(spans.ended) == 50
    tracing = rig.config.interceptor_classes[0]
    assert not any(isinstance(value, (dict, list, set)) for value in vars(tracing).values())


def test_spans_of_asyncios_producer_end(aio_cluster: EmbeddedCluster, provider: TracerProvider, spans: Spans) -> None:
    servers = aio_cluster.bootstrap_servers

    async def test() -> None:
        tracing = TracingInterceptor(provider)
        async with AIOKafkaProducer(bootstrap_servers=servers, interceptor_classes=[tracing]) as producer:
            futures = [await producer.send("traced", b"%d" % n) for n in range(20)]
            for future in futures:
                await future
            with pytest.raises(KafkaError):
                await producer.send("traced", b"v", partition=999)
        read = await read_back(aio_cluster, "traced", 20)
        carriers = [{name: value.decode() for name, value in record.headers} for record in read]
        contexts = [
            get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
            for carrier in carriers
        ]
        delivered = [span for span in spans.ended if ERROR_TYPE not in attributes(span)]
        assert {context.span_id for context in contexts} == {span.context.span_id for span in delivered}
        assert (len(spans.begun), len(spans.ended), len(delivered)) == (21, 21, 20)

    run(test())
