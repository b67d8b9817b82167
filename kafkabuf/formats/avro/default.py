"""Encodes the default of a field, which a schema has as JSON, as Avro."""

from __future__ import annotations

import struct
from typing import Any

from kafkabuf.formats.avro.schema import MAX_DEPTH, MISSING, Array, Enum, Fixed, Map, Node, Primitive, Record, Union

MAX_PARTS = 1 << 12


class DefaultError(ValueError):
    """The default does not fit the type."""


class _TooLargeError(DefaultError):
    """The default has more parts than are allowed: no branch of a union can change that."""


def encode_default(node: Node, value: Any) -> bytes:
    """Raises DefaultError."""
    return _Encoding().encode(node, value, 0)


class _Encoding:
    """One default. It may have MAX_PARTS parts: records whose fields have defaults of records grow exponentially."""

    def __init__(self) -> None:
        self._left = MAX_PARTS

    def encode(self, node: Node, value: Any, depth: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _TooLargeError(f"it has more than {MAX_PARTS} parts")
        if depth > MAX_DEPTH:
            raise DefaultError(f"it is nested deeper than {MAX_DEPTH} levels")
        match node:
            case Union():
                return self._union(node, value, depth)
            case Primitive():
                return _primitive(node, value)
            case Fixed() if isinstance(value, str) and len(value) == node.bytes:
                return _latin(value)
            case Enum() if isinstance(value, str) and value in node.numbers:
                return encode_long(node.numbers[value])
            case Array() if isinstance(value, list):
                items = b"".join(self.encode(node.items, item, depth + 1) for item in value)
                return (encode_long(len(value)) if value else b"") + items + b"\0"
            case Map() if isinstance(value, dict):
                pairs = (_text(key) + self.encode(node.values, item, depth + 1) for key, item in value.items())
                return (encode_long(len(value)) if value else b"") + b"".join(pairs) + b"\0"
            case Record() if isinstance(value, dict):
                fields = ((field.node, value.get(field.name, field.default)) for field in node.fields)
                return b"".join(self._field(part, given, depth) for part, given in fields)
        raise DefaultError(f"{value!r:.200} does not fit {node}")

    def _field(self, node: Node, value: Any, depth: int) -> bytes:
        if value is MISSING:
            raise DefaultError("a field of it has neither value nor default")
        return self.encode(node, value, depth + 1)

    def _union(self, node: Union, value: Any, depth: int) -> bytes:
        """The first branch that fits: before Avro 1.12 that had to be the first one."""
        for index, branch in enumerate(node.branches):
            try:
                return encode_long(index) + self.encode(branch, value, depth + 1)
            except _TooLargeError:
                raise
            except DefaultError:
                pass
        raise DefaultError(f"{value!r:.200} fits no branch of the {node}")


def encode_long(number: int) -> bytes:
    """A zig-zag varint."""
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _primitive(node: Primitive, value: Any) -> bytes:
    number = isinstance(value, int) and not isinstance(value, bool)
    match node.type:
        case "null" if value is None:
            return b""
        case "boolean" if isinstance(value, bool):
            return bytes([value])
        case "int" if number and -(2**31) <= value < 2**31:
            return encode_long(value)
        case "long" if number and -(2**63) <= value < 2**63:
            return encode_long(value)
        case "float" | "double" if number or isinstance(value, float):
            return _real(node.type, value)
        case "bytes" if isinstance(value, str):
            encoded = _latin(value)
            return encode_long(len(encoded)) + encoded
        case "string" if isinstance(value, str):
            return _text(value)
    raise DefaultError(f"{value!r:.200} does not fit {node}")


def _real(kind: str, value: float) -> bytes:
    try:
        return struct.pack("<f" if kind == "float" else "<d", value)
    except OverflowError as error:
        raise DefaultError(f"{value!r:.200} does not fit {kind}") from error


def _latin(text: str) -> bytes:
    """Code points 0 to 255 stand for bytes."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise DefaultError(f"{text!r:.200} has a character above U+00FF, and stands for bytes") from error


def _text(text: str) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise DefaultError(f"{text!r:.200} has no UTF-8 encoding") from error
    return encode_long(len(encoded)) + encoded
