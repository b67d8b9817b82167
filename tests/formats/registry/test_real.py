"""Clients and producers against a real registry, Apicurio, with confluent-kafka's serializers as the witnesses."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import DeserializingConsumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.type.money_pb2 import Money

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import SchemaRegistryError, SerializationError
from kafkabuf.formats import Avro, Protobuf
from kafkabuf.formats.registry import SchemaReference, SchemaRegistry
from kafkabuf.formats.registry.avro_compatibility import reasons
from rigs.real_registry import RealRegistry
from tests.formats.avro.test_compatibility import CASES
from tests.formats.protobuf.support import FieldProto, message_class, new_file
from tests.formats.registry.support import OTHER, RECORD, WIDER

OBJECT = '{"type":"object","title":"T","properties":{"a":{"type":"integer"}}}'


@pytest.fixture(scope="module")
def real() -> Iterator[RealRegistry]:
    with RealRegistry() as registry:
        yield registry


def connect(real: RealRegistry, **settings: Any) -> SchemaRegistry:
    return SchemaRegistry({"schema.registry.url": real.url} | settings)


def set_compatibility(real: RealRegistry, subject: str, level: str) -> None:
    request = urllib.request.Request(
        f"{real.url}/config/{subject}",
        json.dumps({"compatibility": level}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200


def test_confluent_kafka_finds_what_a_real_registry_was_given(real: RealRegistry) -> None:
    registry = connect(real)
    first = registry.resolve(RECORD, subject="both-value", timeout=30)
    wider = registry.resolve(WIDER, subject="both-value", timeout=30)
    assert first.id != wider.id
    assert registry.resolve(RECORD, subject="both-value", auto_register=False) == first
    assert registry.resolve(None, subject="both-value", use_schema_id=first.id) == first
    assert registry.resolve(RECORD, subject="both-value", use_latest_version=True) == wider
    with pytest.raises(SerializationError, match="a: long cannot read string"):
        registry.resolve(OTHER, subject="both-value", use_latest_version=True)
    with SchemaRegistryClient({"url": real.url}) as theirs:
        latest, oldest = theirs.get_latest_version("both-value"), theirs.get_schema(first.id)
    assert (latest.schema_id, latest.schema.schema_str) == (wider.id, registry.latest("both-value").schema.text)
    assert oldest.schema_str == registry.by_id(first.id).text


def test_refusal_of_a_real_registry_has_its_status(real: RealRegistry) -> None:
    connect(real).resolve(RECORD, subject="strict-value", timeout=30)
    set_compatibility(real, "strict-value", "BACKWARD")  # with FULL the registry tells two reasons in any order
    registry = connect(real)
    with pytest.raises(SchemaRegistryError, match=r"(?i)incompatible") as refused:
        registry.resolve(OTHER, subject="strict-value", timeout=30)
    with pytest.raises(SchemaRegistryError) as invalid:
        registry.resolve("{bad", subject="invalid-value", timeout=30)
    with pytest.raises(SchemaRegistryError) as missing:
        registry.resolve(None, subject="missing-value", use_latest_version=True, timeout=30)
    assert [error.value.status for error in (refused, invalid, missing)] == [409, 422, 404]


def test_references_are_resolved_by_a_real_registry(real: RealRegistry) -> None:
    inner = '{"type":"enum","name":"E","namespace":"n","symbols":["x"]}'
    outer = '{"type":"record","name":"O","namespace":"n","fields":[{"name":"e","type":"n.E"}]}'
    registry = connect(real)
    registry.resolve(inner, subject="inner", timeout=30)
    reference = SchemaReference("n.E", "inner", 1)
    resolved = registry.resolve(outer, subject="outer-value", references=[reference], timeout=30)
    assert registry.resolve(None, subject="outer-value", use_latest_version=True) == resolved
    assert resolved.references == (("n.E", inner),)


def test_confluent_kafka_reads_what_the_prefix_frames_and_frames_alike(real: RealRegistry) -> None:
    topic = "framed"
    resolved = connect(real).resolve(OBJECT, "JSON", subject=f"{topic}-value", timeout=30)
    context = SerializationContext(topic, MessageField.VALUE)
    options = {"subject.name.strategy.type": "TOPIC"}
    with SchemaRegistryClient({"url": real.url}) as theirs:
        read = JSONDeserializer(None, schema_registry_client=theirs, conf=options)
        assert read(resolved.prefix + b'{"a":7}', context) == {"a": 7}
        write = JSONSerializer(OBJECT, theirs, conf=options | {"auto.register.schemas": False})
        assert write({"a": 7}, context) == resolved.prefix + b'{"a":7}'


def _is_registered(registry: SchemaRegistry, subject: str, schema: str) -> bool:
    """Whether the registry takes a schema; if not, it says that the schema is incompatible."""
    try:
        registry.resolve(schema, subject=subject, timeout=30)
    except SchemaRegistryError as error:
        if error.status == 409:
            return False
        raise
    return True


def test_registry_agrees_on_which_schema_reads_which(real: RealRegistry) -> None:
    different = []
    for number, (reader, writer, _) in enumerate(CASES):
        texts = json.dumps(reader), json.dumps(writer)
        registry = connect(real)
        registry.resolve(texts[1], subject=f"case-{number}", timeout=30)
        set_compatibility(real, f"case-{number}", "BACKWARD")
        accepted = _is_registered(registry, f"case-{number}", texts[0])
        if accepted != (reasons(([], texts[0]), ([], texts[1])) == []):
            different.append((number, texts, accepted))
    assert different == []


def consumed(cluster: EmbeddedCluster, topic: str, count: int, read: AvroDeserializer) -> list[tuple[Any, Any]]:
    """Keys and values of a topic as confluent-kafka's consumer reads them."""
    consumer = DeserializingConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "key.deserializer": read,
            "value.deserializer": read,
        }
    )
    consumer.subscribe([topic])
    try:
        found = [consumer.poll(30) for _ in range(count)]
        return [(message.key(), message.value()) for message in found if message is not None]
    finally:
        consumer.close()


def test_confluent_kafka_consumes_what_a_producer_registers_and_writes(real: RealRegistry) -> None:
    key_schema = {"type": "record", "name": "Key", "fields": [{"name": "name", "type": ["null", "string"]}]}
    table = pa.table({"id": [1, 2**40, -3], "name": ["Adalbert", None, "é"], "topic": ["people", "others", "people"]})
    rows = table.drop_columns(["topic"]).to_pylist()
    settings = {"schema.registry.url": real.url, "schema.registry.key.subject.name.strategy": "topic_record"}
    with EmbeddedCluster(brokers=1, default_partitions=1) as cluster, SchemaRegistryClient({"url": real.url}) as theirs:
        with KafkaProducer(settings, bootstrap_servers=cluster.bootstrap_servers) as producer:
            for topic in (None, "all"):
                producer.send_arrow(
                    table, topic, value_format=Avro(), key_format=Avro(key_schema), key=["name"]
                ).result()
        read = AvroDeserializer(theirs, conf={"subject.name.strategy.type": "TOPIC"})
        records = [({"name": row["name"]}, row) for row in rows]
        assert consumed(cluster, "all", 3, read) == records
        assert consumed(cluster, "people", 2, read) == [records[0], records[2]]
        assert consumed(cluster, "others", 1, read) == [records[1]]
        subjects = {f"{topic}-{part}" for topic in ("all", "people", "others") for part in ("value", "Key")}
        assert subjects <= {*theirs.get_subjects()}
        written = theirs.get_latest_version("all-value").schema
        write = AvroSerializer(theirs, written, conf={"auto.register.schemas": False})
        context = SerializationContext("all", MessageField.VALUE)
        assert [message.value for message in cluster.messages("all")] == [write(row, context) for row in rows]


def test_incompatible_table_is_refused_before_a_row_is_queued(real: RealRegistry) -> None:
    connect(real).resolve(RECORD, subject="closed-value", timeout=30)
    set_compatibility(real, "closed-value", "BACKWARD")
    settings = {"schema.registry.url": real.url}
    with EmbeddedCluster(brokers=1, default_partitions=1) as cluster:
        with KafkaProducer(settings, bootstrap_servers=cluster.bootstrap_servers) as producer:
            with pytest.raises(SchemaRegistryError, match=r"(?i)incompatible") as refused:
                producer.send_arrow(pa.table({"a": ["x"]}), "closed", value_format=Avro(OTHER))
            assert (refused.value.status, refused.value.rows_queued) == (409, 0)
        assert cluster.messages("closed") == []


PROTO = """
syntax = "proto3";
package google.type;
message Before { string x = 1; }
message Money { string currency_code = 1; int64 units = 2; string note = 9; }
"""


def test_proto_text_that_others_registered_is_what_a_producer_writes_with(real: RealRegistry) -> None:
    topic = "text"
    registered = connect(real).resolve(PROTO, "PROTOBUF", subject=f"{topic}-value", message_indexes=[1], timeout=30)
    settings = {"schema.registry.url": real.url, "schema.registry.use.latest.version": True}
    settings["schema.registry.latest.compatibility.strict"] = False
    with EmbeddedCluster(brokers=1, default_partitions=1) as cluster:
        with KafkaProducer(
            settings, bootstrap_servers=cluster.bootstrap_servers, value_serializer=Protobuf(Money)
        ) as producer:
            producer.send(topic, {"units": 3, "note": "n"}).result()
        with KafkaProducer(settings, bootstrap_servers=cluster.bootstrap_servers) as producer:
            table = pa.table({"units": [3], "note": ["n"]})
            producer.send_arrow(table, topic, value_format=Protobuf(Money)).result()
        values = [message.value for message in cluster.messages(topic)]
    assert values == 2 * [registered.prefix + b"\x10\x03\x4a\x01n"]


def test_confluent_kafka_reads_the_objects_whose_message_a_producer_registers(real: RealRegistry) -> None:
    topic = "objects"
    file = new_file()
    del file.dependency[:]  # the registry does not have them
    file.message_type.add(name="Before")
    file.message_type.add(name="Row").field.add(name="units", number=2, label=1, type=FieldProto.TYPE_INT64)
    message = message_class(file, "test.rows.Row")
    settings = {"schema.registry.url": real.url}
    with EmbeddedCluster(brokers=1, default_partitions=1) as cluster:
        with KafkaProducer(
            settings, bootstrap_servers=cluster.bootstrap_servers, value_serializer=Protobuf(message)
        ) as producer:
            producer.send(topic, {"units": 3}).result()
        (record,) = cluster.messages(topic)
    latest = connect(real).resolve(
        None, "PROTOBUF", subject=f"{topic}-value", use_latest_version=True,
        message_indexes=Protobuf(message).message_indexes,
    )  # fmt: skip
    assert record.value == latest.prefix + b"\x10\x03"
    with SchemaRegistryClient({"url": real.url}) as theirs:
        read = ProtobufDeserializer(message, {"use.deprecated.format": False}, theirs)
        assert read(record.value, SerializationContext(topic, MessageField.VALUE)).units == 3


def test_framing_by_header_is_refused_where_the_registry_knows_no_guids(real: RealRegistry) -> None:
    registry = connect(real, **{"schema.id.framing": "header"})
    with pytest.raises(SchemaRegistryError, match="set it to prefix"):
        registry.resolve(RECORD, subject="guids-value", timeout=30)
