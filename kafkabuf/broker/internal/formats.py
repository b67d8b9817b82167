"""The keys and values of the records in Kafka's internal topics (its generated classes of the same names).

OffsetCommitKey 1           version i16 | group | topic | partition i32
OffsetCommitValue 3         version i16 | offset i64 | leader epoch i32 | metadata | commit timestamp i64
GroupMetadataKey 2          version i16 | group
GroupMetadataValue 3        version i16 | protocol type | generation i32 | protocol? | leader? | state timestamp i64 |
                            members: id, instance id?, client id, host, rebalance time-out i32, session time-out i32,
                            subscription, assignment
TransactionLogKey 0         version i16 | transactional id
TransactionLogValue 0, 1    version i16 | producer id i64 | epoch i16 | time-out i32 | state i8 | topics?: name,
                            partitions | last update i64 | start i64; version 1 is flexible and has tagged fields

A text is its length as i16 and its bytes in UTF-8; -1 is null (?). A list begins with its length as i32. In a flexible
version lengths are unsigned varints, one greater.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from kafkabuf.broker.groups.group import Group
from kafkabuf.broker.groups.offsets import Committed
from kafkabuf.broker.records.batch import ATTRIBUTES_AT, CRC, CRC_AT, HEADER, HEADER_SIZE, OVERHEAD
from kafkabuf.broker.records.rewriting import varint
from kafkabuf.broker.transactions.coordinator import NO_PRODUCER_ID, State, Transaction
from kafkabuf.broker.wire.crc import crc32c

Record = tuple[bytes, bytes | None]

_STATES = {
    State.EMPTY: 0,
    State.ONGOING: 1,
    State.PREPARE_COMMIT: 2,
    State.PREPARE_ABORT: 3,
    State.COMPLETE_COMMIT: 4,
    State.COMPLETE_ABORT: 5,
}
_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID = 0, 1


def text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# ---- __consumer_offsets


def offset_key(group: str, topic: str, partition: int) -> bytes:
    return struct.pack(">h", 1) + text(group) + text(topic) + struct.pack(">i", partition)


def offset_value(committed: Committed, now_ms: int) -> bytes:
    head = struct.pack(">hqi", 3, committed.offset, committed.leader_epoch)
    return head + text(committed.metadata or "") + struct.pack(">q", now_ms)


def group_key(group: str) -> bytes:
    return struct.pack(">h", 2) + text(group)


def group_value(group: Group, now_ms: int) -> bytes:
    members = list(group.members)
    out = bytearray(struct.pack(">h", 3) + text(group.protocol_type) + struct.pack(">i", group.generation))
    out += text(group.protocol or None) + text(group.members.leader if members else None)
    out += struct.pack(">qi", now_ms, len(members))
    for member in members:
        joining = member.joining
        out += text(member.member_id) + text(joining.group_instance_id) + text(joining.client_id)
        out += text(joining.client_host)
        out += struct.pack(">ii", round(joining.rebalance_timeout * 1000), round(joining.session_timeout * 1000))
        out += sized(member.metadata(group.protocol)) + sized(member.assignment)
    return bytes(out)


# ---- __transaction_state


def transaction_key(transactional_id: str) -> bytes:
    return struct.pack(">h", 0) + text(transactional_id)


def transaction_value(transaction: Transaction, flexible: bool, now_ms: int) -> bytes:
    topics = None if transaction.state is State.EMPTY else transaction.by_topic()
    out = struct.pack(
        ">hqhib",
        int(flexible),
        transaction.producer_id,
        transaction.epoch,
        transaction.timeout_ms,
        _STATES[transaction.state],
    )
    out += _flexible_topics(topics) if flexible else _topics(topics)
    out += struct.pack(">qq", now_ms, transaction.started_ms)
    return out + _tags(transaction) if flexible else out


def _topics(topics: dict[str, list[int]] | None) -> bytes:
    if topics is None:
        return struct.pack(">i", -1)
    named = (text(name) + _numbers(struct.pack(">i", len(indexes)), indexes) for name, indexes in topics.items())
    return struct.pack(">i", len(topics)) + b"".join(named)


def _flexible_topics(topics: dict[str, list[int]] | None) -> bytes:
    if topics is None:
        return uvarint(0)
    out = uvarint(len(topics) + 1)
    for name, indexes in topics.items():
        data = name.encode()
        out += uvarint(len(data) + 1) + data + _numbers(uvarint(len(indexes) + 1), indexes) + uvarint(0)
    return out


def _numbers(length: bytes, numbers: Sequence[int]) -> bytes:
    return length + struct.pack(f">{len(numbers)}i", *numbers)


def _tags(transaction: Transaction) -> bytes:
    tags = [
        (tag, struct.pack(">q", producer_id))
        for tag, producer_id in (
            (_PREVIOUS_PRODUCER_ID, transaction.previous_producer_id),
            (_NEXT_PRODUCER_ID, transaction.next_producer_id),
        )
        if producer_id != NO_PRODUCER_ID
    ]
    return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in tags)


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# ---- the batch


def batch_of(records: Iterable[Record], now_ms: int) -> tuple[bytearray, int]:
    """A magic 2 batch without base offset and leader epoch, and the number of its records."""
    body, count = bytearray(), 0
    for key, value in records:
        content = b"\0\0" + varint(count) + varint(len(key)) + key
        content += (varint(-1) if value is None else varint(len(value)) + value) + varint(0)
        body += varint(len(content)) + content
        count += 1
    out = bytearray(HEADER_SIZE) + body
    length = len(out) - OVERHEAD
    HEADER.pack_into(out, 0, 0, length, -1, 2, 0, 0, count - 1, now_ms, now_ms, -1, -1, -1, count)
    CRC.pack_into(out, CRC_AT, crc32c(memoryview(out)[ATTRIBUTES_AT:]))
    return out, count
