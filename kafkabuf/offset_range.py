"""Offsets that rows of a bulk write lie between, by partition: what Spark's tasks report to the driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class OffsetRange(NamedTuple):
    """Delivered rows of one partition: the offsets they lie between (inclusive; other producers' may lie there too).

    Offsets are -1 where the broker did not say (acks=0); `bytes` are encoded ones.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int
    bytes: int


def merge_ranges(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """One range a partition, lowest to highest offset, sorted: its size does not grow with the rows."""
    merged: dict[tuple[str, int], OffsetRange] = {}
    for entry in ranges:
        place = (entry.topic, entry.partition)
        known = merged.get(place)
        merged[place] = entry if known is None else _union(known, entry)
    return tuple(merged[place] for place in sorted(merged))


def _union(left: OffsetRange, right: OffsetRange) -> OffsetRange:
    return left._replace(
        first_offset=min(left.first_offset, right.first_offset),
        last_offset=max(left.last_offset, right.last_offset),
        rows=left.rows + right.rows,
        bytes=left.bytes + right.bytes,
    )
