"""The loops in C that the bench times do all the work that their names promise."""

from __future__ import annotations

import mmap

import pytest

from bench import compiled
from bench.rss import Growth
from kafkabuf import MemoryRecordsBuilder
from kafkabuf._pool import BufferPool
from tests.memory.pool_support import assert_all_free

CORE = compiled.load("core")
TIMESTAMP, KEY, VALUE = 1_700_000_000_000, b"k" * 16, b"v" * 100


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("records", [1, 5, 1_000])
def test_encode_loop_writes_every_record_and_checksum(magic: int, records: int) -> None:
    _, last = CORE.append_records(magic, bytearray(2_048), TIMESTAMP, KEY, VALUE, records)
    builder = MemoryRecordsBuilder(magic, 2_048)
    for _ in range(records):
        if builder.append(TIMESTAMP, KEY, VALUE) is None:
            builder = MemoryRecordsBuilder(magic, 2_048)
            builder.append(TIMESTAMP, KEY, VALUE)
    assert last == builder.close()


def test_encode_loop_refuses_too_little_memory() -> None:
    with pytest.raises(ValueError, match="must hold one"):
        CORE.append_records(2, bytearray(100), TIMESTAMP, KEY, VALUE, 1)


@pytest.mark.parametrize(("nbytes", "slabs"), [(1, 1), (1_024, 1), (2_500, 3)])
def test_pool_loop_allocates_and_releases_every_time(nbytes: int, slabs: int) -> None:
    pool = BufferPool(slabs * 1_024, 1_024)
    before = pool.allocate(nbytes, 0)
    before.release()
    assert CORE.allocate_pairs(pool, 1_000, nbytes) > 0
    with pool.allocate(nbytes, 0) as after:
        assert after.generation == before.generation + 1_001
    assert_all_free(pool)


def test_growth_is_measured() -> None:
    # Pages of a mapping are new ones. malloc may serve 64 MiB from memory that other tests have freed.
    with mmap.mmap(-1, 64 << 20) as memory, Growth() as growth:
        for _ in range(64):
            memory.write(b"x" * (1 << 20))
    assert 48 < growth.mib < 80  # the process may give other memory back meanwhile
