"""Drawn schemas and rows with the frame of a registry: confluent-kafka's deserializers read our bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import schema_registry
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import example, given, settings

from kafkabuf.config.schema_registry import FRAMINGS
from kafkabuf.formats import Avro, Json, Protobuf
from kafkabuf.formats.registry import SchemaRegistry
from kafkabuf.formats.registry.resolving import resolve_format
from kafkabuf.formats.rows.format import Format
from tests.effort import effort
from tests.formats.avro import support as avro_support
from tests.formats.avro.support import Drawn
from tests.formats.avro.test_random import Same
from tests.formats.json import support as json_support
from tests.formats.protobuf import support as protobuf_support
from tests.formats.registry.support import FakeRegistry, running

# confluent-kafka 2.6 knows neither these options nor the framing by a header.
IS_OLD = not hasattr(schema_registry, "header_schema_id_serializer")
OPTIONS = {"subject.name.strategy.type": "TOPIC"}
CONF: dict[str, Any] = {} if IS_OLD else {"conf": OPTIONS}
# orjson, with which newer ones read, makes floats of integers beyond 64 bits.
EXACT: dict[str, Any] = {} if IS_OLD else {"json_decode": json.loads}
KNOWN_FRAMINGS = FRAMINGS[:1] if IS_OLD else FRAMINGS
SHORTEST = 6  # the deserializers refuse fewer bytes, though a frame of five and an empty record are none too few


class Peer:
    """A registry, and confluent-kafka's client of it. An httpx client takes long to open: all examples share one."""

    def __init__(self, fake: FakeRegistry, client: SchemaRegistryClient) -> None:
        self.client = client
        self._fake = fake

    def registered(self, format: Format, framing: str) -> tuple[Format, SerializationContext]:
        """The format with the frame of a subject of its own, and where its values come from."""
        registry = SchemaRegistry({"url": self._fake.url, "schema.id.framing": framing})
        topic = f"t{len(self._fake.subjects)}"
        resolved = resolve_format(registry, format, topic, "value", None, 60)
        headers: Any = [] if resolved.header is None else [resolved.header]
        return resolved.format, SerializationContext(topic, MessageField.VALUE, headers)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with running(FakeRegistry()) as fake, SchemaRegistryClient({"url": fake.url}) as client:
        yield Peer(fake, client)


@given(drawn=avro_support.tables())
@settings(max_examples=effort(80), deadline=None)
@pytest.mark.parametrize("framing", KNOWN_FRAMINGS)
def test_avro_deserializer_reads_every_value(
    peer: Peer, drawn: tuple[Drawn, list[Any], pa.RecordBatch], framing: str
) -> None:
    whole, rows, batch = drawn
    expected = [avro_support.written(whole.avro, whole.expected(row)) for row in rows]
    own, context = peer.registered(Avro(whole.avro), framing)
    read = AvroDeserializer(peer.client, **CONF)
    for plain, encoded in zip(expected, own.encode(batch), strict=True):
        assert encoded is not None
        assert encoded == own.prefix + plain
        try:
            value = avro_support.read(whole.avro, plain)
        except (OverflowError, ValueError):  # Python has no such time
            continue
        if len(encoded) >= SHORTEST:
            assert read(encoded, context) == Same(value)


@given(drawn=protobuf_support.tables())
@settings(max_examples=effort(80), deadline=None)
@pytest.mark.parametrize("framing", KNOWN_FRAMINGS)
def test_protobuf_deserializer_reads_every_message(
    peer: Peer, drawn: tuple[Any, list[bytes], pa.RecordBatch], framing: str
) -> None:
    message, expected, batch = drawn
    own, context = peer.registered(Protobuf(message), framing)
    read: Any = (
        ProtobufDeserializer(message, {"use.deprecated.format": False})  # it asks no registry
        if IS_OLD
        else ProtobufDeserializer(message, OPTIONS, peer.client)
    )
    for plain, encoded in zip(expected, own.encode(batch), strict=True):
        assert encoded is not None
        if len(encoded) >= SHORTEST:
            assert read(encoded, context).SerializeToString(deterministic=True) == plain


@given(batch=json_support.tables())
@example(batch=pa.record_batch({"wide": pa.array([Decimal(-(2**63) - 1)], pa.decimal128(19, 0))}))
@settings(max_examples=effort(80), deadline=None)
@pytest.mark.parametrize("framing", KNOWN_FRAMINGS)
def test_json_deserializer_finds_every_row_valid_and_reads_it(peer: Peer, batch: pa.RecordBatch, framing: str) -> None:
    schema = Json().schema_for(batch)
    own, context = peer.registered(Json(schema=schema), framing)
    read = JSONDeserializer(None, schema_registry_client=peer.client, **CONF, **EXACT)
    for row, encoded in zip(json_support.rows_of(batch), own.encode(batch), strict=True):
        assert encoded is not None
        if len(encoded) >= SHORTEST:
            assert read(encoded, context) == json.loads(json_support.model(row))
