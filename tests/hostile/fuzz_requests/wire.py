"""Requests as trees of plain values, read and written by the schemas of the protocol, for a fuzzer that changes fields.

A message is a dict by field, an array a list (or a `Repeated`), a string or a blob bytes, an id 16 bytes, and every
other value the integer on the wire. Nothing is converted, so that a field can hold any value that has room in it. The
broker's own codecs (kafkabuf/protocol) are not used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafkabuf.errors import KafkaError
from kafkabuf.protocol import messages
from kafkabuf.protocol.schema import FIXED, FieldSpec, fields_of

Tree = dict[str, Any]
# `write` puts the number of the item in the place of these bytes: eight digits of a name, or an integer of 32 bits.
DIGITS, INTEGER = b"########", 0x23232323
_INTEGER = INTEGER.to_bytes(4, "big")


@dataclass(frozen=True)
class Repeated:
    """An array of `count` items. Each is `item`, with its own number where the item has DIGITS or INTEGER."""

    item: Any
    count: int


class Plain(NamedTuple):
    """A request. `head` has the bytes of its header."""

    cls: type[Any]
    head: bytes
    tree: Tree


class Place(NamedTuple):
    """A field of a tree: `holder[key]` is its value. `item` says that the place is an item of the field's array."""

    holder: Any
    key: Any
    field: FieldSpec
    item: bool

    @property
    def value(self) -> Any:
        return self.holder[self.key]

    @property
    def is_array(self) -> bool:
        return self.field.shape.array and not self.item


def read(frame: bytes) -> Plain | None:
    """None if the protocol's schemas lack the version."""
    try:
        header = messages.decode_request_header(frame)
        cls = messages.request_class(header.api_key, header.version)
    except KafkaError:
        return None
    tree, _ = _read_message(cls, frame, header.size)
    return Plain(cls, frame[: header.size], tree)


def write(plain: Plain) -> bytes:
    out = bytearray(plain.head)
    _write_message(out, plain.cls, plain.tree)
    return bytes(out)


def places(cls: type[Any], tree: Tree) -> Iterator[Place]:
    """Every field of a message, and every item of its arrays, from the outside in."""
    for field in fields_of(cls):
        if field.name not in tree:
            continue
        place = Place(tree, field.name, field, False)
        yield place
        value, entity = place.value, field.shape.entity
        if field.shape.array and isinstance(value, list):
            for index, item in enumerate(value):
                if entity is None:
                    yield Place(value, index, field, True)
                else:
                    yield from places(entity, item)
        elif entity is not None and isinstance(value, dict):
            yield from places(entity, value)


# ---- reading


def _read_message(cls: type[Any], frame: bytes, at: int) -> tuple[Tree, int]:
    fields, flexible, tree = fields_of(cls), cls.__flexible__, {}
    for field in fields:
        if field.tag is None:
            tree[field.name], at = _read_field(field, frame, at, flexible)
    if flexible:
        tagged = {field.tag: field for field in fields if field.tag is not None}
        count, at = _read_varint(frame, at)
        for _ in range(count):
            tag, at = _read_varint(frame, at)
            size, at = _read_varint(frame, at)
            if tag in tagged:
                tree[tagged[tag].name], _ = _read_field(tagged[tag], frame, at, flexible)
            at += size
    return tree, at


def _read_field(field: FieldSpec, frame: bytes, at: int, flexible: bool) -> tuple[Any, int]:
    shape = field.shape
    if not shape.array:
        if shape.entity is not None and shape.nullable and field.tag is None:
            at += 1
            if frame[at - 1] > 0x7F:
                return None, at
        return _read_value(field, frame, at, flexible)
    count, at = _read_length(frame, at, flexible, 4)
    if count < 0:
        return None, at
    items = []
    for _ in range(count):
        item, at = _read_value(field, frame, at, flexible)
        items.append(item)
    return items, at


def _read_value(field: FieldSpec, frame: bytes, at: int, flexible: bool) -> tuple[Any, int]:
    shape = field.shape
    if shape.entity is not None:
        return _read_message(shape.entity, frame, at)
    if (code := FIXED.get(shape.kafka_type)) is not None:
        packed = struct.Struct(">" + code)
        return packed.unpack_from(frame, at)[0], at + packed.size
    size, at = _read_length(frame, at, flexible, 2 if shape.kafka_type == "string" else 4)
    return (None, at) if size < 0 else (frame[at : at + size], at + size)


def _read_length(frame: bytes, at: int, flexible: bool, size: int) -> tuple[int, int]:
    if not flexible:
        return int.from_bytes(frame[at : at + size], "big", signed=True), at + size
    length, at = _read_varint(frame, at)
    return length - 1, at


def _read_varint(frame: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


# ---- writing


def _write_message(out: bytearray, cls: type[Any], tree: Tree) -> None:
    fields, flexible = fields_of(cls), cls.__flexible__
    for field in fields:
        if field.tag is None:
            _write_field(out, field, tree[field.name], flexible)
    if not flexible:
        return
    tagged = sorted((field.tag, field) for field in fields if field.tag is not None and field.name in tree)
    _write_varint(out, len(tagged))
    for tag, field in tagged:
        section = bytearray()
        _write_field(section, field, tree[field.name], flexible)
        _write_varint(out, tag)
        _write_varint(out, len(section))
        out += section


def _write_field(out: bytearray, field: FieldSpec, value: Any, flexible: bool) -> None:
    shape = field.shape
    if not shape.array:
        if shape.entity is not None and shape.nullable and field.tag is None:
            out += b"\xff" if value is None else b"\x01"
            if value is None:
                return
        _write_value(out, field, value, flexible)
    elif value is None:
        _write_length(out, -1, flexible, 4)
    elif isinstance(value, Repeated):
        _write_length(out, value.count, flexible, 4)
        item = bytearray()
        _write_value(item, field, value.item, flexible)
        out += _repeat(bytes(item), value.count)
    else:
        _write_length(out, len(value), flexible, 4)
        for item in value:
            _write_value(out, field, item, flexible)


def _repeat(item: bytes, count: int) -> bytes:
    if DIGITS in item:
        parts = item.split(DIGITS)
        return b"".join((b"%08d" % number).join(parts) for number in range(count))
    if _INTEGER in item:
        parts = item.split(_INTEGER)
        return b"".join(number.to_bytes(4, "big").join(parts) for number in range(count))
    return item * count


def _write_value(out: bytearray, field: FieldSpec, value: Any, flexible: bool) -> None:
    shape = field.shape
    if shape.entity is not None:
        _write_message(out, shape.entity, value)
    elif shape.kafka_type in FIXED:
        out += struct.pack(">" + FIXED[shape.kafka_type], value)
    else:
        size = 2 if shape.kafka_type == "string" else 4
        _write_length(out, -1 if value is None else len(value), flexible, size)
        out += value or b""


def _write_length(out: bytearray, length: int, flexible: bool, size: int) -> None:
    if flexible:
        _write_varint(out, length + 1)
    else:
        # A string of an old version holds 32,767 bytes; a longer one announces a wrong length.
        out += (length & (1 << 8 * size) - 1).to_bytes(size, "big")


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
