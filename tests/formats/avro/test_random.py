"""Drawn schemas and tables: the bytes of Avro.encode() are fastavro's, and fastavro reads the values from them."""

from __future__ import annotations

import json
import math
import re
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Avro
from tests.effort import effort
from tests.formats.avro.support import Drawn, decimals, leaves, read, tables, written


@given(tables(), st.data())
@settings(max_examples=effort(300), deadline=None)
def test_any_table_becomes_the_bytes_that_fastavro_writes(
    drawn: tuple[Drawn, list[Any], pa.RecordBatch], data: st.DataObject
) -> None:
    whole, rows, batch = drawn
    expected = [written(whole.avro, whole.expected(row)) for row in rows]
    assert Avro(whole.avro).encode(batch) == expected
    begin = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(begin, len(rows)))
    assert Avro(whole.avro).encode(batch.slice(begin, end - begin)) == expected[begin:end]
    table = pa.Table.from_batches([batch, batch.slice(begin), batch])
    assert Avro(whole.avro, prefix=b"\0id").encode(table) == [
        b"\0id" + row for row in [*expected, *expected[begin:], *expected]
    ]


@given(tables())
@settings(max_examples=effort(150), deadline=None)
def test_derived_schema_keeps_every_value(drawn: tuple[Drawn, list[Any], pa.RecordBatch]) -> None:
    _, rows, batch = drawn
    derived = Avro().schema_for(batch)
    assume("logicalType" not in derived)  # the numbers of some times change with their unit
    encoded = Avro().encode(batch)
    assert [read(json.loads(derived), row or b"") for row in encoded] == [Same(_plain(row)) for row in rows]
    assert Avro(derived).encode(batch) == encoded


def _plain(value: Any) -> Any:
    """A drawn value as fastavro reads it: a map is drawn as pairs."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key: _plain(part) for key, part in value}
    return list(map(_plain, value)) if isinstance(value, list) else value


class Same:
    """Equal to a value that is the same but for NaN, for text as bytes, and for an empty map as an empty list."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return _same(self.value, other)

    __hash__ = None  # type: ignore[assignment]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if {type(a), type(b)} <= {str, bytes}:
        return (a.encode() if isinstance(a, str) else a) == (b.encode() if isinstance(b, str) else b)
    if a in ([], {}) and b in ([], {}):
        return True
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


@given(leaves, st.data())
@settings(max_examples=effort(300), deadline=None)
def test_dictionary_encoded_column_becomes_the_same_bytes(column: Drawn, data: st.DataObject) -> None:
    if pa.types.is_temporal(column.arrow) or pa.types.is_boolean(column.arrow) or column.arrow == pa.float16():
        return
    values = pa.array(data.draw(st.lists(column.values, min_size=1, max_size=4)), column.arrow)
    indices = data.draw(st.lists(st.none() | st.integers(0, len(values) - 1), max_size=8))
    kind = data.draw(st.sampled_from([pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.int64()]))
    encoded = pa.DictionaryArray.from_arrays(pa.array(indices, kind), values)
    plain = pa.array([None if index is None else values[index].as_py() for index in indices], column.arrow)
    schema = {"type": "record", "name": "Row", "fields": [{"name": "c", "type": [column.avro, "null"]}]}
    assert Avro(schema).encode(pa.record_batch({"c": encoded})) == Avro(schema).encode(pa.record_batch({"c": plain}))


_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


@given(st.uuids(), st.integers(0, 36), st.text(max_size=2) | st.sampled_from("/:@G`g-0fF\0{"), st.integers(0, 2))
@settings(max_examples=effort(500), deadline=None)
def test_text_is_taken_for_a_uuid_if_it_is_one(drawn: uuid.UUID, begin: int, between: str, cut: int) -> None:
    text = str(drawn)[:begin] + between + str(drawn)[begin + cut :]
    batch = pa.record_batch({"c": pa.array([text])})
    avro = Avro({"type": "record", "name": "R", "fields": [{"name": "c", "type": _UUID_TYPE}]})
    if _UUID.fullmatch(text):
        assert avro.encode(batch) == [written("string", text)]
    else:
        with pytest.raises(SerializationError, match=r"row 0: column 'c' .* is not a uuid"):
            avro.encode(batch)


_UUID_TYPE = {"type": "string", "logicalType": "uuid"}


@given(st.data(), st.integers(1, 76), st.integers(0, 40))
@settings(max_examples=effort(300), deadline=None)
def test_decimals_are_read_as_they_were(data: st.DataObject, precision: int, scale: int) -> None:
    """Compared after reading: fastavro writes a superfluous byte before some negative numbers, and Java does not."""
    scale = min(scale, precision)
    kinds = [pa.decimal256(precision, scale)] + ([pa.decimal128(precision, scale)] if precision <= 38 else [])
    values = data.draw(st.lists(decimals(precision, scale), min_size=1, max_size=5))
    column = pa.array(values, data.draw(st.sampled_from(kinds)))
    logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
    size = data.draw(st.integers(33, 50) | st.just((10**precision).bit_length() // 8 + 1))
    for schema in ({"type": "bytes"} | logical, {"type": "fixed", "name": "F", "size": size} | logical):
        encoded = Avro(schema).encode(pa.record_batch({"c": column}))
        assert [read(schema, value or b"") for value in encoded] == values
        if schema["type"] == "bytes":
            assert [len(value or b"") for value in encoded] == [1 + _shortest(value) for value in values]


def _shortest(value: Decimal) -> int:
    """The bytes of the shortest two's complement, as of Java's BigInteger.toByteArray()."""
    magnitude = int("".join(map(str, value.as_tuple().digits)))
    return (magnitude - 1 if value.is_signed() and magnitude else magnitude).bit_length() // 8 + 1
