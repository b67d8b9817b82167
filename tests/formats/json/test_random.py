"""Drawn tables and numbers: Json.encode() writes what the model of orjson writes, and each number reads as it was."""

from __future__ import annotations

import json
import struct
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.formats import Json
from tests.effort import effort
from tests.formats.json.support import java_real, leaves, model, orjson_real, rows_of, tables


@given(tables(), st.data())
@settings(max_examples=effort(300), deadline=None)
def test_any_table_becomes_the_text_of_its_rows(batch: pa.RecordBatch, data: st.DataObject) -> None:
    expected = [model(row).encode() for row in rows_of(batch)]
    assert Json().encode(batch) == expected
    begin = data.draw(st.integers(0, batch.num_rows))
    end = data.draw(st.integers(begin, batch.num_rows))
    assert Json().encode(batch.slice(begin, end - begin)) == expected[begin:end]
    table = pa.Table.from_batches([batch, batch.slice(begin), batch])
    assert Json(prefix=b"\0id").encode(table) == [b"\0id" + row for row in [*expected, *expected[begin:], *expected]]


@given(tables())
@settings(max_examples=effort(150), deadline=None)
def test_null_fields_are_left_out_at_each_level(batch: pa.RecordBatch) -> None:
    expected = [model(_without_nulls(row, batch.schema)).encode() for row in rows_of(batch)]
    assert Json(ignore_null_fields=True).encode(batch) == expected


def _without_nulls(value: Any, kind: Any) -> Any:
    """A struct's members that are null go; a list's items and a map's values stay."""
    if value is None:
        return None
    if isinstance(kind, pa.Schema) or pa.types.is_struct(kind):
        parts = {field.name: field.type for field in kind}
        return {name: _without_nulls(part, parts[name]) for name, part in value.items() if part is not None}
    if pa.types.is_map(kind):
        return {key: _without_nulls(item, kind.item_type) for key, item in value.items()}
    if pa.types.is_nested(kind):
        return [_without_nulls(item, kind.value_type) for item in value]
    return value


@given(tables(), st.sampled_from(["orjson", "spark"]), st.booleans())
@settings(max_examples=effort(150), deadline=None)
def test_rows_are_valid_by_the_derived_schema(batch: pa.RecordBatch, dialect: Any, ignore: bool) -> None:
    json_format = Json(dialect=dialect, ignore_null_fields=ignore)
    schema = json.loads(json_format.schema_for(batch))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for row in json_format.encode(batch):
        validator.validate(json.loads(row or b""))


@given(leaves, st.data())
@settings(max_examples=effort(150), deadline=None)
def test_dictionary_encoded_column_becomes_the_same_text(
    drawn: tuple[pa.DataType, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    kind, drawn_values = drawn
    values = pa.array(data.draw(st.lists(st.none() | drawn_values, min_size=1, max_size=4)), kind)
    indices = pa.array(data.draw(st.lists(st.none() | st.integers(0, len(values) - 1), max_size=8)), pa.int16())
    encoded = pa.DictionaryArray.from_arrays(indices, values)
    rows = [None if index is None else values[index].as_py() for index in indices.to_pylist()]
    assert Json().encode(pa.record_batch({"c": encoded})) == [model({"c": row}).encode() for row in rows]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _finite(kind: Any, bits: Any, count: int) -> Any:
    """Numbers of random bits, the powers of two with their neighbours, and the least numbers."""
    unsigned = np.dtype(f"u{np.dtype(kind).itemsize}")
    generator = np.random.default_rng(7)
    drawn = generator.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True)
    powers = np.arange(1 << (8 * unsigned.itemsize - 1 - bits), dtype=unsigned) << unsigned.type(bits)
    neighbours = np.concatenate([powers, powers[1:] - unsigned.type(1), powers + unsigned.type(1)])
    numbers = np.concatenate([drawn, neighbours, np.arange(300, dtype=unsigned)]).view(kind)
    return numbers[np.isfinite(numbers)]


def _texts(json_format: Json, numbers: Any) -> list[str]:
    encoded = json_format.encode(pa.record_batch({"c": pa.array(numbers)}))
    return [(row or b"").decode()[len('{"c":') : -1] for row in encoded]


def test_double_has_its_shortest_text() -> None:
    numbers = _finite(np.float64, 52, effort(40_000))
    assert _texts(Json(), numbers) == [orjson_real(number) for number in numbers.tolist()]


def test_double_has_the_text_of_java() -> None:
    numbers = _finite(np.float64, 52, effort(40_000))
    assert _texts(Json(dialect="spark"), numbers) == [java_real(repr(number), number) for number in numbers.tolist()]


def test_float_has_the_text_of_java() -> None:
    numbers = _finite(np.float32, 23, effort(40_000))
    assert _texts(Json(dialect="spark"), numbers) == [java_real(str(number), float(number)) for number in numbers]


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (np.float64, ["4.9E-324", "9.9E-324", "1.5E-323", "2.0E-323"]),
        (np.float32, ["1.4E-45", "2.8E-45", "4.2E-45", "5.6E-45", "7.0E-45", "8.4E-45", "9.8E-45", "1.1E-44"]),
    ],
)
def test_least_numbers_have_two_digits_in_java(kind: Any, texts: list[str]) -> None:
    least = np.nextafter(kind(0), kind(1)) * np.arange(1, len(texts) + 1, dtype=kind)
    assert _texts(Json(dialect="spark"), least) == texts


def test_whole_numbers_have_all_their_digits() -> None:
    numbers = sorted({sign * (10**digits + more) for digits in range(19) for more in (-1, 0, 1) for sign in (1, -1)})
    numbers += [-(2**63), 2**63 - 1]
    assert _texts(Json(), np.array(numbers)) == list(map(str, numbers))
    wide = np.array([0, 2**63, 10**19, 10**19 - 1, 2**64 - 1], np.uint64)
    assert _texts(Json(), wide) == list(map(str, wide.tolist()))


def test_decimal_of_any_digits_is_written_whole() -> None:
    values = np.concatenate(
        [10 ** np.arange(76, dtype=object) * sign + more for sign in (1, -1) for more in (-1, 0, 1)]
    )
    raw = b"".join(int(value).to_bytes(32, "little", signed=True) for value in values)
    column = pa.Array.from_buffers(pa.decimal256(76, 0), len(values), [None, pa.py_buffer(raw)])
    encoded = Json().encode(pa.record_batch({"c": column}))
    assert [int(json.loads(row or b"")["c"]) for row in encoded] == list(map(int, values))


def test_bits_of_a_number_survive() -> None:
    """Independent of Python's repr(): the text is read again."""
    numbers = _finite(np.float64, 52, effort(40_000))
    read = [float(text) for text in _texts(Json(), numbers)]
    assert struct.pack(f"{len(read)}d", *read) == numbers.tobytes()
