"""Where a keyed record goes: murmur2 of the key, exactly as Java's producer computes it.

The producer does this in C on its way (`_wire.pxd`); these are the same functions for everybody else.
"""

from __future__ import annotations

from kafkabuf._records import murmur2_hash

__all__ = ["murmur2", "partition_for_key"]


def murmur2(key: bytes) -> int:
    """Java's `Utils.murmur2`, as an unsigned 32-bit number."""
    return murmur2_hash(key)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of `key` among `partitions` (Kafka's BuiltInPartitioner.partitionForKey). Raises ValueError."""
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, found {partitions}")
    return (murmur2_hash(key) & 0x7FFFFFFF) % partitions
