"""Decompression, where the broker must read the records: magic 1 wrappers, lookups by timestamp, verification.

Otherwise the broker stores and serves a magic 2 batch as the client compressed it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam

from kafkabuf.errors import CorruptMessageError, UnsupportedCompressionTypeError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
# Compressed bytes of a client may become this large, or this many times their size. The limit stops a compression bomb.
_MAX_UNPACKED = 4 * 1024 * 1024
_MAX_RATIO = 8
_FIRST_ROOM = 64 * 1024
# The frame that Java's SnappyOutputStream writes: this magic, two versions, then blocks of [length | raw snappy].
_XERIAL = b"\x82SNAPPY\0"


def max_unpacked(size: int) -> int:
    """The most bytes that `size` compressed bytes may become."""
    return max(_MAX_UNPACKED, _MAX_RATIO * size)


def decompress(codec: int, data: bytes, max_size: int | None = None) -> bytes | bytearray:
    """Raises CorruptMessageError if the codec cannot read `data` or `data` becomes more than `max_size` bytes (None:
    `max_unpacked`), UnsupportedCompressionTypeError if the codec is unknown."""
    if codec == NONE:
        return data
    try:
        return _unpack(codec, data, max_unpacked(len(data)) if max_size is None else max_size)
    except UnsupportedCompressionTypeError:
        raise
    except Exception as error:  # each library has its own errors; to a broker all mean the same
        raise CorruptMessageError(f"{len(data)} bytes are not valid {NAMES[codec]}, or too large: {error}") from error


def _unpack(codec: int, data: bytes, max_size: int) -> bytes | bytearray:
    if codec == GZIP:
        return _gunzip(data, max_size)
    if codec == SNAPPY:
        return _unsnappy(data, max_size)
    if codec == LZ4:
        return _decompress_into(cramjam.lz4.decompress_into, data, max_size)
    if codec == ZSTD:
        return _decompress_into(cramjam.zstd.decompress_into, data, max_size)
    raise UnsupportedCompressionTypeError(f"compression type {codec} is unknown")


def _decompress_into(decompress_into: Callable[[bytes, bytearray], int], data: bytes, max_size: int) -> bytearray:
    """For libraries that fill a given buffer. The buffer grows until the output fits or it has `max_size` bytes."""
    size = min(max_size, max(4 * len(data), _FIRST_ROOM))
    while True:
        room = bytearray(size)
        try:
            del room[decompress_into(data, room) :]
            return room
        except cramjam.DecompressionError:
            if size == max_size:
                raise
        size = min(max_size, 4 * size)


def _gunzip(data: bytes, max_size: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    unpacked = unpacker.decompress(data, max_size + 1)
    if not unpacker.eof or len(unpacked) > max_size:
        raise ValueError(f"the stream is cut short, or becomes more than {max_size} bytes")
    return unpacked


def _unsnappy(data: bytes, max_size: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnappy_block(data, max_size)
    blocks, position = [], len(_XERIAL) + 8
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 <= size <= len(data) - position:
            raise ValueError(f"a block says {size} bytes, {len(data) - position} are left")
        blocks.append(_unsnappy_block(data[position : position + size], max_size))
        max_size -= len(blocks[-1])
        position += size
    return b"".join(blocks)


def _unsnappy_block(data: bytes, max_size: int) -> bytes:
    if (size := cramjam.snappy.decompress_raw_len(data)) > max_size:
        raise ValueError(f"a block becomes {size} bytes, at most {max_size} are allowed")
    return bytes(cramjam.snappy.decompress_raw(data))
