"""Apache Avro's Java library reads what kafkabuf writes: drawn schemas, tables and objects, in one JVM."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kafkabuf.formats import Avro
from tests.effort import effort
from tests.formats.avro.java import Case, check, describe
from tests.formats.avro.support import Schema, decimals, leaves, logical_leaves, nested, tables
from tests.formats.avro.test_objects_random import schemas
from tests.formats.avro.test_types import DEFAULTS


def drawn(examples: int, *strategies: st.SearchStrategy[Any]) -> list[Any]:
    """Examples of strategies. There is no shrinking: all of them go to Java together."""
    examples_drawn: list[Any] = []

    @settings(max_examples=effort(examples), deadline=None, phases=[Phase.generate], database=None)
    @given(st.tuples(*strategies))
    def draw(example: Any) -> None:
        examples_drawn.append(example)

    draw()
    return examples_drawn


def test_java_reads_any_table() -> None:
    cases = []
    for whole, rows, batch in (example for (example,) in drawn(300, tables(nested(leaves | logical_leaves)))):
        present = rows[0].keys()
        fields = [field for field in whole.avro["fields"] if field["name"] in present]
        expected = [describe(whole.avro | {"fields": fields}, whole.expected(row)) for row in rows]
        absent = [field["name"] for field in whole.avro["fields"] if field["name"] not in present]
        cases.append(Case(whole.avro, [row or b"" for row in Avro(whole.avro).encode(batch)], expected, absent))
    assert any(case.defaulted for case in cases)
    check(cases)


def test_java_reads_any_object() -> None:
    cases = []
    for schema, value in (
        example for (example,) in drawn(300, schemas().flatmap(lambda made: st.tuples(st.just(made[0]), made[1])))
    ):
        if value is not None:
            cases.append(Case(schema, [Avro(schema).encode_object(value) or b""], [describe(schema, value)]))
    check(cases)


def _logical(kind: str, logical: str, **more: Any) -> Schema:
    return {"type": kind, "logicalType": logical, **more}


def _decimal_objects(precision: int, scale: int) -> st.SearchStrategy[tuple[Schema, Any, Any]]:
    logical = {"logicalType": "decimal", "precision": precision, "scale": min(scale, precision)}
    size = (10**precision).bit_length() // 8 + 1
    types = st.sampled_from([{"type": "bytes"} | logical, {"type": "fixed", "name": "F", "size": size} | logical])
    return st.tuples(types, decimals(precision, min(scale, precision))).map(lambda made: (*made, made[1]))


_PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_UUIDS = [_logical("string", "uuid"), _logical("fixed", "uuid", name="U", size=16)]
_DURATION = _logical("fixed", "duration", name="D", size=12)


def _timestamps(unit: str) -> st.SearchStrategy[tuple[Schema, Any, Any]]:
    """Between the years that nanoseconds can hold."""
    moments = st.datetimes(datetime(1678, 1, 1), datetime(2262, 1, 1))

    def number(moment: datetime) -> int:
        micros = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        return micros * _PER_SECOND[unit] // 10**6

    local = moments.map(lambda m: (_logical("long", f"local-timestamp-{unit}"), m, number(m)))
    return local | moments.map(lambda m: (_logical("long", f"timestamp-{unit}"), m.replace(tzinfo=UTC), number(m)))


def _time(moment: time) -> timedelta:
    return datetime.combine(date(1970, 1, 1), moment) - datetime(1970, 1, 1)


# A schema, an object of Python, and the number or the object that describe() takes.
_OBJECTS: st.SearchStrategy[tuple[Schema, Any, Any]] = st.one_of(
    st.tuples(st.integers(1, 60), st.integers(0, 40)).flatmap(lambda sizes: _decimal_objects(*sizes)),
    st.tuples(st.sampled_from(_UUIDS), st.uuids()).map(lambda made: (*made, made[1])),
    st.timedeltas(timedelta(0), timedelta(milliseconds=2**32 - 1)).map(
        lambda value: (_DURATION, value - value % timedelta(milliseconds=1), value // timedelta(milliseconds=1))
    ),
    st.dates().map(lambda day: (_logical("int", "date"), day, (day - date(1970, 1, 1)).days)),
    st.times().map(lambda t: (_logical("int", "time-millis"), t, _time(t) // timedelta(milliseconds=1))),
    st.times().map(lambda t: (_logical("long", "time-micros"), t, _time(t) // timedelta(microseconds=1))),
    *map(_timestamps, _PER_SECOND),
)


def test_java_reads_any_object_of_a_logical_type() -> None:
    cases = []
    for ((schema, value, plain),) in drawn(500, _OBJECTS):
        for within in (schema, ["null", schema], ["string", schema] if schema["type"] != "string" else schema):
            cases.append(Case(within, [Avro(within).encode_object(value) or b""], [describe(schema, plain)]))
    check(cases)


_NODE: Schema = {
    "type": "record", "name": "Node",
    "fields": [
        {"name": "v", "type": "long"}, {"name": "next", "type": ["null", "Node"], "default": None},
        {"name": "more", "type": {"type": "array", "items": "Node"}, "default": []},
    ],
}  # fmt: skip
_NODES: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries({"v": st.integers(-(2**63), 2**63 - 1)}),
    lambda node: st.fixed_dictionaries(
        {"v": st.integers(-5, 5)}, optional={"next": st.none() | node, "more": st.lists(node, max_size=3)}
    ),
)


def test_java_reads_a_recursive_schema_as_deep_as_objects_and_columns_go() -> None:
    cases = [
        Case(_NODE, [Avro(_NODE).encode_object(value) or b""], [describe(_NODE, value)])
        for (value,) in drawn(200, _NODES)
    ]
    kind = pa.struct([("v", pa.int64())])
    row: dict[str, Any] = {"v": 0}
    for depth in range(1, 20):
        kind, row = pa.struct([("v", pa.int64()), ("next", kind)]), {"v": depth, "next": row}
        batch = pa.RecordBatch.from_struct_array(pa.array([row], kind))
        cases.append(Case(_NODE, [Avro(_NODE).encode(batch)[0] or b""], [describe(_NODE, row)]))
    check(cases)


def test_java_finds_its_own_default_where_a_column_is_missing() -> None:
    cases = []
    for schema, default in DEFAULTS:
        fields: list[Any] = [{"name": "c", "type": "int"}, {"name": "d", "type": schema, "default": default}]
        record = {"type": "record", "name": "Row", "fields": fields}
        encoded = Avro(record).encode(pa.table({"c": pa.array([1], pa.int32())}))[0] or b""
        assert Avro(record).encode_object({"c": 1}) == encoded
        cases.append(Case(record, [encoded], [["record", "Row", {"c": ["int", 1]}]], ["d"]))
    check(cases)


def test_java_finds_a_column_in_the_field_that_has_its_name_as_an_alias() -> None:
    fields = [{"name": "new", "type": ["null", "string"], "aliases": ["older", "old"]}, {"name": "a", "type": "int"}]
    record = {"type": "record", "name": "Row", "aliases": ["Old"], "fields": fields}
    table = pa.table({"a": pa.array([1, 2], pa.int32()), "old": ["x", None]})
    expected = [describe(record, {"a": 1, "new": "x"}), describe(record, {"a": 2, "new": None})]
    check([Case(record, [row or b"" for row in Avro(record).encode(table)], expected)])
