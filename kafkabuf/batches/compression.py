"""Compression of a batch's records: Kafka's codecs and the frames that its consumers expect, over cramjam.

A codec writes into memory that the caller gives, and raises `DoesNotFit` when the memory is too small. Records that do
not fit are sent plain.

Frames::

    gzip    RFC 1952                                    zstd    RFC 8878
    snappy  xerial: 82 'SNAPPY' 00 | version i32 = 1 | compatible i32 = 1 | blocks: size i32 | raw snappy
    lz4     LZ4 frame: magic u32le | FLG | BD | header checksum | blocks: size u32le | block | end u32le 0
            FLG: version 1, blocks independent (Java's reader takes no other), no checksums, no content size;
            BD: the most bytes of a block before compression; bit 31 of a block's size is set if the block is plain

A block holds up to 256 KiB of records, so that most batches are one block. Each block starts with an empty history, and
each is a call that gives up the GIL. In blocks of 64 KiB (lz4) and 32 KiB (snappy), as Java writes them, batches of
128 KiB of JSON rows are 23 % and 5 % larger.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import cramjam

from kafkabuf.batches.codec import Codec, DoesNotFit
from kafkabuf.errors import ConfigError

BLOCK = 256 * 1024
SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
LZ4_MAGIC = struct.pack("<I", 0x184D2204)
LZ4_SMALL_BLOCK = 64 * 1024
# FLG, BD and their checksum, which is the second byte of their xxh32. A reader allocates as much as BD says.
LZ4_SMALL_HEADER = LZ4_MAGIC + bytes((0x60, 0x40, 0x82))  # blocks of LZ4_SMALL_BLOCK
LZ4_HEADER = LZ4_MAGIC + bytes((0x60, 0x50, 0xFB))  # blocks of BLOCK
LZ4_PLAIN = 1 << 31
# At this level Java uses LZ4's fast compressor, at any other level the high compressor.
LZ4_DEFAULT_LEVEL = 9
# The levels of Kafka are those of zlib. The levels of cramjam's gzip (miniz) search longer: level 6 needs 1.6 times the
# CPU time of zlib's and compresses more. For each level of zlib, the quickest of miniz that compresses as much.
GZIP_LEVELS = {-1: 5, 1: 2, 2: 2, 3: 3, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 9}


def codec(name: str, gzip_level: int, lz4_level: int, zstd_level: int) -> Codec:
    """The codec of a `compression.type` other than "none". Raises ConfigError where it does not work."""
    chosen = _codec(name, gzip_level, lz4_level, zstd_level)
    try:
        chosen.compress(memoryview(bytes(64)), memoryview(bytearray(1024)))
    except Exception as error:  # cramjam, built for a free-threaded Python, refuses every memoryview
        raise ConfigError(
            f"compression.type {name!r} does not work in this Python: {error}. Set compression.type to none, or use a "
            f"Python with the GIL"
        ) from error
    return chosen


def _codec(name: str, gzip_level: int, lz4_level: int, zstd_level: int) -> Codec:
    if name == "gzip":
        return Codec(1, _into(cramjam.gzip.compress_into, GZIP_LEVELS[gzip_level]))
    if name == "snappy":
        return Codec(2, _snappy)
    if name == "lz4":
        if lz4_level == LZ4_DEFAULT_LEVEL:
            return Codec(3, _lz4)
        return Codec(3, lambda records, target: _lz4_high(records, target, lz4_level))
    return Codec(4, _into(cramjam.zstd.compress_into, zstd_level))


def _into(
    compress: Callable[[memoryview, memoryview, int], int], level: int
) -> Callable[[memoryview, memoryview], int]:
    def compressed(records: memoryview, target: memoryview) -> int:
        try:
            return compress(records, target, level)
        except cramjam.CompressionError:
            raise DoesNotFit from None

    return compressed


def _blocks(records: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(records), BLOCK):
        yield records[start : start + BLOCK]


def _put(target: memoryview, place: int, data: bytes | memoryview) -> int:
    end = place + len(data)
    if end > len(target):
        raise DoesNotFit
    target[place:end] = data
    return end


def _snappy(records: memoryview, target: memoryview) -> int:
    place = _put(target, 0, SNAPPY_HEADER)
    for block in _blocks(records):
        try:
            size = cramjam.snappy.compress_raw_into(block, target[place + 4 :])
        except cramjam.CompressionError:
            raise DoesNotFit from None
        place = _put(target, place, struct.pack(">i", size)) + size
    return place


def _snappy_decompress(frame: memoryview, target: memoryview) -> int:
    read, written = len(SNAPPY_HEADER), 0
    while read < len(frame):
        (size,) = struct.unpack_from(">i", frame, read)
        block = frame[read + 4 : read + 4 + size]
        written += cramjam.snappy.decompress_raw_into(block, target[written:])
        read += 4 + size
    return written


def _lz4(records: memoryview, target: memoryview) -> int:
    place = _put(target, 0, LZ4_SMALL_HEADER if len(records) <= LZ4_SMALL_BLOCK else LZ4_HEADER)
    for block in _blocks(records):
        # LZ4 is quicker where even an incompressible block would fit, so the block gets the whole rest of the target.
        try:
            size = cramjam.lz4.compress_block_into(block, target[place + 4 :], store_size=False)
        except cramjam.CompressionError:
            size = len(block)
        if size < len(block):
            place = _put(target, place, struct.pack("<I", size)) + size
        else:
            place = _put(target, place, struct.pack("<I", len(block) | LZ4_PLAIN))
            place = _put(target, place, block)
    return _put(target, place, struct.pack("<I", 0))


def _lz4_high(records: memoryview, target: memoryview, level: int) -> int:
    # cramjam's block function takes no level, but its frame compressor does. These frames have block checksums, which
    # Java checks.
    frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    frame.compress(bytes(records))
    return _put(target, 0, memoryview(frame.finish()))


# Each fills the target with what a frame holds, returns the bytes used, and raises cramjam's errors. The key is the id
# in the batch's attributes: a batch of a file may have another codec than this producer.
DECOMPRESS: dict[int, Callable[[memoryview, memoryview], int]] = {
    1: cramjam.gzip.decompress_into,
    2: _snappy_decompress,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
