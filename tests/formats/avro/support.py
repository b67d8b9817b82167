"""fastavro as the oracle of the Avro tests, and a strategy that draws Arrow columns with the Avro types that fit."""

from __future__ import annotations

import io
import itertools
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

Schema = Any


def written(schema: Schema, value: Any) -> bytes:
    """The value as fastavro writes it."""
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def read(schema: Schema, encoded: bytes) -> Any:
    """The value as fastavro reads it; no byte may be left."""
    source = io.BytesIO(encoded)
    value = fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)
    assert source.read() == b""
    return value


@dataclass
class Drawn:
    """A column's type, the Avro type it is written as, its values, and what fastavro takes for a value."""

    arrow: pa.DataType
    avro: Schema
    values: st.SearchStrategy[Any]
    expected: Callable[[Any], Any] = field(default=lambda value: value)


_numbers = itertools.count()


def _name(prefix: str) -> str:
    """A new name: Avro's named types must differ."""
    return f"{prefix}{next(_numbers)}"


def _ints(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(max(low, -(2**63)), min(high, 2**63 - 1)) | st.sampled_from(
        [low, min(high, 2**63 - 1), 0, 63, 64]
    )


def _logical(kind: str, logical: str) -> Schema:
    return {"type": kind, "logicalType": logical}


def _unchanged(arrow: pa.DataType, avro: Schema, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Drawn]:
    return st.just(Drawn(arrow, avro, values))


_texts = st.text(max_size=12) | st.sampled_from(["", "é" * 9, "x" * 70, "\U0001f600", "ascii, then é"])
_binaries = st.binary(max_size=20)
_int_columns = [
    _unchanged(arrow, avro, _ints(bits, signed=signed))
    for arrow, bits, signed, kinds in [
        (pa.int8(), 8, True, ("int", "long")), (pa.int16(), 16, True, ("int", "long")),
        (pa.int32(), 32, True, ("int", "long")), (pa.int64(), 64, True, ("long",)),
        (pa.uint8(), 8, False, ("int", "long")), (pa.uint16(), 16, False, ("int", "long")),
        (pa.uint32(), 32, False, ("long",)), (pa.uint64(), 64, False, ("long",)),
    ]
    for avro in kinds
]  # fmt: skip
_reals = st.floats(width=32)
_real_columns = [
    _unchanged(pa.float16(), "float", st.floats(width=16)),
    _unchanged(pa.float32(), "float", _reals),
    _unchanged(pa.float32(), "double", _reals),
    _unchanged(pa.float64(), "double", st.floats()),
    _unchanged(pa.int32(), "double", _ints(32, signed=True)),
]
_byte_columns = [
    *(_unchanged(arrow, "string", _texts) for arrow in (pa.string(), pa.large_string(), pa.string_view())),
    *(_unchanged(arrow, "bytes", _binaries) for arrow in (pa.binary(), pa.large_binary(), pa.binary_view())),
    st.just(Drawn(pa.string(), "bytes", _texts, str.encode)),
    st.just(Drawn(pa.binary(), "string", _texts.map(str.encode), bytes.decode)),
]


def _scaled(arrow: pa.DataType, avro: Schema, factor: int) -> st.SearchStrategy[Drawn]:
    """A time whose number is multiplied by `factor`; if negative, divided."""
    if pa.types.is_time(arrow):
        day = 86_400 * {"ms": 10**3, "us": 10**6, "ns": 10**6}[arrow.unit]
        times = st.integers(0, day - 1).map(lambda n: n * max(1, -factor))
        return st.just(Drawn(arrow, avro, times, lambda value: value // max(1, -factor)))
    if factor > 0:
        bound = (2**31 - 1 if arrow.bit_width == 32 else 2**63 - 1) // factor
        return st.just(Drawn(arrow, avro, st.integers(-bound, bound), lambda value: value * factor))
    bound = (2**63 - 1) // -factor
    return st.just(Drawn(arrow, avro, st.integers(-bound, bound).map(lambda n: n * -factor), lambda v: v // -factor))


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_time_columns = [
    *(
        _scaled(
            pa.timestamp(unit, zone),
            _logical("long", f"{local}timestamp-{fraction}"),
            (to // of) if to >= of else -(of // to),
        )
        for unit, of in _PER_SECOND.items()
        for fraction, to in (("millis", 10**3), ("micros", 10**6), ("nanos", 10**9))
        for zone, local in ((None, "local-"), ("UTC", ""))
    ),
    _scaled(pa.time32("ms"), _logical("int", "time-millis"), 1),
    _scaled(pa.time64("us"), _logical("long", "time-micros"), 1),
    _scaled(pa.time64("ns"), _logical("long", "time-micros"), -1000),
    _scaled(pa.date32(), _logical("int", "date"), 1),
    st.just(
        Drawn(pa.date64(), _logical("int", "date"), _ints(31, signed=True).map(lambda n: n * 86_400_000),
              lambda value: value // 86_400_000)
    ),
]  # fmt: skip


@st.composite
def _fixeds(draw: st.DrawFn) -> Drawn:
    size = draw(st.integers(1, 40))
    avro = {"type": "fixed", "name": _name("F"), "size": size}
    arrow = draw(st.sampled_from([pa.binary(size), pa.binary()]))
    return Drawn(arrow, avro, st.binary(min_size=size, max_size=size))


@st.composite
def _enums(draw: st.DrawFn) -> Drawn:
    symbols = draw(
        st.lists(st.text(string.ascii_letters, min_size=1, max_size=9), min_size=1, max_size=40, unique=True)
    )
    avro = {"type": "enum", "name": _name("E"), "symbols": symbols}
    arrow = draw(st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
    return Drawn(arrow, avro, st.sampled_from(symbols))


@st.composite
def _lists(draw: st.DrawFn, items: st.SearchStrategy[Drawn]) -> Drawn:
    item = draw(items)
    avro = {"type": "array", "items": item.avro}
    size = draw(st.integers(1, 3))
    arrow = draw(st.sampled_from([pa.list_(item.arrow), pa.large_list(item.arrow), pa.list_(item.arrow, size)]))
    low, high = (size, size) if pa.types.is_fixed_size_list(arrow) else (0, 4)
    values = st.lists(item.values, min_size=low, max_size=high)
    return Drawn(arrow, avro, values, lambda value: [item.expected(v) for v in value])


@st.composite
def _maps(draw: st.DrawFn, items: st.SearchStrategy[Drawn]) -> Drawn:
    item = draw(items)
    pairs = st.dictionaries(_texts, item.values, max_size=4).map(lambda made: list(made.items()))
    return Drawn(
        pa.map_(pa.string(), item.arrow), {"type": "map", "values": item.avro}, pairs,
        lambda value: {key: item.expected(v) for key, v in value},
    )  # fmt: skip


@st.composite
def _records(draw: st.DrawFn, items: st.SearchStrategy[Drawn]) -> Drawn:
    return record(draw, draw(st.lists(items, min_size=1, max_size=4)))


def record(draw: st.DrawFn, parts: list[Drawn]) -> Drawn:
    """A struct of the parts. The record's fields have another order, and may have a default without a column."""
    names = [f"f{number}" for number in range(len(parts))]
    fields = [{"name": name, "type": part.avro} for name, part in zip(names, parts, strict=True)]
    if draw(st.booleans()):
        fields.append({"name": "absent", "type": ["null", "string"], "default": None})
        fields.append({"name": "constant", "type": {"type": "array", "items": "int"}, "default": [-1, 200]})
    avro = {"type": "record", "name": _name("R"), "fields": draw(st.permutations(fields))}
    arrow = pa.struct([pa.field(name, part.arrow) for name, part in zip(names, parts, strict=True)])
    values = st.fixed_dictionaries({name: part.values for name, part in zip(names, parts, strict=True)})
    by_name = dict(zip(names, parts, strict=True))
    return Drawn(arrow, avro, values, lambda value: {name: by_name[name].expected(v) for name, v in value.items()})


@st.composite
def _nullables(draw: st.DrawFn, items: st.SearchStrategy[Drawn]) -> Drawn:
    item = draw(items.filter(lambda drawn: not isinstance(drawn.avro, list)))
    branches = draw(st.sampled_from([["null", item.avro], [item.avro, "null"]]))
    return Drawn(
        item.arrow, branches, st.none() | item.values,
        lambda value: None if value is None else _branch(item.expected(value), item.avro),
    )  # fmt: skip


def _branch(value: Any, avro: Schema) -> Any:
    """fastavro chooses a branch by the value, and knows a record by its name only with this hint."""
    return (avro["name"], value) if isinstance(avro, dict) and avro["type"] == "record" else value


leaves = st.one_of(
    st.just(Drawn(pa.bool_(), "boolean", st.booleans())),
    st.sampled_from(_int_columns).flatmap(lambda column: column),
    st.sampled_from(_real_columns).flatmap(lambda column: column),
    st.sampled_from(_byte_columns).flatmap(lambda column: column),
    st.sampled_from(_time_columns).flatmap(lambda column: column),
    _fixeds(),
    _enums(),
)


def nested(leaves: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    """Columns of such leaves, and nullable columns, lists, maps and records of them."""
    return st.recursive(
        leaves, lambda items: st.one_of(_nullables(items), _lists(items), _maps(items), _records(items)), max_leaves=8
    )


columns = nested(leaves)


@st.composite
def tables(draw: st.DrawFn, columns: st.SearchStrategy[Drawn] = columns) -> tuple[Drawn, list[Any], pa.RecordBatch]:
    """A record of columns, rows of values, and the Arrow data that has them."""
    whole = record(draw, draw(st.lists(columns, min_size=1, max_size=5)))
    rows = draw(st.lists(whole.values, min_size=1, max_size=6))
    return whole, rows, pa.RecordBatch.from_struct_array(pa.array(rows, whole.arrow))


@st.composite
def _decimal_columns(draw: st.DrawFn) -> Drawn:
    precision = draw(st.integers(1, 76))
    scale = draw(st.integers(0, precision))
    avro: Schema = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if draw(st.booleans()):
        avro |= {"type": "fixed", "name": _name("D"), "size": (10**precision).bit_length() // 8 + 1}
    arrow = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return Drawn(arrow, avro, decimals(precision, scale))


@st.composite
def _uuid_columns(draw: st.DrawFn) -> Drawn:
    if draw(st.booleans()):
        return Drawn(pa.string(), _logical("string", "uuid"), st.uuids().map(str))
    fixed = {"type": "fixed", "name": _name("U"), "size": 16, "logicalType": "uuid"}
    avro = draw(st.sampled_from([_logical("string", "uuid"), fixed]))
    return Drawn(pa.binary(16), avro, st.uuids().map(lambda value: value.bytes))


@st.composite
def _duration_columns(draw: st.DrawFn) -> Drawn:
    avro = {"type": "fixed", "name": _name("T"), "size": 12, "logicalType": "duration"}
    factor = {"ms": 1, "us": 10**3, "ns": 10**6}[unit := draw(st.sampled_from(["ms", "us", "ns"]))]
    values = st.integers(0, 2**32 - 1).map(lambda number: number * factor)
    return Drawn(pa.duration(unit), avro, values, lambda value: value // factor)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    bound = 10**precision - 1
    # Made of digits: arithmetic would round to the context's 28 digits.
    return st.integers(-bound, bound).map(
        lambda number: Decimal((int(number < 0), Decimal(abs(number)).as_tuple().digits, -scale))
    )


# Of these fastavro takes other values than numbers and bytes.
logical_leaves = st.one_of(_decimal_columns(), _uuid_columns(), _duration_columns())

__all__ = [
    "Drawn", "columns", "decimals", "leaves", "logical_leaves", "nested", "read", "record", "tables", "written",
]  # fmt: skip
