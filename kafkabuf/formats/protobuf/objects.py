"""Compiles a Protobuf message into parts: see object_parts.py, and _objects.pxd, which follows them."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

from kafkabuf.formats.protobuf.compile import field_tag
from kafkabuf.formats.protobuf.leaves import DYNAMIC, INTEGER_FIELDS, WRAPPERS
from kafkabuf.formats.protobuf.schema import Enum, Field, Message
from kafkabuf.formats.rows.object_classes import class_kind
from kafkabuf.formats.rows.object_parts import Part
from kafkabuf.formats.rows.program import INT64_MAX

MESSAGE = 4  # an object of the package protobuf: beside the kinds of object_classes.py
TIMESTAMP, DURATION, DATE, TIME_OF_DAY, WRAPPER = range(1, 6)
# Messages that hold any value of JSON. They are read by their own rules, wherever they are, and not by their fields.
STRUCT, VALUE, LIST_VALUE = range(6, 9)

_KINDS = {
    "bool": "boolean",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "group": "group",
}
_SPECIAL = {
    "google.protobuf.Timestamp": TIMESTAMP, "google.protobuf.Duration": DURATION, "google.type.Date": DATE,
    "google.type.TimeOfDay": TIME_OF_DAY,
} | dict.fromkeys(WRAPPERS, WRAPPER)  # fmt: skip
_DYNAMIC = dict(zip(DYNAMIC, (STRUCT, VALUE, LIST_VALUE), strict=True))
_INT32 = (-(2**31), 2**31 - 1)


def object_kind(cls: type) -> int:
    """class_kind(), or MESSAGE. Where the package protobuf is not loaded, there are no such objects."""
    package = sys.modules.get("google.protobuf.message")
    return MESSAGE if package is not None and issubclass(cls, package.Message) else class_kind(cls)


def compile_objects(root: Message) -> tuple[Part, ...]:
    """The parts of a message. The first part is the root's."""
    compiler = _Compiler(root)
    for message in compiler.pending:  # it grows meanwhile
        compiler.add_fields(message)
    return tuple(compiler.parts)


class _Compiler:
    def __init__(self, root: Message) -> None:
        self.parts: list[Part] = []
        self.pending: list[Message] = []
        self._numbers: dict[str, int] = {}
        self._message(root)

    def _message(self, message: Message) -> int:
        """The number of the message's part. Its fields are added later, so that a message may use itself."""
        if message.name not in self._numbers:
            self._numbers[message.name] = self._add(Part("record", str(message), special=_dynamic(message)))
            self.pending.append(message)
        return self._numbers[message.name]

    def _add(self, part: Part) -> int:
        self.parts.append(part)
        return len(self.parts) - 1

    def add_fields(self, message: Message) -> None:
        number = self._numbers[message.name]
        shared = Counter(field.oneof for field in message.fields if field.oneof)
        oneofs = {name: place for place, name in enumerate(name for name, count in shared.items() if count > 1)}
        names = {field.json_name: field.number for field in message.fields}
        names |= {field.name: field.number for field in message.fields}
        taken = {field.name for field in message.fields}
        parts = []
        for field in message.fields:
            alias = None if field.json_name in taken else sys.intern(field.json_name)
            oneof = oneofs.get(field.oneof, -1)
            parts.append(self._add(self._field(field)._replace(alias=alias, oneof=oneof)))
        own = tuple(sys.intern(field.name) for field in message.fields)
        self.parts[number] = self.parts[number]._replace(parts=tuple(parts), names=own, symbols=names)

    def _field(self, field: Field) -> Part:
        if field.entry is not None:
            key, value = (self._add(self._value(_always(part))) for part in field.entry.fields)
            return Part("map", str(field), (key, value), tag=field_tag(field))
        if field.repeated:
            item = self._value(_always(field))
            if field.packed:
                item = item._replace(tag=b"")
            number = self._add(item)
            return Part("array", str(field), (number,), packed=field.packed, tag=field_tag(field, packed=field.packed))
        return self._value(field)

    def _value(self, field: Field) -> Part:
        """The part of a field that is neither repeated nor a map."""
        tag, target = field_tag(field), field.target
        part = Part("", str(field), tag=tag, presence=field.presence, required=field.required)
        if field.type == "group":
            return part._replace(kind="group")
        if isinstance(target, Message):
            special = _SPECIAL.get(target.name, 0)
            if special == WRAPPER and len(target.fields) != 1:
                special = 0
            return part._replace(kind="message", parts=(self._message(target),), special=special)
        if isinstance(target, Enum):
            low, high = _INT32
            return part._replace(kind="enum", symbols=target.numbers, numbers=target.known, low=low, high=high)
        if field.type in INTEGER_FIELDS:
            kind, (low, high) = INTEGER_FIELDS[field.type]
            return part._replace(kind=kind, low=low, high=min(high, INT64_MAX), is_unsigned=high > INT64_MAX)
        return part._replace(kind=_KINDS[field.type])


def _dynamic(message: Message) -> int:
    """STRUCT, VALUE or LIST_VALUE; 0 for another message, also for one of such a name that has other fields."""
    is_theirs = DYNAMIC.get(message.name) == tuple(field.name for field in message.fields)
    return _DYNAMIC[message.name] if is_theirs else 0


def _always(field: Field) -> Field:
    """An item, or a map's key or value: it is written also where it is a zero, and None does not fit."""
    return replace(field, repeated=False, required=True, presence=True)
