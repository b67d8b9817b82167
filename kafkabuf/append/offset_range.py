"""Ranges of offsets by partition: where the rows of a bulk write lie. Spark's tasks report them to the driver."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class OffsetRange(NamedTuple):
    """The delivered rows of one partition lie from `first_offset` to `last_offset`, both included.

    Records of other producers may lie between them. Offsets are -1 if the broker did not return them (acks=0); `bytes`
    counts encoded bytes.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int
    bytes: int


def merge_ranges(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """One range for each partition, from its lowest to its highest offset, sorted by topic and partition."""
    merged: dict[tuple[str, int], OffsetRange] = {}
    for offset_range in ranges:
        topic_partition = (offset_range.topic, offset_range.partition)
        before = merged.get(topic_partition)
        merged[topic_partition] = offset_range if before is None else _union(before, offset_range)
    return tuple(merged[topic_partition] for topic_partition in sorted(merged))


def _union(left: OffsetRange, right: OffsetRange) -> OffsetRange:
    # Not _replace(), which takes four times as long: a task comes here for each partition of each Arrow batch.
    return OffsetRange(
        left.topic,
        left.partition,
        min(left.first_offset, right.first_offset),
        max(left.last_offset, right.last_offset),
        left.rows + right.rows,
        left.bytes + right.bytes,
    )
