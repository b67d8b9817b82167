"""Serializers: the bytes that Java's serializers write, names, and calls of a user's own serializers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from uuid import UUID

import confluent_kafka.serialization as confluent
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.serialization import (
    BooleanSerializer,
    BytesSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntegerSerializer,
    JsonSerializer,
    LongSerializer,
    ShortSerializer,
    StringSerializer,
    UUIDSerializer,
    serialize_with,
)
from rigs.fake_client import Record
from rigs.producer import TOPIC, Rig

UUID_ONE = UUID("0102030405060708090a0b0c0d0e0f10")


def only_record(rig: Rig) -> Record:
    rig.ack_all()
    (record,) = rig.log[TOPIC, 0]
    return record


# The bytes that the serializers of kafka-clients 4.1.2 and 3.9.2 wrote under OpenJDK 17. Java has no JSON serializer:
# for JSON the expected bytes are this project's choice.
@pytest.mark.parametrize(
    ("serializer", "data", "expected"),
    [
        (StringSerializer(), "häß€😀", "68c3a4c39fe282acf09f9880"),
        (StringSerializer(), "", ""),
        (StringSerializer("latin-1"), "hä", "68e4"),
        (StringSerializer("UTF-16"), "hä", "feff006800e4"),
        (StringSerializer("UTF-16"), "", ""),
        (StringSerializer("UTF-16LE"), "h", "6800"),
        (StringSerializer("UTF-32"), "h", "00000068"),
        (ShortSerializer(), -2, "fffe"),
        (ShortSerializer(), 32767, "7fff"),
        (IntegerSerializer(), 1, "00000001"),
        (IntegerSerializer(), -(2**31), "80000000"),
        (LongSerializer(), 2**63 - 1, "7fffffffffffffff"),
        (LongSerializer(), -1, "ffffffffffffffff"),
        (FloatSerializer(), 0.1, "3dcccccd"),
        (FloatSerializer(), float("nan"), "7fc00000"),
        (FloatSerializer(), float("-inf"), "ff800000"),
        (FloatSerializer(), 1e-45, "00000001"),
        (FloatSerializer(), 3, "40400000"),
        (DoubleSerializer(), -0.0, "8000000000000000"),
        (DoubleSerializer(), 0.1, "3fb999999999999a"),
        (UUIDSerializer(), UUID_ONE, b"01020304-0506-0708-090a-0b0c0d0e0f10".hex()),
        (BooleanSerializer(), True, "01"),
        (BooleanSerializer(), False, "00"),
        (BytesSerializer(), b"\x00\xff", "00ff"),
        (JsonSerializer(), {"ä": [1, None, 2.5]}, '{"ä":[1,null,2.5]}'.encode().hex()),
        (JsonSerializer(sort_keys=True), {"b": 1, "a": 2}, b'{"a":2,"b":1}'.hex()),
    ],
)
def test_serializers_write_javas_bytes(serializer: Any, data: Any, expected: str) -> None:
    assert serializer(data).hex() == expected
    assert serializer(None) is None


@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        (StringSerializer(), b"bytes"),
        (StringSerializer(), "\ud800"),
        (StringSerializer("ascii"), "ä"),
        (ShortSerializer(), 32768),
        (IntegerSerializer(), -(2**31) - 1),
        (IntegerSerializer(), True),
        (IntegerSerializer(), 1.0),
        (LongSerializer(), 2**63),
        (FloatSerializer(), 1e39),
        (FloatSerializer(), "1"),
        (DoubleSerializer(), False),
        (UUIDSerializer(), str(UUID_ONE)),
        (BooleanSerializer(), 1),
        (BytesSerializer(), "text"),
        (JsonSerializer(), {1, 2}),
        (JsonSerializer(), "\udfff"),
    ],
)
def test_unfit_data_is_refused_and_costs_no_memory(serializer: Any, data: Any) -> None:
    rig = Rig(value_serializer=serializer)
    with pytest.raises(SerializationError, match="the value serializer raised"):
        rig.send(data)
    assert not rig.incomplete()
    rig.send(None)
    assert only_record(rig).value is None


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("string", "k", b"k"),
        ("json", [1, 2], b"[1,2]"),
        ("long", 1, b"\0\0\0\0\0\0\0\x01"),
        ("bytes", bytearray(b"b"), b"b"),
        ("org.apache.kafka.common.serialization.StringSerializer", "k", b"k"),
        ("org.apache.kafka.common.serialization.ByteArraySerializer", b"b", b"b"),
    ],
)
def test_name_stands_for_its_serializer(name: str, data: Any, expected: bytes) -> None:
    rig = Rig(key_serializer=name, value_serializer=name)
    rig.send(data, key=data)
    record = only_record(rig)
    assert (record.key, record.value) == (expected, expected)


@pytest.mark.parametrize("setting", ["strng", "os.system", 5, StringSerializer, object()])
def test_setting_that_serializes_nothing_is_refused(setting: Any) -> None:
    with pytest.raises(ConfigError, match=r"value\.serializer"):
        Rig(value_serializer=setting)
    with pytest.raises(ConfigError):
        StringSerializer("utf-9")


class Tagging:
    """Adds a header with the arguments of the call."""

    def serialize(self, topic: str, headers: list[tuple[str, bytes | None]], data: Any) -> bytes:
        headers.append(("seen", f"{topic} {len(headers)} {data}".encode()))
        return b"tagged"


@pytest.mark.parametrize("headers", [None, {"h": b"1"}, [("h", b"1")], iter([("h", b"1")])])
def test_serializer_may_add_headers_without_changing_the_users(headers: Any) -> None:
    rig = Rig(key_serializer=Tagging(), value_serializer=lambda data: data)
    before = list(headers) if isinstance(headers, list) else None
    rig.send(b"v", key=None, headers=headers)
    record = only_record(rig)
    given = [] if headers is None else [("h", b"1")]
    assert record.headers == [*given, ("seen", f"{TOPIC} {len(given)} None".encode())]
    assert (record.key, record.value) == (b"tagged", b"v")
    assert before is None or headers == before


def test_send_many_applies_serializers() -> None:
    rig = Rig(key_serializer="integer", value_serializer=Tagging())
    rig.producer.send_many(TOPIC, ["a", "b"], keys=[1, 2], partitions=[0, None])
    rig.ack_all()
    assert [(r.key, r.value) for r in rig.log[TOPIC, 0]] == [(b"\0\0\0\x01", b"tagged"), (b"\0\0\0\x02", b"tagged")]
    with pytest.raises(SerializationError, match="record 1: the key serializer raised TypeError: expected int"):
        rig.producer.send_many(TOPIC, ["a", "b"], keys=[1, "x"])


def test_send_arrow_refuses_a_producer_with_serializers() -> None:
    rig = Rig(value_serializer="json")
    with pytest.raises(ConfigError, match=r"cannot apply value\.serializer"):
        rig.producer.send_arrow(object(), TOPIC)


class ConfluentEcho(confluent.Serializer):
    """A serializer of confluent-kafka that returns the arguments of its call."""

    def __call__(self, obj: Any, ctx: Any = None) -> bytes:
        ctx.headers.append(("schema", b"7"))
        return f"{obj} {ctx.topic} {ctx.field}".encode()


def test_confluents_serializer_gets_its_context() -> None:
    rig = Rig(key_serializer=ConfluentEcho(), value_serializer=confluent.StringSerializer("utf_8"))
    rig.producer.send(TOPIC, "v", partition=0, key=1, headers=[("a", None)])
    record = only_record(rig)
    assert (record.key, record.value) == (f"1 {TOPIC} key".encode(), b"v")
    assert record.headers == [("a", None), ("schema", b"7")]


SCHEMA = '{"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'


@pytest.mark.parametrize("in_header", [False, True])
def test_schema_registrys_deserializer_reads_its_serializers_bytes(in_header: bool) -> None:
    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    settings = {"schema.id.serializer": header_schema_id_serializer} if in_header else {}
    rig = Rig(value_serializer=JSONSerializer(SCHEMA, registry, conf=settings))
    send: Any = rig.send
    send({"id": 7})
    with pytest.raises(SerializationError, match="the value serializer raised SerializationError"):
        send({"id": "seven"})
    assert registry.get_latest_version(f"{TOPIC}-value").schema.schema_str == SCHEMA
    record = only_record(rig)
    assert [name for name, _ in record.headers] == (["__value_schema_id"] if in_header else [])
    context = confluent.SerializationContext(TOPIC, confluent.MessageField.VALUE, [*record.headers])
    assert record.value is not None
    assert JSONDeserializer(SCHEMA, schema_registry_client=registry)(record.value, context) == {"id": 7}


def test_confluent_is_not_imported_unless_used() -> None:
    code = "import sys, kafkabuf.serialization; assert not [m for m in sys.modules if m.startswith('confluent')]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plain_callable_is_called_directly() -> None:
    def plain(data: Any) -> bytes:
        return b""

    assert serialize_with(plain, "key") == (plain, False)
