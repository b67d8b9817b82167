"""Compiles an Avro schema into parts: what _objects.pyx makes of Python objects. See _objects.pxd."""

from __future__ import annotations

import sys

from kafkabuf.formats.avro.default import DefaultError, encode_default
from kafkabuf.formats.avro.schema import MISSING, Array, Enum, Field, Fixed, Map, Node, Primitive, Record, Union
from kafkabuf.formats.rows.object_parts import Part
from kafkabuf.formats.rows.program import INT64_MAX, INT64_MIN

_NULL = Primitive("null")
_UNITS = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_INT = (-(2**31), 2**31 - 1)


def compile_objects(root: Node) -> tuple[Part, ...]:
    """The parts of a schema. The first part is the root's."""
    compiler = _Compiler()
    compiler.number(root)
    return tuple(part for part in compiler.parts if part is not None)


class _Compiler:
    def __init__(self) -> None:
        self.parts: list[Part | None] = []
        self._named: dict[str, int] = {}

    def number(self, node: Node) -> int:
        """The number of the node's part. A named type has one part, which exists before its fields' parts."""
        name = node.name if isinstance(node, Record | Enum | Fixed) else None
        if name in self._named:
            return self._named[name]
        own = len(self.parts)
        self.parts.append(None)
        if name is not None:
            self._named[name] = own
        self.parts[own] = self._part(node)
        return own

    def _part(self, node: Node) -> Part:
        match node:
            case Record():
                return self._record(node)
            case Union():
                return self._union(node)
            case Array():
                return Part("array", str(node), (self.number(node.items),))
            case Map():
                return Part("map", str(node), (self.number(node.values),))
            case Enum():
                return Part("enum", str(node), symbols=node.numbers)
            case Fixed():
                return _fixed(node)
        return _primitive(node)

    def _record(self, record: Record) -> Part:
        names = tuple(sys.intern(field.name) for field in record.fields)
        parts = tuple(self.number(field.node) for field in record.fields)
        return Part("record", str(record), parts, names, tuple(map(_default, record.fields)))

    def _union(self, union: Union) -> Part:
        branches = union.branches
        parts = tuple(map(self.number, branches))
        names = tuple(map(_branch_name, branches))
        symbols = {name: number for number, name in enumerate(names)}
        if len(branches) == 2 and _NULL in branches:
            null = branches.index(_NULL)
            kind, null_branch, value_branch = "optional", 2 * null, 2 - 2 * null
        else:
            kind, null_branch, value_branch = "union", 0, 0
        return Part(
            kind, str(union), parts, names, symbols=symbols, null_branch=null_branch, value_branch=value_branch
        )  # fmt: skip


def _default(field: Field) -> bytes | str:
    if field.default is MISSING:
        return "the field has no default"
    try:
        return encode_default(field.node, field.default)
    except DefaultError as error:
        return f"the field's default is wrong: {error}"


def _branch_name(branch: Node) -> str:
    """The name by which a hint chooses a branch: the full name of a named type, else the type."""
    match branch:
        case Record() | Enum() | Fixed():
            return branch.name
        case Primitive():
            return branch.type
    return str(branch)


def _fixed(node: Fixed) -> Part:
    kind = {"decimal": "decimal", "duration": "duration", "uuid": "uuid_fixed"}.get(node.logical, "fixed")
    return Part(kind, str(node), size=node.bytes, precision=node.precision, scale=node.scale)


def _primitive(node: Primitive) -> Part:
    if node.type in ("int", "long"):
        return _integer(node)
    if node.logical == "decimal":
        return Part("decimal", str(node), precision=node.precision, scale=node.scale)
    return Part("uuid" if node.logical == "uuid" else node.type, str(node))


def _integer(node: Primitive) -> Part:
    low, high = _INT if node.type == "int" else (INT64_MIN, INT64_MAX)
    family, _, fraction = node.logical.rpartition("-")
    kind = {"time": "time", "timestamp": "timestamp", "local-timestamp": "local_timestamp"}.get(family, "long")
    if node.logical == "date":
        kind = "date"
    return Part(kind, str(node), low=low, high=high, unit=_UNITS.get(fraction, 0))
