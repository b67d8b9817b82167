"""Drawn schemas and values: encode_object() writes the bytes of fastavro, and those of the Arrow reader."""

from __future__ import annotations

import math
import string
from dataclasses import make_dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.formats import Avro
from tests.effort import effort
from tests.formats.avro.support import Drawn, Schema, decimals, read, tables, written


@given(tables())
@settings(max_examples=effort(100), deadline=None)
def test_rows_as_objects_become_the_bytes_of_their_columns(drawn: tuple[Drawn, list[Any], pa.RecordBatch]) -> None:
    whole, rows, batch = drawn
    avro = Avro(whole.avro)
    encoded = avro.encode(batch)
    values = [whole.expected(row) for row in rows]
    assert [avro.encode_object(value) for value in values] == encoded
    names = list(values[0])
    cls = make_dataclass("Row", names, slots=True)
    assert [avro.encode_object(cls(**value)) for value in values] == encoded


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(), "int": st.integers(-(2**31), 2**31 - 1), "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(), "string": st.text(max_size=20), "bytes": st.binary(max_size=20),
}  # fmt: skip


@st.composite
def _unions(draw: st.DrawFn, depth: int) -> tuple[Schema, st.SearchStrategy[Any]]:
    """Branches whose values differ in type, so that no rule of choice matters, and records with different fields."""
    kinds = draw(st.lists(st.sampled_from(["boolean", "long", "string", "bytes"]), unique=True))
    branches: list[Schema] = ["null", *kinds]
    values = [st.none(), *(_PRIMITIVES[kind] for kind in kinds)]
    for number in range(draw(st.integers(0, 3))):
        letter = string.ascii_letters[number]
        fields = {f"{letter}{i}": draw(schemas(depth - 1)) for i in range(draw(st.integers(1, 3)))}
        branches.append(_record(draw, {name: schema for name, (schema, _) in fields.items()}))
        values.append(st.fixed_dictionaries({name: value for name, (_, value) in fields.items()}))
    order = draw(st.permutations(branches))
    return order, st.one_of(values)


_drawn = iter(range(10**9))


def _record(draw: st.DrawFn, fields: dict[str, Schema]) -> Schema:
    return {
        "type": "record", "name": f"N{next(_drawn)}",
        "fields": [{"name": name, "type": kind} for name, kind in draw(st.permutations(list(fields.items())))],
    }  # fmt: skip


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> tuple[Schema, st.SearchStrategy[Any]]:
    kind = draw(st.sampled_from([*_PRIMITIVES, *(["array", "map", "union", "record"] if depth else [])]))
    if kind == "union":
        return draw(_unions(depth))
    if kind in _PRIMITIVES:
        return kind, _PRIMITIVES[kind]
    if kind == "record":
        fields = {f"f{number}": draw(schemas(depth - 1)) for number in range(draw(st.integers(0, 4)))}
        schema = _record(draw, {name: schema for name, (schema, _) in fields.items()})
        return schema, st.fixed_dictionaries({name: value for name, (_, value) in fields.items()})
    items, value = draw(schemas(depth - 1))
    if kind == "array":
        return {"type": "array", "items": items}, st.lists(value, max_size=4)
    return {"type": "map", "values": items}, st.dictionaries(st.text(max_size=5), value, max_size=4)


@given(schemas(), st.data())
@settings(max_examples=effort(150), deadline=None)
def test_any_object_becomes_the_bytes_that_fastavro_writes(
    drawn: tuple[Schema, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    schema, values = drawn
    value = data.draw(values)
    if value is not None:
        assert Avro(schema).encode_object(value) == written(schema, value)


@given(st.data(), st.integers(1, 60), st.integers(0, 40))
@settings(max_examples=effort(100), deadline=None)
def test_decimals_become_the_bytes_of_their_column(data: st.DataObject, precision: int, scale: int) -> None:
    scale = min(scale, precision)
    value = data.draw(decimals(precision, scale))
    column = pa.record_batch({"c": pa.array([value], pa.decimal256(precision, scale))})
    logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
    for schema in ({"type": "bytes"} | logical, {"type": "fixed", "name": "F", "size": 33} | logical):
        assert [Avro(schema).encode_object(value)] == Avro(schema).encode(column)
        assert Avro(schema).encode_object(value.normalize(_wide())) == Avro(schema).encode_object(value)


def _wide() -> Any:
    from decimal import Context

    return Context(prec=100)


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.timezones() | st.just(UTC)))
@settings(max_examples=effort(150), deadline=None)
def test_times_of_any_zone_become_the_numbers_that_fastavro_writes(moment: datetime) -> None:
    for unit in ("millis", "micros"):
        schema = {"type": "long", "logicalType": f"timestamp-{unit}"}
        assert Avro(schema).encode_object(moment) == written(schema, moment)
        local = {"type": "long", "logicalType": f"local-timestamp-{unit}"}
        assert Avro(local).encode_object(moment.replace(tzinfo=None)) == written(local, moment.replace(tzinfo=None))


@given(st.dates(), st.times())
@settings(max_examples=effort(100), deadline=None)
def test_dates_and_times_become_the_numbers_that_fastavro_writes(day: date, moment: time) -> None:
    for kind, logical, value in (
        ("int", "date", day), ("int", "time-millis", moment), ("long", "time-micros", moment),
    ):  # fmt: skip
        schema = {"type": kind, "logicalType": logical}
        assert Avro(schema).encode_object(value) == written(schema, value)


@given(st.floats() | st.integers(-(2**70), 2**70))
@settings(max_examples=effort(100), deadline=None)
def test_double_holds_its_number(value: float) -> None:
    if isinstance(value, float) or (abs(value) < 2**62 and int(float(value)) == value):
        found = read("double", Avro("double").encode_object(value) or b"")
        assert found == value or (math.isnan(found) and math.isnan(value))
