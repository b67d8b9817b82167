"""Compiles an Avro schema and the types of Arrow columns into a program (_program.pxd).

Columns and fields find each other by name, or by a field's alias. The program follows the Arrow types, which are
finite, so that a recursive schema ends where its columns end.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkabuf.arrow.types import ArrowType, Column, entries, list_reader, type_name
from kafkabuf.errors import SerializationError
from kafkabuf.formats.avro._columns import AvroEncoder
from kafkabuf.formats.avro.default import DefaultError, encode_default, encode_long
from kafkabuf.formats.avro.leaves import leaf
from kafkabuf.formats.avro.schema import MAX_DEPTH, MISSING, Array, Field, Map, Node, Primitive, Record, Union
from kafkabuf.formats.rows.program import NO_BRANCH, Program, Step, joined, make_program

Steps = list[Step]


class _MismatchError(SerializationError):
    """A column and its field do not fit. A union tries another branch; nobody outside of this module sees the class."""


def compile_rows(root: Node, columns: Sequence[Column], prefix: bytes, extra_columns: str) -> Program:
    """A row of the columns is a record of the schema. Raises SerializationError."""
    record, branch = root, b""
    if isinstance(root, Union):
        records = [(number, node) for number, node in enumerate(root.branches) if isinstance(node, Record)]
        if len(records) == 1:
            branch, record = encode_long(records[0][0]), records[0][1]
    if not isinstance(record, Record):
        raise SerializationError(
            f"several columns make a record, and the Avro schema is {root}: name one column, or give a record schema"
        )
    try:
        steps = _Compiler(extra_columns).fields(record, columns, "", 0)
    except _MismatchError as error:
        raise SerializationError(*error.args) from None
    return make_program("Avro", AvroEncoder, steps, prefix + branch, one_column=False)


def compile_column(root: Node, column: Column, prefix: bytes, extra_columns: str) -> Program:
    """A column is the whole value; its nulls are Kafka's null. Raises SerializationError."""
    try:
        steps, _ = _Compiler(extra_columns).value(root, *column, column[1].name, 0)
    except _MismatchError as error:
        raise SerializationError(*error.args) from None
    return make_program("Avro", AvroEncoder, steps, prefix, one_column=True)


class _Compiler:
    def __init__(self, extra_columns: str) -> None:
        self._refuses_extra = extra_columns == "error"
        # What became of each union, at its place. Branches of one union may lead to another by several ways, and these
        # are twice as many with each level.
        self._unions: dict[tuple[int, int, int, str, int], tuple[Steps, int] | _MismatchError] = {}

    # ---- records -----------------------------------------------------------------------------------------------------

    def fields(self, record: Record, columns: Sequence[Column], path: str, depth: int) -> Steps:
        by_name: dict[str, Column] = {}
        for number, kind in columns:
            if kind.name in by_name:
                raise _MismatchError(f"there are two columns '{joined(path, kind.name)}': rename or drop one of them")
            by_name[kind.name] = (number, kind)
        steps: Steps = []
        for field in record.fields:
            names = [name for name in (field.name, *field.aliases) if name in by_name]
            if names:
                number, kind = by_name.pop(names[0])
                steps += self.value(field.node, number, kind, joined(path, kind.name), depth + 1)[0]
            else:
                steps.append(_default(record, field, path))
        if by_name and self._refuses_extra:
            extra = ", ".join(f"'{joined(path, name)}'" for name in by_name)
            raise _MismatchError(
                f"{record} of the Avro schema has no field for {extra}: drop the columns, add fields, or give "
                f'Avro(..., extra_columns="ignore")'
            )
        return steps

    # ---- values ------------------------------------------------------------------------------------------------------

    def value(self, node: Node, child: int, kind: ArrowType, path: str, depth: int) -> tuple[Steps, int]:
        """The steps of a column, and their rank (leaves.py)."""
        if depth > MAX_DEPTH:
            raise SerializationError(f"column '{path[:200]}' is nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, Union):
            return self._known_union(node, child, kind, path, depth)
        values = kind.dictionary or kind
        if nested := self._nested(node, values, path, depth):
            read, write, parts, rank, items = nested
            own = Step(read, write, path, type_name(kind), str(node), child, 1 + len(parts), width=items)
            return [own, *parts], rank
        fit = leaf(node, values)
        if fit is None:
            raise _MismatchError(
                f"column '{path}' has the type {type_name(kind)}, which does not fit Avro's {node}: "
                f"{_advice(node, values)}"
            )
        step = Step(fit.read, fit.write, path, type_name(kind), str(node), child, **fit.arguments)
        return [step], fit.rank

    def _nested(self, node: Node, kind: ArrowType, path: str, depth: int) -> tuple[str, str, Steps, int, int] | None:
        """Read, write, the steps of the parts, their rank, and the items of a fixed-size list."""
        if isinstance(node, Record) and kind.format == "+s":
            return "struct", "record", self.fields(node, list(enumerate(kind.children)), path, depth), 0, 0
        if isinstance(node, Array) and (reader := list_reader(kind)) is not None:
            parts, rank = self.value(node.items, 0, kind.children[0], f"{path}[]", depth + 1)
            return reader[0], "array", parts, rank, reader[1]
        if isinstance(node, Map) and (pair := entries(kind, path)) is not None:
            key, item = pair
            keys, _ = self.value(Primitive("string"), 0, key, f"{path}{{key}}", depth + 1)
            parts, rank = self.value(node.values, 1, item, f"{path}{{}}", depth + 1)
            return "map", "map", keys + parts, rank, 0
        return None

    def _known_union(self, node: Union, child: int, kind: ArrowType, path: str, depth: int) -> tuple[Steps, int]:
        # Schema and types live as long as the compiler does, so that an id stands for one of them.
        place = id(node), child, id(kind), path, depth
        if place not in self._unions:
            try:
                self._unions[place] = self._union(node, child, kind, path, depth)
            except _MismatchError as error:
                self._unions[place] = error.with_traceback(None)
        known = self._unions[place]
        if isinstance(known, _MismatchError):
            raise _MismatchError(*known.args) from known.__cause__
        return known

    def _union(self, node: Union, child: int, kind: ArrowType, path: str, depth: int) -> tuple[Steps, int]:
        """The branch of the lowest rank; of several, the first. A column's type chooses it, not each value."""
        null_branch, null, fits, errors = NO_BRANCH, b"", [], []
        for number, branch in enumerate(node.branches):
            if branch == Primitive("null"):
                null = encode_long(number)
                null_branch = _branch(number)
                continue
            try:
                steps, rank = self.value(branch, child, kind, path, depth + 1)
                fits.append((rank, number, steps))
            except _MismatchError as error:
                errors.append(error)
        if kind.format == "n" and kind.dictionary is None and null:
            return [Step("null", "constant", path, "null", str(node), child, constant=null)], 0
        if not fits:
            raise (
                errors[0]
                if len(errors) == 1
                else _MismatchError(
                    f"column '{path}' has the type {type_name(kind)}, which fits no branch of the Avro {node}"
                )
            )
        rank, number, steps = min(fits, key=lambda fit: fit[:2])
        return [steps[0]._replace(null_branch=null_branch, value_branch=_branch(number)), *steps[1:]], rank


def _branch(number: int) -> int:
    """A branch as a step has it (_program.pxd)."""
    encoded = encode_long(number)
    return encoded[0] if len(encoded) == 1 else -int.from_bytes(encoded, "little")


def _default(record: Record, field: Field, path: str) -> Step:
    where = joined(path, field.name)
    if field.default is MISSING:
        raise _MismatchError(
            f"there is no column '{where}', and the field of {record} has no default: add the column, or a default"
        )
    try:
        constant = encode_default(field.node, field.default)
    except DefaultError as error:
        raise _MismatchError(f"there is no column '{where}', and the default of its field is wrong: {error}") from error
    return Step("nothing", "constant", where, "", str(field.node), constant=constant)


def _advice(node: Node, kind: ArrowType) -> str:
    if kind.format.startswith("ts") and isinstance(node, Primitive) and node.type == "long":
        return "give the long a logicalType such as timestamp-micros, or cast the column to int64"
    if kind.format == "n":
        return "make it a union with null"
    if kind.format.startswith("d:"):
        return "cast the column to a decimal of the same scale"
    return "cast the column, or change the schema"
