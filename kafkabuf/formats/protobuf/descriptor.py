"""Reads descriptors, which are Protobuf messages themselves, without a package.

    FileDescriptorSet: file=1
    FileDescriptorProto: name=1 package=2 dependency=3 message_type=4 enum_type=5 options=8 syntax=12 edition=14
    DescriptorProto: name=1 field=2 nested_type=3 enum_type=4 options=7 oneof_decl=8
    FieldDescriptorProto: name=1 number=3 label=4 type=5 type_name=6 options=8 oneof_index=9 json_name=10
    EnumDescriptorProto: name=1 value=2 options=3 | EnumValueDescriptorProto: name=1 number=2
    OneofDescriptorProto: name=1

google/protobuf/descriptor.proto has them with all their fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafkabuf.errors import ConfigError

_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}  # bytes by wire type
_FILE = 1
_NAME, _DEPENDENCY = 1, 3


class Parsed:
    """The fields of a message by their numbers: varints as ints, all else as bytes."""

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        position = 0
        while position < len(data):
            tag, position = _varint(data, position)
            kind, value = tag & 7, 0
            if kind in (_VARINT, _BYTES):
                value, position = _varint(data, position)
            elif kind not in _FIXED_SIZES:
                raise ConfigError(f"these bytes are no Protobuf descriptor: wire type {kind} at byte {position}")
            values = self._values.setdefault(tag >> 3, [])
            if kind == _VARINT:
                values.append(value)
                continue
            size = _FIXED_SIZES.get(kind, value)
            if size > len(data) - position:
                raise ConfigError(f"these bytes are no Protobuf descriptor: they end within a field of {size} bytes")
            values.append(data[position : position + size])
            position += size

    def number(self, field: int) -> int | None:
        """An int32, enum or bool; None: it is not set."""
        value = self._last(field, int)
        if value is None:
            return None
        low = int(value) & 0xFFFF_FFFF
        return low - 2**32 if low >= 2**31 else low

    def text(self, field: int) -> str:
        try:
            return bytes(self._last(field, bytes) or b"").decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"these bytes are no Protobuf descriptor: {error}") from error

    def message(self, field: int) -> Parsed:
        """Empty, if it is not set. Protobuf merges a message that is there several times."""
        return Parsed(b"".join(self.raw(field)))

    def has(self, field: int) -> bool:
        return field in self._values

    def messages(self, field: int) -> list[Parsed]:
        return [Parsed(value) for value in self.raw(field)]

    def raw(self, field: int) -> list[bytes]:
        return [value for value in self._values.get(field, ()) if isinstance(value, bytes)]

    def _last(self, field: int, kind: type) -> Any:
        for value in reversed(self._values.get(field, ())):
            if isinstance(value, kind):
                return value
        return None


def files_in(descriptor_set: bytes) -> list[Parsed]:
    """The files of a FileDescriptorSet."""
    return Parsed(descriptor_set).messages(_FILE)


def raw_files(descriptor_set: bytes) -> list[bytes]:
    """The same, serialized."""
    return Parsed(descriptor_set).raw(_FILE)


def descriptor_set(files: Iterable[bytes]) -> bytes:
    """A FileDescriptorSet of serialized FileDescriptorProtos."""
    return b"".join(bytes([_FILE << 3 | _BYTES]) + _size(len(file)) + file for file in files)


def needed_files(descriptors: bytes, file: str) -> bytes:
    """The descriptor set of `file` and of what it imports, each after its imports: equal for equal schemas."""
    files = [(data, Parsed(data)) for data in raw_files(descriptors)]
    by_name = {parsed.text(_NAME): (data, parsed) for data, parsed in reversed(files)}
    ordered: dict[str, bytes] = {}
    waiting: set[str] = set()  # files whose imports come first; an import among them is a circle, which protoc refuses
    pending = [(file, False)]
    while pending:
        name, imported = pending.pop()
        if name not in by_name or name in ordered:
            continue  # a missing import matters only if a field needs it: the schema's parser says so
        data, parsed = by_name[name]
        if imported:
            ordered[name] = data
            waiting.discard(name)
        elif name not in waiting:
            waiting.add(name)
            pending.append((name, True))
            imports = [value.decode("utf-8", "replace") for value in parsed.raw(_DEPENDENCY)]
            pending.extend((imported, False) for imported in reversed(imports) if imported not in waiting)
    return descriptor_set(ordered.values())


def last_file(descriptors: bytes) -> bytes:
    """The file that comes after its imports."""
    return Parsed(descriptors).raw(_FILE)[-1]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    if position < len(data) and data[position] < 0x80:  # nearly every number
        return data[position], position + 1
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ConfigError("these bytes are no Protobuf descriptor: a number does not end")


def _size(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
