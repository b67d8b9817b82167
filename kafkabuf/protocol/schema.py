"""Reads and builds messages: the dataclasses of `kio` for every API, version and nested type, and those of entities.py.

kio's native reader trusts array counts: a count of 2^31 - 1 in a ten-byte frame aborts the whole process for lack of
memory. The reader here refuses a count or a length that is larger than the number of bytes left. writing.py has the
writer.

The reader turns durations (`timedelta_*`) and times (`datetime_i64`) into Python's types. `build` takes them in
milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin
from uuid import UUID

from kafkabuf.protocol.error_codes import ErrorCode

Buffer = bytes | bytearray | memoryview
Reader = Callable[[Buffer, int], tuple[Any, int]]
# Reads as a Reader does, and yields between its steps.
Steps = Generator[None, None, tuple[Any, int]]
Convert = Callable[[Any], Any]
F = TypeVar("F", bound=Callable[..., Any])


# The most items that all arrays of one request may have together. Most items are topics and partitions. An item becomes
# Python objects of many times its bytes, and causes work.
MOST_ITEMS = 20_000
# The longest string in UTF-8, whatever its length may be written as. Kafka refuses a longer one, too.
_LONGEST_STRING = 0x7FFF
# The most tagged fields that one message or nested type may have. Kafka's own have a few.
_MOST_TAGS = 1_000


class BoundedFrame(bytes):
    """A frame whose arrays may have MOST_ITEMS items together. The reader raises ValueError if they have more."""

    items = 0

    def spend(self, more: int) -> None:
        self.items += more
        if self.items > MOST_ITEMS:
            raise ValueError(f"arrays of {self.items} items, {MOST_ITEMS} are allowed")


def once_per_class(function: F) -> F:
    """`functools.cache`, with the signature kept: mypy does not accept that `type[Any]` is hashable."""
    return cast(F, cache(function))


FIXED = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "uuid": "16s",
}
_LONGEST_TEXT = 1000
_LONGEST_MS = 86_400_000 * 365_000  # a thousand years
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _milliseconds(value: int) -> timedelta:
    # A broker may send the largest number for "for ever". A timedelta cannot hold it.
    return timedelta(milliseconds=min(max(value, -_LONGEST_MS), _LONGEST_MS))


def _time(value: int) -> datetime | None:
    return None if value == -1 else EPOCH + timedelta(milliseconds=value)


# Converts a plain value (from the wire, or given to `build`) to the type of kio's field.
_CONVERT: dict[str, Convert] = {
    "error_code": ErrorCode,
    "timedelta_i32": _milliseconds,
    "timedelta_i64": _milliseconds,
    "datetime_i64": _time,
}


def convert(kafka_type: str, value: Any) -> Any:
    """A plain value as the type of a field."""
    return value if value is None or kafka_type not in _CONVERT else _CONVERT[kafka_type](value)


def _uuid(raw: bytes) -> UUID | None:
    return UUID(bytes=raw) if any(raw) else None


class Shape(NamedTuple):
    """What a field holds: a value or an array of values, which are primitive (`kafka_type`) or nested (`entity`)."""

    kafka_type: str
    entity: type[Any] | None
    array: bool
    nullable: bool

    @classmethod
    def of(cls, field: Field[Any]) -> Shape:
        kind, nullable = _strip_none(field.type)
        array = get_origin(kind) is tuple
        if array:
            kind, _ = _strip_none(get_args(kind)[0])
        entity = kind if is_dataclass(kind) and isinstance(kind, type) else None
        return cls(field.metadata.get("kafka_type", ""), entity, array, nullable)


class FieldSpec(NamedTuple):
    """One field of a message."""

    name: str
    shape: Shape
    tag: int | None
    default: Any
    """MISSING if the schema gives none."""


@once_per_class
def fields_of(cls: type[Any]) -> tuple[FieldSpec, ...]:
    """The fields of a message or nested type, in the order of the wire."""
    if not is_dataclass(cls):
        specs: tuple[FieldSpec, ...] = cls.__fields__
        return specs
    return tuple(FieldSpec(f.name, Shape.of(f), f.metadata.get("tag"), _default(f)) for f in fields(cls))


def _default(field: Field[Any]) -> Any:
    # kio's default of an error code is a member of its own enumeration.
    if field.metadata.get("kafka_type") == "error_code" and field.default is not MISSING:
        return ErrorCode(int(field.default))
    return field.default


def _strip_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (UnionType, Union):
        return kind, False
    (inner,) = (arm for arm in get_args(kind) if arm is not NoneType)
    return inner, True


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes: (value, position after it). ValueError or IndexError if malformed."""
    value = shift = 0
    while shift < 35:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a varint is longer than five bytes")


def skip_tags(buffer: Buffer, position: int) -> int:
    """The position after a section of tagged fields, which are ignored."""
    count, position = _tag_count(buffer, position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position = _end(buffer, position, size)
    return position


def _tag_count(buffer: Buffer, position: int) -> tuple[int, int]:
    count, position = read_uvarint(buffer, position)
    if count > _MOST_TAGS:
        raise ValueError(f"{count} tagged fields, {_MOST_TAGS} are allowed")
    return count, position


def _end(buffer: Buffer, position: int, size: int) -> int:
    end = position + size
    if size < 0 or end > len(buffer):
        raise ValueError(f"a length of {size} bytes, but only {len(buffer) - position} are left")
    return end


def _fixed_reader(kafka_type: str) -> Reader:
    packed = struct.Struct(">" + FIXED[kafka_type])
    change = _uuid if kafka_type == "uuid" else _CONVERT.get(kafka_type)
    unpack, size = packed.unpack_from, packed.size

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        (value,) = unpack(buffer, position)
        return (value if change is None else change(value)), position + size

    return read


def _length_reader(flexible: bool, code: str) -> Reader:
    """Reads lengths and counts: a varint of n + 1 in flexible versions, else a signed integer. -1 is null."""
    if flexible:

        def read_compact(buffer: Buffer, position: int) -> tuple[int, int]:
            value, position = read_uvarint(buffer, position)
            return value - 1, position

        return read_compact
    return _fixed_reader(code)


def _bytes_reader(kafka_type: str, flexible: bool, nullable: bool) -> Reader:
    text = kafka_type == "string"
    read_length = _length_reader(flexible, "int16" if text else "int32")

    def read(buffer: Buffer, position: int) -> tuple[str | bytes | None, int]:
        # A request may have tens of thousands of strings, and most are short: these calls take most of the time.
        if flexible and 0 < (first := buffer[position]) < 0x80:
            length, position = first - 1, position + 1
        else:
            length, position = read_length(buffer, position)
        if length == -1 and nullable:
            return None, position
        end = position + length
        if length < 0 or end > len(buffer):
            end = _end(buffer, position, length)
        if text and length > _LONGEST_STRING:
            raise ValueError(f"a string of {length} bytes, {_LONGEST_STRING} are allowed")
        raw = buffer[position:end]
        return (str(raw, "utf-8") if text else bytes(raw)), end

    return read


def _count_reader(flexible: bool, nullable: bool) -> Callable[[Buffer, int], tuple[int | None, int]]:
    """Reads the number of items of an array; None is null."""
    read_count = _length_reader(flexible, "int32")

    def read(buffer: Buffer, position: int) -> tuple[int | None, int]:
        count, position = read_count(buffer, position)
        if count == -1 and nullable:
            return None, position
        # Every item takes at least a byte: a count larger than the frame is refused before any item is read.
        _end(buffer, position, count)
        if isinstance(buffer, BoundedFrame):
            buffer.spend(count)
        return count, position

    return read


def _array_reader(item: Reader, flexible: bool, nullable: bool) -> Reader:
    read_count = _count_reader(flexible, nullable)

    def read(buffer: Buffer, position: int) -> tuple[tuple[Any, ...] | None, int]:
        count, position = read_count(buffer, position)
        if count is None:
            return None, position
        items = []
        for _ in range(count):
            value, position = item(buffer, position)
            items.append(value)
        return tuple(items), position

    return read


def _nullable_entity_reader(inner: Reader) -> Reader:
    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        (marker,) = struct.unpack_from(">b", buffer, position)
        return (None, position + 1) if marker < 0 else inner(buffer, position + 1)

    return read


def _field_reader(field: FieldSpec, flexible: bool) -> Reader:
    shape = field.shape
    tagged = field.tag is not None
    if shape.entity is not None:
        item = reader(shape.entity)
        if shape.nullable and not shape.array and not tagged:
            item = _nullable_entity_reader(item)
    elif shape.kafka_type in FIXED:
        item = _fixed_reader(shape.kafka_type)
    else:
        item = _bytes_reader(shape.kafka_type, flexible, shape.nullable and not shape.array)
    return _array_reader(item, flexible, shape.nullable) if shape.array else item


class _Layout(NamedTuple):
    """How the bytes of a message or nested type are read: its fields in the order of the wire, the readers of its
    tagged fields, and what a field has that the bytes lack."""

    cls: type[Any]
    plain: list[tuple[FieldSpec, Reader]]
    tagged: dict[int, tuple[str, Reader]]
    defaults: dict[str, Any]

    def end(self, buffer: Buffer, position: int, values: dict[str, Any]) -> tuple[Any, int]:
        """The entity, and the position after it. The plain fields were read."""
        if self.cls.__flexible__:
            if buffer[position]:
                position = _read_tags(buffer, position, self.tagged, values)
            else:
                position += 1
        return self.cls(**values), position


@once_per_class
def _layout(cls: type[Any]) -> _Layout:
    flexible = cls.__flexible__
    plain = [(f, _field_reader(f, flexible)) for f in fields_of(cls) if f.tag is None]
    tagged = {f.tag: (f.name, _field_reader(f, flexible)) for f in fields_of(cls) if f.tag is not None}
    return _Layout(cls, plain, tagged, {f.name: default_of(f) for f in fields_of(cls) if f.tag is not None})


@once_per_class
def reader(cls: type[Any]) -> Reader:
    """The reader of one message or nested type: (buffer, position) -> (entity, position after it).

    The reader raises ValueError, IndexError, OverflowError or struct.error for malformed bytes. `messages` turns these
    into errors of the protocol.
    """
    layout = _layout(cls)
    plain, defaults, end = [(f.name, read_field) for f, read_field in layout.plain], layout.defaults, layout.end

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        values = dict(defaults)
        for name, read_field in plain:
            values[name], position = read_field(buffer, position)
        return end(buffer, position, values)

    return read


def read_in_steps(cls: type[Any], buffer: Buffer, position: int) -> Steps:
    """As `reader(cls)`, and yields after each item of the arrays of nested types.

    A message of many items takes long. The caller does other things between the steps.
    """
    layout = _layout(cls)
    values = dict(layout.defaults)
    for field, read_field in layout.plain:
        if field.shape.array and field.shape.entity is not None:
            values[field.name], position = yield from _array_in_steps(cls, field, buffer, position)
        else:
            values[field.name], position = read_field(buffer, position)
    return layout.end(buffer, position, values)


def _array_in_steps(cls: type[Any], field: FieldSpec, buffer: Buffer, position: int) -> Steps:
    entity = field.shape.entity
    assert entity is not None
    count, position = _count_reader(cls.__flexible__, field.shape.nullable)(buffer, position)
    if count is None:
        return None, position
    nests, read_item = any(nested.shape.array for nested in fields_of(entity)), reader(entity)
    items = []
    for _ in range(count):
        if nests:
            item, position = yield from read_in_steps(entity, buffer, position)
        else:
            item, position = read_item(buffer, position)
        items.append(item)
        yield
    return tuple(items), position


def _read_tags(buffer: Buffer, position: int, known: dict[int, tuple[str, Reader]], values: dict[str, Any]) -> int:
    count, position = _tag_count(buffer, position)
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        end = _end(buffer, position, size)
        if tag in known:
            name, read_field = known[tag]
            values[name], position = read_field(buffer, position)
            if position != end:
                raise ValueError(f"tagged field {name} ends {position - end:+d} bytes from the end that its size gives")
        position = end
    return position


def default_of(field: FieldSpec) -> Any:
    """The default of a field: the schema's, else the zero of its type, as in Kafka's generated classes."""
    if field.default is not MISSING:
        return field.default
    shape = field.shape
    if shape.array:
        return ()
    if shape.entity is not None:
        return build(shape.entity, {})
    if shape.nullable or shape.kafka_type == "uuid":
        return None
    if shape.kafka_type in ("string", "bytes", "records"):
        return "" if shape.kafka_type == "string" else b""
    return _CONVERT.get(shape.kafka_type, lambda zero: zero)(0)


def build(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """An entity from plain values: ints, strings, bytes, and mappings or sequences of them for nested entities.

    Names that this version of the message lacks are ignored, and missing fields get their default. So a handler can
    give all fields that it knows, whatever the version.
    """
    names, converters = builder(cls)
    return cls(
        **{name: converters[name](values[name]) if name in values else default for name, default in names.items()}
    )


@once_per_class
def builder(cls: type[Any]) -> tuple[dict[str, Any], dict[str, Convert]]:
    """The default of each field, and what turns a plain value into the type of the field."""
    converters = {f.name: _converter(f.shape) for f in fields_of(cls)}
    if "error_message" in converters:
        converters["error_message"] = text_of_error
    return {f.name: default_of(f) for f in fields_of(cls)}, converters


def text_of_error(text: str | None) -> str | None:
    """Cut an error's text: it quotes the request, and in old versions a string holds 32 KiB at most."""
    return text and text[:_LONGEST_TEXT]


def _converter(shape: Shape) -> Convert:
    entity = shape.entity
    if entity is not None:

        def convert_item(value: Any) -> Any:
            return build(entity, value) if isinstance(value, Mapping) else value

    else:
        change = _CONVERT.get(shape.kafka_type)

        def convert_item(value: Any) -> Any:
            return change(value) if change is not None and isinstance(value, int) else value

    if shape.array:
        return lambda values: None if values is None else tuple(convert_item(value) for value in values)
    return convert_item
