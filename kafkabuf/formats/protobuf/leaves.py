"""Which Arrow types become which Protobuf types that have no parts: the steps that read and write such a column.

Messages of google.protobuf and google.type that stand for one value are among them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from kafkabuf.arrow import types as arrow_types
from kafkabuf.arrow.types import BINARIES, INTEGERS, REALS, TEXTS, ArrowType
from kafkabuf.formats.protobuf.schema import Enum, Field
from kafkabuf.formats.rows.program import INT64_MAX, INT64_MIN

_INT32, _INT64 = (-(2**31), 2**31 - 1), (INT64_MIN, INT64_MAX)
_UINT32, _UINT64 = (0, 2**32 - 1), (0, 2**64 - 1)
_WIDTHS = {"fixed32": 4, "fixed64": 8}
_DAY_S, _DAY_MS = 86_400, 86_400_000
# From 0001-01-01 to 9999-12-31, and 10,000 years: the ranges of google.protobuf and google.type.
_TIMESTAMP_S = (-62_135_596_800, 253_402_300_799)
_DATE_DAYS = (_TIMESTAMP_S[0] // _DAY_S, _TIMESTAMP_S[1] // _DAY_S)
_DURATION_S = 315_576_000_000
# Messages that hold any value of JSON, and their fields. Objects become them as a whole, columns by their fields.
DYNAMIC = {
    "google.protobuf.Struct": ("fields",),
    "google.protobuf.Value": (
        "null_value", "number_value", "string_value", "bool_value", "struct_value", "list_value"
    ),
    "google.protobuf.ListValue": ("values",),
}  # fmt: skip
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class Leaf(NamedTuple):
    """A number's `to_width` is not 0 if Arrow's memory has it as Protobuf writes it."""

    read: str
    write: str
    arguments: dict[str, Any]  # the further fields of the Step


def leaf(field: Field, kind: ArrowType) -> Leaf | None:
    """How a column of `kind`, which is not dictionary-encoded, is written as `field`; None: it does not fit."""
    if isinstance(field.target, Enum):
        return _enum(field.target, kind)
    if field.target is not None:
        well_known = _WELL_KNOWN.get(field.target.name)
        return well_known(kind) if well_known is not None else None
    if field.type in INTEGER_FIELDS:
        return _integer(*INTEGER_FIELDS[field.type], kind)
    return _SCALARS[field.type](kind) if field.type in _SCALARS else None


# ---- scalars ---------------------------------------------------------------------------------------------------------


def _integer(write: str, limits: tuple[int, int], kind: ArrowType) -> Leaf | None:
    if kind.format not in INTEGERS:
        return None
    name, low, high = INTEGERS[kind.format]
    copied = {"to_width": _WIDTHS.get(write, 0) if (low, high) == limits else 0}
    if name == "uint64" and limits == _UINT64:  # all values fit, and the reader gives them as an int64
        return Leaf(name, write, copied)
    return Leaf(name, write, copied | {"low": max(low, limits[0]), "high": min(high, limits[1], INT64_MAX)})


def _double(kind: ArrowType) -> Leaf | None:
    """Only what loses nothing: an int64 needs a cast by the user."""
    if kind.format in REALS:
        return Leaf(REALS[kind.format], "double", {"to_width": 8 if kind.format == "g" else 0})
    return Leaf(INTEGERS[kind.format][0], "double", {}) if kind.format in tuple("csCSiI") else None


def _float(kind: ArrowType) -> Leaf | None:
    if kind.format in ("e", "f"):
        return Leaf(REALS[kind.format], "float", {"to_width": 4 if kind.format == "f" else 0})
    return Leaf(INTEGERS[kind.format][0], "float", {}) if kind.format in tuple("csCS") else None


def _bool(kind: ArrowType) -> Leaf | None:
    return Leaf("bool", "boolean", {}) if kind.format == "b" else None


def _string(kind: ArrowType) -> Leaf | None:
    return Leaf("bytes", "string", {}) if kind.format in TEXTS or kind.format in BINARIES else None


def _bytes(kind: ArrowType) -> Leaf | None:
    if kind.format in TEXTS or kind.format in BINARIES:
        return Leaf("bytes", "bytes", {})
    size = arrow_types.fixed_width(kind)
    return None if size is None else Leaf("bytes", "bytes", {"width": size})


def _enum(enum: Enum, kind: ArrowType) -> Leaf | None:
    if kind.format in TEXTS:
        return Leaf("bytes", "enum", {"constant": enum.table, "to_width": len(enum.symbols)})
    if not enum.closed:
        return _integer("varint", _INT32, kind)
    if kind.format not in INTEGERS:
        return None
    numbers = sorted({number for _, number in enum.symbols})
    constant = struct.pack(f"={len(numbers)}q", *numbers)
    return Leaf(INTEGERS[kind.format][0], "enum_number", {"constant": constant, "to_width": len(numbers)})


INTEGER_FIELDS = {
    "int32": ("varint", _INT32), "int64": ("varint", _INT64), "uint32": ("varint", _UINT32),
    "uint64": ("varint", _UINT64), "sint32": ("long", _INT32), "sint64": ("long", _INT64),
    "fixed32": ("fixed32", _UINT32), "fixed64": ("fixed64", _UINT64), "sfixed32": ("fixed32", _INT32),
    "sfixed64": ("fixed64", _INT64),
}  # fmt: skip
_SCALARS: dict[str, Callable[[ArrowType], Leaf | None]] = {
    "double": _double, "float": _float, "bool": _bool, "string": _string, "bytes": _bytes,
}  # fmt: skip


# ---- messages that stand for a value ---------------------------------------------------------------------------------


def _timestamp(kind: ArrowType) -> Leaf | None:
    unit = arrow_types.unit(kind, "ts")
    return None if unit is None else Leaf("int64", "timestamp", _seconds(unit, *_TIMESTAMP_S))


def _duration(kind: ArrowType) -> Leaf | None:
    unit = arrow_types.unit(kind, "tD")
    return None if unit is None else Leaf("int64", "span", _seconds(unit, -_DURATION_S, _DURATION_S))


def _seconds(unit: int, low: int, high: int) -> dict[str, int]:
    return {"factor": unit, "low": low, "high": high}


def _date(kind: ArrowType) -> Leaf | None:
    limits = {"low": _DATE_DAYS[0], "high": _DATE_DAYS[1]}
    if kind.format == "tdD":
        return Leaf("int32", "date", limits)
    return Leaf("int64", "date", limits | {"factor": -_DAY_MS}) if kind.format == "tdm" else None


def _time_of_day(kind: ArrowType) -> Leaf | None:
    unit = arrow_types.unit(kind, "tt")
    if unit is None:
        return None
    return Leaf(arrow_types.time_reader(kind), "time_of_day", _seconds(unit, 0, _DAY_S * unit - 1))


_WELL_KNOWN: dict[str, Callable[[ArrowType], Leaf | None]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": _duration,
    "google.type.Date": _date,
    "google.type.TimeOfDay": _time_of_day,
}
