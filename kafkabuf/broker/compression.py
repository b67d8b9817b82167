"""Unpacking of compressed records, where the broker must look inside: magic 1 wrappers, time-stamps, verification.

Magic 2 batches are otherwise stored and served as they came.
"""

from __future__ import annotations

import struct
import zlib

import cramjam

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
        return _unpack(codec, data)
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


def _unpack(codec: int, data: bytes) -> bytes:
    if codec == GZIP:
        return _gunzip(data)
    if codec == SNAPPY:
        return _unsnappy(data)
    if codec == LZ4:
        return bytes(cramjam.lz4.decompress(data))
    if codec == ZSTD:
        return bytes(cramjam.zstd.decompress(data))
    raise UnsupportedCompressionTypeError(f"compression type {codec} is unknown")


def _unsnappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL):
        return bytes(cramjam.snappy.decompress_raw(data))
    blocks, position = [], len(_XERIAL) + 8
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[position : position + size])))
        position += size
    return b"".join(blocks)
