"""The partition of a record that was sent without one: `partitioner.class`, and Java's hash of keys.

Without a partitioner, the murmur2 hash of the key chooses the partition, exactly as in Java's producer; a record
without key goes to the sticky partition (`TopicQueues`). C code on the record's path does both. `partitioner.class`
takes a callable instead::

    partitioner(topic: str, key, value, partitions: int) -> int | None

Key and value are the bytes-like objects that will be sent, or None. The partitioner returns a number from 0 to
partitions - 1, or None to leave the choice to key and sticky partition. The producer does not call it for records sent
with a partition. `partitioner.class` also takes an object with such a method `partition`, or a name: "round_robin",
"random", the name of Java's class RoundRobinPartitioner, or the name of a rule of librdkafka for keys. C code applies
these rules too:

- "consistent_random" (librdkafka's default), "consistent": CRC-32 of the key;
- "murmur2_random" (as without a partitioner), "murmur2": Java's hash;
- "fnv1a_random", "fnv1a": FNV-1a, as in Sarama.

Under a rule that ends with `_random` a record without key goes to the sticky partition; under "consistent_random" so
does a record with an empty key. Under the others all records without key go to one partition, that of the empty key.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from kafkabuf._partition import KEY_RULES, KEYS_IGNORED, select_partition
from kafkabuf._records import murmur2_hash
from kafkabuf.errors import ConfigError

__all__ = ["Partitioner", "RandomPartitioner", "RoundRobinPartitioner", "murmur2", "partition_for_key"]

Partitioner = Callable[[str, Any, Any, int], int | None]
JAVA_RULE = "murmur2_random"


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
    """The callable for a value of `partitioner.class`, or None: the rule for keys chooses. Raises ConfigError for a
    class."""
    if rule_named(setting) is not None:
        return None
    if isinstance(setting, str):
        return _BY_NAME[setting]()
    if isinstance(setting, type):
        raise ConfigError(f"partitioner.class must be the partitioner itself, not a class; found the class {setting!r}")
    partition: Partitioner | None = getattr(setting, "partition", setting)
    return partition


def rule_named(setting: Any) -> str | None:
    """The name of a rule for keys if `partitioner.class` is one; None for a partitioner and for no setting."""
    return setting if isinstance(setting, str) and setting in KEY_RULES else None


def key_rule_of(setting: Any, ignore_keys: bool) -> int:
    """The number of the rule by which keys select partitions, for records for which no callable chooses."""
    return KEYS_IGNORED if ignore_keys else KEY_RULES[rule_named(setting) or JAVA_RULE]


def murmur2(key: bytes) -> int:
    """Java's `Utils.murmur2`, as an unsigned 32-bit number."""
    return murmur2_hash(key)


def partition_for_key(key: bytes, partitions: int, rule: str = JAVA_RULE) -> int:
    """The partition of `key` among `partitions`; -1 if the key selects no partition. Raises ValueError.

    `rule` is a name that `partitioner.class` takes; the default is Kafka's BuiltInPartitioner.partitionForKey.
    """
    return select_partition(rule, key, partitions)
