"""Decodes the records that a consumer gets: magic 2 batches, and message sets of magic 0 and 1, with every codec.

A consumer never gets a control record. With read_committed it gets no record of an aborted transaction: the leader
names the aborted transactions of the offsets that it returns, as in a response to Fetch, and the decoder leaves their
batches out (Kafka's CompletedFetch).

The layouts are those of batch.py, records.py and message_set.py. Every CRC is checked, as with Kafka's check.crcs.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kafkabuf.broker.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC_AT,
    OVERHEAD,
    TRANSACTIONAL,
    Data,
)
from kafkabuf.broker.records.compression import NONE, decompress
from kafkabuf.broker.records.message_set import Message, messages
from kafkabuf.broker.records.varint import read_varint
from kafkabuf.broker.storage.batches import whole_size
from kafkabuf.broker.wire.crc import crc32c
from kafkabuf.errors import CorruptMessageError, InvalidRecordError

# A batch may become this large. A reader trusts its cluster more than a broker trusts its clients.
MAX_UNPACKED = 256 * 1024 * 1024
_SIZE = struct.Struct(">i")
_SIZE_AT = 8
# The key of a control record: version i16, type i16.
_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0
# In a message of magic 0 and 1: the place of the attributes, and where the fields begin that only magic 1 shifts.
_MESSAGE_ATTRIBUTES_AT = 17
_MESSAGE_FIELDS_AT = 18
_TIMESTAMP_SIZE = 8

Field = bytes | None
Headers = list[tuple[str, Field]]


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record as a consumer gets it (Kafka's ConsumerRecord), with the producer that wrote it.

    `timestamp` is in milliseconds since 1970; -1 for a message of magic 0. `producer_id` and `producer_epoch` are -1
    for a producer without idempotence.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)
    producer_id: int = -1
    producer_epoch: int = -1


class Decoder:
    """Decodes what a leader returned for one partition, from the batch that holds `offset` on.

    `aborted` has the producer id and first offset of each aborted transaction; None for read_uncommitted. After
    `records` the attribute `offset` is the one to read on from.
    """

    def __init__(self, topic: str, partition: int, offset: int, aborted: Sequence[tuple[int, int]] | None) -> None:
        self.offset = offset
        self._topic = topic
        self._partition = partition
        # Transactions by first offset, and the producers whose aborted transaction is open at the present batch.
        self._aborted = deque(sorted(aborted or (), key=lambda transaction: transaction[1]))
        self._aborting: set[int] = set()
        self._committed = aborted is not None

    def records(self, data: Data) -> list[ConsumerRecord]:
        """The visible records of the whole batches in `data`. A partial batch at the end is left out: brokers send such
        batches. Raises CorruptMessageError or InvalidRecordError for malformed bytes."""
        records: list[ConsumerRecord] = []
        view, at = memoryview(data)[: whole_size(data)], 0
        try:
            while at < len(view):
                end = at + OVERHEAD + _SIZE.unpack_from(view, at + _SIZE_AT)[0]
                batch = view[at:end]
                records += self._batch(batch) if batch[MAGIC_AT] == 2 else self._message_set(batch)
                at = end
        except (struct.error, IndexError) as error:
            raise CorruptMessageError(f"the batch at offset {self.offset} is cut short: {error}") from error
        return records

    # ---- magic 2

    def _batch(self, batch: memoryview) -> list[ConsumerRecord]:
        fields = HEADER.unpack_from(batch)
        base, _, _, _, crc, attributes, last_delta, first_timestamp, newest, producer_id, epoch, _, count = fields
        if crc32c(batch[ATTRIBUTES_AT:]) != crc:
            raise CorruptMessageError(f"the batch at offset {base} has another CRC than its header says")
        start, self.offset = self.offset, max(self.offset, base + last_delta + 1)
        # The cleaner may have left a batch, also one of a control record, without records.
        if self._hides(base + last_delta, producer_id, attributes, batch, count) or not count:
            return []
        body = decompress(attributes & CODEC_MASK, bytes(batch[HEADER_SIZE:]), MAX_UNPACKED)
        append_time = newest if attributes & LOG_APPEND_TIME else None
        return [
            ConsumerRecord(
                self._topic,
                self._partition,
                base + offset_delta,
                first_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
                producer_id,
                epoch,
            )
            for timestamp_delta, offset_delta, key, value, headers in _records(body, count)
            if base + offset_delta >= start
        ]

    def _hides(self, last_offset: int, producer_id: int, attributes: int, batch: memoryview, count: int) -> bool:
        """Whether a consumer does not get the batch. The control record of an abort ends the producer's transaction."""
        while self._aborted and self._aborted[0][1] <= last_offset:
            self._aborting.add(self._aborted.popleft()[0])
        if attributes & CONTROL:
            for _, _, key, _, _ in _records(bytes(batch[HEADER_SIZE:]), min(count, 1)):
                if key is not None and _CONTROL_KEY.unpack_from(key)[1] == _ABORT:
                    self._aborting.discard(producer_id)
            return True
        return self._committed and bool(attributes & TRANSACTIONAL) and producer_id in self._aborting

    # ---- magic 0 and 1

    def _message_set(self, batch: memoryview) -> list[ConsumerRecord]:
        start = self.offset
        records = [record for message in messages(batch) for record in self._message(batch, message)]
        if records:
            self.offset = max(self.offset, records[-1].offset + 1)
        return [record for record in records if record.offset >= start]

    def _message(self, data: memoryview, message: Message) -> Iterator[ConsumerRecord]:
        if message.codec == NONE:
            yield self._message_record(data, message, message.offset, message.timestamp)
            return
        unpacked = memoryview(decompress(message.codec, bytes(data[message.value]), MAX_UNPACKED))
        inner = list(messages(unpacked))
        # The wrapper has the offset of its last message. The offsets of inner messages are relative in magic 1.
        base = message.offset - inner[-1].offset if message.magic and inner else 0
        append_time = bool(data[message.start + _MESSAGE_ATTRIBUTES_AT] & LOG_APPEND_TIME)
        for each in inner:
            timestamp = message.timestamp if append_time else each.timestamp
            yield self._message_record(unpacked, each, base + each.offset, timestamp)

    def _message_record(self, data: memoryview, message: Message, offset: int, timestamp: int) -> ConsumerRecord:
        at = message.start + _MESSAGE_FIELDS_AT + _TIMESTAMP_SIZE * message.magic
        key, at = _message_field(data, at)
        value, _ = _message_field(data, at)
        return ConsumerRecord(self._topic, self._partition, offset, timestamp, key, value)


def _message_field(data: memoryview, at: int) -> tuple[Field, int]:
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    return (None, at) if size < 0 else (bytes(data[at : at + size]), at + size)


def _records(body: Data, count: int) -> Iterator[tuple[int, int, Field, Field, Headers]]:
    """Timestamp delta, offset delta, key, value and headers of each record of a batch."""
    position = 0
    for _ in range(count):
        length, position = read_varint(body, position)
        end = position + length
        if length < 0 or end > len(body):
            raise InvalidRecordError(f"a record says {length} bytes, {len(body) - position} are left")
        timestamp_delta, at = read_varint(body, position + 1)
        offset_delta, at = read_varint(body, at)
        key, at = _field(body, at, end)
        value, at = _field(body, at, end)
        header_count, at = read_varint(body, at)
        headers: Headers = []
        for _ in range(header_count):
            name, at = _field(body, at, end)
            header_value, at = _field(body, at, end)
            headers.append(((name or b"").decode(errors="replace"), header_value))
        yield timestamp_delta, offset_delta, key, value, headers
        position = end


def _field(body: Data, position: int, end: int) -> tuple[Field, int]:
    size, position = read_varint(body, position)
    if size < 0:
        return None, position
    if position + size > end:
        raise InvalidRecordError(f"a field says {size} bytes, the record has {end - position} left")
    return bytes(body[position : position + size]), position + size
