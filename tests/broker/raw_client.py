"""A small Kafka client for tests that must see bytes: a blocking socket, kio's schemas, records by hand.

This file builds batches with `struct` and the `crc32c` package alone. So a test checks our encoder and the broker's
reader against independent code.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from crc32c import crc32c

from kafkabuf.protocol import messages
from kafkabuf.protocol.error_codes import ErrorCode
from kafkabuf.protocol.schema import fields_of

NOW = 1_600_000_000_000


class RawClient:
    """One connection to `address`, which is host:port. Every call names the version of its request."""

    def __init__(self, address: str, timeout: float = 60.0, source: str = "") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout, (source, 0) if source else None)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive_frame(self) -> bytes | None:
        """The next frame; None if the peer has closed the connection."""
        length = self._receive(4)
        return None if length is None else self._receive(struct.unpack(">i", length)[0])

    def _receive(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not piece:
                return None
            data += piece
        return bytes(data)

    def send(self, api_key: int, version: int, **values: Any) -> int:
        self._correlation_id += 1
        entity = messages.build_request(api_key, version, **values)
        self.send_frame(messages.encode_request(api_key, version, self._correlation_id, "raw", entity))
        return self._correlation_id

    def receive(self, api_key: int, version: int) -> Any:
        frame = self.receive_frame()
        assert frame is not None, "the broker closed the connection"
        correlation_id, entity = messages.decode_response(api_key, version, frame)
        assert correlation_id == self._correlation_id
        return entity

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        self.send(api_key, version, **values)
        return self.receive(api_key, version)

    def closed(self) -> bool:
        """Whether the peer closes the connection. Waits; False if the peer answers instead."""
        return self.receive_frame() is None

    # ---- Produce and Fetch, one partition at a time

    def produce(
        self, topic: str, records: bytes | None, *, partition: int = 0, version: int = 9, acks: int = -1
    ) -> Any:
        """The partition's response."""
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        answer = self.ask(messages.PRODUCE, version, acks=acks, timeout=1000, topic_data=data)
        return answer.responses[0].partition_responses[0]

    def produce_v2(self, topic: str, message_set: bytes, *, partition: int = 0) -> tuple[int, int]:
        """(error code, base offset). Encodes the request by hand, since kio has no schema for version 2."""
        name = topic.encode()
        head = struct.pack(">hhih", messages.PRODUCE, 2, 77, 3) + b"raw" + struct.pack(">hii", -1, 1000, 1)
        body = struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, partition, len(message_set)) + message_set
        self.send_frame(head + body)
        frame = self.receive_frame()
        assert frame is not None, "the broker closed the connection"
        at = 4 + 4 + 2 + len(name) + 4
        correlation_id, topics, (index, code, base, time) = (
            struct.unpack_from(">i", frame)[0],
            struct.unpack_from(">i", frame, 4)[0],
            struct.unpack_from(">ihqq", frame, at),
        )
        assert (correlation_id, topics, index, time, len(frame)) == (77, 1, partition, -1, at + 22 + 4)
        return code, base

    def fetch(self, topic: str, offset: int, *, partition: int = 0, version: int = 12, **more: Any) -> Any:
        """The partition's response. `more`: further fields of the request, partition_max_bytes,
        current_leader_epoch."""
        wanted = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20),
            "current_leader_epoch": more.pop("current_leader_epoch", -1),
        }
        values = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, **more}
        answer = self.ask(messages.FETCH, version, topics=[{"topic": topic, "partitions": [wanted]}], **values)
        return answer.responses[0].partitions[0]


def varint(value: int) -> bytes:
    """A zig-zag varint, seven bits a byte."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    count: int | None = None,
    last_delta: int | None = None,
    body: bytes | None = None,
) -> bytes:
    """A magic 2 batch, without keys unless `keys` gives them. `count`, `last_delta` and `body` override the
    fields that follow from `values`."""
    times = timestamps or [NOW + index for index in range(len(values))]
    if body is None:
        body = b""
        for index, (value, key, time) in enumerate(zip(values, keys or [None] * len(values), times, strict=True)):
            record = b"\0" + varint(time - times[0]) + varint(index) + sized(key) + sized(value) + varint(0)
            body += varint(len(record)) + record
    number = len(values) if count is None else count
    last = len(values) - 1 if last_delta is None else last_delta
    tail = struct.pack(">hiqqqhii", attributes, last, times[0], max(times), *producer, number) + body
    return struct.pack(">qiibI", 0, len(tail) + 9, -1, 2, crc32c(tail)) + tail


def message(
    value: bytes | None,
    *,
    magic: int = 1,
    key: bytes | None = None,
    attributes: int = 0,
    offset: int = 0,
    time: int = NOW,
) -> bytes:
    """One message of magic 0 or 1."""
    tail = struct.pack(">bb", magic, attributes) + (struct.pack(">q", time) if magic else b"")
    for data in (key, value):
        tail += struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return struct.pack(">qiI", offset, len(tail) + 4, zlib.crc32(tail)) + tail


def error_codes(value: Any) -> Iterator[int]:
    """Every error code in a response, 0 included."""
    if isinstance(value, ErrorCode):
        yield int(value)
    elif isinstance(value, tuple):
        for item in value:
            yield from error_codes(item)
    elif hasattr(value, "__flexible__"):
        for attribute in fields_of(type(value)):
            yield from error_codes(getattr(value, attribute.name))
