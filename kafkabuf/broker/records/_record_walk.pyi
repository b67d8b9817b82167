"""The walk over the records of a batch of magic 2, compiled: a batch may hold millions of records."""

from collections.abc import Iterable, Iterator
from typing import final

@final
class RecordWalk:
    """The records of a batch that says it has `count` of them. `pieces` yields their bytes, unpacked.
    Unless `relative`, every timestamp delta is 0.

    The methods raise InvalidRecordError for a malformed record, and what `pieces` raises. A walk is used once.
    """

    def __init__(self, pieces: Iterable[bytes | bytearray | memoryview], count: int, relative: bool = True) -> None: ...
    def __iter__(self) -> Iterator[tuple[int, bool]]: ...
    def __next__(self) -> tuple[int, bool]:
        """(timestamp delta, whether the record has a key)"""

    def newest(self) -> int:
        """The greatest timestamp delta."""

    def first(self, least: int, index: int) -> tuple[int, int] | None:
        """(index, timestamp delta) of the first record from `index` on whose timestamp delta is at least `least`."""

    def outside(
        self, least: int, greatest: int, exempt: int | None, needs_key: bool, most: int
    ) -> tuple[int, int, list[tuple[int, int, bool]]]:
        """Which records have a timestamp delta below `least` or above `greatest`, but not `exempt`, or lack a key.

        Returns the greatest timestamp delta, the number of these records, and (index, timestamp delta, whether it has
        a key) of the first `most` of them.
        """
