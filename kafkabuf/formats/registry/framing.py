"""Framing: the bytes that tell a consumer which schema of the registry a key or value was written with.

    prefix:  magic 0 | id int32            in front of the value, which every consumer understands
    header:  magic 1 | guid 16 bytes       in the record's header __key_schema_id or __value_schema_id

All numbers are big-endian. For Protobuf the path to the message type follows either of the two: zigzag varints, the
length of the path and its indexes. The path [0], the first message of a file, is the single byte 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from kafkabuf.errors import ConfigError

MAGIC_ID = b"\x00"
MAGIC_GUID = b"\x01"
LARGEST_ID = 2**31 - 1  # Java reads the id as an int
_HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}


def prefix(schema_id: int, message_indexes: Sequence[int] | None = None) -> bytes:
    """The bytes in front of a value. `message_indexes` is the path to a Protobuf message; None for other formats."""
    if not 0 <= schema_id <= LARGEST_ID:
        raise ConfigError(f"a schema's id must be 0 to {LARGEST_ID}, found {schema_id}")
    return MAGIC_ID + schema_id.to_bytes(4, "big") + _indexes(message_indexes)


def header(field: str, guid: str, message_indexes: Sequence[int] | None = None) -> tuple[str, bytes]:
    """The record's header: its name and value. `field` is "key" or "value". Raises ConfigError for other text."""
    if field not in _HEADERS:
        raise ConfigError(f"field must be key or value, found {field!r}")
    try:
        identifier = UUID(guid).bytes
    except ValueError:
        raise ConfigError(f"a schema's guid must be a UUID, found {guid!r}") from None
    return _HEADERS[field], MAGIC_GUID + identifier + _indexes(message_indexes)


def _indexes(path: Sequence[int] | None) -> bytes:
    if path is None:
        return b""
    if not path or min(path) < 0:
        raise ConfigError(f"message indexes must be numbers from 0 on, and at least one, found {list(path)}")
    return b"\x00" if list(path) == [0] else b"".join(map(_zigzag, (len(path), *path)))


def _zigzag(number: int) -> bytes:
    """A number from 0 on as a zigzag varint."""
    rest, encoded = number << 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
