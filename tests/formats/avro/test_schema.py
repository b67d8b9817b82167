"""Schemas: what is read of them, and what is refused with which words."""

from __future__ import annotations

import json
import struct
import time
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats import Avro, Json
from kafkabuf.formats.avro.schema import Array, Fixed, Primitive, Record, Union, canonical, parse
from kafkabuf.formats.rows.symbols import symbol_table


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def nested(levels: int) -> Any:
    schema: Any = "int"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def enums(count: int) -> list[Any]:
    return [{"type": "enum", "name": f"E{number}", "symbols": [f"s{number}"]} for number in range(count)]


REFUSED: dict[str, tuple[Any, str]] = {
    "long namespace": (record(namespace="n" * 1001), "schema: a name has more than 1000 characters: 'n"),
    "text": ("not json", "neither JSON nor a primitive type's name"),
    "number": (5, "5 is no Avro type"),
    "no type": ({"name": "x"}, "needs the attribute 'type'"),
    "unknown": ('["nothing"]', "there is no Avro type 'nothing'"),
    "unknown field": (record({"name": "a", "type": "Other"}), r"schema\.a: there is no Avro type 'Other'"),
    "no fields": ({"type": "record", "name": "R"}, "attribute 'fields' is missing"),
    "fields": ({"type": "record", "name": "R", "fields": 5}, "fields of a record are a list"),
    "no name": ({"type": "record", "fields": []}, "attribute 'name' is missing"),
    "name": ({"type": "record", "name": "a b", "fields": []}, "'a b' is no Avro name"),
    "namespace": ({"type": "record", "name": "a", "namespace": 5, "fields": []}, "name and namespace are strings"),
    "field's name": (record({"name": "1a", "type": "int"}), "a field needs a name"),
    "field": (record(5), "a field needs a name"),
    "two fields": (record({"name": "a", "type": "int"}, {"name": "a", "type": "int"}), "has two fields 'a'"),
    "aliases": (record({"name": "a", "type": "int", "aliases": "b"}), "aliases is a list of strings"),
    "twice": (record({"name": "a", "type": record()}), "'R' is defined twice"),
    "symbols": ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "needs different symbols"),
    "no symbols": ({"type": "enum", "name": "E", "symbols": []}, "needs different symbols"),
    "size": ({"type": "fixed", "name": "F", "size": True}, "size of a fixed is an int"),
    "negative size": ({"type": "fixed", "name": "F", "size": -1}, "size of a fixed"),
    "precision": ({"type": "bytes", "logicalType": "decimal", "precision": 10**9}, "at most 16384 digits.* 1000000000"),
    "precision of no int64": (
        {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 10**400},
        "at most 16384 digits",
    ),
    "empty union": ([], "1 to 4096 branches"),
    "branches": (enums(4097), "1 to 4096 branches, found 4097"),
    "union in a union": ([["null", "int"], "string"], "must not be the branch"),
    "two branches": (["int", "int"], "two branches of the same type: int, int"),
    "two arrays": ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "two branches"),
    "enum's default": (
        {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "C"},
        "default 'C' is not among its symbols",
    ),
    "depth": (nested(65), "deeper than 64 levels"),
    "text's depth": ("[" * 100_000, "deeper than 64 levels"),
    "no JSON": ({"type": object()}, "no JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_schema_is_refused_by_its_path(name: str) -> None:
    schema, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        Avro(schema)


def test_schema_that_fastavro_has_parsed_is_taken() -> None:
    schema = record({"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}, namespace="n.s")
    parsed = fastavro.parse_schema(schema)
    assert str(parse(Avro(parsed).schema or "")) == "record n.s.R"
    within = record({"name": "b", "type": parsed}, name="O")
    for place in (parsed, [parsed], {"type": "array", "items": parsed}, within):
        assert "__" in str(place)
        assert "__" not in canonical(place)


def test_only_the_marks_of_fastavro_are_dropped() -> None:
    schema = record(
        {"name": "__a", "type": {"type": "map", "values": "int", "__unit": "m"}, "default": {"__fastavro_parsed": 1}},
        {"name": "b", "type": record(name="__B"), "default": {}, "__named_schemas": {"x": [{"__y": 1}]}},
        __owner="me",
        __named_schemas="mine",
    )
    assert json.loads(canonical(schema)) == schema
    assert json.loads(canonical(fastavro.parse_schema(schema)))["__owner"] == "me"
    assert Avro(schema).encode_object({"b": {}}) == b"\x02\x22__fastavro_parsed\x02\0"


def test_names_are_found_in_their_namespace() -> None:
    schema = record(
        {"name": "a", "type": {"type": "fixed", "name": "F", "size": 3, "namespace": None}},
        {"name": "b", "type": "F"}, {"name": "c", "type": "n.F"}, {"name": "d", "type": ["null", "n.F"]},
        {"name": "e", "type": {"type": "array", "items": "R"}}, namespace="n",
    )  # fmt: skip
    root = parse(canonical(schema))
    assert isinstance(root, Record)
    a, b, c, d, e = (field.node for field in root.fields)
    assert a is b is c
    assert a == Fixed("n.F", 3)
    assert isinstance(d, Union)
    assert d.branches[1] is a
    assert isinstance(e, Array)
    assert e.items is root


def test_alias_names_no_type_as_in_java() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 3, "aliases": ["G"]}
    with pytest.raises(ConfigError, match="there is no Avro type 'G'"):
        Avro(record({"name": "a", "type": fixed}, {"name": "b", "type": "G"}))
    other = {"type": "enum", "name": "G", "symbols": ["x"]}
    assert Avro(record({"name": "a", "type": fixed}, {"name": "b", "type": other})).schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "date"},
        {"type": "bytes", "logicalType": 5},
        {"type": {"type": "bytes"}},
    ],
)
def test_logical_type_that_contradicts_its_type_is_ignored(schema: Any) -> None:
    assert parse(canonical(schema)) == Primitive("bytes")


def test_schema_that_contains_itself_is_refused() -> None:
    schema: list[Any] = []
    schema.append(schema)
    with pytest.raises(ConfigError, match="nested deeper"):
        Avro(schema)


def test_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="no JSON"):
        Avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": "double", "default": float("nan")}]})
    with pytest.raises(ConfigError, match="not JSON"):
        Json(schema={"default": float("nan")})


@pytest.mark.parametrize("wrapped", [False, True])
def test_default_that_grows_exponentially_is_refused(wrapped: bool) -> None:
    inner: Any = record(name="R0")
    for level in range(1, 30):
        second = ["null", f"R{level - 1}"] if wrapped else f"R{level - 1}"
        inner = record(
            {"name": "a", "type": inner, "default": {}}, {"name": "b", "type": second, "default": {}}, name=f"R{level}"
        )
    schema = Avro(record({"name": "x", "type": "long"}, {"name": "y", "type": inner, "default": {}}, name="Top"))
    with pytest.raises(SerializationError, match="more than 4096 parts"):
        schema.encode(pa.table({"x": [1]}))
    with pytest.raises(SerializationError, match="more than 4096 parts"):
        schema.encode_object({"x": 1})


def test_time_for_an_enum_grows_with_its_symbols_and_not_with_their_square() -> None:
    """The table of 200,000 symbols copied a terabyte. The time is that of the processor, which other loads do not take.

    Eight times the symbols took 66 times as long, and take 8 times as long now.
    """

    def seconds(count: int) -> float:
        symbols = [(f"S{number:06}", number) for number in range(count)]
        began = time.thread_time()
        table = symbol_table(symbols)
        took = time.thread_time() - began
        size, number, offset = struct.unpack_from("=qqq", table, 24 * (count - 1))
        assert (size, number, table[offset:]) == (7, count - 1, symbols[-1][0].encode())
        return took

    assert min(seconds(64_000) for _ in range(3)) < 24 * min(seconds(8_000) for _ in range(3))
