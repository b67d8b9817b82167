"""Which Arrow types become which JSON in each dialect, patterns and time zones, and what the refusals say."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.errors import ConfigError, RecordTooLargeError, SerializationError
from kafkabuf.formats import Json
from rigs.producer import TOPIC, Rig, assert_whole
from tests.append.arrow_support import stored
from tests.formats.json.support import model, texts

UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID.bytes], pa.binary(16)))
SPARK = Json(dialect="spark")


WRITTEN: dict[str, tuple[pa.Array, str, str]] = {
    "true": (pa.array([True]), "true", "true"),
    "uint64": (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615", "18446744073709551615"),
    "float": (pa.array([0.1], pa.float32()), "0.10000000149011612", "0.1"),
    "half": (pa.array([0.1], pa.float16()), "0.0999755859375", "0.099975586"),
    "large double": (pa.array([1e16]), "1e+16", "1.0E16"),
    "middle double": (pa.array([1e7]), "10000000.0", "1.0E7"),
    "small double": (pa.array([0.00012]), "0.00012", "1.2E-4"),
    "negative zero": (pa.array([-0.0]), "-0.0", "-0.0"),
    "NaN": (pa.array([float("nan")]), "null", '"NaN"'),
    "infinity": (pa.array([float("inf")]), "null", '"Infinity"'),
    "negative infinity": (pa.array([-float("inf")]), "null", '"-Infinity"'),
    "control character": (pa.array(["\x1b\x7f/"]), '"\\u001b\x7f/"', '"\\u001B\x7f/"'),
    "binary": (pa.array([b"\xfb\xff"]), '"+/8="', '"+/8="'),
    "no bytes": (pa.array([b""], pa.binary(0)), '""', '""'),
    "uuid": (UUIDS, f'"{UUID}"', f'"{UUID}"'),
    "bytes of a uuid": (pa.array([b"x" * 16], pa.binary(16)), f'"{"eHh4" * 5}eA=="', f'"{"eHh4" * 5}eA=="'),
    "extension": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])), '"{}"', '"{}"'),
    "decimal": (pa.array([Decimal("-1.50")]), "-1.50", "-1.50"),
    "small decimal": (pa.array([Decimal("1E-7")], pa.decimal128(9, 8)), "0.00000010", "1.0E-7"),
    "zero decimal": (pa.array([Decimal(0)], pa.decimal128(9, 8)), "0.00000000", "0E-8"),
    "decimal at Java's bound": (pa.array([Decimal("0.000001")]), "0.000001", "0.000001"),
    "decimal of negative scale": (pa.array([Decimal("1.2E5")], pa.decimal128(4, -3)), "120000", "1.20E+5"),
    "zero of negative scale": (pa.array([Decimal(0)], pa.decimal128(4, -3)), "0", "0E+3"),
    "date": (pa.array([-719_162], pa.date32()), '"0001-01-01"', '"0001-01-01"'),
    "milliseconds of a date": (pa.array([-1], pa.date64()), '"1969-12-31"', '"1969-12-31"'),
    "time": (pa.array([1], pa.time32("s")), '"00:00:01"', '"00:00:01"'),
    "time with a fraction": (pa.array([3_723_100_000], pa.time64("us")), '"01:02:03.100000"', '"01:02:03.1"'),
    "local timestamp": (
        pa.array([-1], pa.timestamp("ms")), '"1969-12-31T23:59:59.999000"', '"1969-12-31T23:59:59.999"'
    ),
    "instant": (
        pa.array([123_456], pa.timestamp("us", "UTC")),
        '"1970-01-01T00:00:00.123456+00:00"', '"1970-01-01T00:00:00.123Z"'
    ),
    "instant in its column's zone": (
        pa.array([0], pa.timestamp("s", "+05:30")), '"1970-01-01T05:30:00+05:30"', '"1970-01-01T00:00:00.000Z"'
    ),
    "nanoseconds": (
        pa.array([123_456_789], pa.timestamp("ns")), '"1970-01-01T00:00:00.123456789"', '"1970-01-01T00:00:00.123"'
    ),
    "microseconds in nanoseconds": (
        pa.array([1_000], pa.timestamp("ns")), '"1970-01-01T00:00:00.000001"', '"1970-01-01T00:00:00.000"'
    ),
    "duration": (
        pa.array([93_784_500], pa.duration("ms")), '"PT93784.5S"', "\"INTERVAL '1 02:03:04.5' DAY TO SECOND\""
    ),
    "negative duration": (
        pa.array([-1], pa.duration("ns")), '"-PT0.000000001S"', "\"INTERVAL '-0 00:00:00' DAY TO SECOND\""
    ),
    "longest duration": (
        pa.array([-(2**63)], pa.duration("s")), '"-PT9223372036854775808S"',
        "\"INTERVAL '-106751991167300 15:30:08' DAY TO SECOND\"",
    ),
    "list": (pa.array([[1, None]]), "[1,null]", "[1,null]"),
    "empty list": (pa.array([[]], pa.list_(pa.int8())), "[]", "[]"),
    "empty map": (pa.array([[]], pa.map_(pa.string(), pa.int8())), "{}", "{}"),
    "struct": (pa.array([{"a": 1, "b": None, "c": None}]), '{"a":1,"b":null,"c":null}', '{"a":1}'),
    "struct of nulls": (pa.array([{"a": None, "b": None}]), '{"a":null,"b":null}', "{}"),
    "null": (pa.nulls(1), "null", ""),
    "list of nulls": (pa.array([[None]], pa.list_(pa.null())), "[null]", "[null]"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_column_is_written_in_both_dialects(name: str) -> None:
    column, orjson, spark = WRITTEN[name]
    assert texts(column) == [orjson]
    assert texts(column, SPARK) == [spark]


KEYS: dict[str, tuple[pa.DataType, Any, str, str]] = {
    "text": (pa.string(), 'a"', '"a\\""', '"a\\""'),
    "number": (pa.uint64(), 2**64 - 1, '"18446744073709551615"', '"18446744073709551615"'),
    "bool": (pa.bool_(), False, '"false"', '"false"'),
    "double": (pa.float64(), 1e16, '"1e+16"', '"1.0E16"'),
    "NaN": (pa.float64(), float("nan"), '"null"', '"NaN"'),
    "decimal": (pa.decimal128(9, 8), Decimal(0), '"0.00000000"', '"0E-8"'),
    "date": (pa.date32(), dt.date(1970, 1, 3), '"1970-01-03"', '"2"'),
    "timestamp": (pa.timestamp("s"), dt.datetime(1970, 1, 1, 0, 0, 1), '"1970-01-01T00:00:01"', '"1000000"'),
    "time": (pa.time32("ms"), dt.time(0, 0, 1), '"00:00:01"', '"1000000000"'),
    "duration": (pa.duration("us"), dt.timedelta(1), '"PT86400S"', '"86400000000"'),
    "uuid": (pa.uuid(), UUID.bytes, f'"{UUID}"', f'"{UUID}"'),
}


@pytest.mark.parametrize("name", KEYS)
def test_key_of_a_map_is_a_string(name: str) -> None:
    kind, key, orjson, spark = KEYS[name]
    storage = pa.binary(16) if name == "uuid" else kind
    keys = pa.array([key], storage)
    if name == "uuid":
        keys = pa.ExtensionArray.from_storage(kind, keys)
    column = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), keys, pa.array([None], pa.int8()))
    assert texts(column) == [f"{{{orjson}:null}}"]
    assert texts(column, SPARK) == [f"{{{spark}:null}}"]


def test_null_is_written_or_left_out() -> None:
    table = pa.table({"a": [None, 1], "b": [1, None]})
    written, left_out = [b'{"a":null,"b":1}', b'{"a":1,"b":null}'], [b'{"b":1}', b'{"a":1}']
    assert Json().encode(table) == Json(dialect="spark", ignore_null_fields=False).encode(table) == written
    assert Json(ignore_null_fields=True).encode(table) == SPARK.encode(table) == left_out
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["x", None]))
    assert SPARK.encode(pa.table({"c": values})) == [b'{"c":"x"}', b"{}", b"{}"]


def test_name_is_escaped() -> None:
    table = pa.table({'a "b" \\ é \x1b': [1], "": [2], "n" * 100: [3]})
    assert Json().encode(table) == [f'{{"a \\"b\\" \\\\ é \\u001b":1,"":2,"{"n" * 100}":3}}'.encode()]
    assert b"\\u001B" in (SPARK.encode(table)[0] or b"")


def test_text_of_each_size_is_written_whole() -> None:
    values = ["abcdefghijklmnopqrstuvwxyz"[:size] for size in range(26)]
    assert texts(pa.array(values)) == [json.dumps(value) for value in values]


def test_whole_number_of_each_size_has_its_digits() -> None:
    bounds = {10**digits + more for digits in range(19) for more in range(-2, 3)}
    values = sorted({*range(10_100), *bounds, *(-bound for bound in bounds)})
    assert texts(pa.array(values)) == [str(value) for value in values]


@pytest.mark.parametrize("size", [*range(10), 15, 16, 17, 63, 500])
def test_escape_is_found_at_each_place(size: int) -> None:
    values = ["x" * at + special + "y" * size for special in '"\\\n\x1fé\x7f' for at in range(18)]
    assert texts(pa.array(values)) == [json.dumps(value, ensure_ascii=False) for value in values]


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "dialect", "message"),
    [
        (
            pa.array([2_932_896, 2_932_897], pa.date32()),
            "orjson",
            "row 1: column 'c' of type date32.* out of the range",
        ),
        (pa.array([0, -719_163], pa.date32()), "orjson", "row 1: column 'c'"),
        (pa.array([0, 2**63 - 1], pa.timestamp("s")), "spark", "row 1: column 'c'"),
        (pa.array([0, -(2**63)], pa.timestamp("s", "UTC")), "orjson", "row 1: column 'c'"),
        (
            pa.array([0, 86_400], pa.int32()).view(pa.time32("s")),
            "orjson",
            "row 1: column 'c' of type time.s. has the value 86400",
        ),
        (pa.array([0, -1], pa.int32()).view(pa.time32("s")), "spark", "row 1: column 'c'"),
    ],
)
def test_value_out_of_range_is_refused_at_its_row(column: pa.Array, dialect: Any, message: str) -> None:
    with pytest.raises(SerializationError, match=message):
        texts(column, Json(dialect=dialect))


@pytest.mark.parametrize(
    "bad", [b"ab\xff", b"long enough for eight \xc3", b"\xed\xa0\x80", b'"\xc0\x80"', b"\xf5\x80\x80\x80"]
)
def test_text_that_is_not_utf8_is_refused_at_its_row(bad: bytes) -> None:
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (0, 0, len(bad))))
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(bad)])
    rig = Rig()
    with pytest.raises(
        SerializationError, match=r"row 1: column 'c' of type string .* not UTF-8, as JSON's string"
    ) as raised:
        rig.producer.send_arrow(pa.record_batch({"c": column}), TOPIC, value_format=Json())
    assert raised.value.rows_queued == 1
    rig.ack_all()
    assert_whole(rig.pool)


def test_key_that_is_null_is_refused() -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    column = pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), keys, pa.array([1, 2]))
    with pytest.raises(SerializationError, match=r"row 0: column 'c\{key\}' of type dictionary<string> is null"):
        texts(column)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "column 'c' has the type .* does not write as JSON"),
        (pa.array([[(b"k", 1)]], pa.map_(pa.binary(), pa.int8())), r"column 'c\{key\}' has the type binary, .* key"),
        (pa.array([[([1], 1)]], pa.map_(pa.list_(pa.int8()), pa.int8())), r"column 'c\{key\}' has the type list"),
        (pa.RunEndEncodedArray.from_arrays([1], pa.array(["a"]).dictionary_encode()), "run_end_encoded"),
    ],
)
def test_type_without_json_is_refused_before_any_row(column: pa.Array, message: str) -> None:
    table = pa.table({"c": column})
    for call in (Json().encode, SPARK.encode, Json().schema_for):
        with pytest.raises(SerializationError, match=message):
            call(table)


def test_two_columns_of_one_name_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(SerializationError, match="there are two columns 'a'"):
        Json().encode(batch)
    inner = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(SerializationError, match=r"there are two columns 's\.a'"):
        Json().encode(pa.record_batch({"s": inner}))


# ---- sending ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filler", ["x", '"', "\x01", "é"])
def test_row_of_more_than_max_request_size_is_left_out(filler: str) -> None:
    """Whatever the text is escaped to, and however it lies in its column."""
    rig = Rig(max_request_size=1000)
    lists = [["a"], [filler] * 2000, ["c"]]
    table = pa.table({"text": ["a", "b", filler * 2000], "list": lists})
    report = rig.producer.send_arrow(table, TOPIC, value_format=Json())
    rig.ack_all()
    assert report.result(0, errors="return").error_code.tolist() == [0, 10, 10]
    assert isinstance(report.exception(0), RecordTooLargeError)
    assert_whole(rig.pool)


def test_value_and_key_are_sent_as_json() -> None:
    rig = Rig()
    table = pa.table({"id": [1, 2], "name": ["é", None]})
    report = rig.producer.send_arrow(
        table, TOPIC, value_format=Json(prefix=b"\0"), key_format=Json(), key=["name", "id"]
    )
    records = stored(rig, report)
    assert [record.value for record in records] == [b"\0" + model(row).encode() for row in table.to_pylist()]
    assert [record.key for record in records] == ['{"name":"é","id":1}'.encode(), b'{"name":null,"id":2}']


def test_column_alone_is_the_whole_value_and_its_null_is_kafkas() -> None:
    rig = Rig()
    rows = pa.table({"value": pa.array([[1, 2], None], pa.list_(pa.int8())), "key": ["a", None]})
    records = stored(rig, rig.producer.send_arrow(rows, TOPIC, value_format=Json(), key_format=Json()))
    assert [(record.key, record.value) for record in records] == [(b'"a"', b"[1,2]"), (None, None)]


# ---- the object ------------------------------------------------------------------------------------------------------


def test_format_pickles_and_compares() -> None:
    given = Json(dialect="spark", prefix=b"\0\0\0\0\5", time_zone="+01:00", date_format="y", schema={"type": "object"})
    assert pickle.loads(pickle.dumps(given)) == given
    assert hash(given) == hash(
        Json(dialect="spark", prefix=b"\0\0\0\0\5", time_zone="+01:00", date_format="y", schema='{"type": "object"}')
    )
    assert given != Json()
    with pytest.raises(AttributeError):
        given.prefix = b""  # type: ignore[misc]


@pytest.mark.parametrize(
    "arguments",
    [
        {"dialect": "jackson"}, {"prefix": "text"}, {"ignore_null_fields": 1}, {"timestamp_format": 5},
        {"date_format": b"y"}, {"time_zone": "UTC"}, {"dialect": "spark", "time_zone": 1}, {"schema": "{"},
        {"schema": "[]"}, {"schema": {1: object()}}, {"schema": 5},
    ],
)  # fmt: skip
def test_argument_of_another_kind_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Json(**arguments)


def test_given_schema_is_for_the_registry_alone() -> None:
    text = '{"type": "object",  "required": ["absent"]}'
    table = pa.table({"c": [1]})
    assert Json(schema=text).schema_for(table) == text
    assert Json(schema=text).encode(table) == [b'{"c":1}']
