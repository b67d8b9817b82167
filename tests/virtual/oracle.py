"""The oracle: finds every record in the logs of the cluster, those of deleted topics included.

Every value contains `<user:number>`, so that a search through the bytes of a log finds the records in any batch.
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
# Offsets in a batch's header: the attributes, and 2 + 4 + 8 + 8 bytes further the producer's id.
_ATTRIBUTES, _PRODUCER_ID = 21, 43
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
# The offset of the type of a control record: behind the header, five fields of a byte each, and the key's version.
_MARKER_TYPE = 61 + 5 + 2
_COMMIT = 1

Tag = tuple[str, int]  # a user's name, and the number of the record


def tag(user: str, number: int) -> bytes:
    return b"<%s:%d>" % (user.encode(), number)


@dataclass(frozen=True)
class Place:
    """The place of a record. `incarnation` counts the topics of that name from 0."""

    topic: str
    incarnation: int
    partition: int
    offset: int


@dataclass
class Contents:
    """The contents of all logs: every place of each record, and the places that a reader of committed records sees."""

    stored: dict[Tag, list[Place]] = field(default_factory=lambda: defaultdict(list))
    visible: dict[Tag, list[Place]] = field(default_factory=lambda: defaultdict(list))
    deletions: dict[str, int] = field(default_factory=dict)  # by topic, how often it was deleted


class Archive:
    """The batches of deleted topics."""

    def __init__(self) -> None:
        self._logs: dict[str, list[list[list[bytes]]]] = defaultdict(list)

    def keep(self, topic: Topic) -> None:
        """Keep the batches of a topic; the caller deletes it afterwards."""
        self._logs[topic.name].append([_batches(partition) for partition in topic.partitions])

    def contents(self, topics: dict[str, Topic]) -> Contents:
        contents = Contents()
        for name in {*self._logs, *topics}:
            logs = [*self._logs[name]]
            contents.deletions[name] = len(logs)
            if name in topics:
                logs.append([_batches(partition) for partition in topics[name].partitions])
            for incarnation, partitions in enumerate(logs):
                for partition, batches in enumerate(partitions):
                    _read(contents, name, incarnation, partition, batches)
        return contents


def _batches(partition: Partition) -> list[bytes]:
    return [bytes(batch.data) for batch in partition.log.batches()]


def _read(contents: Contents, topic: str, incarnation: int, partition: int, batches: list[bytes]) -> None:
    ongoing: dict[int, list[tuple[Tag, Place]]] = defaultdict(list)
    for batch in batches:
        (attributes,) = struct.unpack_from(">h", batch, _ATTRIBUTES)
        (producer_id,) = struct.unpack_from(">q", batch, _PRODUCER_ID)
        if attributes & _CONTROL:
            (kind,) = struct.unpack_from(">h", batch, _MARKER_TYPE)
            ended = ongoing.pop(producer_id, [])
            for record, place in ended if kind == _COMMIT else ():
                contents.visible[record].append(place)
            continue
        for record, offset in _records(batch):
            place = Place(topic, incarnation, partition, offset)
            contents.stored[record].append(place)
            if attributes & _TRANSACTIONAL:
                ongoing[producer_id].append((record, place))
            else:
                contents.visible[record].append(place)


def _records(batch: bytes) -> Iterator[tuple[Tag, int]]:
    (base,) = struct.unpack_from(">q", batch)
    for index, match in enumerate(_TAG.finditer(batch, 61)):
        yield (match[1].decode(), int(match[2])), base + index
