"""Where a record goes that names no partition: `partitioner.class`, and Java's hash of keys.

Without a partitioner, murmur2 of the key decides, exactly as in Java's producer, and without a key the sticky partition
(`TopicQueues`): both are done on the record's way, in C. `partitioner.class` takes a callable instead::

    partitioner(topic: str, key, value, partitions: int) -> int | None

Key and value are the bytes-like objects that will be sent, or None; the answer is 0 to partitions - 1, or None, which
leaves the choice to the above. It is not asked about records sent with a partition. An object with such a method
`partition` will do as well, and so will a name: "round_robin", "random", or Java's of the former.
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
    """Each record of a topic to the partition after the last one's, those with a key too (Kafka's class of that name).

    Partitions without a leader have their turn: records wait there for one.
    """

    def __init__(self) -> None:
        self._turns: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int:
        return next(self._turns[topic]) % partitions


class RandomPartitioner:
    """Each record to a partition drawn at random, those with a key too."""

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int:
        return random.randrange(partitions)


_BY_NAME: dict[str, Callable[[], Partitioner]] = {"round_robin": RoundRobinPartitioner, "random": RandomPartitioner}


def partitioner_of(setting: Any) -> Partitioner | None:
    """What to ask for a setting; None: nobody. Raises ConfigError for a class."""
    if isinstance(setting, str):
        return _BY_NAME[setting]()
    if isinstance(setting, type):
        raise ConfigError(
            f"partitioner.class is, for all its name, the partitioner itself; found the class {setting!r}"
        )
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
