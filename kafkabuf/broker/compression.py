"""Unpacking of compressed records, where the broker must look inside: magic 1 wrappers, time-stamps, verification.

Magic 2 batches are otherwise stored and served as they came. gzip is Python's; snappy, lz4 and zstd need the package
`cramjam`, and a broker without it answers UNSUPPORTED_COMPRESSION_TYPE where it would have to unpack them.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from typing import Any

from kafkabuf.errors import CorruptMessageError, UnsupportedCompressionTypeError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
# Nothing a client sends unpacks to more than this; a gzip bomb stops here.
MAX_UNPACKED = 100 * 1024 * 1024
# The frame that Java's SnappyOutputStream writes: this magic, two versions, then blocks of [length | raw snappy].
_XERIAL = b"\x82SNAPPY\0"


def decompress(codec: int, data: bytes) -> bytes:
    """CorruptMessageError if `data` is not what the codec says, UnsupportedCompressionTypeError if none can read it."""
    if codec == NONE:
        return data
    try:
        return _gunzip(data) if codec == GZIP else _with_cramjam(codec, data)
    except UnsupportedCompressionTypeError:
        raise
    except Exception as error:  # each library has errors of its own; to a broker all mean the same
        raise CorruptMessageError(f"{len(data)} bytes are not {NAMES[codec]}: {error}") from error


def _gunzip(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    unpacked = unpacker.decompress(data, MAX_UNPACKED)
    if not unpacker.eof:
        raise ValueError(f"the stream is cut, or larger than {MAX_UNPACKED} bytes")
    return unpacked


def _with_cramjam(codec: int, data: bytes) -> bytes:
    if not SNAPPY <= codec <= ZSTD:
        raise UnsupportedCompressionTypeError(f"compression type {codec} is unknown")
    try:
        cramjam: Any = importlib.import_module("cramjam")
    except ImportError as error:
        raise UnsupportedCompressionTypeError(f"the package cramjam is needed to read {NAMES[codec]}") from error
    if codec == SNAPPY:
        return _unsnappy(cramjam.snappy, data)
    return bytes((cramjam.lz4 if codec == LZ4 else cramjam.zstd).decompress(data))


def _unsnappy(snappy: Any, data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return bytes(snappy.decompress_raw(data))
    blocks, position = [], len(_XERIAL) + 8
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        blocks.append(bytes(snappy.decompress_raw(data[position : position + size])))
        position += size
    return b"".join(blocks)
