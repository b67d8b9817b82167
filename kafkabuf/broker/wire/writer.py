"""The variable-length encodings that the hand-written codecs need. `flexible` chooses the compact form (KIP-482)."""

from __future__ import annotations

import struct

_INT16 = struct.Struct(">h").pack
_INT32 = struct.Struct(">i").pack


def put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def put_count(out: bytearray, count: int, flexible: bool) -> None:
    """Write the length of an array or of bytes; -1 for null."""
    if flexible:
        put_uvarint(out, count + 1)
    else:
        out += _INT32(count)


def put_string(out: bytearray, text: str, flexible: bool) -> None:
    raw = text.encode()
    if flexible:
        put_uvarint(out, len(raw) + 1)
    else:
        out += _INT16(len(raw))
    out += raw


def put_nullable_string(out: bytearray, text: str | None, flexible: bool) -> None:
    if text is not None:
        put_string(out, text, flexible)
    else:
        out += b"\0" if flexible else _INT16(-1)
