"""BufferPool and Slab in one thread: which slabs the pool hands out; no slab is lost or has two owners.

The thirteen cases of Kafka's BufferPoolTest are here and in test_pool_waiting.py; a comment names Kafka's case.
"""

from __future__ import annotations

import copy
import ctypes
import mmap
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import numpy
import pytest

from kafkabuf import _pool
from kafkabuf._pool import BufferPool, Slab
from kafkabuf.errors import AllocationTooLargeError, BufferExhaustedError, ConfigError
from tests.memory.pool_support import SLAB, ScriptedClock, assert_all_free, make_pool, release_run

# ---- allocating and releasing ----------------------------------------------------------------------------------------


# Kafka: BufferPoolTest.testSimple
def test_released_slab_is_handed_out_again() -> None:
    pool = make_pool(64)
    first = pool.allocate(SLAB, 0)
    assert (first.extent, first.nbytes, len(first.buffer)) == (1, SLAB, SLAB)
    assert pool.free_bytes == 63 * SLAB
    first.buffer[:4] = b"mine"
    first.release()
    assert_all_free(pool)
    again = pool.allocate(1, 0)
    assert again.first == first.first
    assert bytes(again.buffer[:4]) == b"mine"
    large = pool.allocate(2 * SLAB + 1, 0)
    assert (large.extent, large.nbytes) == (3, 3 * SLAB)
    again.release()
    large.release()
    assert_all_free(pool)


# Kafka: testCantAllocateMoreMemoryThanWeHave
@pytest.mark.parametrize("nbytes", [4 * SLAB + 8, 4 * SLAB + 1, 1 << 40, 1 << 80])
def test_request_larger_than_the_pool_is_refused_at_once(nbytes: int) -> None:
    pool = make_pool(4, ScriptedClock(), loose=7)  # 4 * SLAB + 1 bytes exist, but not in whole slabs
    pool.allocate(4 * SLAB, None).release()
    with pytest.raises(AllocationTooLargeError, match=r"\d+ bytes .*whole pool of 4103.* raise buffer\.memory"):
        pool.allocate(nbytes, None)
    assert pool.waits_total == 0
    assert_all_free(pool)


def test_size_is_converted_once_before_it_is_checked() -> None:
    class Humble(int):
        """An int whose comparisons say that it is neither too small nor too large."""

        def __lt__(self, other: object) -> bool:
            return False

        __gt__ = __lt__

    class Index:
        __lt__ = __gt__ = Humble.__lt__

        def __index__(self) -> int:
            return 2**63 - 1

    pool = make_pool(4)
    for size in (Humble(2**63 - 1), Index()):
        with pytest.raises(AllocationTooLargeError, match=r"9223372036854775807 bytes .*whole pool"):
            pool.allocate(size, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nbytes must be at least 1, found -5"):
        pool.allocate(Humble(-5), 0)
    assert_all_free(pool)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_empty_request_is_refused(nbytes: int) -> None:
    pool = make_pool(4)
    with pytest.raises(ValueError, match=f"nbytes must be at least 1, found {nbytes}"):
        pool.allocate(nbytes, 0)
    assert_all_free(pool)


@pytest.mark.parametrize(("total", "slab_size"), [(10, 0), (10, -1), (0, 1), (-5, 1), (10, 11), (1 << 40, 1)])
def test_sizes_that_make_no_pool_are_refused(total: int, slab_size: int) -> None:
    with pytest.raises(ConfigError, match=r"buffer\.memory .*batch\.size"):
        BufferPool(total, slab_size)


def test_loose_tail_is_accounted_for_and_never_handed_out() -> None:
    pool = make_pool(3, loose=100)
    assert (pool.slab_count, pool.loose) == (3, 100)
    handles = [pool.allocate(SLAB, 0) for _ in range(3)]
    assert pool.accounting() == {
        "free": 0, "open": 3 * SLAB, "closed": 0, "in_flight": 0, "scratch": 0, "loose": 100
    }  # fmt: skip
    assert max(h.address for h in handles) - min(h.address for h in handles) == 2 * SLAB


def test_last_freed_slab_is_reused_first() -> None:
    pool = make_pool(8)
    a, b, c = (pool.allocate(SLAB, 0) for _ in range(3))
    assert (a.first, b.first, c.first) == (0, 1, 2)
    for handle in (a, c, b):
        handle.release()
    assert [pool.allocate(SLAB, 0).first for _ in range(1)] == [1]
    held = [pool.allocate(SLAB, 0) for _ in range(4)]
    assert [h.first for h in held] == [1, 2, 0, 3]


def test_run_is_of_adjacent_free_slabs() -> None:
    pool = make_pool(200)
    held = {handle.first: handle for handle in [pool.allocate(SLAB, 0) for _ in range(200)]}
    for slab in [3, 4, 60, 61, 62, 63, 64, 65, 66, 130, 131, 132]:
        held[slab].release()
    with pytest.raises(BufferExhaustedError):
        pool.allocate(8 * SLAB, 0)
    across_words = pool.allocate(7 * SLAB, 0)
    assert (across_words.first, across_words.extent) == (60, 7)
    others = [pool.allocate(slabs * SLAB, 0) for slabs in (3, 2)]
    assert [other.first for other in others] == [130, 3]
    pool.check()
    assert pool.free_bytes == 0


def resident_bytes(address: int, nbytes: int) -> int:
    page = mmap.PAGESIZE
    begin = address // page * page
    pages = (address + nbytes - begin + page - 1) // page
    seen = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(pages * page), seen) == 0
    return sum(flag & 1 for flag in seen) * page


def test_memory_that_is_not_needed_is_never_touched() -> None:
    # In a process of its own: malloc may hand out again what an earlier test has touched.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(check_that_little_is_touched).result(60)


def check_that_little_is_touched() -> None:
    slab_size = 4 << 20
    pool = BufferPool(64 * slab_size, slab_size)
    base = pool.allocate(slab_size, 0)
    start = base.address
    base.release()
    pool.check()
    huge_page = 2 << 20  # the pool asks for them, so a touched byte may bring 2 MiB
    assert resident_bytes(start, pool.total) <= huge_page
    for _ in range(100):
        with pool.allocate(slab_size, 0) as slab:
            ctypes.memset(slab.address, 1, slab.nbytes)
    assert slab_size <= resident_bytes(start, pool.total) <= slab_size + 2 * huge_page


# Kafka: testLargeAvailableMemory
def test_pool_may_be_larger_than_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    try:
        pool = BufferPool(20 * gib + 5, gib)
    except MemoryError:  # a machine that does not overcommit: reserve addresses only
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        monkeypatch.setattr(_pool, "_new_arena", lambda n: numpy.frombuffer(mmap.mmap(-1, n, flags), numpy.uint8))
        pool = BufferPool(20 * gib + 5, gib)
    assert (pool.slab_count, pool.loose, pool.free_bytes) == (20, 5, 20 * gib)
    low, large = pool.allocate(gib, 0), pool.allocate(3 * gib - 1, 0)
    assert (large.nbytes, large.address - low.address) == (3 * gib, gib)
    rest = pool.allocate(16 * gib, 0)
    assert rest.address - low.address == 4 * gib
    rest.buffer[16 * gib - 1] = 7
    assert ctypes.c_ubyte.from_address(low.address + 20 * gib - 1).value == 7
    assert pool.accounting()["open"] == 20 * gib
    for handle in (low, large, rest):
        handle.release()
    assert_all_free(pool)


# Kafka: outOfMemoryOnAllocation
def test_memory_error_leaves_the_pool_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(total: int) -> None:
        raise MemoryError(f"no {total} bytes")

    with monkeypatch.context() as patch:
        patch.setattr(_pool, "_new_arena", refuse)
        with pytest.raises(MemoryError, match="no 4096 bytes"):
            make_pool(4)
    # Kafka allocates a large buffer on request, which can fail. This pool has its memory from the start; the only later
    # allocation is that of a waiting thread's lock.
    pool = make_pool(2)
    held = pool.allocate(1, 0)
    with monkeypatch.context() as patch:
        patch.setattr(_pool, "new_waiter", lambda: refuse(0))
        with pytest.raises(MemoryError):
            pool.allocate(2 * SLAB, None)
    held.release()
    assert_all_free(pool)


# ---- handles ---------------------------------------------------------------------------------------------------------


def test_second_release_is_refused() -> None:
    pool = make_pool(2)
    handle = pool.allocate(SLAB, 0)
    handle.release()
    other = pool.allocate(SLAB, 0)
    assert other.first == handle.first
    with pytest.raises(ValueError, match="does not hold slab 0 any more: the slab was released"):
        handle.release()
    with pytest.raises(ValueError, match="released"):
        memoryview(handle)
    with pytest.raises(ValueError, match="released"):
        _ = handle.address
    del handle
    assert pool.free_bytes == SLAB
    other.release()
    assert_all_free(pool)


def test_stale_handle_can_neither_read_nor_release() -> None:
    pool = make_pool(2)
    stale = pool.allocate(SLAB, 0)
    release_run(pool, stale.first, 1)  # as a batch that expired would
    other = pool.allocate(SLAB, 0)
    assert (other.first, other.generation) == (stale.first, stale.generation + 1)
    for use in (memoryview, lambda handle: handle.address, lambda handle: handle.state):
        with pytest.raises(
            ValueError, match="but not by this handle: the slab's generation is 1, and the handle's is 0"
        ):
            use(stale)
    with pytest.raises(ValueError, match="not by this handle"):
        stale.state = "closed"
    with pytest.raises(ValueError, match="not by this handle"):
        stale.release()
    assert pool.accounting()["open"] == SLAB
    other.release()
    assert_all_free(pool)


def test_collected_stale_handle_releases_nothing() -> None:
    pool = make_pool(1)
    stale = pool.allocate(SLAB, 0)
    release_run(pool, 0, 1)
    other = pool.allocate(SLAB, 0)
    del stale
    assert pool.free_bytes == 0
    other.release()
    assert_all_free(pool)


@pytest.mark.parametrize(("first", "count"), [(1, 1), (0, 2), (-1, 1), (4, 1), (0, 0), (3, 2), (0, 1 << 62), (0, -1)])
def test_release_of_slabs_not_in_use_is_refused(first: int, count: int) -> None:
    pool = make_pool(4)
    held = pool.allocate(SLAB, 0)
    with pytest.raises(ValueError, match="not all in use"):
        release_run(pool, first, count)
    assert pool.refused_total == 1
    pool.check()
    assert pool.free_bytes == 3 * SLAB
    held.release()
    assert_all_free(pool)


def test_slab_is_not_released_while_a_memoryview_reads_it() -> None:
    pool = make_pool(1)
    handle = pool.allocate(SLAB, 0)
    view = handle.buffer
    part = view[10:20]
    view.release()
    with pytest.raises(BufferError, match="slab 0 has 1 memoryviews"):
        handle.release()
    assert pool.free_bytes == 0
    part.release()
    handle.release()
    assert_all_free(pool)


def test_memoryview_keeps_the_memory_of_its_collected_handle() -> None:
    pool = make_pool(1)
    view = pool.allocate(SLAB, 0).buffer
    assert (view.format, view.itemsize, view.shape, view.readonly) == ("B", 1, (SLAB,), False)
    view[:] = bytes(range(256)) * 4
    assert bytes(view[255:257]) == b"\xff\x00"
    assert pool.free_bytes == 0
    del view
    assert_all_free(pool)


def test_with_block_releases_once() -> None:
    pool = make_pool(1)
    with pool.allocate(1, 0) as handle:
        handle.release()
    with pytest.raises(RuntimeError), pool.allocate(1, 0):
        raise RuntimeError
    assert_all_free(pool)


def test_handle_cannot_be_copied_or_made_without_memory() -> None:
    pool = make_pool(1)
    handle = pool.allocate(1, 0)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(handle)
    with pytest.raises(ValueError, match="released"):
        Slab(pool).release()
    with pytest.raises(TypeError):
        Slab(None)  # type: ignore[arg-type]


def test_state_of_a_handle_moves_its_bytes_in_the_accounting() -> None:
    pool = make_pool(6)
    handles = dict(
        zip(["open", "closed", "in_flight", "scratch"], (pool.allocate(SLAB, 0) for _ in range(4)), strict=True)
    )
    run = pool.allocate(2 * SLAB, 0)
    run.state = "scratch"
    for state, handle in handles.items():
        handle.state = state
        assert handle.state == state
    assert pool.accounting() == {
        "free": 0, "open": SLAB, "closed": SLAB, "in_flight": SLAB, "scratch": 3 * SLAB, "loose": 0
    }  # fmt: skip
    pool.check()


@pytest.mark.parametrize("name", ["free", "loose", "flying"])
def test_handle_refuses_an_unknown_state(name: str) -> None:
    pool = make_pool(1)
    handle = pool.allocate(1, 0)
    with pytest.raises(ValueError, match=f"'{name}'.*open, closed, in_flight, scratch"):
        handle.state = name
    assert handle.state == "open"


def test_released_memory_is_poisoned() -> None:
    pool = BufferPool(3 * SLAB, SLAB, poison=True)
    keep, run = pool.allocate(SLAB, 0), pool.allocate(2 * SLAB, 0)
    keep.buffer[:] = b"k" * SLAB
    run.buffer[:] = b"r" * 2 * SLAB
    run.release()
    again = pool.allocate(2 * SLAB, 0)
    assert bytes(again.buffer) == b"\xdd" * 2 * SLAB
    assert bytes(keep.buffer) == b"k" * SLAB
