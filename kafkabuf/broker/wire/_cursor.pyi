"""A reading position in a frame, for the hand-written codecs."""

from typing import final
from uuid import UUID

from kafkabuf.protocol.schema import Buffer

MALFORMED: tuple[type[Exception], ...]
"""What a Cursor raises for malformed bytes. The codecs turn these into errors of the protocol."""

@final
class Cursor:
    """A position in a frame. `flexible` chooses compact lengths and tagged fields (KIP-482).

    Every method reads the field at the position and goes past it. Raises ValueError for a position outside the frame.
    """

    def __init__(self, frame: Buffer, position: int, flexible: bool) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def flexible(self) -> bool: ...
    def int8(self) -> int: ...
    def int16(self) -> int: ...
    def int32(self) -> int: ...
    def int64(self) -> int: ...
    def uuid(self) -> UUID: ...
    def count(self) -> int:
        """The length of an array; 0 for a null array.

        Raises ValueError if the array is longer than the rest of the frame, or if all arrays together have more than
        MOST_ITEMS items.
        """

    def string(self) -> str: ...
    def nullable_string(self) -> str | None: ...
    def nullable_bytes(self) -> memoryview | None:
        """A view of the frame. It is valid as long as the frame is."""

    def nullable_copy(self) -> bytearray | None:
        """As `nullable_bytes`, but a copy, which belongs to the caller."""

    def tags(self) -> None:
        """Skip the tagged fields, if this version has them. The codecs need none of them."""

    def end(self) -> None:
        """Raises ValueError unless the position is the frame's end."""
