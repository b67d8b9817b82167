"""Unions of many branches: their numbers take two bytes from the 65th branch on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kafkabuf.errors import SerializationError
from kafkabuf.formats import Avro
from kafkabuf.formats.avro.schema import MAX_BRANCHES
from tests.formats.avro.java import Case, check
from tests.formats.avro.support import written
from tests.formats.avro.test_schema import enums

_COUNTS = [64, 65, 66, 130, 1000, MAX_BRANCHES]


def _wide(count: int) -> list[Any]:
    return [*enums(count - 2), "null", "long"]


@pytest.mark.parametrize("count", _COUNTS)
def test_object_goes_to_its_branch_of_a_wide_union(count: int) -> None:
    schema = {"type": "array", "items": _wide(count)}
    values = [None, 7, *(f"s{number}" for number in (0, 1, count - 4, count - 3)), (f"E{count - 3}", f"s{count - 3}")]
    assert Avro(schema).encode_object(values) == written(schema, values)


@pytest.mark.parametrize("count", _COUNTS)
def test_column_goes_to_its_branch_of_a_wide_union(count: int) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": _wide(count)}]}
    rows: list[dict[str, Any]] = [{"a": 7}, {"a": None}, {"a": 2**40}]
    expected = [written(record, row) for row in rows]
    assert Avro(record).encode(pa.Table.from_pylist(rows)) == expected
    assert Avro(record).encode(pa.table({"a": pa.nulls(1)})) == [written(record, {"a": None})]
    whole = [*enums(count - 1), record | {"name": "Last", "fields": [{"name": "a", "type": "long"}]}]
    assert Avro(whole).encode(pa.table({"a": [7]})) == [written(whole, {"a": 7})]


def test_record_that_fits_none_of_the_best_branches_is_tried_with_the_others() -> None:
    records = [
        {"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": symbols}]}
        for number, symbols in enumerate(enums(100))
    ]
    assert Avro(records).encode_object({"a": "s90"}) == written(records, ("R90", {"a": "s90"}))


def _ladder(depth: int) -> Any:
    """A union of two records, each of which has a union of the two records below: 2 ** depth ways lead to the last."""
    made: Any = "int"
    for level in range(depth):
        below = ["int"] if level == 0 else [f"A{level - 1}", f"B{level - 1}"]
        a = {"type": "record", "name": f"A{level}", "fields": [{"name": "x", "type": made}]}
        b = {"type": "record", "name": f"B{level}", "fields": [{"name": "x", "type": below}]}
        made = ["null", a, b]
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": made}]}


@pytest.mark.parametrize("depth", [4, 30])
def test_unions_that_are_reached_in_many_ways_are_compiled_once(depth: int) -> None:
    kind: Any = pa.int32()
    row: Any = 7
    for _ in range(depth):
        kind, row = pa.struct([("x", kind)]), {"x": row}
    schema = _ladder(depth)
    expected = b"\x02" * depth + b"\x0e"
    assert Avro(schema).encode(pa.table({"x": pa.array([row], kind)})) == [expected]
    if depth == 4:
        assert written(schema, {"x": row}) == expected  # the peer tries every way
    wrong = pa.table({"x": pa.array([None], _with_leaf(kind, pa.binary()))})
    last = depth - 1
    with pytest.raises(SerializationError, match=f"fits no branch of the Avro union of null, record A{last}, record B"):
        Avro(schema).encode(wrong)


def _with_leaf(kind: Any, leaf: Any) -> Any:
    return pa.struct([("x", _with_leaf(kind.field(0).type, leaf))]) if pa.types.is_struct(kind) else leaf


def test_java_reads_the_branches_of_a_wide_union() -> None:
    schema = _wide(200)
    values = ["s0", "s197", None, 7]
    encoded = Avro({"type": "array", "items": schema}).encode_object(values) or b""
    found = ["array", [["enum", "E0", "s0"], ["enum", "E197", "s197"], None, ["long", 7]]]
    check([Case({"type": "array", "items": schema}, [encoded], [found])])


def test_error_names_some_of_many_branches() -> None:
    with pytest.raises(SerializationError, match="E15 and 83 more") as caught:
        Avro({"type": "array", "items": enums(99)}).encode_object([5])
    assert len(str(caught.value)) < 1000
