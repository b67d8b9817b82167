"""google.protobuf's Struct, Value and ListValue take dicts, lists and what is in them, as the package protobuf does."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.type.money_pb2 import Money
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Protobuf
from tests.effort import effort
from tests.formats.protobuf.support import OPTIONAL, REPEATED, FieldProto, message_class, new_file, row_class
from tests.formats.protobuf.test_values import Color, message_field, refused

STRUCT, VALUE, LIST = map(Protobuf, (Struct, Value, ListValue))
ROW = row_class(
    message_field("s", "google.protobuf.Struct"),
    message_field("v", "google.protobuf.Value"),
    message_field("l", "google.protobuf.ListValue"),
    message_field("vs", "google.protobuf.Value", REPEATED),
    message_field("ss", "google.protobuf.Struct", REPEATED),
)


def named_class() -> Any:
    """A message with a map `named` of Values."""
    file = new_file()
    made = file.message_type.add(name="Row")
    entry = made.nested_type.add(name="NamedEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=OPTIONAL, type=FieldProto.TYPE_STRING)
    kind = {"label": OPTIONAL, "type": FieldProto.TYPE_MESSAGE}
    entry.field.add(name="value", number=2, type_name=".google.protobuf.Value", **kind)
    kind["label"] = REPEATED
    made.field.add(name="named", number=1, type_name=".test.rows.Row.NamedEntry", **kind)
    return message_class(file, "test.rows.Row")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
ANY: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=3), ANY, max_size=4), st.lists(ANY, max_size=4), ANY)
@settings(max_examples=effort(300), deadline=None)
def test_any_value_of_json_becomes_the_message_that_protobuf_makes_of_it(
    struct: dict[str, Any], values: list[Any], value: Any
) -> None:
    assert Struct.FromString(STRUCT.encode_object(struct) or b"") == json_format.ParseDict(struct, Struct())
    assert ListValue.FromString(LIST.encode_object(values) or b"") == json_format.ParseDict(values, ListValue())
    if value is not None:
        assert Value.FromString(VALUE.encode_object(value) or b"") == json_format.ParseDict(value, Value())
    row = {"s": struct, "v": value, "l": values, "vs": values, "ss": [struct, {}]}
    expected = json_format.ParseDict({key: item for key, item in row.items() if item is not None}, ROW())
    encoded = Protobuf(ROW).encode_object(row) or b""
    assert ROW.FromString(encoded) == expected
    assert len(encoded) == expected.ByteSize()
    assert Protobuf(ROW).encode_object(MappingProxyType(row)) == encoded


def test_bytes_are_those_of_protobuf() -> None:
    for value in (None, False, True, 0, -0.0, 1.5, "", "é", [], {}, [None], {"": None}, {"a": {"b": [1, "x"]}}):
        assert STRUCT.encode_object({"k": value}) == json_format.ParseDict({"k": value}, Struct()).SerializeToString()
        assert LIST.encode_object([value]) == json_format.ParseDict([value], ListValue()).SerializeToString()


@pytest.mark.parametrize("real", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_taken_as_by_an_assignment_of_protobuf(real: float) -> None:
    expected = Struct()
    expected.update({"a": real})
    assert STRUCT.encode_object({"a": real}) == expected.SerializeToString()


@pytest.mark.parametrize(
    ("value", "twin"),
    [
        (np.int64(7), 7), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.str_("x"), "x"),
        (np.array([1.0, 2.0]), [1, 2]), ((1, "a"), [1, "a"]), (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}), (Color.BLUE, "blue"), (Value(bool_value=False), False),
        (Value(), None), (Struct(), {}), (ListValue(), []), ({"fields": {"a": 1}}, {"fields": {"a": 1}}),
    ],
)  # fmt: skip
def test_twin_of_a_value_of_json_is_taken(value: Any, twin: Any) -> None:
    if isinstance(value, Value) and not value.HasField("kind"):
        assert STRUCT.encode_object({"k": value}) == b"\n\x05\n\x01k\x12\0"  # as the message is
        return
    expected = json_format.ParseDict({"k": twin}, Struct()).SerializeToString()
    assert STRUCT.encode_object({"k": value}) == expected


def test_message_of_protobuf_is_written_as_it_is() -> None:
    struct = json_format.ParseDict({"a": [1, None]}, Struct())
    expected = struct.SerializeToString()
    assert STRUCT.encode_object(struct) == STRUCT.encode_object({"a": [1, None]}) == expected
    assert Protobuf(ROW).encode_object({"s": struct}) == ROW(s=struct).SerializeToString()
    value = Value(string_value="x")
    assert VALUE.encode_object(value) == VALUE.encode_object("x") == value.SerializeToString()


def test_none_is_null_in_a_list_or_a_map_and_not_set_as_a_field() -> None:
    assert Protobuf(ROW).encode_object({"v": None, "s": None}) == b""
    assert Protobuf(ROW).encode_object({"vs": [None]}) == b"\x22\x02\x08\0"
    named = named_class()
    encoded = Protobuf(named).encode_object({"named": {"a": None, "b": [1]}}) or b""
    assert json_format.MessageToDict(named.FromString(encoded)) == {"named": {"a": None, "b": [1.0]}}


@dataclass
class Leg:
    minutes: int


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": {1: 2}}, "value['a'] has a key of type int, and the keys of "),
        ({None: 2}, "value has a key of type NoneType"),
        (
            {"a": [{"b": b"x"}]},
            "value['a'][0]['b'] of type bytes does not fit Protobuf's message google.protobuf.Value",
        ),
        ({"a": 2**53 + 1}, "value['a'] of type int has the value 9007199254740993, which cannot be held without loss"),
        ({"a": 10**400}, "value['a'] of type int has the value 1000"),
        ({"a": {1, 2}}, "value['a'] of type set does not fit"),
        ({"a": Decimal(1)}, "value['a'] of type Decimal does not fit"),
        ({"a": Leg(1)}, "value['a'] of type Leg does not fit"),
        ({"a": Money()}, "value['a'] of type Money does not fit"),
        ({"a": "\ud800"}, "has no UTF-8 encoding"),
        ({"a\ud800": 1}, "no UTF-8"),
        ([], "value of type list does not fit Protobuf's message google.protobuf.Struct"),
        (Leg(1), "value of type Leg does not fit Protobuf's message google.protobuf.Struct"),
        (Value(), "value of type Value does not fit Protobuf's message google.protobuf.Struct"),
    ],
)
def test_what_is_no_value_of_json_is_refused_by_its_path(value: Any, why: str) -> None:
    text = refused(STRUCT, value)
    assert why in text


def test_list_value_takes_no_dict_and_no_text() -> None:
    values: list[Any] = [{}, "abc", 5]
    for value in values:
        assert "does not fit Protobuf's message google.protobuf.ListValue" in refused(LIST, value)


def in_dict(value: Any) -> Any:
    return {"x": value}


def in_list(value: Any) -> Any:
    return [value]


@pytest.mark.parametrize(("made", "message", "wrap"), [(STRUCT, Struct, in_dict), (LIST, ListValue, in_list)])
def test_values_are_nested_as_deep_as_protobuf_reads(made: Protobuf, message: Any, wrap: Callable[[Any], Any]) -> None:
    value: Any = wrap(None)
    for _ in range(30):
        encoded = made.encode_object(value) or b""
        assert message.FromString(encoded).SerializeToString() == encoded
        value = wrap(value)
    for _ in range(30):
        value = wrap(value)
    assert "is nested deeper than 100 messages, which no reader takes" in refused(made, value)


def test_value_that_contains_itself_is_refused() -> None:
    struct: dict[str, Any] = {}
    struct["a"] = [struct]
    assert "is nested deeper than 100 messages" in refused(STRUCT, struct)


def test_column_makes_a_struct_of_its_fields_alone() -> None:
    for column in (pa.array([{"a": 1}]), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.array(["{}"])):
        for extra in ("error", "ignore"):
            with pytest.raises(SerializationError, match=r"google\.protobuf\.Struct.*send objects"):
                Protobuf(ROW, extra_columns=extra).encode(pa.table({"s": column}))
    entry = pa.map_(pa.string(), pa.struct([("number_value", pa.float64()), ("bool_value", pa.bool_())]))
    column = pa.array([{"fields": [("a", {"number_value": 1.0})]}], pa.struct([("fields", entry)]))
    assert Protobuf(ROW).encode(pa.table({"s": column})) == [Protobuf(ROW).encode_object({"s": {"a": 1}})]
