"""send_arrow() with Protobuf: what arrives at the broker, and that confluent-kafka reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Protobuf
from kafkabuf.formats.registry import SchemaRegistry, framing
from rigs.producer import TOPIC, Rig, assert_whole
from tests.append.arrow_support import stored
from tests.formats.protobuf.support import OPTIONAL, FieldProto, message_class, new_file, written
from tests.formats.registry.support import FakeRegistry, running


def person(name: str = "Person") -> Any:
    """Its file has another message first, and a message in the message. All have the same fields."""
    file = new_file()
    first, made = file.message_type.add(name="First"), file.message_type.add(name="Person")
    for kind in (first, made, made.nested_type.add(name="Inner")):
        kind.field.add(name="id", number=1, label=OPTIONAL, type=FieldProto.TYPE_INT64)
        kind.field.add(name="name", number=2, label=OPTIONAL, type=FieldProto.TYPE_STRING)
    return message_class(file, f"test.rows.{name}")


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry


def rig_with(fake: FakeRegistry, **settings: str) -> Rig:
    rig = Rig()
    settings = {name.replace("_", "."): value for name, value in settings.items()}
    rig.producer.registry = SchemaRegistry({"schema.registry.url": fake.url} | settings, clock=rig.clock)
    return rig


ROWS: list[dict[str, Any]] = [{"id": 1, "name": "Ada"}, {"id": 2, "name": None}, {"id": 3, "name": "é" * 50}]
TABLE = pa.table({"id": [row["id"] for row in ROWS], "name": [row["name"] for row in ROWS]})
PERSON = person()
VALUES = [written(PERSON, {name: value for name, value in row.items() if value}) for row in ROWS]


def test_value_is_a_message_of_the_columns_that_are_not_the_records_own() -> None:
    rig = Rig()
    table = TABLE.append_column("key", pa.array([b"k", None, b""]))
    records = stored(rig, rig.producer.send_arrow(table, TOPIC, value_format=Protobuf(PERSON)))
    assert [record.value for record in records] == VALUES
    assert [record.key for record in records] == [b"k", None, b""]


def test_struct_column_value_is_the_message_and_its_null_is_kafkas() -> None:
    rig = Rig()
    struct = pa.array([ROWS[0], None, {}], pa.struct([("id", pa.int64()), ("name", pa.string())]))
    table = pa.table({"value": struct, "more": [1, 2, 3]})
    records = stored(rig, rig.producer.send_arrow(table, TOPIC, value_format=Protobuf(PERSON, prefix=b"\0\0\0\0\7")))
    assert [record.value for record in records] == [b"\0\0\0\0\7" + VALUES[0], None, b"\0\0\0\0\7"]
    with pytest.raises(
        SerializationError, match="column 'value' has the type int64, and only a struct becomes message"
    ):
        rig.producer.send_arrow(pa.table({"value": [1]}), TOPIC, value_format=Protobuf(PERSON))


def test_columns_of_the_key_are_a_message_and_a_list_of_one_is_too() -> None:
    for key, expected in ((["name", "id"], VALUES), (["id"], [written(PERSON, {"id": row["id"]}) for row in ROWS])):
        rig = Rig()
        table = TABLE.append_column("partition", pa.array([0] * 3, pa.int32()))
        report = rig.producer.send_arrow(
            table, TOPIC, value_format=Protobuf(PERSON), key_format=Protobuf(PERSON), key=key
        )
        assert [record.key for record in stored(rig, report)] == expected


@pytest.mark.parametrize("name", ["First", "Person", "Person.Inner"])
def test_confluents_deserializer_reads_framed_rows(name: str) -> None:
    kind = person(name)
    made = Protobuf(kind)
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    schema_id = client.register_schema("rows-value", Schema(made.schema, "PROTOBUF"))
    deserialize = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
    framed = Protobuf(kind, prefix=framing.prefix(schema_id, made.message_indexes()))
    context = SerializationContext("rows", MessageField.VALUE)
    found = [deserialize(value, context) for value in framed.encode(TABLE)]
    assert [(each.id, each.name) for each in found] == [(row["id"], row["name"] or "") for row in ROWS]


@pytest.mark.parametrize("name", ["First", "Person", "Person.Inner"])
@pytest.mark.parametrize("framed_by", ["prefix", "header"])
def test_producer_with_a_registry_sends_what_confluents_deserializer_reads(
    fake: FakeRegistry, name: str, framed_by: str
) -> None:
    rig, kind = rig_with(fake, schema_id_framing=framed_by), person(name)
    records = stored(rig, rig.producer.send_arrow(TABLE, TOPIC, value_format=Protobuf(kind)))
    (registered,) = fake.subjects[f"{TOPIC}-value"]
    assert (registered["schemaType"], registered["schema"]) == ("PROTOBUF", Protobuf(kind).schema)
    with SchemaRegistryClient({"url": fake.url}) as client:
        deserialize = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
        for record, row in zip(records, ROWS, strict=True):
            headers: Any = list(record.headers)
            found = deserialize(record.value, SerializationContext(TOPIC, MessageField.VALUE, headers))
            assert (found.id, found.name) == (row["id"], row["name"] or "")


def test_schema_of_a_registry_that_lacks_a_column_is_refused_before_a_row(fake: FakeRegistry) -> None:
    text = 'syntax = "proto3"; package test.rows; message Person { int64 id = 1; }'
    SchemaRegistry({"url": fake.url}).resolve(text, "PROTOBUF", subject=f"{TOPIC}-value")
    rig = rig_with(fake, use_latest_version="true", auto_register_schemas="false", latest_compatibility_strict="false")
    with pytest.raises(SerializationError, match="has no field for 'name'") as raised:
        rig.producer.send_arrow(TABLE, TOPIC, value_format=Protobuf(PERSON))
    assert raised.value.rows_queued == 0
    assert_whole(rig.pool)
