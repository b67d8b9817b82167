"""Checksums, by instruction and by table, and the hash of keys, beside other implementations."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import crc32c as crc32c_package
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.partitioner import murmur2 as kafka_python_murmur2

from bench import compiled
from kafkabuf._records import crc32, crc32c, murmur2_hash
from kafkabuf.append._bulk import places_of
from kafkabuf.partitioner import murmur2, partition_for_key

Crc = Callable[..., int]
CORE = compiled.load("core")
crc32_portable, crc32c_portable = CORE.crc32_portable, CORE.crc32c_portable
CRCS = pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (crc32c, crc32c_package.crc32c),
        (crc32c_portable, crc32c_package.crc32c),
        (crc32, zlib.crc32),
        (crc32_portable, zlib.crc32),
    ],
    ids=["crc32c by instruction", "crc32c by table", "crc32 by instruction", "crc32 by table"],
)
# All lengths of a short record; then the lengths around which CRC-32C's three streams of 512 bytes run once more.
LENGTHS = [*range(600), *(n + off for n in (1536, 3072, 4608, 16384) for off in range(-17, 18))]
NOISE = np.random.default_rng(7).bytes(70_000)


@CRCS
@pytest.mark.parametrize("start", range(16))
def test_crc_is_right_at_every_length_and_alignment(ours: Crc, theirs: Crc, start: int) -> None:
    for length in LENGTHS:
        piece = memoryview(NOISE)[start : start + length]
        for seed in (0, length * 0x9E3779B1 % 2**32):
            assert ours(piece, seed) == theirs(piece, seed), f"{length} bytes from {start} after {seed}"


@CRCS
@given(data=st.binary(max_size=200), seed=st.integers(0, 2**32 - 1))
@example(b"", 0)
@example(b"", 2**32 - 1)
@example(b"\0", 0)
def test_crc_continues_from_any_other_crc(ours: Crc, theirs: Crc, data: bytes, seed: int) -> None:
    assert ours(data, seed) == theirs(data, seed)


@CRCS
@given(cuts=st.lists(st.integers(0, 20_000), max_size=4).map(sorted))
def test_crc_chained_over_parts_is_that_of_the_whole(ours: Crc, theirs: Crc, cuts: list[int]) -> None:
    whole = memoryview(NOISE)[:20_000]
    chained = 0
    for begin, end in zip([0, *cuts], [*cuts, 20_000], strict=True):
        chained = ours(whole[begin:end], chained)
    assert chained == theirs(whole)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("text", TypeError),
        (None, TypeError),
        (memoryview(b"every second byte")[::2], ValueError),
        (np.arange(4, dtype=np.int64), ValueError),
    ],
)
def test_crc_of_what_is_no_row_of_bytes_is_refused(data: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"bytes-like object is required|items of 1 bytes that lie side by side"):
        crc32c(data)


def test_places_are_written_to_nothing_but_writable_numbers_of_32_bits() -> None:
    segments, following = np.zeros(3, np.int32), np.zeros(1, np.int32)
    assert places_of(segments, following).tolist() == [0, 1, 2]
    following.flags.writeable = False
    wrong: list[Any] = [following, np.zeros(1, np.int64)]
    for bad in wrong:
        with pytest.raises(ValueError, match="writable items of 4 bytes"):
            places_of(segments, bad)


def test_crc_has_its_check_value() -> None:
    """The catalogue's check value: the CRC of the nine digits."""
    assert crc32c(b"123456789") == crc32c_portable(b"123456789") == 0xE3069283
    assert crc32(b"123456789") == crc32_portable(b"123456789") == 0xCBF43926


# Results of Utils.murmur2, and of BuiltInPartitioner.partitionForKey with 7 partitions, in kafka-clients 4.1.2 and
# 3.9.2 under OpenJDK 17. An int is signed there.
@pytest.mark.parametrize(
    ("key", "signed", "partition"),
    [
        (b"21", -973932308, 3),
        (b"foobar", -790332482, 0),
        (b"a-little-bit-long-string", -985981536, 1),
        (b"a-little-bit-longer-string", -1486304829, 0),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971, 3),
        (b"abc", 479470107, 4),
        (b"abcdefghijkl", -535286937, 6),
        # Each length modulo 4, with bytes that are negative in Java.
        (b"", 275646681, 2),
        (b"\xff", -311467685, 5),
        (b"\xff\x80", -442788720, 6),
        (b"\xff\x80\x00", -616959190, 1),
        (b"\xff\x80\x00\xfe", 218625671, 5),
        (b"\xff\x80\x00\xfe\x81", 1700763136, 2),
    ],
)
def test_hash_and_partition_are_javas(key: bytes, signed: int, partition: int) -> None:
    assert murmur2(key) == murmur2_hash(key) == signed % 2**32
    assert partition_for_key(key, 7) == partition


@given(st.binary(max_size=70), st.integers(1, 2**31 - 1))
@example(b"", 3)
@example(b"\xff" * 7, 12)
def test_key_goes_to_kafka_pythons_partition(key: bytes, partitions: int) -> None:
    assert murmur2_hash(key) == kafka_python_murmur2(key)
    assert partition_for_key(key, partitions) == (kafka_python_murmur2(key) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("partitions", [0, -1])
def test_topic_without_partitions_is_refused(partitions: int) -> None:
    with pytest.raises(ValueError, match=f"found {partitions}"):
        partition_for_key(b"key", partitions)
