"""Json with a Schema Registry: confluent-kafka's JSONDeserializer reads what send_arrow() sends, and validates it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kafkabuf.formats import Json
from kafkabuf.formats.registry import SchemaRegistry
from rigs.producer import TOPIC, Rig
from tests.append.arrow_support import stored
from tests.formats.registry.support import FakeRegistry, running

TABLE = pa.table({"id": [1, None], "text": ["é", None], "parts": [[1.5], []]})


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry


def rig_with(fake: FakeRegistry, **settings: str) -> Rig:
    rig = Rig()
    given = {"schema.registry.url": fake.url} | {name.replace("_", "."): value for name, value in settings.items()}
    rig.producer.registry = SchemaRegistry(given, clock=rig.clock)
    return rig


@pytest.mark.parametrize("dialect", ["orjson", "spark"])
def test_confluent_kafka_reads_keys_and_values(fake: FakeRegistry, dialect: Any) -> None:
    rig = rig_with(fake)
    table = TABLE.append_column("key", pa.array(["a", None]))
    value_format = Json(dialect=dialect)
    records = stored(rig, rig.producer.send_arrow(table, TOPIC, value_format=value_format, key_format=Json()))
    assert {each["schemaType"] for versions in fake.subjects.values() for each in versions} == {"JSON"}
    with SchemaRegistryClient({"url": fake.url}) as client:
        conf: Any = {"subject.name.strategy.type": "TOPIC"}
        read: Any = JSONDeserializer(None, conf=conf, schema_registry_client=client)
        values = [read(record.value, SerializationContext(TOPIC, MessageField.VALUE)) for record in records]
        keys = [read(record.key, SerializationContext(TOPIC, MessageField.KEY)) for record in records]
    assert values == [json.loads(row or b"") for row in value_format.encode(TABLE)]
    assert keys == ["a", None]


def test_title_names_the_record(fake: FakeRegistry) -> None:
    rig = rig_with(fake, value_subject_name_strategy="record")
    value_format = Json(schema={"title": "Flight", "type": "object"})
    stored(rig, rig.producer.send_arrow(TABLE, TOPIC, value_format=value_format))
    assert list(fake.subjects) == ["Flight"]


def test_registrys_schema_changes_nothing_but_the_prefix() -> None:
    arguments: Any = {
        "dialect": "spark", "time_zone": "+01:00", "ignore_null_fields": False, "date_format": "y",
        "timestamp_format": "yyyy", "timestamp_ntz_format": "yy",
    }  # fmt: skip
    resolved = Json(**arguments).with_schema("{}", b"\0\0\0\0\7")
    expected = Json(**arguments, schema="{}", prefix=b"\0\0\0\0\7")
    assert resolved == expected
    assert Json().with_schema("{}", b"p") == Json(schema="{}", prefix=b"p")
