"""What consumers of the classic protocol put into JoinGroup and SyncGroup (Kafka's ConsumerProtocol).

    subscription   version i16 | topics [string] | user data bytes
                   1+: owned partitions [topic string, partitions [i32]] | 2+: generation i32 | 3+: rack id string
    assignment     version i16 | [topic string, partitions [i32]] | user data bytes

A reader takes newer versions as the newest version that it knows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from kafkabuf.broker.wire._cursor import Cursor
from kafkabuf.broker.wire.writer import put_string

_VERSION = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NEWEST = 3
_FIRST_OWNED, _FIRST_GENERATION, _FIRST_RACK = 1, 2, 3

# Topic and partition.
Named = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ClassicSubscription:
    """`owned` are the partitions that the member has, as far as its version says."""

    version: int
    topics: frozenset[str]
    owned: frozenset[Named] = frozenset()
    rack_id: str | None = None


def read_subscription(data: bytes) -> ClassicSubscription:
    """Raises an error of cursor.MALFORMED."""
    cursor, version = _begin(data)
    topics = frozenset(cursor.string() for _ in range(cursor.count()))
    cursor.nullable_bytes()
    owned = _partitions(cursor) if version >= _FIRST_OWNED else frozenset()
    if version >= _FIRST_GENERATION:
        cursor.int32()
    rack_id = cursor.nullable_string() if version >= _FIRST_RACK else None
    return ClassicSubscription(version, topics, owned, rack_id or None)


def version_of(data: bytes) -> int:
    """The version of a subscription; 0 for a malformed one."""
    version = int(_VERSION.unpack_from(data)[0]) if len(data) >= _VERSION.size else 0
    return min(max(version, 0), _NEWEST)


def read_assignment(data: bytes) -> tuple[frozenset[Named], bool]:
    """The partitions of an assignment, and whether it has data of a custom assignor. Raises an error of
    cursor.MALFORMED."""
    cursor, _ = _begin(data)
    partitions = _partitions(cursor)
    return partitions, bool(cursor.nullable_bytes())


def write_assignment(version: int, partitions: Iterable[Named]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    out = bytearray(_VERSION.pack(version) + _INT32.pack(len(topics)))
    for topic, indexes in topics.items():
        put_string(out, topic, flexible=False)
        out += struct.pack(f">{len(indexes) + 1}i", len(indexes), *indexes)
    return bytes(out + _INT32.pack(-1))


def _begin(data: bytes) -> tuple[Cursor, int]:
    cursor = Cursor(data, 0, flexible=False)
    version = cursor.int16()
    if version < 0:
        raise ValueError(f"version {version} of the consumer protocol")
    return cursor, min(version, _NEWEST)


def _partitions(cursor: Cursor) -> frozenset[Named]:
    partitions = []
    for _ in range(cursor.count()):
        topic = cursor.string()
        partitions += [(topic, cursor.int32()) for _ in range(cursor.count())]
    return frozenset(partitions)
