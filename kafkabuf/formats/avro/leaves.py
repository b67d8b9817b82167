"""Which Arrow types become which Avro types that have no parts: the steps that read and write such a column.

Each function returns a `Fit`, or None where the types do not fit. The rank of a Fit decides between the branches of a
union: 0 for the type's own, 1 for a wider one, 2 where the values decide whether they fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kafkabuf.arrow import types as arrow_types
from kafkabuf.arrow.types import BINARIES, INTEGERS, REALS, TEXTS, UNITS, ArrowType
from kafkabuf.formats.avro.schema import Enum, Fixed, Node, Primitive

_AVRO_RANGES = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
DAY_MS = 86_400_000


class Fit(NamedTuple):
    rank: int
    read: str
    write: str
    arguments: dict[str, Any]  # the further fields of the Step


def leaf(node: Node, kind: ArrowType) -> Fit | None:
    """How a column of `kind`, which is not dictionary-encoded, is written as `node`."""
    if isinstance(node, Enum):
        return _enum(node, kind)
    if isinstance(node, Fixed):
        return _fixed(node, kind)
    if isinstance(node, Primitive):
        return _PRIMITIVES[node.type](node, kind)
    return None


def _null(node: Primitive, kind: ArrowType) -> Fit | None:
    return Fit(0, "null", "constant", {}) if kind.format == "n" else None


def _boolean(node: Primitive, kind: ArrowType) -> Fit | None:
    return Fit(0, "bool", "boolean", {}) if kind.format == "b" else None


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _integer(node: Primitive, kind: ArrowType) -> Fit | None:
    """int and long. Whole numbers are also taken for a logical type, as they are."""
    if kind.format in INTEGERS:
        name, low, high = INTEGERS[kind.format]
        least, most = _AVRO_RANGES[node.type]
        own = name in {"int64", "uint32", "uint64"} if node.type == "long" else True
        rank = (2 if name != "uint64" else 1 + (node.type == "int")) if low < least or high > most else int(not own)
        limits = {"low": max(low, least), "high": min(high, most)}
        return Fit(min(2, rank + bool(node.logical)), name, "long", limits)
    return _time(node, kind)


def _time(node: Primitive, kind: ArrowType) -> Fit | None:
    least, most = _AVRO_RANGES[node.type]
    limits = {"low": least, "high": most}
    if node.logical == "date" and kind.format in {"tdD", "tdm"}:
        days = kind.format == "tdD"
        return Fit(0, "int32" if days else "int64", "long", limits | {"factor": 1 if days else -DAY_MS})
    family, _, fraction = node.logical.rpartition("-")
    prefix = {"time": "tt", "timestamp": "ts", "local-timestamp": "ts"}.get(family)
    unit = arrow_types.unit(kind, prefix) if prefix else None
    if unit is None:
        return None
    wanted = UNITS[{"millis": "m", "micros": "u", "nanos": "n"}[fraction]]
    factor = wanted // unit if wanted >= unit else -(unit // wanted)
    if prefix == "tt":
        limits = {"low": 0, "high": DAY_MS // 1000 * wanted - 1}
    rank, write = (0 if factor == 1 else 1, "long") if factor > 0 else (2, "long_cut")
    return Fit(rank, arrow_types.time_reader(kind), write, limits | {"factor": factor})


def _real(node: Primitive, kind: ArrowType) -> Fit | None:
    """Only what loses nothing: a double to float, or an int64 to double, needs a cast by the user."""
    write = node.type
    if kind.format in REALS:
        if kind.format == "g" and write == "float":
            return None
        return Fit(int(REALS[kind.format] != write), REALS[kind.format], write, {})
    exact = "csCSiI" if write == "double" else "csCS"
    if kind.format in INTEGERS and kind.format in exact:
        return Fit(2, INTEGERS[kind.format][0], write, {})
    return None


# ---- bytes -----------------------------------------------------------------------------------------------------------


def _string(node: Primitive, kind: ArrowType) -> Fit | None:
    write = "uuid_text" if node.logical == "uuid" else "string"
    if kind.format in TEXTS:
        return Fit(int(bool(node.logical)), "bytes", write, {})
    if kind.format in BINARIES:
        return Fit(2, "bytes", write, {})
    if node.logical == "uuid" and arrow_types.fixed_width(kind) == 16:
        return Fit(1, "bytes", "uuid", {"width": 16})
    return None


def _bytes(node: Primitive, kind: ArrowType) -> Fit | None:
    if node.logical == "decimal":
        return _decimal(node.precision, node.scale, 0, kind)
    if kind.format in BINARIES or kind.format in TEXTS:
        return Fit(int(kind.format in TEXTS), "bytes", "bytes", {})
    size = arrow_types.fixed_width(kind)
    return None if size is None else Fit(1, "bytes", "bytes", {"width": size})


def _fixed(node: Fixed, kind: ArrowType) -> Fit | None:
    if node.logical == "decimal":
        return _decimal(node.precision, node.scale, node.bytes, kind)
    if node.logical == "duration" and (unit := arrow_types.unit(kind, "tD")) is not None:
        factor = 1000 // unit if unit <= 1000 else -(unit // 1000)
        return Fit(2, "int64", "duration", {"low": 0, "high": 2**32 - 1, "factor": factor, "to_width": 12})
    if kind.format in BINARIES:
        return Fit(2, "bytes", "fixed", {"to_width": node.bytes})
    if arrow_types.fixed_width(kind) == node.bytes:
        return Fit(0, "bytes", "fixed", {"width": node.bytes, "to_width": node.bytes})
    return None


def _decimal(precision: int, scale: int, size: int, kind: ArrowType) -> Fit | None:
    """Equal scales only: another scale needs a cast by the user. Each value is held against the precision."""
    number = arrow_types.decimal(kind)
    if number is None or number.scale != scale:
        return None
    bound = min(10**precision, 2**255, 2 ** min(255, 8 * size - 1) if size else 2**255)
    constant = {"constant": bound.to_bytes(32, "little"), "width": number.width, "to_width": size}
    write = "decimal_fixed" if size else "decimal"
    return Fit(0 if number.precision <= precision else 2, "decimal", write, constant)


def _enum(node: Enum, kind: ArrowType) -> Fit | None:
    if kind.format not in TEXTS:
        return None
    return Fit(2, "bytes", "enum", {"constant": node.table, "to_width": len(node.symbols)})


_PRIMITIVES: dict[str, Callable[[Primitive, ArrowType], Fit | None]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _real,
    "double": _real,
    "bytes": _bytes,
    "string": _string,
}
