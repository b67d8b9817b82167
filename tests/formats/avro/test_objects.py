"""Python objects become Avro: each type against fastavro, and what does not fit is refused by its path."""

from __future__ import annotations

import array
import collections
import dataclasses
import enum
import io
import math
import types
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import attrs
import fastavro
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats import Avro
from tests.formats.avro.support import Schema, read, written


def _logical(kind: str, logical: str, **attributes: Any) -> Schema:
    return {"type": kind, "logicalType": logical, **attributes}


def _record(*fields: Schema, name: str = "R") -> Schema:
    return {"type": "record", "name": name, "fields": list(fields)}


def _field(name: str, kind: Schema, **attributes: Any) -> Schema:
    return {"name": name, "type": kind, **attributes}


FIXED = {"type": "fixed", "name": "F", "size": 4}
COLORS = {"type": "enum", "name": "Color", "symbols": ["RED", "green"]}
POINT = _record(_field("x", "int"), _field("y", ["null", "string"], default=None), name="Point")
BERLIN = timezone(timedelta(hours=2, microseconds=1))


class Color(enum.Enum):
    RED = 1
    GREEN = "green"


class Whole(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("boolean", True), ("int", -(2**31)), ("long", 2**63 - 1), ("float", 0.1), ("double", float("nan")),
        ("double", 2**60), ("string", "é\0\U0001f600"), ("bytes", b"\xff"), ("bytes", bytearray(b"ab")),
        (FIXED, b"abcd"),
        (COLORS, "green"), ({"type": "array", "items": "int"}, [1, -2]), ({"type": "array", "items": "int"}, []),
        ({"type": "map", "values": "string"}, {"a": "b", "": "c"}), ({"type": "map", "values": "int"}, {}),
        (_logical("int", "date"), date(1, 1, 1)), (_logical("int", "date"), date(9999, 12, 31)),
        (_logical("int", "date"), date(2000, 2, 29)), (_logical("int", "date"), 5),
        (_logical("int", "time-millis"), time(23, 59, 59, 999_999)),
        (_logical("long", "time-micros"), time(1, 2, 3, 4)),
        *((_logical("long", f"timestamp-{unit}"), moment) for unit in ("millis", "micros") for moment in (
            datetime(1, 1, 3, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=BERLIN),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))),
        (_logical("long", "local-timestamp-micros"), datetime(2024, 2, 29, 1, 2, 3, 4)),
        (_logical("string", "uuid"), uuid.UUID(int=2**127 + 5)), (_logical("string", "uuid"), "as it is"),
        *((_logical("bytes", "decimal", precision=6, scale=2), Decimal(text))
          for text in ("0", "1.5", "1.28", "-9999.99", "9999.99", "-1")),
        (_logical("fixed", "decimal", precision=6, scale=2, name="D", size=4), Decimal("-1.25")),
        (["null", "string", "long", "boolean"], "a"), (["null", "string", "long", "boolean"], 5),
        (["null", "string", "long", "boolean"], True),
        (["float", "double"], 1.5), (["double", "float"], 1.5), (["int", "long"], 2**40), (["bytes", FIXED], b"abcd"),
        ([FIXED, "bytes"], b"abcde"), ([COLORS, "string"], "RED"), ([COLORS, "string"], "blue"),
        (["null", POINT], ("Point", {"x": 1})), (["string", "bytes"], ("bytes", b"a")),
        ([POINT, _record(_field("x", "int"), _field("z", "int"), name="B")], {"x": 1, "z": 2}),
        ([_record(_field("x", "int"), name="A"), _record(_field("x", "string"), name="B")], {"x": "text"}),
        ([_record(_field("x", "int"), name="A"), _record(_field("x", "int"), name="B")], {"-type": "B", "x": 1}),
        (_record(_field("a", "int"), _field("b", {"type": "array", "items": "int"}, default=[1, 200])), {"a": 1}),
    ],
)  # fmt: skip
def test_value_becomes_the_bytes_that_fastavro_writes(schema: Schema, value: Any) -> None:
    assert Avro(schema).encode_object(value) == written(schema, value)


@dataclasses.dataclass
class DataPoint:
    x: int
    y: str | None = None


@dataclasses.dataclass(slots=True, frozen=True)
class SlottedPoint:
    x: int
    y: str | None = None


class TuplePoint(NamedTuple):
    x: int
    y: str | None = None


@attrs.define
class AttrsPoint:
    x: int
    y: str | None = None


class PlainPoint:
    def __init__(self, x: int, y: str | None = None) -> None:
        self.x = x
        self.y = y


class PropertyPoint:
    @property
    def x(self) -> int:
        return 7


class PydanticPoint:
    """Stands for a model of pydantic, which declares its fields so."""

    __pydantic_fields__: ClassVar[dict[str, Any]] = {"x": None, "y": None}

    def __init__(self) -> None:
        self.x, self.y = 7, "a"


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (DataPoint(7, "a"), {"x": 7, "y": "a"}),
        (SlottedPoint(7, "a"), {"x": 7, "y": "a"}),
        (TuplePoint(7), {"x": 7}),
        (AttrsPoint(7, "a"), {"x": 7, "y": "a"}),
        (PydanticPoint(), {"x": 7, "y": "a"}),
        (PlainPoint(7), {"x": 7, "y": None}),
        (PropertyPoint(), {"x": 7}),
        (collections.OrderedDict(x=7), {"x": 7}),
        (collections.UserDict(x=7, y="a"), {"x": 7, "y": "a"}),
        (types.MappingProxyType({"x": 7}), {"x": 7}),
    ],
)
def test_record_is_made_of_any_object_with_its_fields(value: Any, same: dict[str, Any]) -> None:
    expected = written(POINT, same)
    assert Avro(POINT).encode_object(value) == expected
    assert Avro(["null", "long", POINT]).encode_object(value) == b"\x04" + expected


@pytest.mark.parametrize(
    ("schema", "value", "same"),
    [
        ("long", np.int64(-5), -5), ("int", np.uint8(200), 200), ("double", np.float64(1.5), 1.5),
        ("double", np.float32(1.5), 1.5), ("boolean", np.bool_(True), True), ("string", np.str_("a"), "a"),
        ("int", Whole.ONE, 1), ("int", Color.RED, 1), ("string", Color.GREEN, "green"), (COLORS, Color.RED, "RED"),
        (COLORS, Color.GREEN, "green"), (["null", "long", "boolean"], np.bool_(True), True),
        ("bytes", memoryview(b"abcd")[::2], b"ac"),
        ({"type": "array", "items": "int"}, (1, 2), [1, 2]), ({"type": "array", "items": "int"}, range(3), [0, 1, 2]),
        ({"type": "array", "items": "int"}, np.arange(3), [0, 1, 2]),
        ({"type": "array", "items": "int"}, array.array("i", [1]), [1]),
        ({"type": "array", "items": "int"}, collections.deque([1, 2]), [1, 2]),
        ({"type": "map", "values": "int"}, collections.UserDict(a=1), {"a": 1}),
        (_logical("long", "timestamp-micros"), np.datetime64("2024-01-01T00:00:01"), 1_704_067_201_000_000),
        (_logical("long", "timestamp-micros"), datetime(2024, 1, 1), 1_704_067_200_000_000),
        (_logical("long", "timestamp-nanos"), datetime(2024, 1, 1, tzinfo=UTC), 1_704_067_200_000_000_000),
        (_logical("bytes", "decimal", precision=6, scale=2), 15, Decimal(15)),
        (_logical("bytes", "decimal", precision=6, scale=2), Decimal("1.500"), Decimal("1.5")),
    ],
)  # fmt: skip
def test_value_of_another_class_is_written_as_its_plain_value(schema: Schema, value: Any, same: Any) -> None:
    assert Avro(schema).encode_object(value) == written(schema, same)


def test_duration_and_uuid_are_written_to_fixed() -> None:
    duration = _logical("fixed", "duration", name="D", size=12)
    assert Avro(duration).encode_object(timedelta(seconds=2)) == bytes(8) + (2000).to_bytes(4, "little")
    fixed = _logical("fixed", "uuid", name="U", size=16)
    assert Avro(fixed).encode_object(uuid.UUID(int=5)) == bytes(15) + b"\5"


def test_pandas_timestamp_keeps_its_nanoseconds() -> None:
    class Timestamp(datetime):
        nanosecond = 7

    moment = Timestamp(1970, 1, 1, tzinfo=UTC)
    assert Avro(_logical("long", "timestamp-nanos")).encode_object(moment) == written("long", 7)


LINES = _record(_field("lines", {"type": "array", "items": _record(_field("price", "double"), name="Line")}))
NESTED = _record(_field("m", {"type": "map", "values": ["null", POINT]}))


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (LINES, {"lines": [{"price": 1.0}, {"price": "1"}]},
         r"^value\.lines\[1\]\.price of type str does not fit Avro's double$"),
        (LINES, {"lines": [{"price": None}]}, r"^value\.lines\[0\]\.price is None, and Avro's double has no null"),
        (LINES, {"lines": [{}]}, r"^value\.lines\[0\]\.price is missing, and the field has no default"),
        (LINES, {"lines": {}}, r"^value\.lines of type dict does not fit Avro's array"),
        (LINES, [], r"^value of type list does not fit Avro's record R"),
        (NESTED, {"m": {"k": {"x": "1"}}}, r"^value\.m\['k'\]\.x of type str does not fit Avro's int$"),
        (NESTED, {"m": {5: None}}, r"^value\.m has a key of type int"),
        (NESTED, {"m": {}, "n": 1}, r"^value has 'n', for which Avro's record R has no field"),
        (POINT, DataPoint(2**31), r"^value\.x of type int has the value 2147483648, which is out of the range of"),
        (POINT, collections.UserDict(x=1, z=1), r"^value has 'z', for which"),
        (_record(_field("x", "int")), DataPoint(1), r"^value has 'y', for which Avro's record R has no field"),
        (POINT, object(), "^value of type object does not fit Avro's record Point$"),
        (POINT, types.SimpleNamespace(), "does not fit Avro's record Point$|is missing"),
        ("int", True, "of type bool does not fit Avro's int$"),
        (["null", "string"], math.nan, "^value of type float does not fit Avro's string: give None for a missing"),
        (["null", "long"], np.float64("nan"), "does not fit Avro's long: give None for a missing value$"),
        (["null", "string"], pd.NA, "does not fit Avro's string: give None for a missing value$"),
        (["null", "string"], pd.NaT, "does not fit Avro's string: give None for a missing value$"),
        ("long", 5.0, "of type float does not fit Avro's long$"),
        pytest.param("long", 10**5000, "of type int has the value of too many digits", id="digits"),
        ("boolean", 1, "of type int does not fit"),
        ("double", 2**60 + 1, "cannot be held without loss by Avro's double"), ("float", 2**24 + 1, "without loss"),
        ("float", 1e39, "out of the range of Avro's float"), ("double", "1", "does not fit"),
        ("string", b"a", "of type bytes does not fit Avro's string"), ("string", "\ud800", "has no UTF-8 encoding"),
        ("bytes", "a", "does not fit Avro's bytes"), (FIXED, b"abc", "has another size than Avro's fixed F of 4 bytes"),
        (COLORS, "blue", "which is no symbol of Avro's enum Color"), (COLORS, 1, "does not fit"),
        ({"type": "array", "items": "string"}, "text", "does not fit Avro's array"),
        ({"type": "array", "items": "int"}, {1}, "does not fit Avro's array"),
        (_logical("int", "date"), datetime(2024, 1, 1), "does not fit Avro's date as int"),
        (_logical("long", "timestamp-millis"), date(2024, 1, 1), "does not fit"),
        (_logical("long", "timestamp-nanos"), datetime(2300, 1, 1), "out of the range"),
        (_logical("long", "timestamp-micros"), np.datetime64("2024-01-01T00:00:00.000000001"), "does not fit"),
        (_logical("long", "timestamp-micros"), np.datetime64("NaT"), "does not fit"),
        (_logical("long", "local-timestamp-micros"), datetime(2024, 1, 1, tzinfo=UTC), "has a time zone"),
        (_logical("long", "time-micros"), time(1, tzinfo=UTC), "has a time zone"),
        (_logical("bytes", "decimal", precision=4, scale=2), Decimal("100"), "has more digits than"),
        (_logical("bytes", "decimal", precision=4, scale=2), Decimal("1e999999"), "has more digits than"),
        (_logical("bytes", "decimal", precision=4, scale=2), 10**400, "has more digits than"),
        (_logical("bytes", "decimal", precision=4, scale=2), Decimal("1.001"), "without loss"),
        (_logical("bytes", "decimal", precision=4, scale=2), Decimal("NaN"), "is no number"),
        (_logical("bytes", "decimal", precision=4, scale=2), 1.5, "does not fit"),
        (_logical("fixed", "decimal", precision=4, scale=2, name="D", size=1), Decimal("9"), "has more digits than"),
        (_logical("fixed", "duration", name="D", size=12), timedelta(-1), "out of the range"),
        (_logical("fixed", "duration", name="D", size=12), timedelta(microseconds=2**64 + 5000), "out of the range"),
        (_logical("fixed", "duration", name="D", size=12), timedelta(microseconds=1), "without loss"),
        (["null", "int", "string"], 1.5, "^value of type float does not fit Avro's union of null, int, string$"),
        ([POINT, _record(_field("x", "int"), _field("q", "int", default=1), name="B")], {"x": "a"},
         r"fits no branch of Avro's union of record Point, record B \(of its best branch: value\.x of type str"),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_is_refused_by_its_path(schema: Schema, value: Any, message: str) -> None:
    with pytest.raises(SerializationError, match=message):
        Avro(schema).encode_object(value)


def test_own_type_of_a_value_comes_before_a_wider_one() -> None:
    schema = ["double", "long", {"type": "map", "values": "int"}, POINT]
    assert Avro(schema).encode_object(5) == b"\x02" + written("long", 5)
    assert Avro(schema).encode_object(5.0) == b"\x00" + written("double", 5.0)
    assert Avro(schema).encode_object({"x": 5}) == b"\x06" + written(POINT, {"x": 5})
    assert Avro(schema).encode_object({"k": 5}) == b"\x04" + written({"type": "map", "values": "int"}, {"k": 5})


def test_field_with_a_wrong_default_needs_a_value() -> None:
    schema = _record(_field("a", "int", default="text"))
    assert Avro(schema).encode_object({"a": 1}) == b"\x02"
    with pytest.raises(SerializationError, match=r"value\.a is missing, and the field's default is wrong: 'text' does"):
        Avro(schema).encode_object({})


def test_extra_keys_and_fields_are_left_out_if_they_are_ignored() -> None:
    avro = Avro(_record(_field("x", "int")), extra_columns="ignore")
    assert avro.encode_object({"x": 1, "y": 2}) == avro.encode_object(DataPoint(1, "a")) == b"\x02"


def test_recursive_type_is_encoded_to_a_limit() -> None:
    tree = _record(_field("n", "int"), _field("next", ["null", "R"], default=None))
    value: dict[str, Any] = {"n": 0}
    for n in range(200):
        value = {"n": n, "next": value}
    assert read(tree, Avro(tree).encode_object(value) or b"")["next"]["n"] == 198
    value["next"] = value
    with pytest.raises(SerializationError, match=r"value\.next\.next.* is nested deeper than 256 levels"):
        Avro(tree).encode_object(value)


def test_prefix_comes_before_the_value_and_none_stays_none() -> None:
    avro = Avro("long", prefix=b"\0id")
    assert avro.encode_object(1) == b"\0id\x02"
    assert avro.encode_object(1, prefix=b"") == b"\x02"
    assert avro.encode_object(1, prefix=b"p" * 5000) == b"p" * 5000 + b"\x02"
    assert avro.encode_object(None) is None
    assert Avro(["null", "long"]).encode_object(None) is None


def test_long_value_outgrows_the_first_buffer() -> None:
    schema = {"type": "array", "items": ["null", "string"]}
    value = ["x" * n for n in range(2000)] + [None] * 2000
    for _ in range(3):
        assert Avro(schema).encode_object(value) == written(schema, value)


def test_objects_and_columns_become_the_same_bytes() -> None:
    rows = [{"x": n, "y": None if n % 2 else "é" * n} for n in range(5)]
    assert Avro(POINT).encode(pa.RecordBatch.from_pylist(rows)) == [Avro(POINT).encode_object(row) for row in rows]


def test_format_without_a_schema_encodes_no_objects() -> None:
    with pytest.raises(ConfigError, match=r"Avro\(\) without a schema"):
        Avro().encode_object({})


def test_record_with_the_most_fields_in_common_is_chosen() -> None:
    one = _record(_field("x", "int"), name="One")
    two = _record(_field("x", "int"), _field("z", "int"), name="Two")
    for branches in ([one, two], [two, one]):
        avro = Avro(branches, extra_columns="ignore")
        assert avro.encode_object({"x": 1, "z": 2, "more": 3}) == written(branches, {"x": 1, "z": 2})


def test_path_after_a_branch_that_failed_in_its_depth_is_right() -> None:
    parts = [
        _record(_field("l", {"type": "array", "items": _record(_field("n", kind), name=f"I{kind}")}), name=f"P{kind}")
        for kind in ("int", "string")
    ]
    avro = Avro(_record(_field("u", parts), _field("n", "int")))
    value = {"u": {"l": [{"n": "text"}]}, "n": "no number"}
    assert avro.encode_object(value | {"n": 1}) == b"\x02\x02\x08text\x00\x02"
    with pytest.raises(SerializationError, match=r"^value\.n of type str does not fit"):
        avro.encode_object(value)


def test_pandas_nat_is_refused() -> None:
    class NaT(datetime):
        def __ne__(self, other: object) -> bool:
            return True

    with pytest.raises(SerializationError, match="of type NaT does not fit"):
        Avro(_logical("long", "timestamp-micros")).encode_object(NaT(1, 1, 1))


def test_missing_key_of_a_nullable_field_is_an_error_where_fastavro_writes_null() -> None:
    field: dict[str, Any] = {"name": "a", "type": ["null", "string"]}
    schema = {"type": "record", "name": "R", "fields": [field]}
    assert written(schema, {}) == Avro(schema).encode_object({"a": None}) == b"\0"
    with pytest.raises(SerializationError, match=r"value\.a is missing, and the field has no default: give a value"):
        Avro(schema).encode_object({})
    field["default"] = None
    assert Avro(schema).encode_object({}) == b"\0"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", True),
        ("int", 2**31),
        ({"type": "array", "items": "int"}, {1, 2}),
        ({"type": "int", "logicalType": "date"}, datetime(2026, 7, 1)),
        ({"type": "int", "logicalType": "date"}, "2026-07-01"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1.5e12),
    ],
)
def test_what_the_page_says_that_only_fastavro_takes_is_refused(schema: Schema, value: Any) -> None:
    fastavro.schemaless_writer(io.BytesIO(), fastavro.parse_schema(schema), value)
    with pytest.raises(SerializationError):
        Avro(schema).encode_object(value)
