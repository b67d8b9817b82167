"""What aiokafka's producer returns: futures of its RecordMetadata, and batches that the user fills."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkabuf.interceptors import pairs_of
from kafkabuf.process._time import time_ms

Serializer = Callable[[Any], Any]

if TYPE_CHECKING:

    class TopicPartition(NamedTuple):
        topic: str
        partition: int

    class RecordMetadata(NamedTuple):
        topic: str
        partition: int
        topic_partition: TopicPartition
        offset: int
        timestamp: int | None
        timestamp_type: int
        log_start_offset: int | None

else:
    try:
        from aiokafka.structs import RecordMetadata, TopicPartition
    except ImportError:
        from collections import namedtuple

        TopicPartition = namedtuple("TopicPartition", "topic partition")
        RecordMetadata = namedtuple(
            "RecordMetadata", "topic partition topic_partition offset timestamp timestamp_type log_start_offset"
        )

CREATE_TIME, LOG_APPEND_TIME = 0, 1

# Bytes of a batch of magic 2 before its records, and the varint of an absent key or value.
HEADER = 61
ABSENT = 1


def metadata_of(topic: str, partition: int, offset: int, timestamp: int, broker_time: int) -> RecordMetadata:
    """`broker_time`: when the broker appended the record, if the topic uses LogAppendTime; else -1."""
    kind = CREATE_TIME if broker_time < 0 else LOG_APPEND_TIME
    # kafkabuf does not keep the start of the log, which some responses name.
    return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, timestamp, kind, None)


def whole_ms(timestamp: Any) -> int:
    """A time in ms as aiokafka takes it: the digits of a float are cut off, as `time.time() * 1000` has some."""
    try:
        return int(timestamp) if isinstance(timestamp, float) else operator.index(timestamp)
    except (TypeError, ValueError, OverflowError) as error:  # also NaN and infinity, with aiokafka's errors
        what = f"a record's timestamp must be a number of milliseconds since 1970, found {timestamp!r:.200}"
        raise type(error)(what) from None


class AppendedRecord(NamedTuple):
    """What append() says of a record: its place in the batch, its size in bytes, its time in ms."""

    offset: int
    size: int
    timestamp: int


class BatchBuilder:
    """Records that the user collects for one partition: create_batch() makes it, send_batch() sends it."""

    def __init__(self, batch_size: int, key_serializer: Serializer | None, value_serializer: Serializer | None) -> None:
        self._batch_size = batch_size
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._size = HEADER
        self._closed = False
        self._first_timestamp = 0
        self.values: list[Any] = []
        self.keys: list[Any] = []
        self.headers: list[list[tuple[str, Any]]] = []
        self.timestamps: list[int] = []

    def append(
        self, *, timestamp: float | None, key: Any, value: Any, headers: Sequence[tuple[str, Any]] | None = None
    ) -> AppendedRecord | None:
        """Add a record. `timestamp` is in ms; None: now. Returns None if the batch is closed, or full and thus closed.

        A batch takes its first record whatever the record's size. It copies what the record consists of: later changes
        of the caller's objects change no record. Raises TypeError for what is not bytes-like.
        """
        if self._closed:
            return None
        key = _copied(key if self._key_serializer is None else self._key_serializer(key))
        value = _copied(value if self._value_serializer is None else self._value_serializer(value))
        pairs = [(_text(name), _copied(data)) for name, data in pairs_of(headers)]
        offset = len(self.values)
        timestamp = time_ms() if timestamp is None else whole_ms(timestamp)
        if not offset:
            self._first_timestamp = timestamp
        size = _size_of(offset, timestamp - self._first_timestamp, key, value, pairs)
        if offset and self._size + size > self._batch_size:
            self.close()
            return None
        self._size += size
        self.values.append(value)
        self.keys.append(key)
        self.headers.append(pairs)
        self.timestamps.append(timestamp)
        return AppendedRecord(offset, size, timestamp)

    def close(self) -> None:
        """Take no further record."""
        self._closed = True

    def closed(self) -> bool:
        return self._closed

    def size(self) -> int:
        """Bytes of the batch, not compressed."""
        return self._size

    def record_count(self) -> int:
        return len(self.values)


def _copied(data: Any) -> bytes | None:
    return data if data is None or type(data) is bytes else memoryview(data).tobytes()


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header's name must be a str, found {name!r}")
    return str.__str__(name)


def _size_of(offset: int, delta: int, key: Any, value: Any, headers: list[tuple[str, Any]]) -> int:
    body = 1 + _varint(delta) + _varint(offset) + _bytes(key) + _bytes(value) + _varint(len(headers))
    body += sum(_bytes(name.encode()) + _bytes(data) for name, data in headers)
    return _varint(body) + body


def _bytes(data: Any) -> int:
    return ABSENT if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """Bytes of a zigzag varint."""
    zigzag = number * 2 if number >= 0 else -number * 2 - 1
    return max(1, (zigzag.bit_length() + 6) // 7)
