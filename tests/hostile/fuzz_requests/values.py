"""Values at their limits: numbers, names, compressed records, tokens."""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Callable
from functools import cache

import cramjam

from kafkabuf.broker.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from tests.broker.raw_client import NOW, batch, sized, varint

MIB = 1 << 20
# 19,990 and 20,000: as many items as the broker takes in a request.
COUNTS = (0, 1, 2, 3, 10, 100, 1_000, 10_000, 19_990, 20_000, 20_001, 100_000, 1_000_000, 10_000_000)
_LIMITS = (-1, 0, 1, -2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63))
_TIMES = (NOW, NOW - 1, NOW + 86_400_000 * 365, -2, -3, -4, -5)

# Names that no topic may have, and names that are as long as a topic's may be.
BAD_NAMES = (
    "", ".", "..", "a" * 250, "a" * 1000, "x" * 32_767, "a/b", "../outside", "a\0b", "a\nb", "a\r\nERROR b", "\x1b[2J",
    "a\x85b", "a\u2028b", "é", "\U0001f980" * 62, "a b", "%s%n", "\u202ea",
)  # fmt: skip
LONG_NAMES = tuple("L" * (length - 1) + "1" for length in (200, 240, 246, 247, 248, 249))
SHORT_NAMES = ("a", "B", "a.b", "a_b", "a-b", "...", "-", "-0", "__consumer_offsets", "__transaction_state", "f-s")

CODECS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: lambda data: gzip.compress(data, 6, mtime=0),
    SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    LZ4: lambda data: bytes(compress(LZ4, data)),  # the frames of cramjam have blocks that Java does not read
    ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}


def integer(generator: random.Random, bits: int, signed: bool = True) -> int:
    """An integer that has room in `bits`."""
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    pool = generator.choice((_LIMITS, _LIMITS, COUNTS, _TIMES if bits == 64 else COUNTS))
    value = generator.choice(pool) if generator.random() < 0.9 else generator.randint(lowest, highest)
    return min(max(value, lowest), highest)


def name(generator: random.Random) -> str:
    return generator.choice(generator.choice((BAD_NAMES, LONG_NAMES, SHORT_NAMES, ("f-t",))))


# ---- records


@cache
def _lines(size: int) -> bytes:
    """Records of JSON, as services log them: their bytes shrink to a thirtieth or less."""
    body, number, length = bytearray(), 0, 0
    while length < size:
        row = {"level": "INFO", "service": "checkout", "region": "eu-west-1", "user": number % 97, "ok": True}
        value = json.dumps([row] * 20).encode()
        record = b"\0" + varint(0) + varint(number) + sized(None) + sized(value) + varint(0)
        body += varint(len(record)) + record
        length, number = len(body), number + 1
    return number.to_bytes(4, "big") + bytes(body)


@cache
def json_batch(codec: int, size: int) -> bytes:
    """A valid batch of `size` bytes of JSON or a little more, compressed."""
    count, body = int.from_bytes(_lines(size)[:4], "big"), _lines(size)[4:]
    return batch([b""], attributes=codec, count=count, last_delta=count - 1, body=CODECS[codec](body))


@cache
def bomb(codec: int, mib: int) -> bytes:
    """A batch that announces one record, and becomes as many MiB of zeros."""
    return batch([b""], attributes=codec, body=CODECS[codec](bytes(mib * MIB))[: MIB - 4096])


@cache
def _empty_records(count: int) -> bytes:
    start, end = b"\0" + varint(0), varint(-1) + varint(-1) + varint(0)
    bodies = (start + varint(number) + end for number in range(count))
    return b"".join(varint(len(body)) + body for body in bodies)


@cache
def crowded_batch(codec: int, count: int) -> bytes:
    """A valid batch of many records without content."""
    body = CODECS[codec](_empty_records(count))
    return batch([b""], attributes=codec, count=count, last_delta=count - 1, body=body)


# ---- tokens


_EXPIRIES = (
    "Infinity", "-Infinity", "NaN", "1e999", "-1e999", "0", "-1", "true", "null", '"soon"', "[]", "{}", "9" * 400,
    "1e308",
)  # fmt: skip


def token(generator: random.Random) -> tuple[bytes, str]:
    """The first message of OAUTHBEARER, and whether it must be accepted or refused."""
    expiry, expect = generator.choice(_EXPIRIES), "refused"
    if generator.random() < 0.2:
        expiry, expect = str(NOW // 1000 + 10**6), "accepted"
    claims = f'{{"sub": "fuzz", "exp": {expiry}}}'
    if generator.random() < 0.1:
        claims, expect = "[" * generator.choice((10, 100_000)), "refused"
    head = _base64('{"alg": "none"}')
    expect = "" if expiry in ("9" * 400, "1e308") else expect
    return f"n,,\x01auth=Bearer {head}.{_base64(claims)}.\x01\x01".encode(), expect


def _base64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
