"""Compiles a Protobuf message and the types of Arrow columns into a program (_program.pxd).

Columns and fields find each other by the field's name, or by its name in JSON. The program follows the Arrow types,
which are finite, so that a recursive message ends where its columns end. The steps are in the order of the fields'
numbers. A field without a column has no step.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kafkabuf.arrow.types import ArrowType, Column, entries, list_reader, type_name
from kafkabuf.errors import SerializationError
from kafkabuf.formats.protobuf._columns import ProtobufEncoder
from kafkabuf.formats.protobuf.leaves import DYNAMIC, WRAPPERS, leaf
from kafkabuf.formats.protobuf.schema import Field, Message
from kafkabuf.formats.rows.program import Program, Step, joined, make_program

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = {
    "double": _FIXED64, "fixed64": _FIXED64, "sfixed64": _FIXED64, "float": _FIXED32, "fixed32": _FIXED32,
    "sfixed32": _FIXED32, "string": _BYTES, "bytes": _BYTES, "message": _BYTES,
}  # fmt: skip

_DYNAMIC_ADVICE = "of columns only its fields are made; send objects, whose dicts and lists it takes"

Steps = list[Step]


class Rules(NamedTuple):
    """What is done with a column that has no field, and with a field that has no column."""

    extra_columns: str
    missing_columns: str


def compile_rows(root: Message, columns: Sequence[Column], prefix: bytes, rules: Rules) -> Program:
    """A row of the columns is a message. Raises SerializationError."""
    steps = _Compiler(rules).message(root, columns, "")
    return make_program("Protobuf", ProtobufEncoder, steps, prefix, one_column=False)


def compile_column(root: Message, column: Column, prefix: bytes, rules: Rules) -> Program:
    """A column is the whole message; its nulls are Kafka's null. Raises SerializationError."""
    child, kind = column
    values = kind.dictionary or kind
    if values.format != "+s":
        raise SerializationError(
            f"column '{kind.name}' has the type {type_name(kind)}, and only a struct becomes {root}: give a struct "
            f"column, or name the columns of the message in a list"
        )
    parts = _Compiler(rules).message(root, list(enumerate(values.children)), kind.name)
    own = Step("struct", "root", kind.name, type_name(kind), str(root), child, 1 + len(parts))
    return make_program("Protobuf", ProtobufEncoder, [own, *parts], prefix, one_column=True)


class _Compiler:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    # ---- messages ----------------------------------------------------------------------------------------------------

    def message(self, message: Message, columns: Sequence[Column], path: str) -> Steps:
        steps: Steps = []
        oneofs: dict[str, list[int]] = {}
        by_field = self._matched(message, columns, path)
        for field in message.fields:
            if field.number not in by_field:
                self._missing(message, field, path)
                continue
            number, kind = by_field[field.number]
            own = self._field(field, number, kind, joined(path, kind.name))
            if field.oneof and own:
                # The second step of a wrapper reads its column.
                oneofs.setdefault(field.oneof, []).append(len(steps) + (own[0].write == "wrapper"))
            steps += own
        return _oneof_checks(oneofs, path) + steps

    def _matched(self, message: Message, columns: Sequence[Column], path: str) -> dict[int, Column]:
        """The columns by the numbers of their fields."""
        fields = {field.json_name: field for field in message.fields} | {field.name: field for field in message.fields}
        by_number: dict[int, Column] = {}
        extra = []
        for number, kind in columns:
            field = fields.get(kind.name)
            if field is None:
                extra.append(kind.name)
            elif field.number in by_number:
                names = f"'{joined(path, by_number[field.number][1].name)}' and '{joined(path, kind.name)}'"
                raise SerializationError(
                    f"the columns {names} are both the field {field.name} of {message}: rename or drop one of them"
                )
            else:
                by_number[field.number] = (number, kind)
        # A Struct without its columns would be empty, whatever they hold.
        if extra and (self._rules.extra_columns == "error" or message.name in DYNAMIC):
            names = ", ".join(f"'{joined(path, name)}'" for name in extra)
            if message.name in DYNAMIC:
                raise SerializationError(f"{message} has no field for {names}: {_DYNAMIC_ADVICE}")
            raise SerializationError(
                f"{message} has no field for {names}: drop the columns, add fields, or give "
                f'Protobuf(..., extra_columns="ignore")'
            )
        return by_number

    def _missing(self, message: Message, field: Field, path: str) -> None:
        where = joined(path, field.name)
        if field.required:
            raise SerializationError(f"there is no column '{where}', and {message} requires the field: add the column")
        if self._rules.missing_columns == "error":
            raise SerializationError(
                f"there is no column '{where}' for the field of {message}: add the column, or give "
                f'Protobuf(..., missing_columns="unset")'
            )

    # ---- fields ------------------------------------------------------------------------------------------------------

    def _field(self, field: Field, child: int, kind: ArrowType, path: str) -> Steps:
        if _is_null(kind) and not field.required:
            return []
        if field.entry is not None:
            return self._map(field, field.entry, child, kind, path)
        if field.repeated:
            return self._repeated(field, child, kind, path)
        return self._value(field, child, kind, path)

    def _repeated(self, field: Field, child: int, kind: ArrowType, path: str) -> Steps:
        values = kind.dictionary or kind
        reader = list_reader(values)
        if reader is None:
            raise _mismatch(field, kind, path, "give a list")
        tag = field_tag(field, packed=True) if field.packed else b""
        item = replace(field, repeated=False, required=True, presence=True)
        parts = self._value(item, 0, values.children[0], f"{path}[]")
        if field.packed:
            parts[0] = parts[0]._replace(tag=b"")
        write = "packed" if field.packed else "array"
        return [_step(field, reader[0], write, child, kind, path, parts)._replace(width=reader[1], tag=tag), *parts]

    def _map(self, field: Field, entry: Message, child: int, kind: ArrowType, path: str) -> Steps:
        values = kind.dictionary or kind
        pair = entries(values, path)
        if pair is None or [f.number for f in entry.fields] != [1, 2]:
            raise _mismatch(field, kind, path, "give a map")
        # Each entry has both its key and its value, also where they are zeros.
        fields = [replace(part, required=True, presence=True) for part in entry.fields]
        key, value = pair
        parts = self._value(fields[0], 0, key, f"{path}{{key}}")
        parts += self._value(fields[1], 1, value, f"{path}{{}}")
        return [_step(field, "map", "map", child, kind, path, parts), *parts]

    def _value(self, field: Field, child: int, kind: ArrowType, path: str) -> Steps:
        """The steps of a field that is neither repeated nor a map."""
        values, message = kind.dictionary or kind, field.target
        if _is_null(kind):
            return [_step(field, "null", "null", child, kind, path, [])]
        if isinstance(message, Message) and field.type == "message":
            if values.format == "+s":
                parts = self.message(message, list(enumerate(values.children)), path)
                return [_step(field, "struct", "record", child, kind, path, parts), *parts]
            if message.name in WRAPPERS and len(message.fields) == 1:
                parts = self._value(message.fields[0], child, kind, path)
                return [_step(field, "nothing", "wrapper", child, kind, path, parts), *parts]
        fit = leaf(field, values) if field.type != "group" else None
        if fit is None:
            raise _mismatch(field, kind, path, _advice(field, values))
        return [_step(field, fit.read, fit.write, child, kind, path, [])._replace(**fit.arguments)]


def _step(field: Field, read: str, write: str, child: int, kind: ArrowType, path: str, parts: Steps) -> Step:
    return Step(
        read, write, path, type_name(kind), str(field), child, 1 + len(parts), null_branch=-1 if field.required else 0,
        tag=field_tag(field), presence=field.presence,
    )  # fmt: skip


def _oneof_checks(oneofs: dict[str, list[int]], path: str) -> Steps:
    """Steps in front of a message's others. Each has the distances from itself to the steps of a oneof's columns."""
    checked = {name: members for name, members in oneofs.items() if len(members) > 1}
    steps = []
    for number, (name, members) in enumerate(checked.items()):
        distances = [len(checked) - number + member for member in members]
        constant = struct.pack(f"={len(distances)}q", *distances)
        steps.append(Step("nothing", "oneof", path, "", name, constant=constant, to_width=len(distances)))
    return steps


def field_tag(field: Field, *, packed: bool = False) -> bytes:
    """A field's number and wire type as bytes."""
    return _tag(field.number, _BYTES if packed else _WIRE_TYPES.get(field.type, _VARINT))


def _tag(number: int, wire_type: int) -> bytes:
    rest, encoded = number << 3 | wire_type, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def _is_null(kind: ArrowType) -> bool:
    return kind.format == "n" and kind.dictionary is None


def _mismatch(field: Field, kind: ArrowType, path: str, advice: str) -> SerializationError:
    return SerializationError(
        f"column '{path}' has the type {type_name(kind)}, which does not fit Protobuf's {field}: {advice}"
    )


def _advice(field: Field, kind: ArrowType) -> str:
    if field.type == "group":
        return "groups are not supported, drop the column"
    if kind.format[:1] == "t":
        return "cast the column to int64, or use a message such as google.protobuf.Timestamp"
    if isinstance(field.target, Message) and field.target.name in DYNAMIC:
        return _DYNAMIC_ADVICE
    if field.type == "message":
        return "give a struct"
    return "cast the column, or change the message"
