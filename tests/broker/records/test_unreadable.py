"""Records that no client of Java can read: a cluster that verifies records refuses them, as Kafka 4.1.2 does."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator

import cramjam
import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.records.compression import GZIP, LZ4, check_lz4, compress, decompress
from kafkabuf.errors import CorruptMessageError
from tests.broker.raw_client import NOW, RawClient, batch, message, varint

CORRUPT, INVALID_RECORD = 2, 87
GZIPPED = 1


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with EmbeddedCluster(verify_records=True) as cluster, RawClient(cluster.bootstrap_servers) as opened:
        cluster.create_topic("t")
        yield opened


def overlong(value: int, size: int) -> bytes:
    """A zig-zag varint of `size` bytes."""
    rest = value << 1
    return bytes((rest >> 7 * index & 0x7F) | 0x80 * (index + 1 < size) for index in range(size))


def record(size: int, *, of_length: int = 1, of_time: int = 1) -> bytes:
    """A record whose offset delta, 0, has `size` bytes; likewise its length and its timestamp delta."""
    fields = b"\0" + overlong(0, of_time) + overlong(0, size) + b"\x01" + varint(1) + b"v" + b"\0"
    return overlong(len(fields), of_length) + fields


def one(body: bytes, attributes: int = 0, count: int = 1) -> bytes:
    return batch([b""] * count, timestamps=[NOW] * count, attributes=attributes, body=body)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (record(5, of_length=5, of_time=10), 0),
        (record(6), INVALID_RECORD),
        (record(1, of_length=6), INVALID_RECORD),
        (record(1, of_time=11), INVALID_RECORD),
    ],
    ids=["longest", "offset delta", "length", "timestamp delta"],
)
def test_varint_that_java_finds_too_long_is_refused(client: RawClient, body: bytes, code: int) -> None:
    assert client.produce("t", one(body)).error_code == code


@pytest.mark.parametrize("count", [1, 2])
def test_second_stream_of_gzip_is_refused(client: RawClient, count: int) -> None:
    """Java's clients read its records, too, librdkafka does not."""
    body = gzip.compress(record(1)) * 2
    assert client.produce("t", one(body, GZIPPED, count)).error_code == CORRUPT
    with pytest.raises(CorruptMessageError, match="another stream follows"):
        decompress(GZIP, gzip.compress(bytes(1 << 20)) + gzip.compress(b"x"), 1 << 21)


def test_other_bytes_behind_a_stream_of_gzip_pass(client: RawClient) -> None:
    """As in Kafka."""
    assert client.produce("t", one(gzip.compress(record(1)) + b"more", GZIPPED)).error_code == 0


def test_frame_of_lz4_with_independent_blocks_passes(client: RawClient) -> None:
    """librdkafka writes a checksum behind the blocks, and Java none. Java reads both."""
    assert client.produce("t", one(bytes(compress(LZ4, record(1))), LZ4)).error_code == 0
    value = b"v" * 200_000
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(len(value)) + value + varint(0)
    assert client.produce("t", one(bytes(compress(LZ4, varint(len(body)) + body)), LZ4)).error_code == 0


LZ4_HEAD = bytes.fromhex("04224d18604082")
LZ4_BLOCK = struct.pack("<I", len(record(1)) | 1 << 31) + record(1)


@pytest.mark.parametrize(
    ("body", "count", "fault"),
    [
        (bytes(cramjam.lz4.compress(record(1))), 1, "depend on each other"),
        (LZ4_HEAD + LZ4_BLOCK + bytes(4), 1, None),
        (LZ4_HEAD + LZ4_BLOCK + bytes(4) + LZ4_HEAD + LZ4_BLOCK + bytes(4), 2, "the frame has"),
        (LZ4_HEAD + LZ4_BLOCK, 1, "cut short"),
        (LZ4_HEAD + LZ4_BLOCK + bytes(3), 1, "cut short"),
        (LZ4_HEAD[:4], 1, "cut short"),
        (LZ4_HEAD + struct.pack("<I", 70_000 | 1 << 31) + bytes(70_000) + bytes(4), 1, "a block of 70000 bytes"),
        (bytes.fromhex("04224d18614082") + LZ4_BLOCK + bytes(4), 1, "unknown magic"),
    ],
    ids=["dependent", "one", "two", "no end", "half an end", "magic", "large", "dictionary"],
)
def test_frame_of_lz4_that_java_does_not_read_is_refused(
    client: RawClient, body: bytes, count: int, fault: str | None
) -> None:
    assert client.produce("t", one(body, LZ4, count)).error_code == (CORRUPT if fault else 0)
    if fault:
        with pytest.raises(CorruptMessageError, match=fault):
            check_lz4(body)


def test_compressed_message_within_a_compressed_message_is_refused(client: RawClient) -> None:
    inner = message(gzip.compress(message(b"v")), attributes=GZIPPED)
    assert client.produce_v2("t", inner)[0] == 0
    assert client.produce_v2("t", message(gzip.compress(inner), attributes=GZIPPED)) == (INVALID_RECORD, -1)


def test_message_of_another_magic_within_a_compressed_message_is_refused(client: RawClient) -> None:
    packed = gzip.compress(message(b"v", magic=0))
    assert client.produce_v2("t", message(packed, attributes=GZIPPED)) == (INVALID_RECORD, -1)
