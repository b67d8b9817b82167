"""Writes messages: the reverse of the reader in schema.py. Tests compare the bytes with those that kio writes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from kafkabuf.protocol.schema import EPOCH, FIXED, FieldSpec, build, builder, default_of, fields_of, once_per_class

Writer = Callable[[bytearray, Any], None]
# A message with more items takes a millisecond or more.
MANY_ITEMS = 100

# From the type of a field to the plain value on the wire.
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "error_code": int,
    "timedelta_i32": lambda duration: round(duration / timedelta(milliseconds=1)),
    "timedelta_i64": lambda duration: round(duration / timedelta(milliseconds=1)),
    "datetime_i64": lambda moment: -1 if moment is None else round((moment - EPOCH) / timedelta(milliseconds=1)),
    "uuid": lambda uuid: bytes(16) if uuid is None else uuid.bytes,
}


def write_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _fixed_writer(kafka_type: str) -> Writer:
    pack = struct.Struct(">" + FIXED[kafka_type]).pack
    plain = _PLAIN.get(kafka_type)

    def write(out: bytearray, value: Any) -> None:
        out += pack(value if plain is None else plain(value))

    return write


def _length_writer(flexible: bool, code: str) -> Writer:
    """As `_length_reader`; None is null."""
    if flexible:
        return lambda out, length: write_uvarint(out, 0 if length is None else length + 1)
    pack = struct.Struct(">" + FIXED[code]).pack

    def write(out: bytearray, length: int | None) -> None:
        out += pack(-1 if length is None else length)

    return write


def _bytes_writer(kafka_type: str, flexible: bool, nullable: bool) -> Writer:
    write_length = _length_writer(flexible, "int16" if kafka_type == "string" else "int32")

    def write(out: bytearray, value: str | bytes | None) -> None:
        if value is None:
            _require(nullable)
            write_length(out, None)
            return
        raw = value.encode() if isinstance(value, str) else value
        write_length(out, len(raw))
        out += raw

    return write


def _array_writer(item: Writer, flexible: bool, nullable: bool) -> Writer:
    write_count = _length_writer(flexible, "int32")

    def write(out: bytearray, values: tuple[Any, ...] | None) -> None:
        if values is None:
            _require(nullable)
            write_count(out, None)
            return
        write_count(out, len(values))
        for value in values:
            item(out, value)

    return write


def _nullable_entity_writer(inner: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        out += b"\xff" if value is None else b"\1"
        if value is not None:
            inner(out, value)

    return write


def _require(nullable: bool) -> None:
    if not nullable:
        raise ValueError("null in a field that cannot be null")


def _field_writer(field: FieldSpec, flexible: bool) -> Writer:
    shape = field.shape
    if shape.entity is not None:
        item = writer(shape.entity)
        if shape.nullable and not shape.array and field.tag is None:
            item = _nullable_entity_writer(item)
    elif shape.kafka_type in FIXED:
        item = _fixed_writer(shape.kafka_type)
    else:
        item = _bytes_writer(shape.kafka_type, flexible, shape.nullable and not shape.array)
    return _array_writer(item, flexible, shape.nullable) if shape.array else item


@once_per_class
def writer(cls: type[Any]) -> Writer:
    """The writer of one message or nested type, the reverse of `reader`. Tagged fields with their default are left out.

    The writer raises ValueError, TypeError or struct.error for values that do not fit.
    """
    plain = [(f.name, _field_writer(f, cls.__flexible__)) for f in fields_of(cls) if f.tag is None]
    write_tags = _tags_writer(cls)

    def write(out: bytearray, entity: Any) -> None:
        for name, write_field in plain:
            write_field(out, getattr(entity, name))
        write_tags(out, entity)

    return write


@once_per_class
def _tags_writer(cls: type[Any]) -> Writer:
    """Writes the tagged fields of an entity. Versions that are not flexible have no tagged fields."""
    flexible = cls.__flexible__
    tagged = sorted(
        (f.tag, f.name, default_of(f), _field_writer(f, flexible)) for f in fields_of(cls) if f.tag is not None
    )

    def write(out: bytearray, entity: Any) -> None:
        if not flexible:
            return
        present = [
            (tag, getattr(entity, name), put) for tag, name, default, put in tagged if getattr(entity, name) != default
        ]
        write_uvarint(out, len(present))
        for tag, value, put in present:
            section = bytearray()
            put(section, value)
            write_uvarint(out, tag)
            write_uvarint(out, len(section))
            out += section

    return write


def write_in_steps(out: bytearray, cls: type[Any], values: Mapping[str, Any]) -> Iterator[None]:
    """Writes the message that `build` makes of plain values, and yields after each item of its arrays.

    A message of many items takes long. The caller does other things between the steps.
    """
    flexible = cls.__flexible__
    defaults, converters = builder(cls)
    write_count = _length_writer(flexible, "int32")
    for field in fields_of(cls):
        if field.tag is not None:
            continue
        value, entity = values.get(field.name, defaults[field.name]), field.shape.entity
        if entity is None or not field.shape.array or value is None:
            _field_writer(field, flexible)(out, converters[field.name](value))
            continue
        write_count(out, len(value))
        for item in value:
            yield from _write_item(out, entity, item)
            yield
    tagged = {f.name: values[f.name] for f in fields_of(cls) if f.tag is not None and f.name in values}
    _tags_writer(cls)(out, build(cls, tagged))


def _write_item(out: bytearray, entity: type[Any], item: Any) -> Iterator[None]:
    if not isinstance(item, Mapping):
        writer(entity)(out, item)
    elif has_many_items(item):
        yield from write_in_steps(out, entity, item)
    else:
        writer(entity)(out, build(entity, item))


def has_many_items(values: Mapping[str, Any]) -> bool:
    """Whether the arrays of a message, and the arrays in them, have more than MANY_ITEMS items together."""
    return _count_items(values, MANY_ITEMS) > MANY_ITEMS


def _count_items(values: Mapping[str, Any], enough: int) -> int:
    count = 0
    for value in values.values():
        if not isinstance(value, list | tuple):
            continue
        count += len(value)
        for item in value:
            if count > enough:
                return count
            if not isinstance(item, Mapping):
                break
            count += _count_items(item, enough)
    return count
