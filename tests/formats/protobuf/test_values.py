"""Python objects as Protobuf messages: encode_object() writes what google.protobuf writes for the same values."""

from __future__ import annotations

import enum
import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.type.money_pb2 import Money
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Protobuf
from tests.effort import effort
from tests.formats.protobuf.support import (
    OPTIONAL,
    PROTO2,
    REPEATED,
    REQUIRED,
    FieldProto,
    has_map,
    message_class,
    messages,
    new_file,
    reread,
    row_class,
    written,
)

STRING, INT32, INT64, ENUM, MESSAGE = (
    FieldProto.TYPE_STRING, FieldProto.TYPE_INT32, FieldProto.TYPE_INT64, FieldProto.TYPE_ENUM,
    FieldProto.TYPE_MESSAGE,
)  # fmt: skip
pd: Any = importlib.import_module("pandas")  # it has no types
ZONES: Any = st.none() | st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=8))])
MONEY = Protobuf(Money)
DOLLARS = {"currency_code": "USD", "units": 3}


def typed(name: str, kind: Any, type_name: str = "", label: Any = OPTIONAL, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "label": label} | ({"type_name": type_name} if type_name else {}) | more


def message_field(name: str, type_name: str, label: Any = OPTIONAL) -> dict[str, Any]:
    return typed(name, MESSAGE, f".{type_name}", label)


TIMES = row_class(
    message_field("at", "google.protobuf.Timestamp"), message_field("took", "google.protobuf.Duration"),
    message_field("day", "google.type.Date"), message_field("hour", "google.type.TimeOfDay"),
)  # fmt: skip


def colored(syntax: str, label: Any = OPTIONAL) -> Any:
    """A message with a field `color` of an enum, whose symbols are RED=0, GREEN=1 and BLUE=-1."""
    file = new_file(syntax)
    made = file.enum_type.add(name="Color")
    for number, name in enumerate(["RED", "GREEN"]):
        made.value.add(name=name, number=number)
    made.value.add(name="BLUE", number=-1)
    file.message_type.add(name="Row").field.add(
        name="color", number=1, label=label, type=ENUM, type_name=".test.rows.Color"
    )
    return message_class(file, "test.rows.Row")


def node_class() -> Any:
    """A message that uses itself: `next`, the list `more` and the map `named`."""
    file = new_file()
    made = file.message_type.add(name="Node")
    entry = made.nested_type.add(name="NamedEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=OPTIONAL, type=STRING)
    entry.field.add(name="value", number=2, label=OPTIONAL, type=MESSAGE, type_name=".test.rows.Node")
    made.field.add(name="next", number=1, label=OPTIONAL, type=MESSAGE, type_name=".test.rows.Node")
    made.field.add(name="more", number=2, label=REPEATED, type=MESSAGE, type_name=".test.rows.Node")
    made.field.add(name="named", number=3, label=REPEATED, type=MESSAGE, type_name=".test.rows.Node.NamedEntry")
    return message_class(file, "test.rows.Node")


def parts(message: Any) -> dict[str, int]:
    return {"seconds": message.seconds, "nanos": message.nanos}


def refused(made: Protobuf, value: Any) -> str:
    with pytest.raises(SerializationError) as error:
        made.encode_object(value)
    return str(error.value)


# ---- drawn messages --------------------------------------------------------------------------------------------------


@given(messages())
@settings(max_examples=effort(150), deadline=None)
def test_any_dict_object_or_message_becomes_the_bytes_that_protobuf_writes(
    drawn: tuple[Any, list[bytes], list[dict[str, Any]], pa.RecordBatch],
) -> None:
    message, written_by_protobuf, rows, batch = drawn
    made = Protobuf(message)
    assert [made.encode_object(message(**row)) for row in rows] == written_by_protobuf
    expected = [made.encode_object(row) for row in rows]
    if has_map(batch.schema):  # the package has an order of its own for the entries
        assert [reread(message, row or b"") for row in expected] == written_by_protobuf
    else:
        assert expected == written_by_protobuf
    assert [made.encode_object(MappingProxyType(row)) for row in rows] == expected
    names = [field.name for field in message.DESCRIPTOR.fields]
    cls = make_dataclass("Row", names, slots=True)
    objects = [cls(**dict.fromkeys(names) | row) for row in rows]
    assert [made.encode_object(value) for value in objects] == expected


# ---- messages that stand for a value ---------------------------------------------------------------------------------


@given(st.datetimes(timezones=ZONES, min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)))
def test_datetime_becomes_a_timestamp(value: datetime) -> None:
    made = Timestamp()
    made.FromDatetime(value)
    assert Protobuf(TIMES).encode_object({"at": value}) == written(TIMES, {"at": parts(made)})


@given(st.timedeltas(timedelta(seconds=-315_576_000_000), timedelta(seconds=315_576_000_000)))
def test_timedelta_becomes_a_duration(value: timedelta) -> None:
    made = Duration()
    made.FromTimedelta(value)
    assert Protobuf(TIMES).encode_object({"took": value}) == written(TIMES, {"took": parts(made)})


@given(st.dates(), st.times())
def test_date_and_time_become_their_messages(day: date, hour: time) -> None:
    expected = {
        "day": {"year": day.year, "month": day.month, "day": day.day},
        "hour": {
            "hours": hour.hour, "minutes": hour.minute, "seconds": hour.second, "nanos": hour.microsecond * 1000
        },
    }  # fmt: skip
    assert Protobuf(TIMES).encode_object({"day": day, "hour": hour}) == written(TIMES, expected)


@given(st.integers(-(2**62), 2**62))
def test_nanoseconds_of_pandas_are_kept(nanos: int) -> None:
    at, took = Timestamp(), Duration()
    at.FromNanoseconds(nanos)
    took.FromNanoseconds(nanos)
    row = {"at": pd.Timestamp(nanos, unit="ns"), "took": pd.Timedelta(nanos, unit="ns")}
    assert Protobuf(TIMES).encode_object(row) == written(TIMES, {"at": parts(at), "took": parts(took)})


class Parts(NamedTuple):
    seconds: int
    nanos: int


def test_message_that_stands_for_a_value_takes_its_fields_and_its_object_too() -> None:
    expected = written(TIMES, {"at": {"seconds": 5, "nanos": 7}})
    for value in ({"seconds": 5, "nanos": 7}, Timestamp(seconds=5, nanos=7), Parts(5, 7)):
        assert Protobuf(TIMES).encode_object({"at": value}) == expected


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("at", date(2026, 1, 1), "of type date does not fit Protobuf's message google.protobuf.Timestamp"),
        ("at", pd.NaT, "of type NaTType does not fit"),
        ("at", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), "is out of the range of"),
        ("took", timedelta.max, "is out of the range of"),
        ("took", timedelta(microseconds=2**64 + 5), "is out of the range of"),  # became 5 microseconds
        ("took", timedelta(microseconds=-(2**64)), "is out of the range of"),
        ("day", datetime(2026, 1, 1), "of type datetime does not fit Protobuf's message google.type.Date"),
        ("hour", time(1, tzinfo=UTC), "has a time zone, unlike"),
        ("hour", 5, "of type int does not fit"),
    ],
)
def test_other_times_are_refused(field: str, value: Any, why: str) -> None:
    text = refused(Protobuf(TIMES), {field: value})
    assert text.startswith(f"value.{field} of type {type(value).__name__}")
    assert why in text


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Int64", [0, 5, -(2**63), np.int64(7)]), ("UInt64", [0, 2**64 - 1]), ("Bool", [False, True]),
        ("String", ["", "é"]), ("Bytes", [b"", b"x"]), ("Double", [0.0, -0.0, 1.5]), ("Float", [0.0, 1.5]),
    ],
)  # fmt: skip
def test_wrapper_takes_its_value(name: str, values: list[Any]) -> None:
    made = row_class(message_field("w", f"google.protobuf.{name}Value"))
    for value in values:
        expected = written(made, {"w": {"value": value}})
        assert Protobuf(made).encode_object({"w": value}) == Protobuf(made).encode_object({"w": {"value": value}})
        assert Protobuf(made).encode_object({"w": value}) == expected
    assert Protobuf(made).encode_object({"w": None}) == b""


# ---- scalars and enums -----------------------------------------------------------------------------------------------


class Color(enum.Enum):
    GREEN = "GREEN"
    BLUE = "blue"


class Number(enum.IntEnum):
    LIME = 1


@pytest.mark.parametrize("value", ["GREEN", Color.GREEN, Number.LIME, 1, np.int8(1), np.str_("GREEN")])
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_enum_takes_symbols_numbers_and_enums(value: Any, syntax: str) -> None:
    assert Protobuf(colored(syntax)).encode_object({"color": value}) == b"\x08\x01"


def test_enum_takes_the_name_of_an_enum_and_a_number_below_zero() -> None:
    made = colored("proto3")
    for value in (Color.BLUE, "BLUE", -1):
        assert Protobuf(made).encode_object({"color": value}) == written(made, {"color": -1})


def test_only_an_open_enum_takes_another_number() -> None:
    assert Protobuf(colored("proto3")).encode_object({"color": 9}) == b"\x08\x09"
    assert "has the value 9, which is no number of Protobuf's enum test.rows.Color" in refused(
        Protobuf(colored(PROTO2)), {"color": 9}
    )
    for value, why in [("PINK", "is no symbol of"), (True, "does not fit"), (2**31, "out of the range"), (1.0, "fit")]:
        assert why in refused(Protobuf(colored("proto3")), {"color": value})


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("INT32", 2**31, "out of the range of Protobuf's int32"), ("UINT64", -1, "out of the range"),
        ("UINT64", 2**64, "out of the range"), ("INT64", 1.0, "type float does not fit Protobuf's int64"),
        ("INT64", True, "type bool does not fit"), ("SINT32", -(2**31) - 1, "out of the range"),
        ("FIXED32", -1, "out of the range"), ("FIXED64", 2**64, "out of the range"), ("BOOL", 1, "does not fit"),
        ("STRING", b"x", "type bytes does not fit Protobuf's string"), ("BYTES", "x", "does not fit"),
        ("STRING", "\ud800", "no UTF-8"), ("FLOAT", 1e39, "out of the range"), ("DOUBLE", 2**53 + 1, "without loss"),
        ("DOUBLE", "1", "does not fit"), ("FLOAT", 2**24 + 1, "without loss"),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_is_refused_with_its_path(kind: str, value: Any, why: str) -> None:
    made = Protobuf(row_class(typed("x", getattr(FieldProto, f"TYPE_{kind}"))))
    text = refused(made, {"x": value})
    assert text.startswith("value.x of type ")
    assert why in text


def test_numpy_arrays_and_scalars_are_read() -> None:
    made = row_class(typed("xs", INT64, label=REPEATED), typed("y", FieldProto.TYPE_FLOAT))
    row = {"xs": np.array([1, -2, 300]), "y": np.float32(1.5)}
    assert Protobuf(made).encode_object(row) == written(made, {"xs": [1, -2, 300], "y": 1.5})


# ---- names, classes and rules ----------------------------------------------------------------------------------------


class Named(NamedTuple):
    currency_code: str
    units: int


@dataclass
class Data:
    currency_code: str
    units: int


@attrs.define
class Attrs:
    currency_code: str
    units: int


class Slots:
    __slots__ = ("currency_code", "units")

    def __init__(self, currency_code: str, units: int) -> None:
        self.currency_code, self.units = currency_code, units


@pytest.mark.parametrize("cls", [Named, Data, Attrs, Slots])
def test_objects_with_attributes_are_messages(cls: Any) -> None:
    assert MONEY.encode_object(cls("USD", 3)) == Money(**DOLLARS).SerializeToString()


def test_class_with_a_further_field_is_refused_or_its_field_left_out() -> None:
    value = make_dataclass("Wide", ["units", "other"])(3, 4)
    assert "value has 'other', for which Protobuf's message google.type.Money has no field" in refused(MONEY, value)
    assert Protobuf(Money, extra_columns="ignore").encode_object(value) == b"\x10\x03"


@pytest.mark.parametrize("wrap", [dict, OrderedDict, MappingProxyType])
def test_name_in_json_is_taken_but_not_beside_the_name(wrap: Callable[[Any], Mapping[str, Any]]) -> None:
    for made in (MONEY, Protobuf(Money, extra_columns="ignore")):
        assert made.encode_object(wrap({"currencyCode": "USD", "units": 3})) == Money(**DOLLARS).SerializeToString()
        assert "twice" in refused(made, wrap({"currencyCode": "USD", "currency_code": "USD"}))


def test_unknown_key_is_refused_or_left_out() -> None:
    assert "value has 'unit', for which" in refused(MONEY, DOLLARS | {"unit": 1})
    ignoring = Protobuf(Money, extra_columns="ignore")
    assert ignoring.encode_object(DOLLARS | {"unit": 1}) == Money(**DOLLARS).SerializeToString()


def test_missing_field_is_not_set_or_an_error() -> None:
    assert MONEY.encode_object({}) == b""
    strict = Protobuf(Money, missing_columns="error")
    assert "value.nanos is missing, and Protobuf's message google.type.Money gets each field because of " in refused(
        strict, DOLLARS
    )
    assert strict.encode_object(DOLLARS | {"nanos": None}) == Money(**DOLLARS).SerializeToString()


def test_required_field_needs_a_value() -> None:
    made = Protobuf(row_class(typed("id", INT64, label=REQUIRED), syntax=PROTO2))
    assert made.encode_object({"id": 0}) == b"\x08\x00"
    assert "value.id is missing, and Protobuf's message test.rows.Row requires it" in refused(made, {})
    assert "value.id is None, and Protobuf's int64 has no null: give a value" in refused(made, {"id": None})


def test_two_values_in_one_oneof_are_refused_with_both_names() -> None:
    file = new_file()
    made = file.message_type.add(name="Row")
    made.oneof_decl.add(name="choice")
    for number, name in enumerate(["a", "b"], 1):
        made.field.add(name=name, number=number, label=OPTIONAL, type=INT64, oneof_index=0)
    either = Protobuf(message_class(file, "test.rows.Row"))
    assert either.encode_object({"a": None, "b": 0}) == b"\x10\x00"
    assert "value.b has a value, and so has 'a', which is of its oneof" in refused(either, {"a": 0, "b": 0})


def test_none_in_a_list_or_map_is_refused_with_its_path() -> None:
    made = Protobuf(node_class())
    assert refused(made, {"more": [{}, None]}).startswith("value.more[1] is None")
    assert refused(made, {"named": {"k": None}}).startswith("value.named['k'] is None")
    assert refused(made, {"named": {"k": {"more": [{"next": 5}]}}}).startswith("value.named['k'].more[0].next of type")


def test_sets_texts_and_dicts_are_no_lists() -> None:
    made = Protobuf(row_class(typed("xs", STRING, label=REPEATED)))
    for value in ({"a"}, "text", b"text", {"a": 1}, 5, iter("ab")):
        assert "does not fit Protobuf's repeated string" in refused(made, {"xs": value})
    assert made.encode_object({"xs": ("a", "")}) == b"\n\x01a\n\x00"
    assert made.encode_object({"xs": None}) == made.encode_object({"xs": []}) == b""


def test_keys_of_maps_have_the_type_of_the_field() -> None:
    made = Protobuf(node_class())
    assert "has a key of type int, and the keys of" in refused(made, {"named": {1: {}}})
    assert (
        made.encode_object({"named": {np.str_("b"): {}, "a": {}}}) == b"\x1a\x05\n\x01a\x12\x00\x1a\x05\n\x01b\x12\x00"
    )


@given(st.dictionaries(st.text(max_size=3), st.just({}), max_size=5), st.randoms())
def test_equal_maps_are_equal_bytes_whatever_their_order(drawn: dict[str, Any], random: Any) -> None:
    shuffled = list(drawn.items())
    random.shuffle(shuffled)
    node = node_class()
    encoded = Protobuf(node).encode_object({"named": dict(shuffled)}) or b""
    assert encoded == Protobuf(node).encode_object({"named": drawn})


# ---- messages in dicts, depth ----------------------------------------------------------------------------------------


def test_message_object_may_be_anywhere() -> None:
    node = node_class()
    inner = node(more=[node(), node()])
    expected = node(next=inner, more=[inner], named={"k": inner}).SerializeToString(deterministic=True)
    assert Protobuf(node).encode_object({"next": inner, "more": [inner], "named": {"k": inner}}) == expected
    text = refused(Protobuf(node), {"more": [inner, Money()]})
    assert text.startswith(
        "value.more[1] is a message google.type.Money, and the format writes Protobuf's message test"
    )


def chain(depth: int, link: Callable[[Any], Any]) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = link(value)
    return value


@pytest.mark.parametrize("link", [lambda v: {"next": v}, lambda v: {"more": [v]}])
def test_as_deep_as_readers_take(link: Callable[[Any], Any]) -> None:
    node = node_class()
    encoded = Protobuf(node).encode_object(chain(100, link))
    assert node.FromString(encoded).SerializeToString() == encoded
    assert "is nested deeper than 100 messages" in refused(Protobuf(node), chain(101, link))


def test_entry_of_a_map_is_a_level_too() -> None:
    node = node_class()
    encoded = Protobuf(node).encode_object(chain(50, lambda v: {"named": {"k": v}}))
    assert node.FromString(encoded).SerializeToString(deterministic=True) == encoded
    assert "nested deeper" in refused(Protobuf(node), chain(51, lambda v: {"named": {"k": v}}))


def test_object_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["more"] = [{}, value]
    assert "is nested deeper" in refused(Protobuf(node_class()), value)


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 129, 16_382, 16_383, 16_384, 16_385, 2**21, 70_000_000])
def test_lengths_of_every_size_are_those_of_protobuf(size: int) -> None:
    made = outer_class()
    value = {"inner": {"text": "x" * size}}
    assert Protobuf(made).encode_object(value) == written(made, value)


def outer_class() -> Any:
    file = new_file()
    file.message_type.add(name="Row").field.add(name="text", number=1, label=OPTIONAL, type=STRING)
    file.message_type.add(name="Outer").field.add(
        name="inner", number=2, label=OPTIONAL, type=MESSAGE, type_name=".test.rows.Row"
    )
    return message_class(file, "test.rows.Outer")


# ---- objects with code of their own ----------------------------------------------------------------------------------


def test_list_that_changes_while_it_is_read_is_refused() -> None:
    node = Protobuf(node_class())
    values: list[Any] = [None, {}]

    class Growing:
        @property
        def next(self) -> Any:
            values.append({})
            return None

    values[0] = Growing()
    assert refused(node, {"more": values}) == "value.more was changed while it was read"
    assert node.encode_object({"more": [{}]}) == b"\x12\x00"


def test_mapping_without_an_end_is_refused_or_cut() -> None:
    class Endless(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return 1

        def __iter__(self) -> Iterator[str]:
            number = 0
            while True:
                yield f"name {number}"
                number += 1

        def __len__(self) -> int:
            return 10**6

    assert "has 'name 0'" in refused(Protobuf(row_class(typed("x", INT32))), Endless())


def test_error_of_an_object_becomes_a_serialization_error_and_the_next_call_works() -> None:
    class Failing:
        @property
        def units(self) -> int:
            raise ValueError("oh")

    assert refused(MONEY, Failing()) == "value.units cannot be read: ValueError: oh"
    assert MONEY.encode_object(DOLLARS) == Money(**DOLLARS).SerializeToString()


def test_object_may_encode_with_the_same_format_while_it_is_encoded() -> None:
    class Nested:
        currency_code = "USD"

        @property
        def units(self) -> int:
            encoded = MONEY.encode_object(DOLLARS)
            assert encoded == Money(**DOLLARS).SerializeToString()
            return 3

    assert MONEY.encode_object(Nested()) == Money(**DOLLARS).SerializeToString()
