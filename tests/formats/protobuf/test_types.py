"""Which Arrow types become which Protobuf types, which values a row may have, and what the refusals say."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Protobuf
from tests.formats.protobuf.support import (
    EDITIONS,
    OPTIONAL,
    PROTO2,
    PROTO3,
    REPEATED,
    REQUIRED,
    FieldProto,
    MessageProto,
    message_class,
    new_file,
    reread,
    row_class,
    written,
)

INT32, INT64, UINT64, STRING = (
    {"type": FieldProto.TYPE_INT32},
    {"type": FieldProto.TYPE_INT64},
    {"type": FieldProto.TYPE_UINT64},
    {"type": FieldProto.TYPE_STRING},
)
COLOUR = {"type": FieldProto.TYPE_ENUM, "type_name": "Colour"}
COLOURS = {
    "name": "Colour",
    "value": [{"name": "RED", "number": 0}, {"name": "ROSE", "number": -7}, {"name": "BLUE", "number": 300}],
}
ROW = {"type": FieldProto.TYPE_MESSAGE, "type_name": ".test.rows.Row"}


def well_known(name: str) -> dict[str, Any]:
    return {"type": FieldProto.TYPE_MESSAGE, "type_name": f".google.{name}"}


def row(kind: dict[str, Any], syntax: str = PROTO3, **more: Any) -> Any:
    """A message of the field `c` alone."""
    enums = [COLOURS] if kind.get("type_name") == "Colour" else []
    return row_class({"name": "c", **kind}, syntax=syntax, enum_type=enums, **more)


def one(column: pa.Array, message: Any) -> list[bytes | None]:
    return Protobuf(message).encode(pa.table({"c": column}))


# ---- presence --------------------------------------------------------------------------------------------------------

ZEROS: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "int32": (pa.array([0]), INT32), "uint64": (pa.array([0], pa.uint64()), UINT64),
    "sfixed32": (pa.array([0]), {"type": FieldProto.TYPE_SFIXED32}),
    "double": (pa.array([0.0]), {"type": FieldProto.TYPE_DOUBLE}),
    "bool": (pa.array([False]), {"type": FieldProto.TYPE_BOOL}), "string": (pa.array([""]), STRING),
    "bytes": (pa.array([b""]), {"type": FieldProto.TYPE_BYTES}),
    "enum by name": (pa.array(["RED"]), COLOUR), "enum by number": (pa.array([0]), COLOUR),
}  # fmt: skip


@pytest.mark.parametrize("name", ZEROS)
def test_zero_is_written_only_with_presence(name: str) -> None:
    column, kind = ZEROS[name]
    assert one(column, row(kind)) == [b""]
    # In proto2, a closed enum's numbers are looked up.
    for syntax in (PROTO2, EDITIONS):
        (encoded,) = one(column, row(kind, syntax))
        assert encoded is not None
        assert row(kind, syntax).FromString(encoded).HasField("c")
        assert encoded == reread(row(kind, syntax), encoded)
    assert one(pa.nulls(1, column.type), row(kind, PROTO2)) == [b""]


def test_negative_zero_is_written() -> None:
    for kind, arrow in ((FieldProto.TYPE_DOUBLE, pa.float64()), (FieldProto.TYPE_FLOAT, pa.float32())):
        message = row({"type": kind})
        assert one(pa.array([-0.0, 0.0], arrow), message) == [written(message, {"c": -0.0}), b""]


def test_null_and_empty_lists_and_maps_are_not_set() -> None:
    assert one(pa.array([None, []], pa.list_(pa.int32())), row(INT32 | {"label": REPEATED})) == [b"", b""]
    assert one(pa.array([None, []], pa.map_(pa.int32(), pa.int32())), with_map(INT32)) == [b"", b""]
    for syntax in (PROTO2, PROTO3):
        assert one(pa.nulls(1), row(INT32, syntax)) == [b""]


def test_lists_of_nulls_are_empty() -> None:
    message = row(INT32 | {"label": REPEATED})
    assert one(pa.array([[], None]), message) == [b"", b""]
    with pytest.raises(SerializationError, match=r"row 0: column 'c\[\]' of type null is null"):
        one(pa.array([[None]]), message)


# ---- messages --------------------------------------------------------------------------------------------------------


def with_map(value: dict[str, Any]) -> Any:
    entry = MessageProto(name="CEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, label=OPTIONAL, **INT32)
    entry.field.add(name="value", number=2, label=OPTIONAL, **value)
    return row(
        {"type": FieldProto.TYPE_MESSAGE, "type_name": ".test.rows.Row.CEntry", "label": REPEATED}, nested_type=[entry]
    )


def test_map_of_messages_is_read_as_it_was() -> None:
    message = with_map(well_known("protobuf.Timestamp"))
    column = pa.array([[(5, 0), (0, 1500)]], pa.map_(pa.int32(), pa.timestamp("ms")))
    read = message.FromString(one(column, message)[0]).c
    assert {key: (value.seconds, value.nanos) for key, value in read.items()} == {5: (0, 0), 0: (1, 500_000_000)}


def test_entries_of_maps_have_the_columns_order_and_both_parts() -> None:
    column = pa.array([[(2, 0), (0, 1)]], pa.map_(pa.int32(), pa.int32()))
    assert one(column, with_map(INT32)) == [b"\x0a\4\x08\2\x10\0" + b"\x0a\4\x08\0\x10\1"]


def test_map_of_many_entries_is_read_as_it_was() -> None:
    """No entry reserves bytes for a text, so that the map itself must."""
    pairs = [(number * 1_000_003 % 2**31, -number) for number in range(20_000)]
    (encoded,) = one(pa.array([pairs], pa.map_(pa.int32(), pa.int32())), with_map(INT32))
    assert dict(with_map(INT32).FromString(encoded).c) == dict(pairs)


def test_recursive_message_ends_where_the_columns_end() -> None:
    message = row_class({"name": "v", **INT32}, {"name": "next", **ROW}, {"name": "all", **ROW, "label": REPEATED})
    leaf = pa.struct([("v", pa.int32())])
    schema = pa.schema([("v", pa.int32()), ("next", pa.struct([("v", pa.int32()), ("next", leaf)])),
                        ("all", pa.list_(leaf))])  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"v": 1, "next": {"v": 2, "next": {"v": 3}}, "all": [{"v": 5}, {}]},
        {"v": 4, "next": None, "all": None},
    ]
    encoded = Protobuf(message).encode(pa.Table.from_pylist(rows, schema))
    assert encoded == [written(message, rows[0]), written(message, {"v": 4})]


@pytest.mark.parametrize("size", [0, 1, 120, 121, 122, 123, 124, 125, 126, 127, 128, 16_370, 16_383, 16_384, 3_000_000])
def test_length_of_any_size_comes_before_nested_messages(size: int) -> None:
    message = row_class({"name": "s", **STRING}, {"name": "next", **ROW}, {"name": "after", **STRING})
    value = {"next": {"next": {"s": "x" * size}, "after": "y"}, "after": "z"}
    schema = pa.schema([
        ("next", pa.struct([("next", pa.struct([("s", pa.string())])), ("after", pa.string())])),
        ("after", pa.string()),
    ])  # fmt: skip
    assert Protobuf(message).encode(pa.Table.from_pylist([value], schema)) == [written(message, value)]


@pytest.mark.parametrize("count", [1, 127, 128, 20_000])
def test_length_of_any_size_comes_before_packed_numbers(count: int) -> None:
    for kind in (INT64, {"type": FieldProto.TYPE_SINT64}, {"type": FieldProto.TYPE_FIXED64}):
        message = row(kind | {"label": REPEATED})
        values = list(range(count))
        assert one(pa.array([values]), message) == [written(message, {"c": values})]


PACKED: list[tuple[int, pa.DataType, list[Any]]] = [
    (FieldProto.TYPE_DOUBLE, pa.float64(), [-0.0, 0.5, 1e300]), (FieldProto.TYPE_FLOAT, pa.float32(), [-0.0, 0.5, 1.0]),
    (FieldProto.TYPE_DOUBLE, pa.float32(), [-0.0, 0.5, 1.0]), (FieldProto.TYPE_FIXED64, pa.uint64(), [0, 1, 2**64 - 1]),
    (FieldProto.TYPE_SFIXED64, pa.int64(), [0, -1, 2**63 - 1]), (FieldProto.TYPE_FIXED64, pa.int64(), [0, 1, 5]),
    (FieldProto.TYPE_FIXED32, pa.uint32(), [0, 1, 2**32 - 1]), (FieldProto.TYPE_SFIXED32, pa.int32(), [0, -1, 5]),
    (FieldProto.TYPE_FIXED32, pa.int32(), [0, 1, 5]), (FieldProto.TYPE_FIXED32, pa.uint64(), [0, 1, 5]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "arrow", "values"), PACKED)
def test_packed_numbers_of_equal_and_other_width_are_written(kind: int, arrow: pa.DataType, values: list[Any]) -> None:
    """Equal ones are copied, also where the items begin at an offset; a dictionary's, and nulls, are not."""
    message = row({"type": kind, "label": REPEATED})
    lists = [values, [], values[1:], values * 50]
    expected = [written(message, {"c": value}) for value in lists]
    column = pa.array(lists, pa.list_(arrow))
    assert one(column, message) == expected
    assert one(column[2:], message) == expected[2:]
    items = pa.array([*values[:1], *values], arrow)[1:]
    assert one(pa.FixedSizeListArray.from_arrays(items, 3), message) == expected[:1]
    indices = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2, 1], pa.int8()), items)
    encoded = pa.ListArray.from_arrays(pa.array([0, 4], pa.int32()), indices)
    assert one(encoded, message) == [written(message, {"c": [values[2], values[0], values[2], values[1]]})]
    with pytest.raises(SerializationError, match=r"'c\[\]' of type .* is null"):
        one(pa.array([[*values, None]], pa.list_(arrow)), message)


def test_packed_number_outside_of_the_range_is_refused() -> None:
    for kind, arrow in ((FieldProto.TYPE_FIXED64, pa.int64()), (FieldProto.TYPE_FIXED32, pa.int32())):
        with pytest.raises(SerializationError, match=r"'c\[\]' of type int\d\d has the value -1, which is out of"):
            one(pa.array([[5, -1]], pa.list_(arrow)), row({"type": kind, "label": REPEATED}))


def test_columns_are_found_by_either_name_and_written_in_the_order_of_numbers() -> None:
    message = row_class(
        {"name": "last_name", "number": 300, **STRING}, {"name": "id", "number": 2, **INT32},
        {"name": "code", "json_name": "own", "number": 1, **INT32},
    )  # fmt: skip
    expected = [written(message, {"last_name": "x", "id": 7, "code": 9})]
    for last_name, code in (("last_name", "code"), ("lastName", "own")):
        assert Protobuf(message).encode(pa.table({last_name: ["x"], "id": [7], code: [9]})) == expected
    with pytest.raises(SerializationError, match="the columns 'last_name' and 'lastName' are both the field last_name"):
        Protobuf(message).encode(pa.table({"last_name": ["x"], "lastName": ["y"]}))
    with pytest.raises(SerializationError, match="the columns 'id' and 'id' are both the field id"):
        Protobuf(message).encode(pa.table([[1], [2]], names=["id", "id"]))


def test_struct_column_of_a_dictionary_is_followed() -> None:
    message = row_class({"name": "v", **INT32}, {"name": "next", **ROW})
    values = pa.array([{"v": 5}, {"v": 6}, None], pa.struct([("v", pa.int32())]))
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, 2, None], pa.int8()), values)
    rows: list[dict[str, Any]] = [{"next": {"v": 6}}, {"next": {"v": 5}}, {}, {}]
    expected = [written(message, row) for row in rows]
    assert Protobuf(message).encode(pa.table({"next": column})) == expected


# ---- oneofs ----------------------------------------------------------------------------------------------------------


def choice(*kinds: dict[str, Any]) -> Any:
    fields = [{"name": f"c{number}", "oneof_index": 0, **kind} for number, kind in enumerate(kinds)]
    return row_class(*fields, {"name": "next", **ROW}, oneof_decl=[{"name": "choice"}])


def test_oneof_takes_the_only_column_with_a_value() -> None:
    message = choice(INT32, STRING, well_known("protobuf.Int32Value"))
    table = pa.table({
        "c0": pa.array([0, None, None, None]), "c1": pa.array([None, "", None, None]),
        "c2": pa.array([None, None, 0, None]),
    })  # fmt: skip
    rows: list[dict[str, Any]] = [{"c0": 0}, {"c1": ""}, {"c2": {"value": 0}}, {}]
    assert Protobuf(message).encode(table) == [written(message, row) for row in rows]
    assert Protobuf(message).encode(table.select(["c1"])) == [b"", b"\x12\0", b"", b""]


@pytest.mark.parametrize(("first", "second"), [("c0", "c1"), ("c0", "c2"), ("c1", "c2")])
def test_two_values_of_a_oneof_are_an_error_that_names_both(first: str, second: str) -> None:
    message = choice(INT32, STRING, well_known("protobuf.Int32Value"))
    values: dict[str, list[Any]] = {"c0": [0, 1], "c1": ["", "x"], "c2": [0, 5]}
    kinds = {"c0": pa.int64(), "c1": pa.string(), "c2": pa.int64()}
    columns = {
        name: pa.array([None, values[name][1]] if name in (first, second) else [None, None], kinds[name])
        for name in values
    }
    expected = rf"row 1: columns '{first}' of type \w+ and '{second}' of type \w+ both have a value"
    with pytest.raises(SerializationError, match=expected):
        Protobuf(message).encode(pa.table(columns))
    nested = pa.table({"next": pa.StructArray.from_arrays(list(columns.values()), list(columns))})
    with pytest.raises(SerializationError, match=f"columns 'next.{first}' .* and 'next.{second}' "):
        Protobuf(message).encode(nested)


def test_two_oneofs_of_a_message_are_apart() -> None:
    message = row_class(
        {"name": "a", "oneof_index": 0, **INT32}, {"name": "b", "oneof_index": 1, **INT32},
        {"name": "c", "oneof_index": 0, **INT32}, {"name": "d", "oneof_index": 1, **INT32},
        oneof_decl=[{"name": "first"}, {"name": "second"}],
    )  # fmt: skip
    apart = {"a": [1, None], "b": [2, None], "c": [None, 3], "d": [None, 4]}
    expected = [written(message, {"a": 1, "b": 2}), written(message, {"c": 3, "d": 4})]
    assert Protobuf(message).encode(pa.table(apart)) == expected
    for first, second in (("a", "c"), ("b", "d")):
        with pytest.raises(
            SerializationError, match=f"row 0: columns '{first}' .* and '{second}' .* both have a value"
        ):
            Protobuf(message).encode(pa.table(apart | {second: [5, None]}))


# ---- messages of google.protobuf and google.type ---------------------------------------------------------------------

VALUES: dict[str, tuple[pa.Array, str, dict[str, int]]] = {
    "first second": (pa.array([-62_135_596_800], pa.timestamp("s")), "Timestamp", {"seconds": -62_135_596_800}),
    "last second": (pa.array([253_402_300_799], pa.timestamp("s")), "Timestamp", {"seconds": 253_402_300_799}),
    "before 1970": (pa.array([-1], pa.timestamp("ns")), "Timestamp", {"seconds": -1, "nanos": 999_999_999}),
    "first nanosecond": (
        pa.array([-(2**63)], pa.timestamp("ns")), "Timestamp", {"seconds": -9_223_372_037, "nanos": 145_224_192},
    ),
    "negative duration": (pa.array([-1_500], pa.duration("ms")), "Duration", {"seconds": -1, "nanos": -500_000_000}),
    "longest duration": (pa.array([315_576_000_000], pa.duration("s")), "Duration", {"seconds": 315_576_000_000}),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_time_becomes_seconds_and_nanos(name: str) -> None:
    column, kind, parts = VALUES[name]
    message = row(well_known(f"protobuf.{kind}"))
    assert one(column, message) == [written(message, {"c": parts})]


def test_days_of_leap_and_other_years_become_dates() -> None:
    spans = [(1, 1, 1), (1899, 12, 1), (1970, 1, 1), (1999, 12, 1), (2100, 1, 1), (9998, 10, 1)]
    days = [datetime.date(*first) + datetime.timedelta(days=day) for first in spans for day in range(450)]
    message = row(well_known("type.Date"))
    expected = [written(message, {"c": {"year": day.year, "month": day.month, "day": day.day}}) for day in days]
    for kind in (pa.date32(), pa.date64()):
        assert one(pa.array([*days, datetime.date(9999, 12, 31)], kind), message) == [
            *expected, written(message, {"c": {"year": 9999, "month": 12, "day": 31}}),
        ]  # fmt: skip


def test_times_of_a_day_become_hours_minutes_seconds_and_nanos() -> None:
    message = row(well_known("type.TimeOfDay"))
    seconds = [0, 1, 59, 60, 61, 3_599, 3_600, 3_661, 43_199, 86_399]
    parts = [{"hours": n // 3600, "minutes": n % 3600 // 60, "seconds": n % 60} for n in seconds]
    for kind, factor in (
        (pa.time32("s"), 1),
        (pa.time32("ms"), 10**3),
        (pa.time64("us"), 10**6),
        (pa.time64("ns"), 10**9),
    ):
        column = pa.array([n * factor + factor // 2 for n in seconds], kind)
        nanos = 500_000_000 if factor > 1 else 0
        assert one(column, message) == [written(message, {"c": part | {"nanos": nanos}}) for part in parts]


def test_struct_becomes_a_message_of_google_too() -> None:
    message = row(well_known("protobuf.Timestamp"))
    assert one(pa.array([{"seconds": 5, "nanos": 7}]), message) == [written(message, {"c": {"seconds": 5, "nanos": 7}})]
    message = row(well_known("protobuf.Int64Value"))
    rows: list[dict[str, Any]] = [{"c": {"value": 5}}, {"c": {}}, {}]
    assert one(pa.array([{"value": 5}, {"value": 0}, None]), message) == [written(message, row) for row in rows]


def test_repeated_wrappers_and_times_are_written() -> None:
    message = row(well_known("protobuf.StringValue") | {"label": REPEATED})
    assert one(pa.array([["", "x"]]), message) == [written(message, {"c": [{}, {"value": "x"}]})]
    with pytest.raises(SerializationError, match=r"row 0: column 'c\[\]' of type string is null"):
        one(pa.array([["", None]]), message)
    message = row(well_known("protobuf.Timestamp") | {"label": REPEATED})
    assert one(pa.array([[0, 1]], pa.list_(pa.timestamp("s"))), message) == [
        written(message, {"c": [{}, {"seconds": 1}]})
    ]


# ---- enums -----------------------------------------------------------------------------------------------------------


def test_symbols_and_numbers_become_enums() -> None:
    names = pa.array(["RED", "ROSE", "BLUE", None])
    for syntax in (PROTO2, PROTO3, EDITIONS):
        message = row(COLOUR, syntax)
        expected = [written(message, found) for found in ({"c": 0}, {"c": -7}, {"c": 300}, {})]
        for column in (names, names.dictionary_encode(), pa.array([0, -7, 300, None], pa.int16())):
            assert one(column, message) == expected
    assert one(pa.array([5]), row(COLOUR)) == [written(row(COLOUR), {"c": 5})]


def test_every_number_of_a_closed_enum_is_found() -> None:
    numbers = [*range(30), -5, -1, 31, 2**31 - 1, -(2**31)]
    symbols = [{"name": f"C{place}", "number": number} for place, number in enumerate(numbers)]
    enum = {"name": "Colour", "value": symbols}
    message = row_class({"name": "c", **COLOUR}, syntax=PROTO2, enum_type=[enum])
    assert one(pa.array(numbers), message) == [written(message, {"c": number}) for number in numbers]
    for number in (30, 32, -2, -6):
        with pytest.raises(SerializationError, match="no symbol"):
            one(pa.array([number]), message)


@pytest.mark.parametrize("syntax", [PROTO2, PROTO3])
def test_packed_enums_are_found_by_name_and_number(syntax: str) -> None:
    message = row(COLOUR | {"label": REPEATED, "options": {"packed": True}}, syntax)
    expected = [written(message, {"c": [0, 300, -7, 0]}), b""]
    assert one(pa.array([["RED", "BLUE", "ROSE", "RED"], []]), message) == expected
    for kind in (pa.int16(), pa.int32(), pa.int64()):
        assert one(pa.array([[0, 300, -7, 0], []], pa.list_(kind)), message) == expected


def test_names_that_share_a_number_are_both_symbols() -> None:
    colours = COLOURS | {"value": [{"name": "RED", "number": 0}, {"name": "ROUGE", "number": 0}]}
    message = row_class({"name": "c", **COLOUR}, enum_type=[colours | {"options": {"allow_alias": True}}])
    assert one(pa.array(["RED", "ROUGE"]), message) == [b"", b""]


# ---- what is refused -------------------------------------------------------------------------------------------------

MISFITS: list[tuple[pa.DataType, dict[str, Any], str]] = [
    (pa.string(), INT64, "column 'c' has the type string, which does not fit Protobuf's int64: cast"),
    (pa.float64(), {"type": FieldProto.TYPE_FLOAT}, "type double, which does not fit Protobuf's float"),
    (pa.int64(), {"type": FieldProto.TYPE_DOUBLE}, "type int64, which does not fit Protobuf's double"),
    (pa.uint32(), {"type": FieldProto.TYPE_FLOAT}, "does not fit Protobuf's float"),
    (pa.int8(), {"type": FieldProto.TYPE_BOOL}, "does not fit Protobuf's bool"),
    (pa.bool_(), INT32, "type bool, which does not fit Protobuf's int32"),
    (pa.binary(4), STRING, r"type fixed_size_binary\[4\], which does not fit Protobuf's string"),
    (pa.timestamp("us"), INT64, "cast the column to int64, or use a message such as google.protobuf.Timestamp"),
    (pa.date32(), well_known("protobuf.Timestamp"), "does not fit Protobuf's message google.protobuf.Timestamp"),
    (pa.time32("s"), well_known("protobuf.Duration"), r"type time\[s\], which does not fit Protobuf's message"),
    (pa.decimal128(9, 2), STRING, r"type decimal128\(9, 2\)"),
    (pa.float64(), COLOUR, "does not fit Protobuf's enum test.rows.Row.Colour"),
    (pa.int64(), ROW, "message test.rows.Row: give a struct"),
    (pa.int64(), INT64 | {"label": REPEATED}, "type int64, which does not fit Protobuf's repeated int64: give a list"),
    (pa.list_(pa.int64()), INT64, "type list, which does not fit Protobuf's int64"),
    (pa.list_(pa.string()), INT64 | {"label": REPEATED}, r"column 'c\[\]' has the type string"),
    (pa.list_(pa.list_(pa.int64())), INT64 | {"label": REPEATED}, r"column 'c\[\]' has the type list"),
    (pa.struct([("c", pa.string())]), ROW | {"label": REPEATED}, "give a list"),
    (pa.list_view(pa.string()), INT64 | {"label": REPEATED}, "type string"),
    (pa.list_(pa.struct([("key", pa.int32()), ("value", pa.int32())])), {"map": INT32}, "give a map"),
    (pa.map_(pa.string(), pa.int32()), {"map": INT32}, r"column 'c\{key\}' has the type string"),
    (pa.map_(pa.int32(), pa.string()), {"map": INT32}, r"column 'c\{\}' has the type string"),
    (pa.map_(pa.int32(), pa.int32()), INT32, "type map, which does not fit Protobuf's int32"),
    (pa.string(), well_known("protobuf.Int64Value"), "type string, which does not fit Protobuf's int64"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "message"), MISFITS, ids=[f"{kind}-{field}" for kind, field, _ in MISFITS])
def test_column_that_does_not_fit_is_refused_without_rows(kind: pa.DataType, field: Any, message: str) -> None:
    declared = with_map(field["map"]) if "map" in field else row(field)
    with pytest.raises(SerializationError, match=message):
        Protobuf(declared).encode(pa.record_batch({"c": pa.nulls(0, kind)}))


@pytest.mark.parametrize("syntax", [PROTO2, EDITIONS])
def test_group_is_refused_where_it_has_a_column(syntax: str) -> None:
    file = new_file(syntax)
    made = file.message_type.add(name="Row")
    made.nested_type.add(name="Inner").field.add(name="v", number=1, label=OPTIONAL, **INT32)
    field = made.field.add(name="inner", number=1, label=OPTIONAL, type_name=".test.rows.Row.Inner")
    field.type = FieldProto.TYPE_GROUP if syntax == PROTO2 else FieldProto.TYPE_MESSAGE
    if syntax == EDITIONS:
        field.options.features.message_encoding = 2  # DELIMITED
    made.field.add(name="c", number=2, label=OPTIONAL, **INT32)
    message = message_class(file, "test.rows.Row")
    assert one(pa.array([1]), message) == [written(message, {"c": 1})]
    if syntax == EDITIONS:
        for kind, value in ((pa.timestamp("s"), "Timestamp"), (pa.int64(), "Int64Value")):
            delimited = {"options": {"features": {"message_encoding": "DELIMITED"}}}
            with pytest.raises(SerializationError, match="groups are not supported"):
                one(pa.array([1], kind), row(well_known(f"protobuf.{value}") | delimited, EDITIONS))
    with pytest.raises(SerializationError, match=r"column 'inner' .*: groups are not supported"):
        Protobuf(message).encode(pa.table({"inner": pa.array([{"v": 1}])}))


def test_required_field_needs_a_column_with_values() -> None:
    for message in (
        row(INT64 | {"label": REQUIRED}, PROTO2),
        row(INT64 | {"options": {"features": {"field_presence": "LEGACY_REQUIRED"}}}, EDITIONS),
    ):
        assert one(pa.array([0]), message) == [b"\x08\0"]
        with pytest.raises(SerializationError, match=r"no column 'c', and message test\.rows\.Row requires the field"):
            Protobuf(message, extra_columns="ignore").encode(pa.table({"d": [1]}))
        expected = "row 1: column 'c' of type int64 is null, and Protobuf's int64 cannot be absent"
        for column in (pa.array([1, None]), pa.array([1, None]).dictionary_encode()):
            with pytest.raises(SerializationError, match=expected.replace("type int64", "type .*")):
                one(column, message)
        with pytest.raises(SerializationError, match="row 0: column 'c' of type null is null"):
            one(pa.nulls(1), message)
    message = row(well_known("protobuf.Int64Value") | {"label": REQUIRED}, PROTO2)
    with pytest.raises(SerializationError, match="row 1: column 'c' of type int64 is null"):
        one(pa.array([1, None]), message)


FAULTS: dict[str, tuple[pa.Array, Any, str]] = {
    "int32": (pa.array([1, 2**31]), INT32, "type int64 has the value 2147483648, which is out of the range of .*int32"),
    "below int32": (pa.array([1, -(2**31) - 1]), INT32, "out of the range"),
    "int64": (pa.array([1, 2**63], pa.uint64()), INT64, "value 9223372036854775808, which is out of the range"),
    "uint32": (pa.array([1, -1]), {"type": FieldProto.TYPE_UINT32}, "value -1, which is out of the range"),
    "uint64": (pa.array([1, -1]), UINT64, "value -1, which is out of the range of Protobuf's uint64"),
    "fixed32": (pa.array([1, 2**32]), {"type": FieldProto.TYPE_FIXED32}, "out of the range"),
    "symbol": (pa.array(["RED", "PINK"]), COLOUR, "value b'PINK', which is no symbol of Protobuf's enum"),
    "enum's number": (pa.array([0, 2**31]), COLOUR, "out of the range of Protobuf's enum"),
    "UTF-8": (pa.array([b"a", b"\xff"]), STRING, r"value b'\\xff', which is not UTF-8, as Protobuf's string requires"),
    "after the last second": (
        pa.array([0, 253_402_300_800], pa.timestamp("s")), well_known("protobuf.Timestamp"), "out of the range",
    ),
    "before the first second": (
        pa.array([0, -62_135_596_800_001], pa.timestamp("ms")), well_known("protobuf.Timestamp"), "out of the range",
    ),
    "duration": (pa.array([0, 315_576_000_001], pa.duration("s")), well_known("protobuf.Duration"), "out of the range"),
    "day": (pa.array([0, 2_932_897], pa.date32()), well_known("type.Date"), "out of the range"),
    "day before the first": (pa.array([0, -719_163], pa.date32()), well_known("type.Date"), "out of the range"),
    "part of a day": (
        pa.array([0, 1], pa.int64()).cast(pa.date64(), safe=False), well_known("type.Date"), "without loss",
    ),
    "time of day": (
        pa.array([0, 86_400_000], pa.int32()).view(pa.time32("ms")), well_known("type.TimeOfDay"), "out of the range",
    ),
    "item": (pa.array([[1], [2, None]]), INT64 | {"label": REPEATED}, r"column 'c\[\]' of type int64 is null"),
    "wrapped": (pa.array([1, 2**31]), well_known("protobuf.Int32Value"), "out of the range of Protobuf's int32"),
    "value of a map": (
        pa.array([[], [(1, None)]], pa.map_(pa.int32(), pa.int32())), {"map": INT32}, r"column 'c\{\}' .*is null",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_value_that_does_not_fit_is_an_error_of_its_row(name: str) -> None:
    column, field, message = FAULTS[name]
    declared = with_map(field["map"]) if "map" in field else row(field)
    assert len(one(column[:1], declared)) == 1
    with pytest.raises(SerializationError, match=message) as raised:
        one(column, declared)
    assert str(raised.value).startswith("row 1: column 'c")


def test_number_that_no_symbol_has_is_refused_in_a_closed_enum() -> None:
    with pytest.raises(SerializationError, match=r"row 1: .*value 5, which is no symbol of Protobuf's enum"):
        one(pa.array([300, 5]), row(COLOUR, PROTO2))


def test_extra_and_missing_columns_are_refused_or_left_out() -> None:
    message = row_class({"name": "a", **INT32}, {"name": "next", **ROW})
    extra = pa.table({"a": [1], "next": pa.array([{"a": 2, "b": 3}]), "c": [5]})
    with pytest.raises(SerializationError, match=r"message test.rows.Row has no field for 'next\.b': drop"):
        Protobuf(message).encode(extra.select(["a", "next"]))
    with pytest.raises(SerializationError, match="has no field for 'c'"):
        Protobuf(message).encode(extra.select(["c"]))
    expected = [written(message, {"a": 1, "next": {"a": 2}})]
    assert Protobuf(message, extra_columns="ignore").encode(extra) == expected
    strict = Protobuf(message, extra_columns="ignore", missing_columns="error")
    with pytest.raises(SerializationError, match=r"there is no column 'next\.next' for the field of message test"):
        strict.encode(extra)
    with pytest.raises(SerializationError, match="there is no column 'next'"):
        strict.encode(extra.select(["a"]))
