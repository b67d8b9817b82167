"""BufferPool with waiting threads: they are served in order, and a thread that gives up leaves no trace."""

from __future__ import annotations

import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from kafkabuf import _pool
from kafkabuf._pool import BufferPool, Slab
from kafkabuf.clock import Lockable, ManualClock, SystemClock
from kafkabuf.errors import BufferExhaustedError, ClosedError
from kafkabuf.process.threads import new_waiter
from tests.hostile.forked import in_a_child
from tests.memory.pool_support import (
    PATIENCE,
    SLAB,
    ArrivalClock,
    ScriptedClock,
    allocate_pairs,
    assert_all_free,
    in_thread,
    make_pool,
    until,
)

# ---- waiting ---------------------------------------------------------------------------------------------------------


# Kafka: testDelayedAllocation
def test_released_memory_goes_to_the_waiter() -> None:
    clock = ArrivalClock()
    pool = make_pool(5, clock)
    held = pool.allocate(5 * SLAB, 0)
    waiter = in_thread(lambda: pool.allocate(5 * SLAB, None))
    clock.await_arrival()
    assert pool.waiting == 1
    assert not waiter.done()
    held.release()
    waiter.result(PATIENCE).release()
    assert pool.wait_time_total > 0
    assert_all_free(pool)


# Kafka: testBufferExhaustedExceptionIsThrown
def test_error_of_an_exhausted_pool_names_sizes_time_and_settings() -> None:
    pool = make_pool(4)
    held = pool.allocate(2 * SLAB, 0)
    with pytest.raises(BufferExhaustedError) as caught:
        pool.allocate(2 * SLAB + 1, 60)
    message = str(caught.value)
    for part in (
        "3072 bytes",
        "3 adjacent slabs",
        "within 60000 ms",
        "2048 of 4096 bytes",
        "buffer.memory",
        "max.block.ms",
    ):
        assert part in message, message
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.retriable
    held.release()
    assert_all_free(pool)


# Kafka: testBlockTimeout
def test_memory_that_trickles_in_does_not_prolong_the_wait() -> None:
    pieces: list[Slab] = []
    clock = ScriptedClock(*((seconds, lambda: pieces.pop().release()) for seconds in (1.0, 1.9, 5.0)))
    pool = make_pool(10, clock)
    pieces += [pool.allocate(SLAB, 0) for _ in range(3)]
    start = clock.monotonic()
    with pytest.raises(BufferExhaustedError):
        pool.allocate(10 * SLAB, 2.0)
    assert clock.monotonic() - start == pytest.approx(2.0)
    assert pool.free_bytes == 9 * SLAB
    pieces.pop().release()
    assert_all_free(pool)


# Kafka: testCleanupMemoryAvailabilityWaiterOnBlockTimeout
def test_timed_out_waiter_leaves_the_queue_without_memory() -> None:
    pool = make_pool(2)
    held = pool.allocate(SLAB, 0)
    with pytest.raises(BufferExhaustedError):
        pool.allocate(2 * SLAB, 0.01)
    assert pool.waiting == 0
    assert pool.free_bytes == SLAB
    pool.allocate(SLAB, 0).release()  # refused if the place in the queue were still taken
    held.release()
    assert_all_free(pool)


def test_time_out_of_a_waiter_serves_the_waiters_behind_it() -> None:
    clock = ManualClock()
    pool = make_pool(4, clock)
    held = [pool.allocate(SLAB, 0) for _ in range(3)]
    big = in_thread(lambda: pool.allocate(4 * SLAB, 10.0))
    until(lambda: pool.waiting == 1)
    small = in_thread(lambda: pool.allocate(SLAB, None))
    until(lambda: pool.waiting == 2)
    clock.advance(10.0)
    with pytest.raises(BufferExhaustedError):
        big.result(PATIENCE)
    small.result(PATIENCE).release()  # nothing was released meanwhile: only its turn was missing
    for handle in held:
        handle.release()
    assert_all_free(pool)


def test_memory_handed_over_at_the_time_out_is_kept() -> None:
    held: list[Slab] = []

    class LateClock(ManualClock):
        def wait(self, lock: Lockable, timeout: float | None) -> bool:
            held.pop().release()
            return False  # timed out before it saw that the lock was released

    pool = make_pool(1, LateClock())
    held.append(pool.allocate(SLAB, 0))
    pool.allocate(SLAB, 1.0).release()
    assert_all_free(pool)


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """A function for another thread, which raises one KeyboardInterrupt in the main thread, as Ctrl-C does."""
    main, handled = threading.main_thread().ident, threading.Event()
    assert main is not None

    def handle(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        handled.set()
        raise KeyboardInterrupt

    def interrupt() -> None:
        # Repeatedly: a signal that comes just before a thread blocks does not wake the thread.
        while not handled.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            handled.wait(0.05)

    usual = signal.signal(signal.SIGINT, handle)
    yield interrupt
    signal.signal(signal.SIGINT, usual)


# Kafka: testCleanupMemoryAvailabilityWaiterOnInterruption
def test_interrupted_waiter_leaves_the_queue_without_memory(interrupt: Callable[[], None]) -> None:
    clock = ArrivalClock()
    pool = make_pool(2, clock)
    held = pool.allocate(SLAB, 0)

    def interrupt_main() -> Slab:
        clock.await_arrival()
        second = in_thread(lambda: pool.allocate(SLAB, None))
        clock.await_arrival()
        assert pool.waiting == 2
        interrupt()
        return second.result(PATIENCE)  # the main thread was in its way only

    other = in_thread(interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(2 * SLAB, PATIENCE)
    other.result(PATIENCE).release()
    held.release()
    assert_all_free(pool)


def test_interrupted_waiter_gives_back_memory_handed_to_it() -> None:
    held: list[Slab] = []

    class InterruptedClock(ManualClock):
        def wait(self, lock: Lockable, timeout: float | None) -> bool:
            held.pop().release()
            raise KeyboardInterrupt

    pool = make_pool(2, InterruptedClock())
    held.append(pool.allocate(SLAB, 0))
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(2 * SLAB, None)
    assert_all_free(pool)


# Kafka: testCleanupMemoryAvailabilityOnMetricsException
@pytest.mark.parametrize("served", [True, False])
def test_failing_metric_loses_no_memory(served: bool) -> None:
    class SensorError(Exception):
        pass

    def record(seconds: float) -> None:
        raise SensorError(seconds)

    held: list[Slab] = []
    clock = ScriptedClock(*[(0.5, lambda: held.pop().release())][: int(served)])
    pool = BufferPool(2 * SLAB, SLAB, clock=clock, on_wait=record)
    held.append(pool.allocate(SLAB, 0))
    with pytest.raises(SensorError, match=r"0\.5" if served else r"1\.0"):
        pool.allocate(2 * SLAB, 1.0)
    for handle in held:
        handle.release()
    assert_all_free(pool)


def test_sender_is_woken_once_it_can_see_the_waiter() -> None:
    seen: list[int] = []
    held: list[Slab] = []

    def sender() -> None:
        seen.append(pool.waiting)
        held.pop().release()

    pool = make_pool(1)
    pool.on_exhausted = sender
    held.append(pool.allocate(1, 0))
    pool.allocate(1, 1.0).release()  # served, because the Sender saw the waiting thread when it was woken
    assert seen == [1]
    assert_all_free(pool)


def test_failing_wake_up_of_the_sender_loses_no_memory() -> None:
    def broken() -> None:
        raise OSError("no wake-up")

    pool = BufferPool(2 * SLAB, SLAB, clock=ManualClock(auto_advance=True), on_exhausted=broken)
    with pool.allocate(1, 0), pytest.raises(OSError, match="no wake-up"):
        pool.allocate(2 * SLAB, 1.0)
    assert_all_free(pool)


def test_wait_time_is_recorded() -> None:
    waits: list[float] = []
    pool = BufferPool(SLAB, SLAB, clock=ManualClock(auto_advance=True), on_wait=waits.append)
    with pool.allocate(1, 0):
        assert (waits, pool.waits_total) == ([], 0)
        for timeout in (2.0, 0.5):
            with pytest.raises(BufferExhaustedError):
                pool.allocate(1, timeout)
    assert waits == pytest.approx([2.0, 0.5])
    assert pool.waits_total == 2
    assert pool.wait_time_total == pytest.approx(2.5)


def test_wait_does_not_leak_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[object]] = []

    def record() -> object:
        lock = new_waiter()
        made.append(weakref.ref(lock))
        return lock

    held: list[Slab] = []
    pool = make_pool(1, ScriptedClock((0.5, lambda: held.pop().release()), (0.5, lambda: pool.close())))
    held.append(pool.allocate(1, 0))
    with monkeypatch.context() as patch:
        patch.setattr(_pool, "new_waiter", record)
        served = pool.allocate(1, 0.7)
        with pytest.raises(BufferExhaustedError):
            pool.allocate(1, 0.2)
        with pytest.raises(ClosedError):
            pool.allocate(1, 1.0)
    served.release()
    assert [lock() for lock in made] == [None] * 3


# ---- fairness --------------------------------------------------------------------------------------------------------


def test_waiters_are_served_in_order() -> None:
    clock = ArrivalClock()
    pool = make_pool(1, clock)
    held = pool.allocate(SLAB, 0)
    waiters = []
    for _ in range(5):
        waiters.append(in_thread(lambda: pool.allocate(SLAB, None)))
        clock.await_arrival()
    while waiters:
        held.release()
        held = waiters.pop(0).result(PATIENCE)
        assert pool.waiting == len(waiters)
        assert not any(later.done() for later in waiters)
    held.release()
    assert_all_free(pool)


def test_small_requests_do_not_overtake_a_large_request() -> None:
    clock = ArrivalClock()
    pool = make_pool(4, clock)
    held = [pool.allocate(SLAB, 0) for _ in range(4)]
    large = in_thread(lambda: pool.allocate(4 * SLAB, None))
    clock.await_arrival()
    small = in_thread(lambda: pool.allocate(SLAB, None))
    clock.await_arrival()
    for freed, handle in enumerate(held[:3], start=1):
        handle.release()
        assert pool.free_bytes == freed * SLAB
        with pytest.raises(BufferExhaustedError):  # free, but promised
            pool.allocate(SLAB, 0)
    assert pool.waiting == 2
    assert not small.done()
    held[3].release()
    whole = large.result(PATIENCE)
    assert not small.done()
    whole.release()
    small.result(PATIENCE).release()
    assert_all_free(pool)


def test_one_release_serves_all_waiters_that_it_has_memory_for() -> None:
    second_served = threading.Event()

    class StuckClock(ArrivalClock):
        def wait(self, lock: Lockable, timeout: float | None) -> bool:
            served = super().wait(lock, timeout)
            if timeout == PATIENCE:  # the first waiter, which does not come to run before the second has its memory
                assert second_served.wait(PATIENCE)
            return served

        def monotonic(self) -> float:
            return 0.0

    clock = StuckClock()
    pool = make_pool(3, clock)
    held = pool.allocate(3 * SLAB, 0)
    first = in_thread(lambda: pool.allocate(SLAB, PATIENCE))
    clock.await_arrival()
    second = in_thread(lambda: pool.allocate(2 * SLAB, None))
    clock.await_arrival()
    third = in_thread(lambda: pool.allocate(SLAB, None))
    clock.await_arrival()
    held.release()
    handle = second.result(PATIENCE / 2)
    second_served.set()
    assert pool.waiting == 1
    handle.release()
    for waiter in (first, third):
        waiter.result(PATIENCE).release()
    assert_all_free(pool)


# ---- closing ---------------------------------------------------------------------------------------------------------


# Kafka: testCloseAllocations
def test_closed_pool_hands_out_no_memory() -> None:
    pool = make_pool(2)
    held = pool.allocate(SLAB, 0)
    pool.close()
    for timeout in (0, 10.0):
        with pytest.raises(ClosedError, match="pool was closed"):
            pool.allocate(SLAB, timeout)
    held.state = "in_flight"
    held.release()
    pool.close()
    assert_all_free(pool)


# Kafka: testCloseNotifyWaiters
def test_close_wakes_waiting_threads() -> None:
    clock = ArrivalClock()
    pool = make_pool(1, clock)
    held = pool.allocate(SLAB, 0)
    waiters = [in_thread(lambda: pool.allocate(SLAB, None)) for _ in range(3)]
    for _ in waiters:
        clock.await_arrival()
    pool.close()
    for waiter in waiters:
        with pytest.raises(ClosedError):
            waiter.result(PATIENCE)
    assert pool.waiting == 0
    held.release()
    assert_all_free(pool)


def test_waiter_can_leave_the_queue_of_a_disowned_pool() -> None:
    pool = make_pool(1, ScriptedClock())
    pool.allocate(1, 0).detach()
    pool.on_exhausted = pool.disown
    with pytest.raises(BufferExhaustedError):
        pool.allocate(1, 0.1)
    assert pool.waiting == 0


# ---- real threads ----------------------------------------------------------------------------------------------------


# Kafka: BufferPoolTest.testStressfulSituation
def test_threads_neither_lose_nor_share_memory() -> None:
    clock = ArrivalClock()
    pool = make_pool(7, clock)
    everything = pool.allocate(7 * SLAB, 0)
    done = threading.Event()

    def work(mark: int) -> None:
        rng = random.Random(mark)
        for _ in range(400):
            slabs = 1 if rng.random() < 0.5 else rng.randint(1, 7)
            with pool.allocate(slabs * SLAB, PATIENCE) as slab:
                view = slab.buffer
                view[:] = bytes([mark]) * slab.nbytes
                slab.state = rng.choice(["open", "closed", "in_flight", "scratch"])
                if rng.random() < 0.3:
                    pool.check()
                time.sleep(0)  # lets go of the GIL, so that the others come while this one holds memory
                assert bytes(view) == bytes([mark]) * slab.nbytes, "two owners"
                view.release()

    def churn() -> None:
        while not done.is_set():
            allocate_pairs(pool, 2000)

    nogil = in_thread(churn)
    workers = [in_thread(lambda mark=mark: work(mark)) for mark in range(1, 6)]  # type: ignore[misc]
    try:
        for _ in workers:
            clock.await_arrival()
        everything.release()
        for worker in workers:
            worker.result(60)
    finally:
        done.set()
    nogil.result(PATIENCE)
    assert pool.waits_total > len(workers)
    assert pool.refused_total == 0
    assert_all_free(pool)


def test_release_without_the_gil_wakes_the_waiter() -> None:
    pool = make_pool(1, SystemClock())
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            allocate_pairs(pool, 1000)

    other = in_thread(churn)
    try:
        while pool.waits_total < 5:
            pool.allocate(1, PATIENCE).release()
    finally:
        done.set()
    other.result(PATIENCE)
    assert_all_free(pool)


# ---- a fork ----------------------------------------------------------------------------------------------------------


def test_thread_that_waits_in_the_parent_gets_no_memory_of_the_child() -> None:
    clock = ArrivalClock()
    pool = make_pool(2, clock)
    held = pool.allocate(SLAB, 0)
    waiter = in_thread(lambda: pool.allocate(2 * SLAB, None))
    clock.await_arrival()

    @in_a_child
    def alone() -> None:
        pool.allocate(SLAB, 0).release()
        held.release()
        assert pool.waiting == 0
        assert_all_free(pool)

    alone()
    assert pool.waiting == 1
    held.release()
    waiter.result(PATIENCE).release()
    assert_all_free(pool)
