"""A load, what so many producers send to so many partitions, and the counts of a run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self

VALUE_BYTES = 100


class Pattern(StrEnum):
    """Which partitions a producer writes."""

    KEYS = "keys"  # every record has a key, and keys choose evenly among all partitions
    STICKY = "sticky"  # no keys: one partition until it was given batch.size bytes, then another one
    ALIGNED = "aligned"  # producer n writes partition n only: the rows have been shuffled by partition


@dataclass(frozen=True)
class Load:
    """Arrow batches that each of `producers` sends, and the settings of these producers."""

    pattern: Pattern
    producers: int = 1
    brokers: int = 3
    partitions: int = 1
    """Partition p is led by broker p modulo `brokers`."""
    rows: int = 10_000
    """Rows of an Arrow batch."""
    chunks: int = 30
    """Arrow batches of each producer."""
    every_s: float = 0.0
    """Seconds from one Arrow batch of a producer to the next; 0: as fast as the producer takes them."""
    wait_each: bool = False
    """Whether the producer flushes after each Arrow batch."""
    value_bytes: int = VALUE_BYTES
    batch_size: int = 16 * 1024
    linger_s: float = 0.005
    buffer_memory: int = 32 << 20
    max_request_size: int = 1 << 20
    max_in_flight: int = 5

    @property
    def keyed(self) -> bool:
        return self.pattern is not Pattern.STICKY

    @property
    def records(self) -> int:
        return self.producers * self.chunks * self.rows


@dataclass(frozen=True)
class Counts:
    """What producers did between the start and the last acknowledgement. Times are seconds."""

    records: float = 0.0
    batches: float = 0.0
    batch_bytes: float = 0.0
    requests: float = 0.0
    request_bytes: float = 0.0
    turns: float = 0.0
    """Turns of the Sender."""
    calls: float = 0.0
    """Calls of send_arrow()."""
    naps: float = 0.0
    """Sleeps of the load itself, between two calls."""
    waits: float = 0.0
    """Times that the caller waited for memory."""
    keys: float = 0.0
    connections: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def times(self, number: int) -> Self:
        """The counts of so many that did the same at the same time."""
        total = {field.name: getattr(self, field.name) * number for field in fields(self)}
        return type(self)(**{**total, "wall_s": self.wall_s})
