"""The partition of a record that was sent without one: `partitioner.class`, and Java's hash of keys.

Without a partitioner, the murmur2 hash of the key chooses the partition, exactly as in Java's producer; a record
without key goes to the sticky partition (`TopicQueues`). C code on the record's path does both. `partitioner.class`
takes a callable instead::

    partitioner(topic: str, key, value, partitions: int) -> int | None

Key and value are the bytes-like objects that will be sent, or None. The partitioner returns a number from 0 to
partitions - 1, or None to leave the choice to key and sticky partition. The producer does not call it for records sent
with a partition. `partitioner.class` also takes an object with such a method `partition`, or a name: "round_robin",
"random", or the name of Java's class RoundRobinPartitioner.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from kafkabuf._records import murmur2_hash
from kafkabuf.errors import ConfigError

__all__ = ["Partitioner", "RandomPartitioner", "RoundRobinPartitioner", "murmur2", "partition_for_key"]

Partitioner = Callable[[str, Any, Any, int], int | None]


class RoundRobinPartitioner:
    """Each record of a topic goes to the next partition, whether it has a key or not (Kafka's class of that name).

    A partition without a leader is not skipped: its records wait for a leader.
    """

    def __init__(self) -> None:
        self._turns: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int:
        return next(self._turns[topic]) % partitions


class RandomPartitioner:
    """Each record goes to a random partition, whether it has a key or not."""

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int:
        return random.randrange(partitions)


_BY_NAME: dict[str, Callable[[], Partitioner]] = {"round_robin": RoundRobinPartitioner, "random": RandomPartitioner}


def partitioner_of(setting: Any) -> Partitioner | None:
    """The callable for a value of `partitioner.class`, or None. Raises ConfigError for a class."""
    if isinstance(setting, str):
        return _BY_NAME[setting]()
    if isinstance(setting, type):
        raise ConfigError(f"partitioner.class must be the partitioner itself, not a class; found the class {setting!r}")
    partition: Partitioner | None = getattr(setting, "partition", setting)
    return partition


def murmur2(key: bytes) -> int:
    """Java's `Utils.murmur2`, as an unsigned 32-bit number."""
    return murmur2_hash(key)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of `key` among `partitions` (Kafka's BuiltInPartitioner.partitionForKey). Raises ValueError."""
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, found {partitions}")
    return (murmur2(key) & 0x7FFFFFFF) % partitions
