"""Which Arrow types become which Avro types, which values a row may have, and what the refusals say."""

from __future__ import annotations

import ctypes
import datetime as dt
import decimal
import json
import pickle
import uuid
from typing import Any

import pyarrow as pa
import pytest
from google.type.money_pb2 import Money

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats import Avro, Json, Protobuf
from rigs.arrow_abi import ArrowArray, Lying, child
from tests.formats.avro.support import read, written

Schema = Any


def one(column: pa.Array | pa.ChunkedArray, schema: Schema) -> list[bytes | None]:
    """The column `c`, encoded as the only field of a record: which adds no byte."""
    record = {"type": "record", "name": "Row", "fields": [{"name": "c", "type": schema}]}
    return Avro(record).encode(pa.table({"c": column}))


def logical(kind: str, name: str, **more: Any) -> Schema:
    return {"type": kind, "logicalType": name, **more}


DAY_MS = 86_400_000
FIXED_4 = {"type": "fixed", "name": "F", "size": 4}
COLOURS = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN", "BLUE"]}
DURATION = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
WRITTEN: dict[str, tuple[pa.Array, Schema, Any]] = {
    "whole numbers for a logical type": (pa.array([5]), logical("long", "timestamp-micros"), 5),
    "binary for fixed": (pa.array([b"abcd"]), FIXED_4, b"abcd"),
    "fixed-size binary for bytes": (pa.array([b"abcd"], pa.binary(4)), "bytes", b"abcd"),
    "uuid as text": (pa.array([UUID.bytes], pa.binary(16)), logical("string", "uuid"), str(UUID)),
    "uuid of text": (pa.array([str(UUID)]), logical("string", "uuid"), str(UUID)),
    "uuid of upper-case text": (pa.array([str(UUID).upper()]), logical("string", "uuid"), str(UUID).upper()),
    "uuid of bytes that are text": (pa.array([str(UUID).encode()]), logical("string", "uuid"), str(UUID)),
    "uuid as fixed": (
        pa.array([UUID.bytes], pa.binary(16)),
        {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, UUID.bytes,
    ),
    "date": (pa.array([-3], pa.date32()), logical("int", "date"), -3),
    "duration": (pa.array([5], pa.duration("s")), DURATION, bytes(8) + (5000).to_bytes(4, "little")),
    "last branch": (pa.array(["x"]), ["null", "int", "string"], "x"),
    "union without null": (pa.array(["x"]), ["string"], "x"),
    "long before int for int64": (pa.array([7]), ["int", "long"], None),
    "extension type": (
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID.bytes], pa.binary(16))),
        {"type": "fixed", "name": "U", "size": 16}, UUID.bytes,
    ),
    "unknown logical type": (pa.array([7]), logical("long", "century"), 7),
    "decimal whose scale is above its precision": (
        pa.array([b"x"]), logical("bytes", "decimal", precision=1, scale=2), b"x"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_column_becomes_what_fastavro_writes(name: str) -> None:
    column, schema, value = WRITTEN[name]
    if name == "long before int for int64":
        assert one(column, schema) == [b"\2\x0e"]
    else:
        plain = (
            {key: item for key, item in schema.items() if key != "logicalType"} if isinstance(schema, dict) else schema
        )
        assert one(column, schema) == [written(plain, value)]


def test_nulls_take_the_branch_of_the_unions_null() -> None:
    for column in (pa.array([1, None]), pa.array([1, None]).dictionary_encode()):
        assert one(column, ["null", "long"]) == [b"\2\2", b"\0"]
        assert one(column, ["long", "null"]) == [b"\0\2", b"\2"]
    assert one(pa.nulls(2), ["long", "null"]) == [b"\2", b"\2"]
    assert one(pa.nulls(1), "null") == [b""]
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    assert one(values, ["null", "string"]) == [b"\2\2a", b"\0", b"\0"]


def test_dictionary_of_nested_values_is_followed() -> None:
    values = pa.array([{"a": [1, 2]}, {"a": None}], pa.struct([("a", pa.list_(pa.int64()))]))
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, 0], pa.int8()), values)
    record = {
        "type": "record", "name": "S",
        "fields": [{"name": "a", "type": ["null", {"type": "array", "items": "long"}]}],
    }  # fmt: skip
    assert one(column, record) == [written(record, value.as_py()) for value in column]


def test_recursive_schema_ends_where_the_columns_end() -> None:
    node = {
        "type": "record", "name": "Node",
        "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"], "default": None}],
    }  # fmt: skip
    rows = [{"v": 1, "next": {"v": 2, "next": {"v": 3}}}, {"v": 4, "next": None}]
    table = pa.Table.from_pylist(
        rows, pa.schema([("v", pa.int32()), ("next", pa.struct([
            ("v", pa.int32()), ("next", pa.struct([("v", pa.int32())]))]))]),
    )  # fmt: skip
    assert Avro(node).encode(table) == [written(node, row) for row in rows]


def test_field_is_found_by_its_alias_and_fields_have_the_schemas_order() -> None:
    schema = {
        "type": "record", "name": "Row",
        "fields": [{"name": "b", "type": "int", "aliases": ["old b"]}, {"name": "a", "type": "int"}],
    }  # fmt: skip
    assert Avro(schema).encode(pa.table({"a": pa.array([1], pa.int8()), "old b": pa.array([2], pa.int8())})) == [
        b"\4\2"
    ]


def test_root_union_of_null_and_a_record_writes_its_branch() -> None:
    schema = ["null", {"type": "record", "name": "Row", "fields": [{"name": "c", "type": "int"}]}]
    assert Avro(schema).encode(pa.table({"c": pa.array([3], pa.int32())})) == [b"\2\6"]


DEFAULTS: list[tuple[Schema, Any]] = [
    ("string", "é"), ("bytes", "\xff\0"), ("double", 1), ("float", -0.5), ("boolean", True), ("long", -(2**63)),
    (["int", "null"], 5), (["null", "int"], None), (FIXED_4, "\0\1\2\xff"), (COLOURS, "BLUE"),
    ({"type": "array", "items": "int"}, []), ({"type": "map", "values": "long"}, {"a": 1, "b": 2}),
    ({"type": "record", "name": "In", "fields": [{"name": "x", "type": "int", "default": 9}]}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), DEFAULTS, ids=map(str, range(len(DEFAULTS))))
def test_field_without_column_has_its_default(schema: Schema, value: Any) -> None:
    record = {
        "type": "record", "name": "Row",
        "fields": [{"name": "c", "type": "int"}, {"name": "d", "type": schema, "default": value}],
    }  # fmt: skip
    # fastavro takes bytes where the schema's default is text that stands for bytes.
    given = value.encode("latin-1") if schema in ("bytes", FIXED_4) else value
    assert Avro(record).encode(pa.table({"c": pa.array([1], pa.int32())})) == [written(record, {"c": 1, "d": given})]


@pytest.mark.parametrize("default", ["no number", None, 2**31, True])
def test_wrong_default_is_refused_where_it_is_needed(default: Any) -> None:
    record = {"type": "record", "name": "Row", "fields": [{"name": "d", "type": "int", "default": default}]}
    assert Avro(record).encode(pa.table({"d": pa.array([1], pa.int32())})) == [b"\2"]
    with pytest.raises(SerializationError, match="'d', and the default of its field is wrong"):
        Avro(record, extra_columns="ignore").encode(pa.table({"c": [1]}))


MISFITS: list[tuple[pa.DataType, Schema, str]] = [
    (pa.string(), "long", "type string, which does not fit Avro's long"),
    (pa.float64(), "float", "type double, which does not fit Avro's float: cast"),
    (pa.int64(), "double", "type int64, which does not fit Avro's double"),
    (pa.timestamp("us"), "long", "give the long a logicalType"),
    (pa.timestamp("us", "UTC"), "string", r"type timestamp\[us, tz=UTC\]"),
    (pa.decimal128(9, 2), logical("bytes", "decimal", precision=9, scale=3), "of the same scale"),
    (pa.null(), "int", "union with null"),
    (pa.list_(pa.string()), {"type": "array", "items": "int"}, r"column 'c\[\]' has the type string"),
    (pa.map_(pa.int32(), pa.int32()), {"type": "map", "values": "int"}, r"column 'c\{key\}' has the type int32"),
    (pa.struct([("a", pa.string())]), {"type": "record", "name": "S", "fields": [{"name": "a", "type": "int"}]},
     "column 'c.a' has the type string"),
    (pa.int64(), ["null", "string", "boolean"], "fits no branch of the Avro union"),
    (pa.int64(), ["null", "string"], "which does not fit Avro's string"),
    (pa.binary(5), FIXED_4, r"type fixed_size_binary\[5\], which does not fit Avro's fixed F of 4 bytes"),
    (pa.run_end_encoded(pa.int32(), pa.int64()), "string", "type run_end_encoded<int64>"),
    (pa.list_view(pa.int64()), {"type": "array", "items": "string"}, r"'c\[\]' has the type int64"),
    (pa.month_day_nano_interval(), DURATION, "Arrow format 'tin'"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "schema", "message"), MISFITS, ids=[str(kind) for kind, *_ in MISFITS])
def test_column_that_does_not_fit_is_refused_without_rows(kind: pa.DataType, schema: Schema, message: str) -> None:
    column = pa.array([], pa.int64())
    if pa.types.is_run_end_encoded(kind):
        column = pa.RunEndEncodedArray.from_arrays(pa.array([], pa.int32()), column)
    else:
        column = pa.nulls(0, kind)
    record = {"type": "record", "name": "Row", "fields": [{"name": "c", "type": schema}]}
    with pytest.raises(SerializationError, match=message):
        Avro(record).encode(pa.record_batch({"c": column}))


FAULTS: dict[str, tuple[pa.Array, Schema, str]] = {
    "null": (pa.array([1, None]), "long", "of type int64 is null, and Avro's long has no null"),
    "null in a dictionary": (pa.array(["a", None]).dictionary_encode(), "string", "is null"),
    "uint64": (pa.array([1, 2**63], pa.uint64()), "long", "value 9223372036854775808, which is out of the range"),
    "int": (pa.array([1, 2**31]), "int", "value 2147483648, which is out of the range of Avro's int"),
    "negative int": (pa.array([1, -(2**31) - 1]), "int", "out of the range"),
    "symbol": (pa.array(["RED", "PINK"]), COLOURS, "value b'PINK', which is no symbol of Avro's enum Colour"),
    "empty symbol": (pa.array(["RED", ""]), COLOURS, "value b'', which is no symbol"),
    "UTF-8": (pa.array([b"a", b"\xff"]), "string", r"value b'\\xff', which is not UTF-8"),
    "UTF-8, cut short": (pa.array([b"a", b"12345678\xc3"]), "string", "not UTF-8"),
    "UTF-8, overlong": (pa.array([b"a", b"\xe0\x80\x80"]), "string", "not UTF-8"),
    "UTF-8, surrogate": (pa.array([b"a", b"\xed\xa0\x80"]), "string", "not UTF-8"),
    "UTF-8, too high": (pa.array([b"a", b"\xf4\x90\x80\x80"]), "string", "not UTF-8"),
    "uuid": (
        pa.array([str(UUID), "no uuid"]), logical("string", "uuid"),
        "value b'no uuid', which is not a uuid of RFC 4122, as Avro's uuid as string requires",
    ),
    "uuid of bytes": (pa.array([str(UUID).encode(), b""]), logical("string", "uuid"), "value b'', which is not a uuid"),
    "uuid in a list": (
        pa.array([[str(UUID)], [str(UUID), UUID.hex]]), {"type": "array", "items": logical("string", "uuid")},
        r"row 1: column 'c\[\]' of type string has the value b'0123456789abcdef0123456789abcdef', which is not a uuid",
    ),
    "inexact": (
        pa.array([DAY_MS, 1], pa.int64()).view(pa.date64()), logical("int", "date"), "cannot hold without loss"
    ),
    "inexact duration": (pa.array([1000, 1], pa.duration("us")), DURATION, "cannot hold without loss"),
    "time beyond the day": (
        pa.array([0, DAY_MS * 10**6], pa.int64()).view(pa.time64("ns")), logical("int", "time-millis"),
        "out of the range",
    ),
    "time before the day": (
        pa.array([0, -1], pa.int64()).view(pa.time64("ns")), logical("int", "time-millis"), "out of the range"
    ),
    "overflow": (pa.array([0, 2**62], pa.timestamp("s")), logical("long", "timestamp-nanos"), "out of the range"),
    "underflow": (pa.array([0, -(2**62)], pa.timestamp("s")), logical("long", "timestamp-nanos"), "out of the range"),
    "fixed": (pa.array([b"1234", b"123"]), FIXED_4, "which has another size than Avro's fixed F of 4 bytes"),
    "precision": (
        pa.array([decimal.Decimal("9.9"), decimal.Decimal("10.0")]), logical("bytes", "decimal", precision=2, scale=1),
        r"value 100 \(without its scale\), which has more digits than Avro's decimal\(2, 1\) as bytes",
    ),
    "negative precision": (
        pa.array([decimal.Decimal("-9.9"), decimal.Decimal("-10.0")]),
        logical("bytes", "decimal", precision=2, scale=1), "more digits",
    ),
    "negative duration": (pa.array([0, -1], pa.duration("ms")), DURATION, "out of the range"),
    "item": (
        pa.array([[1], [2, None]]), {"type": "array", "items": "long"}, r"row 1: column 'c\[\]' of type int64 is null"
    ),
    "part": (
        pa.array([{"a": 1}, {"a": None}]), {"type": "record", "name": "S", "fields": [{"name": "a", "type": "long"}]},
        "row 1: column 'c.a' of type int64 is null",
    ),
    "struct": (
        pa.array([{"a": 1}, None]), {"type": "record", "name": "S", "fields": [{"name": "a", "type": "long"}]},
        "row 1: column 'c' of type struct is null, and Avro's record S",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_value_that_does_not_fit_is_an_error_of_its_row(name: str) -> None:
    column, schema, message = FAULTS[name]
    assert len(one(column[:1], schema)) == 1
    with pytest.raises(SerializationError, match=message) as raised:
        one(column, schema)
    assert str(raised.value).startswith("row 1: column 'c")


def test_null_column_with_a_buffer_is_null_as_one_without() -> None:
    """Polars exports the type null with a buffer, which Arrow's specification has not, and no bitmap in it."""
    pointers = (ctypes.c_void_p * 1)()

    def with_buffer(array: ArrowArray) -> None:
        column = child(array, 1)
        assert (column.n_buffers, column.null_count) == (0, 3)
        column.n_buffers = 1
        column.buffers = ctypes.cast(pointers, type(column.buffers))

    batch = pa.record_batch({"units": pa.array([1, 2, 3]), "nanos": pa.nulls(3)})
    for format in (Avro(), Json(), Json(dialect="spark"), Protobuf(Money)):
        with Lying(batch, with_buffer) as data:
            assert format.encode(data) == format.encode(batch)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([3]), pa.nulls(1))
    assert Json().encode(pa.record_batch({"c": runs})) == [b'{"c":null}'] * 3


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int8(), "int"), (pa.uint16(), "int"), (pa.uint32(), "long"), (pa.uint64(), "long"), (pa.float16(), "float"),
        (pa.large_string(), "string"), (pa.binary_view(), "bytes"), (pa.bool_(), "boolean"),
        (pa.date64(), logical("int", "date")), (pa.time32("s"), logical("int", "time-millis")),
        (pa.time64("ns"), logical("long", "time-micros")),
        (pa.timestamp("s"), logical("long", "local-timestamp-millis")),
        (pa.timestamp("ns", "Europe/Paris"), logical("long", "timestamp-nanos")),
        (pa.decimal128(9, 2), logical("bytes", "decimal", precision=9, scale=2)),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.binary(3), {"type": "fixed", "name": "Row.c", "size": 3}),
        (pa.list_(pa.field("item", pa.int32(), nullable=False)), {"type": "array", "items": "int"}),
        (pa.map_(pa.string(), pa.int64()), {"type": "map", "values": ["null", "long"]}),
    ],
)  # fmt: skip
def test_derived_type_follows_arrows(kind: pa.DataType, expected: Schema) -> None:
    for nullable in (False, True):
        schema = json.loads(Avro().schema_for(pa.schema([pa.field("c", kind, nullable=nullable)])))
        assert schema["fields"][0]["type"] == (["null", expected] if nullable else expected)
        Avro(schema)


def test_derived_names_of_nested_records_differ() -> None:
    inner = pa.struct([("b", pa.struct([("x", pa.int32())]))])
    table = pa.table({"a": pa.array([{"b": {"x": 1}}], inner), "a_b": pa.array([{"x": 2}], inner.field("b").type)})
    schema = json.loads(Avro().schema_for(table))
    assert [read(schema, row or b"") for row in Avro().encode(table)] == table.to_pylist()


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.month_day_nano_interval(), pa.decimal128(5, -2)])
def test_type_without_avro_type_is_not_derived(kind: pa.DataType) -> None:
    with pytest.raises(SerializationError, match=r"column 'c' has the type .*, for which Avro has no type"):
        Avro().schema_for(pa.schema([("c", kind)]))


def test_format_pickles_and_compares_by_its_arguments() -> None:
    given = Avro({"type": "array", "items": "int"}, prefix=b"\0\0\0\0\5", extra_columns="ignore")
    assert pickle.loads(pickle.dumps(given)) == given
    assert hash(given) == hash(Avro('{"type":"array", "items":"int"}', prefix=b"\0\0\0\0\5", extra_columns="ignore"))
    assert given != Avro({"type": "array", "items": "int"})
    with pytest.raises(AttributeError):
        given.prefix = b""  # type: ignore[misc]


@pytest.mark.parametrize("arguments", [{"prefix": "text"}, {"prefix": None}, {"extra_columns": "drop"}])
def test_argument_of_another_kind_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Avro("long", **arguments)


def test_data_without_capsules_is_refused() -> None:
    for call in (Avro().encode, Avro().schema_for):
        with pytest.raises(SerializationError, match="needs data with the Arrow PyCapsule interface"):
            call([1, 2])


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us")])
def test_time_outside_of_a_day_is_refused(kind: pa.DataType) -> None:
    micros = {"s": 1_000_000, "ms": 1000, "us": 1}[kind.unit]
    day = 86_400_000_000 // micros
    schema = logical("long", "time-micros")
    whole = pa.int32() if kind.bit_width == 32 else pa.int64()
    last = pa.table({"a": pa.array([0, day - 1], whole).cast(kind, safe=False)})
    assert [read("long", value or b"") for value in Avro(schema).encode(last)] == [0, (day - 1) * micros]
    for wrong in (-1, day):
        with pytest.raises(SerializationError, match="out of the range"):
            Avro(schema).encode(pa.table({"a": pa.array([wrong], whole).view(kind)}))


@pytest.mark.parametrize("micros", [0, 1, 999, 1000, 1999, -1, -999, -1000, -1001, 1_718_000_000_123_456])
@pytest.mark.parametrize("local", ["", "local-"])
def test_digits_below_the_unit_are_cut_off_from_columns_as_from_objects(micros: int, local: str) -> None:
    schema = logical("long", f"{local}timestamp-millis")
    column = pa.array([micros], pa.timestamp("us", None if local else "UTC"))
    expected = written("long", micros // 1000)
    assert one(column, schema) == [expected]
    assert one(column.cast(pa.timestamp("ns", column.type.tz)), schema) == [expected]
    assert Avro(schema).encode_object(column[0].as_py()) == expected
    assert written(schema, column[0].as_py().replace(tzinfo=dt.UTC)) == expected


def test_digits_of_a_time_below_the_unit_are_cut_off_from_columns_as_from_objects() -> None:
    schema, column = logical("int", "time-millis"), pa.array([1_999], pa.time64("us"))
    assert one(column, schema) == [b"\x02"] == [Avro(schema).encode_object(column[0].as_py())]
    assert one(pa.array([1_999], pa.time64("ns")), logical("long", "time-micros")) == [b"\x02"]


def test_error_of_a_column_is_the_public_class_and_shows_no_other() -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int", "boolean"]}]}
    for schema in (record, {"type": "array", "items": "int"}):
        with pytest.raises(SerializationError) as caught:
            Avro(schema).encode(pa.table({"a": ["text"]}))
        assert type(caught.value) is SerializationError
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
