"""Protobuf(message) as serializer: message objects of the package protobuf."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from google.type.date_pb2 import Date
from google.type.money_pb2 import Money
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats import Protobuf
from kafkabuf.testing import MockProducer
from tests.formats.protobuf.support import OPTIONAL, PROTO2, REQUIRED, FieldProto, message_class, new_file

MONEY = Protobuf(Money, prefix=b"\0\0\0\0\7\0")
DOLLARS = Money(currency_code="USD", units=3)
MESSAGE = "value is a message google.type.Date, and the format writes Protobuf's message google.type.Money"
MAP_FIELDS = [("key", FieldProto.TYPE_STRING), ("value", FieldProto.TYPE_INT64)]


def map_class() -> Any:
    """A message with a map of text to numbers."""
    file = new_file()
    made = file.message_type.add(name="Counts")
    entry = made.nested_type.add(name="NEntry")
    entry.options.map_entry = True
    for number, (name, kind) in enumerate(MAP_FIELDS, 1):
        entry.field.add(name=name, number=number, label=OPTIONAL, type=kind)
    made.field.add(
        name="n", number=1, label=FieldProto.LABEL_REPEATED, type=FieldProto.TYPE_MESSAGE,
        type_name=".test.rows.Counts.NEntry",
    )  # fmt: skip
    return message_class(file, "test.rows.Counts")


def required_class() -> Any:
    file = new_file(PROTO2)
    file.message_type.add(name="Strict").field.add(name="id", number=1, label=REQUIRED, type=FieldProto.TYPE_INT64)
    return message_class(file, "test.rows.Strict")


def all_ways(made: Protobuf, value: Any) -> Iterator[bytes | None]:
    yield made.encode_object(value)
    yield made(value)
    yield made.object_serializer("value")(value)


@given(st.builds(Money, currency_code=st.text(), units=st.integers(-(2**63), 2**63 - 1)))
def test_message_is_the_prefix_and_the_bytes_of_the_package(message: Any) -> None:
    assert set(all_ways(MONEY, message)) == {b"\0\0\0\0\7\0" + message.SerializeToString()}


def test_prefix_of_a_call_takes_the_place_of_the_formats() -> None:
    assert MONEY.encode_object(DOLLARS, prefix=b"x") == b"x" + DOLLARS.SerializeToString()
    wrong: Any = "x"
    with pytest.raises(ConfigError, match="prefix must be bytes"):
        MONEY.encode_object(DOLLARS, prefix=wrong)


def test_none_is_kafkas_null() -> None:
    assert set(all_ways(MONEY, None)) == {None}


def test_equal_messages_are_equal_bytes_whatever_the_order_of_their_maps() -> None:
    made = map_class()
    names = [f"name {number}" for number in range(50)]
    forth, back = (dict.fromkeys(order, 1) for order in (names, names[::-1]))
    assert Protobuf(made).encode_object(made(n=forth)) == Protobuf(made).encode_object(made(n=back))


def test_message_of_another_pool_with_the_same_name_is_written() -> None:
    mine, other = map_class(), map_class()
    assert Protobuf(mine).encode_object(other(n={"a": 1})) == mine(n={"a": 1}).SerializeToString()


@pytest.mark.parametrize("value", [b"bytes", "text", 5, Money, object(), [DOLLARS], True, 1.5])
def test_what_is_no_message_is_refused_with_its_type(value: Any) -> None:
    text = f"value of type {type(value).__name__} does not fit Protobuf's message google.type.Money"
    with pytest.raises(SerializationError, match=text):
        MONEY.encode_object(value)


def test_another_message_is_refused_with_both_names() -> None:
    with pytest.raises(SerializationError, match=MESSAGE):
        MONEY.encode_object(Date(year=2026))


def test_message_without_a_required_field_is_refused() -> None:
    made = required_class()
    assert Protobuf(made).encode_object(made(id=5)) == b"\x08\x05"
    with pytest.raises(SerializationError, match=r"value cannot be written: .*id"):
        Protobuf(made).encode_object(made())


def test_dict_is_written_where_the_package_protobuf_is_not_loaded() -> None:
    code = (
        "import sys; from kafkabuf.formats import Protobuf\n"
        "made = Protobuf.from_descriptor_set(bytes.fromhex(sys.argv[1]), 'google.type.Money')\n"
        "print(made.encode_object({'units': 3}), 'google.protobuf' in sys.modules)"
    )
    command = [sys.executable, "-c", code, Protobuf(Money).descriptors.hex()]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found == "b'\\x10\\x03' False\n"


def test_send_and_send_many_encode_keys_and_values() -> None:
    with EmbeddedCluster() as cluster:
        with KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, key_serializer=Protobuf(Date), value_serializer=MONEY
        ) as producer:
            producer.send("t", DOLLARS, key=Date(year=5)).result()
            producer.send_many("t", [DOLLARS, None]).result()
        records = [(message.key, message.value) for message in cluster.messages("t")]
    encoded = b"\0\0\0\0\7\0" + DOLLARS.SerializeToString()
    assert sorted(records, key=repr) == sorted([(b"\x08\x05", encoded), (None, encoded), (None, None)], key=repr)


def test_error_begins_with_the_field_that_does_not_fit() -> None:
    with MockProducer(key_serializer=Protobuf(Date), value_serializer=MONEY) as producer:
        with pytest.raises(SerializationError, match=r"value\.units of type str does not fit"):
            producer.send("t", {"units": "3"})
        with pytest.raises(SerializationError, match="key of type int does not fit"):
            producer.send("t", DOLLARS, key=3)
