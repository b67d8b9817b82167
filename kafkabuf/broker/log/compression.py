"""Unpacking of compressed records, where the broker must look inside: magic 1 wrappers, time-stamps, verification.

Magic 2 batches are otherwise stored and served as they came.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam

from kafkabuf.errors import CorruptMessageError, UnsupportedCompressionTypeError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
# What a client sends may become this large, or so many times what it was: a bomb is given up there.
_UNPACKED = 4 * 1024 * 1024
_TIMES = 8
_FIRST_ROOM = 64 * 1024
# The frame that Java's SnappyOutputStream writes: this magic, two versions, then blocks of [length | raw snappy].
_XERIAL = b"\x82SNAPPY\0"


def most_unpacked(size: int) -> int:
    """Bytes that so many compressed ones may become."""
    return max(_UNPACKED, _TIMES * size)


def decompress(codec: int, data: bytes, most: int | None = None) -> bytes | bytearray:
    """CorruptMessageError if `data` is not what the codec says or becomes more than `most` bytes (None:
    `most_unpacked`), UnsupportedCompressionTypeError if none can read it."""
    if codec == NONE:
        return data
    try:
        return _unpack(codec, data, most_unpacked(len(data)) if most is None else most)
    except UnsupportedCompressionTypeError:
        raise
    except Exception as error:  # each library has errors of its own; to a broker all mean the same
        raise CorruptMessageError(f"{len(data)} bytes are not {NAMES[codec]}, or too many: {error}") from error


def _unpack(codec: int, data: bytes, most: int) -> bytes | bytearray:
    if codec == GZIP:
        return _gunzip(data, most)
    if codec == SNAPPY:
        return _unsnappy(data, most)
    if codec == LZ4:
        return _into(cramjam.lz4.decompress_into, data, most)
    if codec == ZSTD:
        return _into(cramjam.zstd.decompress_into, data, most)
    raise UnsupportedCompressionTypeError(f"compression type {codec} is unknown")


def _into(decompress_into: Callable[[bytes, bytearray], int], data: bytes, most: int) -> bytearray:
    """For libraries that fill a buffer of ours and no more: it grows until what comes out fits, or `most` do not do."""
    size = min(most, max(4 * len(data), _FIRST_ROOM))
    while True:
        room = bytearray(size)
        try:
            del room[decompress_into(data, room) :]
            return room
        except cramjam.DecompressionError:
            if size == most:
                raise
        size = min(most, 4 * size)


def _gunzip(data: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    unpacked = unpacker.decompress(data, most + 1)
    if not unpacker.eof or len(unpacked) > most:
        raise ValueError(f"the stream is cut, or larger than {most} bytes")
    return unpacked


def _unsnappy(data: bytes, most: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnappy_block(data, most)
    blocks, position = [], len(_XERIAL) + 8
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 <= size <= len(data) - position:
            raise ValueError(f"a block of {size} bytes where {len(data) - position} are left")
        blocks.append(_unsnappy_block(data[position : position + size], most))
        most -= len(blocks[-1])
        position += size
    return b"".join(blocks)


def _unsnappy_block(data: bytes, most: int) -> bytes:
    if (size := cramjam.snappy.decompress_raw_len(data)) > most:
        raise ValueError(f"a block becomes {size} bytes, {most} are allowed")
    return bytes(cramjam.snappy.decompress_raw(data))
