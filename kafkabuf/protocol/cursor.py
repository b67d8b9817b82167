"""A reading position in a frame, for the hand-written codecs. It never copies: records are memoryviews of the frame."""

from __future__ import annotations

import struct
from uuid import UUID

from kafkabuf.protocol.schema import MOST_ITEMS, Buffer, read_uvarint, skip_tags

_INT8 = struct.Struct(">b").unpack_from
_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from
_INT64 = struct.Struct(">q").unpack_from

# What a Cursor raises for malformed bytes. The codecs turn these into errors of the protocol.
MALFORMED = (ValueError, IndexError, OverflowError, struct.error)


class Cursor:
    """A position in a frame. `flexible` chooses compact lengths and tagged fields (KIP-482)."""

    __slots__ = ("flexible", "items", "position", "view")

    def __init__(self, frame: Buffer, position: int, flexible: bool) -> None:
        self.view = memoryview(frame)
        self.position = position
        self.flexible = flexible
        self.items = 0

    def int8(self) -> int:
        (value,) = _INT8(self.view, self.position)
        self.position += 1
        return int(value)

    def int16(self) -> int:
        (value,) = _INT16(self.view, self.position)
        self.position += 2
        return int(value)

    def int32(self) -> int:
        (value,) = _INT32(self.view, self.position)
        self.position += 4
        return int(value)

    def int64(self) -> int:
        (value,) = _INT64(self.view, self.position)
        self.position += 8
        return int(value)

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self._take(16)))

    def count(self) -> int:
        """The length of an array; 0 for a null array.

        Raises ValueError if the array is longer than the rest of the frame, or if all arrays together have more than
        MOST_ITEMS items.
        """
        count = self._compact_length() if self.flexible else self.int32()
        if not -1 <= count <= len(self.view) - self.position:
            raise ValueError(f"an array of {count} items, but only {len(self.view) - self.position} bytes are left")
        self.items += max(count, 0)
        if self.items > MOST_ITEMS:
            raise ValueError(f"arrays of {self.items} items, {MOST_ITEMS} are allowed")
        return max(count, 0)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ValueError("null where a string is required")
        return text

    def nullable_string(self) -> str | None:
        length = self._compact_length() if self.flexible else self.int16()
        return None if length == -1 else str(self._take(length), "utf-8")

    def nullable_bytes(self) -> memoryview | None:
        """A view of the frame. It is valid as long as the frame is."""
        length = self._compact_length() if self.flexible else self.int32()
        return None if length == -1 else self._take(length)

    def tags(self) -> None:
        """Skip the tagged fields, if this version has them. The codecs need none of them."""
        if self.flexible:
            self.position = skip_tags(self.view, self.position)

    def end(self) -> None:
        if self.position != len(self.view):
            raise ValueError(f"{len(self.view) - self.position} bytes are left over")

    def _compact_length(self) -> int:
        value, self.position = read_uvarint(self.view, self.position)
        return value - 1

    def _take(self, size: int) -> memoryview:
        end = self.position + size
        if size < 0 or end > len(self.view):
            raise ValueError(f"a length of {size} bytes, but only {len(self.view) - self.position} are left")
        taken = self.view[self.position : end]
        self.position = end
        return taken
