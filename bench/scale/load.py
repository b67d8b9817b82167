"""A load: what so many producers send to so many partitions. Real runs and the model take the same loads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

KEY_BYTES = 16
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

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(**{**found, "pattern": Pattern(found["pattern"])})

    def settings(self) -> dict[str, object]:
        """The producer's settings."""
        return {
            "batch_size": self.batch_size,
            "linger_ms": round(self.linger_s * 1000),
            "buffer_memory": self.buffer_memory,
            "max_request_size": self.max_request_size,
            "max_in_flight_requests_per_connection": self.max_in_flight,
        }
