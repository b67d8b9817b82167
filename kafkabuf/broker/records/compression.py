"""Decompression, where the broker must read the records, and its bounds.

It must for magic 1 wrappers, lookups by timestamp, verification and cleaning. The cleaner also compresses the records
that it keeps.

Otherwise the broker stores and serves a magic 2 batch as the client compressed it.

What a batch may cost is bounded by its topic and by memory, not by its compression ratio, which is high for JSON. The
records of a batch may take 32 times the topic's max.message.bytes, however small they were compressed, and always 32
MiB: a batch from before the setting was lowered is read too. gzip, and snappy in blocks, are unpacked piece by piece.
lz4, zstd and a block of snappy are unpacked at once, into at most 48 MiB, or eight times the bytes that the client has
sent. A frame or block that announces more is refused before it is unpacked.

A broker that verifies records refuses an LZ4 frame that Java's clients cannot read (`check_lz4`).

Deviation: where the broker reads gzip, it refuses a second stream in a batch. Java's clients read such a stream, and
librdkafka does not.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from mmap import mmap

import cramjam

from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.errors import CorruptMessageError, UnsupportedCompressionTypeError

Data = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
# How many times max.message.bytes the records of a batch may take.
_GROWTH = 32
_ALWAYS = 32 * 1024 * 1024
# Unpacked records may take at most this number of bytes, or this multiple of the compressed bytes.
_MEMORY = 48 * 1024 * 1024
_MEMORY_RATIO = 8
_FIRST_ROOM = 64 * 1024
# gzip reads and writes pieces of at most this size.
_PIECE = 256 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
# The frame that Java's SnappyOutputStream writes: this magic, two versions, then blocks of [length | raw snappy].
_XERIAL = b"\x82SNAPPY\0"
_LZ4_MAGIC = bytes.fromhex("04224d18")
# Flags of a frame's head, and those that all frames of Kafka have alike: the version, a reserved bit, no dictionary.
_LZ4_FIXED, _LZ4_VERSION = 0xC3, 0x40
_LZ4_INDEPENDENT, _LZ4_BLOCKS_HAVE_SUMS, _LZ4_HAS_SIZE, _LZ4_HAS_SUM = 0x20, 0x10, 0x08, 0x04
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_ZSTD_ONE_SEGMENT = 0x20
_XERIAL_VERSIONS = bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK = 32 * 1024
# The head of an LZ4 frame of independent blocks of 64 KiB: Java reads no other kind of block. cramjam's frames have
# blocks that depend on each other.
_LZ4_HEAD = bytes((0x04, 0x22, 0x4D, 0x18, 0x60, 0x40, 0x82))
_LZ4_BLOCK = 64 * 1024
_LZ4_AS_IT_IS = 1 << 31


def max_unpacked(codec: int, size: int, max_message_bytes: int) -> int:
    """The most bytes that `size` compressed bytes may become, in a topic with this max.message.bytes."""
    most = max(_ALWAYS, _GROWTH * max(size, max_message_bytes))
    return min(most, _at_once(size)) if codec in (LZ4, ZSTD) else most


def _at_once(size: int) -> int:
    """The most bytes that `size` compressed bytes may become at once."""
    return max(_MEMORY, _MEMORY_RATIO * size)


def unpack(codec: int, data: Data, most: int) -> Iterator[Data]:
    """The unpacked bytes in pieces. Raises CorruptMessageError if the codec cannot read `data` or `data` becomes more
    than `most` bytes, UnsupportedCompressionTypeError if the codec is unknown."""
    if codec == NONE:
        yield data
        return
    if codec not in _UNPACK:
        raise UnsupportedCompressionTypeError(f"compression type {codec} is unknown")
    try:
        yield from _UNPACK[codec](data, most)
    except Exception as error:  # each library has its own errors; to a broker all mean the same
        raise CorruptMessageError(f"{len(data)} bytes are not valid {NAMES[codec]}, or too large: {error}") from error


def decompress(codec: int, data: Data, most: int) -> Data:
    """The unpacked bytes. Raises what `unpack` raises."""
    pieces = unpack(codec, data, most)
    first, second = next(pieces, b""), next(pieces, None)
    if second is None:
        return first
    unpacked = bytearray(first) + second
    for piece in pieces:
        unpacked += piece
    return unpacked


# ---- gzip


def _gunzip(data: Data, most: int) -> Iterator[Data]:
    unpacker = zlib.decompressobj(wbits=31)
    for at in range(0, len(data), _PIECE):
        rest, full = data[at : at + _PIECE], True
        while (rest or full) and not unpacker.eof:
            piece = unpacker.decompress(rest, _PIECE)
            rest, full = unpacker.unconsumed_tail, len(piece) == _PIECE
            most = _take(most, len(piece))
            yield piece
        if unpacker.eof:
            end = min(at + _PIECE, len(data)) - len(unpacker.unused_data)
            if data[end : end + len(_GZIP_MAGIC)] == _GZIP_MAGIC:
                # Java's clients read the next stream too, librdkafka does not.
                raise ValueError("another stream follows the first")
            return
    raise ValueError("the stream is cut short")


def _take(most: int, size: int) -> int:
    """What is left of `most` bytes."""
    if size > most:
        raise ValueError(f"a piece becomes {size} bytes, at most {most} are allowed")
    return most - size


# ---- snappy


def _unsnappy(data: Data, most: int) -> Iterator[Data]:
    if data[: len(_XERIAL)] != _XERIAL:
        yield _unsnappy_block(data, most)
        return
    position = len(_XERIAL) + 8
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 <= size <= len(data) - position:
            raise ValueError(f"a block says {size} bytes, {len(data) - position} are left")
        block = _unsnappy_block(data[position : position + size], most)
        most -= len(block)
        yield block
        position += size


def _unsnappy_block(data: Data, most: int) -> memoryview:
    """Each block announces its size."""
    _take(min(most, _at_once(len(data))), cramjam.snappy.decompress_raw_len(data))
    return memoryview(cramjam.snappy.decompress_raw(data))


# ---- lz4, zstd


def _unlz4(data: Data, most: int) -> Iterator[Data]:
    if data[:4] == _LZ4_MAGIC and len(data) > 14 and data[4] & _LZ4_HAS_SIZE:
        _take(most, int.from_bytes(data[6:14], "little"))
    yield _unpack_at_once(cramjam.lz4.decompress_into, data, most)


def check_lz4(data: Data) -> None:
    """Raises CorruptMessageError for a frame that Java's clients do not read (Kafka's Lz4BlockInputStream): blocks that
    depend on each other or are too large, a dictionary, or bytes behind the frame."""
    try:
        fault = _lz4_fault(data)
    except (struct.error, IndexError):
        fault = "the frame is cut short"
    if fault is not None:
        raise CorruptMessageError(f"{len(data)} bytes are not valid lz4: {fault}")


def _lz4_fault(data: Data) -> str | None:
    flags, largest = data[4], 1 << 8 + 2 * (data[5] >> 4 & 7)
    if data[:4] != _LZ4_MAGIC or flags & _LZ4_FIXED != _LZ4_VERSION:
        return "the head of the frame has an unknown magic, version or flag"
    if not flags & _LZ4_INDEPENDENT:
        return "blocks that depend on each other"
    at = 15 if flags & _LZ4_HAS_SIZE else 7
    while size := struct.unpack_from("<I", data, at)[0] & ~_LZ4_AS_IT_IS:
        if size > largest:
            return f"a block of {size} bytes, the head of the frame allows {largest}"
        at += 4 + size + (4 if flags & _LZ4_BLOCKS_HAVE_SUMS else 0)
    at += 4 + (4 if flags & _LZ4_HAS_SUM else 0)
    return None if at == len(data) else f"the frame has {at} bytes"


def _unzstd(data: Data, most: int) -> Iterator[Data]:
    if data[:4] == _ZSTD_MAGIC and len(data) > 5:
        _take(most, _zstd_size(data))
    yield _unpack_at_once(cramjam.zstd.decompress_into, data, most)


def _zstd_size(data: Data) -> int:
    """The content size that the header of a zstd frame announces; 0 if it announces none (RFC 8878, 3.1.1.1)."""
    descriptor = data[4]
    one_segment = bool(descriptor & _ZSTD_ONE_SEGMENT)
    size = (int(one_segment), 2, 4, 8)[descriptor >> 6]
    at = 5 + (not one_segment) + (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(data[at : at + size], "little") + (256 if size == 2 else 0)


def _unpack_at_once(decompress_into: Callable[[Data, bytearray | mmap], int], data: Data, most: int) -> memoryview:
    """For libraries that fill a given buffer. Most batches fit a small one. The pages of the large buffer take memory
    only as the library writes to them."""
    small = bytearray(min(most, max(4 * len(data), _FIRST_ROOM)))
    try:
        return memoryview(small)[: decompress_into(data, small)]
    except cramjam.DecompressionError:
        if len(small) == most:
            raise
    del small
    large = mmap(-1, most)
    return memoryview(large)[: decompress_into(data, large)]


_UNPACK: dict[int, Callable[[Data, int], Iterator[Data]]] = {
    GZIP: _gunzip,
    SNAPPY: _unsnappy,
    LZ4: _unlz4,
    ZSTD: _unzstd,
}


def compress(codec: int, data: bytes | bytearray) -> bytes | bytearray:
    """Bytes that Kafka's clients can decompress."""
    return finish(compress_in_steps(codec, data))


def compress_in_steps(codec: int, data: bytes | bytearray) -> Work[bytes | bytearray]:
    """As `compress`, in steps."""
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    if codec not in _PACK:
        return data
    packed = bytearray()
    for piece in _PACK[codec](data):
        packed += piece
        yield
    return packed


def _gzip(data: bytes | bytearray) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=31)
    for piece in _pieces(data, _LZ4_BLOCK):
        yield packer.compress(piece)
    yield packer.flush()


def _snappy(data: bytes | bytearray) -> Iterator[bytes]:
    yield _XERIAL + _XERIAL_VERSIONS
    for piece in _pieces(data, _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(piece))
        yield struct.pack(">i", len(block)) + block


def _lz4(data: bytes | bytearray) -> Iterator[bytes]:
    yield _LZ4_HEAD
    yield from map(_lz4_block, _pieces(data, _LZ4_BLOCK))
    yield bytes(4)


_PACK: dict[int, Callable[[bytes | bytearray], Iterator[bytes]]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4}


def _pieces(data: bytes | bytearray, size: int) -> Iterator[bytes]:
    return (bytes(data[start : start + size]) for start in range(0, len(data), size))


def _lz4_block(piece: bytes) -> bytes:
    packed = bytes(cramjam.lz4.compress_block(piece, store_size=False))
    if len(packed) < len(piece):
        return struct.pack("<I", len(packed)) + packed
    return struct.pack("<I", len(piece) | _LZ4_AS_IT_IS) + piece
