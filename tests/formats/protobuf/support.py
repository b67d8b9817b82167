"""google.protobuf as the oracle of the Protobuf tests; a strategy that draws messages and Arrow columns for them."""

from __future__ import annotations

import datetime
import itertools
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.type import date_pb2, timeofday_pb2
from hypothesis import strategies as st

Proto = Any  # a message of descriptor_pb2, which has no types
FieldProto: Any = descriptor_pb2.FieldDescriptorProto
FileProto: Any = descriptor_pb2.FileDescriptorProto
MessageProto: Any = descriptor_pb2.DescriptorProto
Declare = Callable[[Proto, str, Proto], None]
OPTIONAL, REQUIRED, REPEATED = FieldProto.LABEL_OPTIONAL, FieldProto.LABEL_REQUIRED, FieldProto.LABEL_REPEATED
PROTO2, PROTO3, EDITIONS = SYNTAXES = ("proto2", "proto3", "editions")
_IMPORTED = (timestamp_pb2, duration_pb2, wrappers_pb2, date_pb2, timeofday_pb2, struct_pb2)
IMPORTED = [module.DESCRIPTOR for module in _IMPORTED]


def message_class(file: Proto, name: str) -> Any:
    """The class of a message of a file, in a pool of its own."""
    pool = DescriptorPool()
    for imported in IMPORTED:
        pool.AddSerializedFile(imported.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))


def new_file(syntax: str = PROTO3) -> Proto:
    file = FileProto(name="rows.proto", package="test.rows", syntax=syntax)
    file.dependency.extend(imported.name for imported in IMPORTED)
    if syntax == EDITIONS:
        file.edition = descriptor_pb2.EDITION_2023
    return file


def row_class(*fields: dict[str, Any], syntax: str = PROTO3, **more: Any) -> Any:
    """The class of a message `Row` with these fields; by default they are optional, and number 1, 2 and so on."""
    file = new_file(syntax)
    file.message_type.append(MessageProto(name="Row", **more))
    for number, given in enumerate(fields, 1):
        file.message_type[0].field.add(**{"number": number, "label": OPTIONAL} | given)
    return message_class(file, "test.rows.Row")


def written(message: Any, row: dict[str, Any]) -> bytes:
    """The row as google.protobuf writes it. Nulls are not set."""
    encoded: bytes = message(**row).SerializeToString(deterministic=True)
    return encoded


def reread(message: Any, encoded: bytes) -> bytes:
    """The bytes that google.protobuf writes for what it reads: the entries of maps in its own order."""
    again: bytes = message.FromString(encoded).SerializeToString(deterministic=True)
    return again


def has_map(kind: Any) -> bool:
    """Whether an Arrow schema or type has a map anywhere."""
    fields = kind if isinstance(kind, pa.Schema) else [kind.field(n) for n in range(kind.num_fields)]
    return any(pa.types.is_map(field.type) or has_map(field.type) for field in fields)


# ---- drawn columns ---------------------------------------------------------------------------------------------------


@dataclass
class Drawn:
    """A column's type, how its field is declared, its values, and what google.protobuf's constructor takes for one."""

    arrow: pa.DataType
    declare: Declare
    values: st.SearchStrategy[Any]
    expected: Callable[[Any], Any] = field(default=lambda value: value)
    packable: bool = False
    map_key: bool = False
    message: bool = False
    declare_fields: Callable[[Proto, str], None] | None = None


def _typed(number: int) -> Declare:
    return lambda owner, scope, made: setattr(made, "type", number)


def _named(name: str) -> Declare:
    def declare(owner: Proto, scope: str, made: Proto) -> None:
        made.type, made.type_name = FieldProto.TYPE_MESSAGE, f".{name}"

    return declare


_ARROW_INTS = {
    pa.int8(): (8, True), pa.int16(): (16, True), pa.int32(): (32, True), pa.int64(): (64, True),
    pa.uint8(): (8, False), pa.uint16(): (16, False), pa.uint32(): (32, False), pa.uint64(): (64, False),
}  # fmt: skip
_PROTO_INTS = {
    FieldProto.TYPE_INT32: (32, True), FieldProto.TYPE_SINT32: (32, True), FieldProto.TYPE_SFIXED32: (32, True),
    FieldProto.TYPE_INT64: (64, True), FieldProto.TYPE_SINT64: (64, True), FieldProto.TYPE_SFIXED64: (64, True),
    FieldProto.TYPE_UINT32: (32, False), FieldProto.TYPE_FIXED32: (32, False), FieldProto.TYPE_UINT64: (64, False),
    FieldProto.TYPE_FIXED64: (64, False),
}  # fmt: skip


def limits(bits: int, signed: bool) -> tuple[int, int]:
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def _between(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high) | st.sampled_from([low, high, 0, min(high, 127), min(high, 128)])


_int_columns = [
    Drawn(arrow, _typed(proto), _between(max(low, least), min(high, most)), packable=True, map_key=True)
    for arrow, (low, high) in ((arrow, limits(*size)) for arrow, size in _ARROW_INTS.items())
    for proto, (least, most) in ((proto, limits(*size)) for proto, size in _PROTO_INTS.items())
]
_zeros = st.sampled_from([0.0, -0.0])
_real_columns = [
    Drawn(arrow, _typed(proto), values | _zeros, packable=True)
    for arrow, proto, values in [
        (pa.float64(), FieldProto.TYPE_DOUBLE, st.floats()),
        (pa.float32(), FieldProto.TYPE_DOUBLE, st.floats(width=32)),
        (pa.float16(), FieldProto.TYPE_DOUBLE, st.floats(width=16)),
        (pa.float32(), FieldProto.TYPE_FLOAT, st.floats(width=32)),
        (pa.float16(), FieldProto.TYPE_FLOAT, st.floats(width=16)),
    ]
]  # fmt: skip
_mixed_columns = [
    Drawn(pa.int32(), _typed(FieldProto.TYPE_DOUBLE), _between(*limits(32, True)), packable=True),
    Drawn(pa.int16(), _typed(FieldProto.TYPE_FLOAT), _between(*limits(16, True)), packable=True),
    Drawn(pa.bool_(), _typed(FieldProto.TYPE_BOOL), st.booleans(), packable=True, map_key=True),
]
_texts = st.text(max_size=12) | st.sampled_from(["", "é" * 9, "x" * 126, "x" * 140, "\U0001f600", "ascii, then é"])
_binaries = st.binary(max_size=20)
_STRING, _BYTES = _typed(FieldProto.TYPE_STRING), _typed(FieldProto.TYPE_BYTES)
_byte_columns = [
    *(Drawn(arrow, _STRING, _texts, map_key=True) for arrow in (pa.string(), pa.large_string(), pa.string_view())),
    *(Drawn(arrow, _BYTES, _binaries) for arrow in (pa.binary(), pa.large_binary(), pa.binary_view())),
    Drawn(pa.string(), _BYTES, _texts, str.encode),
    Drawn(pa.binary(), _STRING, _texts.map(str.encode), bytes.decode, map_key=True),
    Drawn(pa.binary(3), _BYTES, st.binary(min_size=3, max_size=3)),
]

_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # in nanoseconds
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # the seconds of years 1 to 9999


def _parts(made: Any, nanos: int) -> dict[str, int]:
    made.FromNanoseconds(nanos)
    return {"seconds": made.seconds, "nanos": made.nanos}


def _times(unit: str, size: int) -> list[Drawn]:
    low, high = max(_FIRST * 10**9 // size, -(2**63)), min(_LAST * 10**9 // size, 2**63 - 1)
    span = min(315_576_000_000 * 10**9 // size, 2**63 - 1)
    return [
        Drawn(
            pa.timestamp(unit, zone), _named("google.protobuf.Timestamp"), _between(low, high),
            lambda value: _parts(timestamp_pb2.Timestamp(), value * size), message=True,
        )
        for zone in (None, "UTC")
    ] + [
        Drawn(
            pa.duration(unit), _named("google.protobuf.Duration"), _between(-span, span),
            lambda value: _parts(duration_pb2.Duration(), value * size), message=True,
        ),
        Drawn(
            (pa.time32 if size >= 10**6 else pa.time64)(unit), _named("google.type.TimeOfDay"),
            _between(0, 86_400 * 10**9 // size - 1), lambda value: _time_of_day(value * size), message=True,
        ),
    ]  # fmt: skip


def _time_of_day(nanos: int) -> dict[str, int]:
    moment = datetime.datetime(2000, 1, 1) + datetime.timedelta(microseconds=nanos // 1000)
    return {
        "hours": moment.hour, "minutes": moment.minute, "seconds": moment.second,
        "nanos": moment.microsecond * 1000 + nanos % 1000,
    }  # fmt: skip


def _date(days: int) -> dict[str, int]:
    made = datetime.date(1970, 1, 1) + datetime.timedelta(days=days)
    return {"year": made.year, "month": made.month, "day": made.day}


_days = _between(-719_162, 2_932_896)
_time_columns = [
    *itertools.chain.from_iterable(_times(unit, size) for unit, size in _UNITS.items()),
    Drawn(pa.date32(), _named("google.type.Date"), _days, _date, message=True),
    Drawn(
        pa.date64(), _named("google.type.Date"), _days.map(lambda days: days * 86_400_000),
        lambda value: _date(value // 86_400_000), message=True,
    ),
]  # fmt: skip


def _wrapped(value: Any) -> dict[str, Any]:
    return {"value": value}


_wrapper_columns = [
    Drawn(arrow, _named(f"google.protobuf.{name}Value"), values, _wrapped, message=True)
    for name, arrow, values in [
        ("Double", pa.float64(), st.floats() | _zeros), ("Float", pa.float32(), st.floats(width=32) | _zeros),
        ("Int64", pa.int32(), _between(*limits(32, True))), ("UInt64", pa.uint64(), _between(*limits(64, False))),
        ("Int32", pa.int32(), _between(*limits(32, True))), ("UInt32", pa.uint8(), _between(*limits(8, False))),
        ("Bool", pa.bool_(), st.booleans()), ("String", pa.string(), _texts), ("Bytes", pa.binary(), _binaries),
    ]
]  # fmt: skip


@st.composite
def _enums(draw: st.DrawFn) -> Drawn:
    names = draw(
        st.lists(st.text(string.ascii_uppercase, min_size=1, max_size=9), min_size=1, max_size=20, unique=True)
    )
    numbers = draw(st.lists(st.integers(*limits(32, True)), min_size=len(names), max_size=len(names), unique=True))
    # An open enum needs a zero first, and so does one that is in a map.
    numbers = [0, *(number for number in numbers if number)]
    symbols = dict(zip(names, numbers, strict=False))  # there may be a number more

    def declare(owner: Proto, scope: str, made: Proto) -> None:
        enum = owner.enum_type.add(name=f"Enum_{made.name}")
        for name, number in symbols.items():
            enum.value.add(name=f"{made.name}_{name}", number=number)
        made.type, made.type_name = FieldProto.TYPE_ENUM, f".{scope}.{enum.name}"

    # A symbol's name begins with the field's, which is not known yet: names of symbols are unique in a scope.
    return Drawn(pa.int32(), declare, st.sampled_from(list(symbols.values())), packable=True)


def leaves() -> st.SearchStrategy[Drawn]:
    groups = [_int_columns, _real_columns, _mixed_columns, _byte_columns, _time_columns, _wrapper_columns]
    return st.one_of(*map(st.sampled_from, groups), _enums())


@st.composite
def _lists(draw: st.DrawFn, items: st.SearchStrategy[Drawn], syntax: str) -> Drawn:
    item = draw(items)
    size = draw(st.integers(1, 3))
    arrow = draw(st.sampled_from([pa.list_(item.arrow), pa.large_list(item.arrow), pa.list_(item.arrow, size)]))
    low, high = (size, size) if pa.types.is_fixed_size_list(arrow) else (0, 4)
    packed = draw(st.sampled_from([None, True, False])) if item.packable else None

    def declare(owner: Proto, scope: str, made: Proto) -> None:
        item.declare(owner, scope, made)
        made.label = REPEATED
        if packed is not None and syntax != EDITIONS:
            made.options.packed = packed
        elif packed is not None:
            features = descriptor_pb2.FeatureSet
            made.options.features.repeated_field_encoding = features.PACKED if packed else features.EXPANDED

    values = st.lists(item.values, min_size=low, max_size=high)
    return Drawn(arrow, declare, values, lambda value: [item.expected(v) for v in value])


@st.composite
def _maps(draw: st.DrawFn, items: st.SearchStrategy[Drawn]) -> Drawn:
    item = draw(items.filter(lambda drawn: not drawn.message))
    key = draw(st.sampled_from([*_int_columns, *_mixed_columns, *_byte_columns]).filter(lambda drawn: drawn.map_key))

    def declare(owner: Proto, scope: str, made: Proto) -> None:
        entry = MessageProto(name=f"{made.name.replace('_', ' ').title().replace(' ', '')}Entry")
        entry.options.map_entry = True
        for number, (name, part) in enumerate([("key", key), ("value", item)], 1):
            # Types lie in the message around the entry, under names of their own.
            own = entry.field.add(name=f"{made.name}_{name}", number=number, label=OPTIONAL)
            part.declare(owner, scope, own)
            own.name = name
        owner.nested_type.append(entry)
        made.type, made.type_name, made.label = FieldProto.TYPE_MESSAGE, f".{scope}.{entry.name}", REPEATED

    values = st.lists(st.tuples(key.values, item.values), max_size=4, unique_by=lambda pair: pair[0])
    return Drawn(
        pa.map_(key.arrow, item.arrow), declare, values,
        lambda value: {key.expected(k): item.expected(v) for k, v in value},
    )  # fmt: skip


@st.composite
def _messages(draw: st.DrawFn, items: st.SearchStrategy[Drawn], syntax: str) -> Drawn:
    return message(draw, draw(st.lists(items, min_size=1, max_size=4)), syntax)


def columns(syntax: str) -> st.SearchStrategy[Drawn]:
    singular = st.recursive(
        leaves(), lambda items: _messages(st.one_of(items, _lists(items, syntax), _maps(items)), syntax),
        max_leaves=8,
    )  # fmt: skip
    return st.one_of(singular, _lists(singular, syntax), _maps(singular))


def _is_repeated(part: Drawn) -> bool:
    return any(test(part.arrow) for test in (
        pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map
    ))  # fmt: skip


def message(draw: st.DrawFn, parts: list[Drawn], syntax: str) -> Drawn:
    """A struct of the parts. The fields' numbers have another order; some are in a oneof, some have no column."""
    count = len(parts)
    legal = st.integers(1, 2**29 - 1).filter(lambda number: not 19_000 <= number <= 19_999)
    numbers = draw(st.lists(st.integers(1, 15) | legal, min_size=count, max_size=count, unique=True))
    names = [f"field_{number}" for number in range(count)]
    arrow = pa.struct([
        pa.field(draw(st.sampled_from([name, name.replace("_", "")])), part.arrow)
        for name, part in zip(names, parts, strict=True)
    ])  # fmt: skip
    singular = [number for number, part in enumerate(parts) if not _is_repeated(part)]
    in_oneof = set(singular[: draw(st.integers(0, 3))]) if len(singular) > 1 else set()
    rules = [draw(st.sampled_from(["plain", "optional", "required"])) for _ in parts]
    nullable = [not _needed(rules[number], syntax) or number in in_oneof or _is_repeated(part)
                for number, part in enumerate(parts)]  # fmt: skip

    def declare(owner: Proto, scope: str, made: Proto) -> None:
        nested = owner.nested_type.add(name=f"Message_{made.name}")
        fields(nested, f"{scope}.{nested.name}")
        made.type, made.type_name = FieldProto.TYPE_MESSAGE, f".{scope}.{nested.name}"

    def fields(nested: Proto, scope: str) -> None:
        if in_oneof:
            nested.oneof_decl.add(name="choice")
        for index, part in enumerate(parts):
            own = nested.field.add(name=names[index], number=numbers[index], label=OPTIONAL)
            part.declare(nested, scope, own)
            if index in in_oneof:
                own.oneof_index = 0
            elif not _is_repeated(part):
                _set_rule(nested, own, rules[index], syntax)

    keep = [f"{number}" for number in in_oneof]
    drawn = st.fixed_dictionaries({
        str(number): (st.none() | part.values) if nullable[number] else part.values
        for number, part in enumerate(parts)
    } | {"keep": st.sampled_from([*keep, ""])})  # fmt: skip

    def row(values: dict[str, Any]) -> dict[str, Any]:
        kept = values["keep"]
        return {
            arrow.field(number).name: None if number in in_oneof and str(number) != kept else values[str(number)]
            for number in range(count)
        }

    def expected(value: dict[str, Any]) -> dict[str, Any]:
        rows = zip(names, parts, value.values(), strict=True)
        return {name: part.expected(found) for name, part, found in rows if found is not None}

    return Drawn(arrow, declare, drawn.map(row), expected, message=True, declare_fields=fields)


def _needed(rule: str, syntax: str) -> bool:
    return rule == "required" and syntax != PROTO3


def _set_rule(owner: Proto, made: Proto, rule: str, syntax: str) -> None:
    features = descriptor_pb2.FeatureSet
    if syntax == PROTO2 and rule == "required":
        made.label = REQUIRED
    elif syntax == PROTO3 and rule == "optional":
        made.proto3_optional, made.oneof_index = True, len(owner.oneof_decl)
        owner.oneof_decl.add(name=f"_{made.name}")
    elif syntax == EDITIONS and rule == "required":
        made.options.features.field_presence = features.LEGACY_REQUIRED
    elif syntax == EDITIONS and rule == "plain" and made.type != FieldProto.TYPE_MESSAGE:
        made.options.features.field_presence = features.IMPLICIT


def tables() -> st.SearchStrategy[tuple[Any, list[bytes], pa.RecordBatch]]:
    """A message class, rows as google.protobuf writes them, and the Arrow data that has the rows."""
    return messages().map(lambda drawn: (drawn[0], drawn[1], drawn[3]))


@st.composite
def messages(draw: st.DrawFn) -> tuple[Any, list[bytes], list[dict[str, Any]], pa.RecordBatch]:
    """A message class, rows as google.protobuf writes them, as its constructor takes them, and as Arrow data."""
    syntax = draw(st.sampled_from(SYNTAXES))
    whole = message(draw, draw(st.lists(columns(syntax), min_size=1, max_size=5)), syntax)
    file = new_file(syntax)
    file.message_type.add(name="Row")
    assert whole.declare_fields is not None
    whole.declare_fields(file.message_type[0], "test.rows.Row")
    kind = message_class(file, "test.rows.Row")
    rows = draw(st.lists(whole.values, min_size=1, max_size=6))
    objects = [whole.expected(row) for row in rows]
    encoded = [written(kind, row) for row in objects]
    return kind, encoded, objects, pa.RecordBatch.from_struct_array(pa.array(rows, whole.arrow))
