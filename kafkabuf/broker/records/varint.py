"""The zig-zag varints of records: seven bits to a byte, the lowest first."""

from __future__ import annotations

from kafkabuf.errors import InvalidRecordError


def read_varint(body: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it). Raises InvalidRecordError for more than ten bytes, IndexError where bytes end."""
    value = body[position]
    position += 1
    if value >= 0x80:
        value, shift = value & 0x7F, 7
        while (byte := body[position]) >= 0x80:
            value |= (byte & 0x7F) << shift
            position += 1
            shift += 7
            if shift == 70:
                raise InvalidRecordError("a varint is longer than ten bytes")
        value |= byte << shift
        position += 1
    return (value >> 1) ^ -(value & 1), position
