"""What must hold of what was sent: told by the logs of the cluster, those of deleted topics included.

Every value is `<user:number>`, so that a search through the bytes of a log finds the records whatever holds them.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from kafkabuf.broker.replica.replication import Partition
from kafkabuf.broker.replica.topics import Topic

_TAG = re.compile(rb"<(\w+):(\d+)>")
# Of a batch's header: attributes, then after five fields of 2 + 4 + 8 + 8 bytes the producer's id.
_ATTRIBUTES, _PRODUCER_ID = 21, 43
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
# Of the one record in a control batch: version and type of its key follow five fields of a byte each.
_MARKER_TYPE = 61 + 5 + 2

Tag = tuple[str, int]  # a user's name, and the number of the record


def tag(user: str, number: int) -> bytes:
    return b"<%s:%d>" % (user.encode(), number)


@dataclass(frozen=True)
class Place:
    """Where a record lies: which topic of that name, counted from 0, which partition, which offset."""

    topic: str
    incarnation: int
    partition: int
    offset: int


@dataclass
class Found:
    """Of each record all places, and those that a reader of committed records sees."""

    stored: dict[Tag, list[Place]] = field(default_factory=lambda: defaultdict(list))
    visible: dict[Tag, list[Place]] = field(default_factory=lambda: defaultdict(list))
    lives: dict[str, int] = field(default_factory=dict)  # by topic, how often it was deleted


class Archive:
    """The batches of topics that are no more."""

    def __init__(self) -> None:
        self._logs: dict[str, list[list[list[bytes]]]] = defaultdict(list)

    def keep(self, topic: Topic) -> None:
        """To be called before the topic is deleted."""
        self._logs[topic.name].append([_batches(one) for one in topic.partitions])

    def found(self, topics: dict[str, Topic]) -> Found:
        found = Found()
        for name in {*self._logs, *topics}:
            logs = [*self._logs[name]]
            found.lives[name] = len(logs)
            if name in topics:
                logs.append([_batches(one) for one in topics[name].partitions])
            for incarnation, partitions in enumerate(logs):
                for partition, batches in enumerate(partitions):
                    _read(found, name, incarnation, partition, batches)
        return found


def _batches(partition: Partition) -> list[bytes]:
    return [bytes(one.data) for one in partition.log.batches()]


def _read(found: Found, topic: str, incarnation: int, partition: int, batches: list[bytes]) -> None:
    under_way: dict[int, list[tuple[Tag, Place]]] = defaultdict(list)
    for batch in batches:
        (attributes,) = struct.unpack_from(">h", batch, _ATTRIBUTES)
        (producer_id,) = struct.unpack_from(">q", batch, _PRODUCER_ID)
        if attributes & _CONTROL:
            (kind,) = struct.unpack_from(">h", batch, _MARKER_TYPE)
            ended = under_way.pop(producer_id, [])
            for one, place in ended if kind == 1 else ():
                found.visible[one].append(place)
            continue
        for one, offset in _records(batch):
            place = Place(topic, incarnation, partition, offset)
            found.stored[one].append(place)
            if attributes & _TRANSACTIONAL:
                under_way[producer_id].append((one, place))
            else:
                found.visible[one].append(place)


def _records(batch: bytes) -> Iterator[tuple[Tag, int]]:
    (base,) = struct.unpack_from(">q", batch)
    for index, match in enumerate(_TAG.finditer(batch, 61)):
        yield (match[1].decode(), int(match[2])), base + index
