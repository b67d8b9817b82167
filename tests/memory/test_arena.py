"""BufferPool.arena: the memory of a pool is one NumPy array, which shows everything and changes nothing."""

from __future__ import annotations

import copy
import gc
import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kafkabuf import _pool
from kafkabuf._pool import BufferPool
from kafkabuf.errors import BufferExhaustedError
from rigs.producer import assert_whole, quick_rig
from tests.hostile.forked import in_a_child
from tests.memory.pool_support import SLAB, assert_all_free, make_pool


def address_of(array: npt.NDArray[np.uint8]) -> int:
    return array.ctypes.data


def test_arena_is_one_array_of_all_bytes() -> None:
    pool = make_pool(4, loose=7)
    arena = pool.arena
    assert type(arena) is np.ndarray
    assert (arena.dtype, arena.shape, arena.strides) == (np.dtype(np.uint8), (4 * SLAB + 7,), (1,))
    held = [pool.allocate(SLAB, 0) for _ in range(4)]
    assert pool.arena is arena
    pool.close()
    assert pool.arena is arena
    for handle in held:
        handle.release()
    assert pool.arena is arena


def test_pool_makes_its_array_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[npt.NDArray[np.uint8]] = []

    def counted(total: int) -> npt.NDArray[np.uint8]:
        made.append(np.empty(total, np.uint8))
        return made[-1]

    monkeypatch.setattr(_pool, "_new_arena", counted)
    pool = make_pool(4)
    for _ in range(10):
        with pool.allocate(3 * SLAB, 0):
            assert np.shares_memory(pool.arena, made[0])
    assert len(made) == 1
    assert address_of(pool.arena) == address_of(made[0])


@pytest.mark.parametrize("nbytes", [1, SLAB // 4, SLAB, 3 * SLAB])
def test_every_run_lies_in_the_arena(nbytes: int) -> None:
    pool = make_pool(8)
    handles = []
    while True:
        try:
            handles.append(pool.allocate(nbytes, 0))
        except BufferExhaustedError:
            break
    for i, handle in enumerate(handles):
        handle.buffer[:] = bytes([i % 251]) * handle.nbytes
    for i, handle in enumerate(handles):
        place = handle.address - address_of(pool.arena)
        assert 0 <= place <= pool.total - handle.nbytes
        assert (pool.arena[place : place + handle.nbytes] == i % 251).all()
        handle.release()
    assert_all_free(pool)


def test_slab_lies_at_its_number_times_its_size() -> None:
    pool = make_pool(8)
    handles = [pool.allocate(SLAB, 0) for _ in range(8)]
    for handle in handles:
        assert handle.address == address_of(pool.arena) + handle.first * SLAB


def test_record_that_waits_for_its_request_is_seen_in_the_arena() -> None:
    rig = quick_rig()
    future = rig.send(b"a value that stands in no other place")
    found = rig.pool.arena.tobytes().find(b"a value that stands in no other place")
    assert found >= 0
    rig.ack_all()
    future.result(0)
    assert_whole(rig.pool)


def test_nobody_writes_through_the_arena() -> None:
    pool = make_pool(4)
    arena = pool.arena
    views: tuple[Any, ...] = (
        arena,
        arena[:5],
        arena.view(),
        arena.view(np.uint32),
        arena.reshape(4, -1),
        np.asarray(arena),
    )
    for array in views:
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        assert memoryview(array).readonly
    owner: Any = arena.base
    while owner is not None:  # no owner of the memory that NumPy names is writable either
        assert memoryview(owner).readonly
        with pytest.raises(ValueError, match="WRITEABLE"):
            np.frombuffer(owner, np.uint8).setflags(write=True)
        owner = getattr(owner, "base", None)
    with pytest.raises(AttributeError):
        pool.arena = arena  # type: ignore[misc]
    with pytest.raises(ValueError, match="resize"):
        arena.resize(1)


def test_owner_of_the_arena_is_made_by_a_pool_alone() -> None:
    owner = make_pool(4).arena.base
    assert owner is not None
    with pytest.raises(TypeError, match="only kafkabuf itself"):
        type(owner)(np.zeros(4, np.uint8))
    with pytest.raises(TypeError):
        copy.copy(owner)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[npt.NDArray[np.uint8]]]:
    """The arrays that pools make for their arenas."""
    arrays: list[weakref.ref[npt.NDArray[np.uint8]]] = []

    def watched(total: int) -> npt.NDArray[np.uint8]:
        memory = np.empty(total, np.uint8)
        arrays.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(_pool, "_new_arena", watched)
    return arrays


def test_memory_outlives_an_array_that_lets_go_of_it(made: list[weakref.ref[npt.NDArray[np.uint8]]]) -> None:
    pool = make_pool(4)
    arena: Any = pool.arena
    arena.__setstate__(np.zeros(1, np.uint8).__reduce__()[2])
    del arena
    gc.collect()
    assert made[0]() is not None
    handle = pool.allocate(SLAB, 0)
    handle.buffer[:] = bytes(SLAB)
    handle.release()
    assert_all_free(pool)
    del pool, handle
    gc.collect()
    assert made[0]() is None


def test_arena_outlives_its_pool() -> None:
    pool = make_pool(4)
    handle = pool.allocate(SLAB, 0)
    handle.buffer[:5] = b"alive"
    part = pool.arena[handle.first * SLAB :][:5]
    pool.close()
    handle.release()
    gone = weakref.ref(pool)
    del pool, handle
    gc.collect()
    assert gone() is None
    make_pool(4).allocate(SLAB, 0).buffer[:5] = b"other"
    assert part.tobytes() == b"alive"


def test_array_does_not_keep_the_pool() -> None:
    pool = make_pool(4)
    arena, gone = pool.arena, weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    assert arena.size == 4 * SLAB


def test_memory_goes_with_the_last_array(made: list[weakref.ref[npt.NDArray[np.uint8]]]) -> None:
    pool = make_pool(4)
    part = pool.arena[:5]
    del pool
    gc.collect()
    assert made[0]() is not None
    del part
    assert made[0]() is None


def test_pool_in_a_cycle_with_its_array_is_collected() -> None:
    pool = make_pool(4)
    gone = weakref.ref(pool)
    holder = [pool, pool.arena]
    pool.on_wait = holder.append
    handle = pool.allocate(SLAB, 0)
    handle.buffer[:1] = b"x"
    del pool, holder, handle
    gc.collect()
    assert gone() is None


def test_released_slab_shows_the_poison() -> None:
    pool = BufferPool(4 * SLAB, SLAB, poison=True)
    with pool.allocate(SLAB, 0) as handle:
        handle.buffer[:] = b"s" * SLAB
        first = handle.first
    assert (pool.arena[first * SLAB :][:SLAB] == 0xDD).all()


def test_forked_child_sees_its_own_copy_of_the_arena() -> None:
    pool = make_pool(4)
    handle = pool.allocate(SLAB, 0)
    handle.buffer[:6] = b"before"
    arena = pool.arena
    ready, go = os.pipe()

    @in_a_child
    def child() -> None:
        handle.buffer[:6] = b"child!"
        assert arena[:6].tobytes() == b"child!"
        pool.disown()
        assert pool.arena is arena
        assert arena[:6].tobytes() == b"child!"
        os.write(go, b"x")

    child()
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    os.close(go)
    assert handle.first == 0
    assert arena[:6].tobytes() == b"before"
    handle.release()
    assert_all_free(pool)
