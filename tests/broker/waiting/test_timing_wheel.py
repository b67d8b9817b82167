"""The timing wheel against a heap, on manual clocks; its drivers, a thread and the event loop."""

from __future__ import annotations

import asyncio
import heapq
import queue
import random
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from kafkabuf.broker import ExpirationReaper, Timeout, TimingWheel
from kafkabuf.broker.waiting import timer as timer_module
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import Clock, Lockable, ManualClock, SystemClock
from tests.hostile.forked import in_a_child

PATIENCE = 10.0


class Millis(Clock):
    """A clock set by hand, in milliseconds. It lacks ManualClock's lock, because the test makes a million steps."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def monotonic(self) -> float:
        return self.now / 1000


class Model:
    """A model of the wheel: a heap and a dict."""

    def __init__(self, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self.heap: list[tuple[int, int]] = []
        self.waiting: dict[int, int] = {}

    def add(self, name: int, due_ms: int) -> None:
        tick = -(-due_ms // self.tick_ms)
        heapq.heappush(self.heap, (tick, name))
        self.waiting[name] = tick

    def advance(self, now_ms: int) -> list[int]:
        ran = []
        while self.heap and self.heap[0][0] * self.tick_ms <= now_ms:
            _, name = heapq.heappop(self.heap)
            if self.waiting.pop(name, None) is not None:
                ran.append(name)
        return ran

    def first_ms(self) -> int | None:
        while self.heap and self.heap[0][1] not in self.waiting:
            heapq.heappop(self.heap)
        return self.heap[0][0] * self.tick_ms if self.heap else None


@pytest.mark.parametrize(
    ("tick_ms", "wheel_size", "farthest_ms", "steps"),
    [(1, 20, 500, 400_000), (1, 20, 100_000_000, 200_000), (1, 2, 5_000, 200_000), (7, 3, 10_000, 200_000)],
)
def test_wheel_runs_the_same_as_a_heap(tick_ms: int, wheel_size: int, farthest_ms: int, steps: int) -> None:
    """In a million steps the wheel runs the same tasks in the same order, and next_expiry is never too late."""
    clock, model, rng, ran = Millis(), Model(tick_ms), random.Random(wheel_size * farthest_ms), list[int]()
    wheel = TimingWheel(clock, tick_ms, wheel_size)
    timeouts: dict[int, Timeout] = {}
    chance, spread, expected = rng.random, farthest_ms.bit_length(), 0
    for step in range(steps):
        choice = chance()
        if choice < 0.55:
            delay = int(chance() * (1 << int(chance() * spread)))
            timeouts[step] = wheel.after(delay / 1000, partial(ran.append, step))
            model.add(step, clock.now + delay)
        elif choice < 0.75 and timeouts:
            name = rng.randrange(step)
            if (timeout := timeouts.pop(name, None)) is not None:
                timeout.cancel()
                model.waiting.pop(name, None)
        else:
            clock.now += int(chance() * chance() * (1 << int(chance() * spread)))
            due = model.advance(clock.now)
            expected += len(due)
            assert wheel.advance() == len(due)
            assert ran == due
            ran.clear()
            first, expiry = model.first_ms(), wheel.next_expiry()
            assert (expiry is None) == (first is None)
            assert expiry is None or clock.now < round(expiry * 1000) <= (first or 0)
            assert len(wheel) == len(model.waiting)
    assert expected > steps / 10


# Kafka: TimerTest.testAlreadyExpiredTask
def test_task_that_is_already_due_runs_in_the_next_advance() -> None:
    wheel, ran = TimingWheel(ManualClock(), wheel_size=3), list[int]()
    for late in range(-5, 1):
        wheel.after(late / 1000, partial(ran.append, late))
    assert not ran
    assert wheel.advance() == 6
    assert ran == [-5, -4, -3, -2, -1, 0]


# Kafka: TimerTest.testTaskExpiration
def test_task_runs_on_time_after_moving_down_the_wheels() -> None:
    clock, ran = ManualClock(), list[tuple[int, int]]()
    wheel = TimingWheel(clock, wheel_size=3)

    def run(delay: int) -> None:
        ran.append((delay, round(clock.monotonic() * 1000) - 1_000_000))

    delays = [*range(5), *range(10, 100), *range(10, 100), *range(100, 500)]
    random.Random(1).shuffle(delays)
    for delay in delays:
        wheel.after(delay / 1000, partial(run, delay))
    for _ in range(501):
        wheel.advance()
        clock.advance(0.001)
    assert [delay for delay, _ in ran] == sorted(delays)
    assert all(delay == at for delay, at in ran)
    assert len(wheel) == 0


# Kafka: TimerTaskListTest.testAll
def test_cancelled_task_does_not_count() -> None:
    wheel = TimingWheel(ManualClock(), wheel_size=3)
    timeouts = [wheel.after(delay, lambda: None) for delay in (0.001, 0.001, 0.05, 7.0)]
    for left, timeout in zip((3, 2, 1, 0), timeouts, strict=True):
        timeout.cancel()
        timeout.cancel()
        assert len(wheel) == left
    assert wheel.next_expiry() is None  # although the buckets are still in the queue


# Kafka: TimerTaskListTest.testGetDelay
def test_next_expiry_is_never_after_the_deadline() -> None:
    clock = ManualClock()
    wheel = TimingWheel(clock)
    wheel.after(10.0, lambda: None)
    woken = 0
    while (due := wheel.next_expiry()) is not None:
        assert clock.monotonic() < due <= 1_010.0
        clock.advance(due - clock.monotonic())
        ran = wheel.advance()
        woken += 1
    assert (ran, clock.monotonic()) == (1, 1_010.0)
    assert woken <= 4  # at most once for each wheel


def test_rounding_of_doubles_makes_no_task_late() -> None:
    clock, ran = ManualClock(), list[int]()
    wheel = TimingWheel(clock)
    for tenths in range(1, 1000):
        wheel.after(tenths / 10, partial(ran.append, tenths))
    for tenths in range(1, 1000):
        clock.advance(0.1)
        assert wheel.advance() == 1
        assert ran[-1] == tenths


def test_task_cancelled_by_the_task_before_it_does_not_run() -> None:
    clock, ran = ManualClock(), list[str]()
    wheel = TimingWheel(clock)

    def first() -> None:
        second.cancel()
        wheel.after(0, partial(ran.append, "third"))
        ran.append("first")

    wheel.after(0.3, first)
    second = wheel.after(0.3, partial(ran.append, "second"))
    clock.advance(0.3)
    assert wheel.advance() == 2
    assert ran == ["first", "third"]


def test_error_of_one_task_leaves_the_others_due() -> None:
    clock, ran = ManualClock(), list[int]()
    wheel = TimingWheel(clock)
    for delay in range(4):
        wheel.after(0.1, partial(divide, 6, delay - 1, ran))
    clock.advance(0.1)
    with pytest.raises(ZeroDivisionError):
        wheel.advance()
    assert wheel.next_expiry() == pytest.approx(1_000.1)
    assert wheel.advance() == 2
    assert ran == [-6, 6, 3]


def divide(dividend: int, divisor: int, into: list[int]) -> None:
    into.append(dividend // divisor)


def test_task_added_after_a_long_idle_time_is_due_in_time() -> None:
    clock = ManualClock()
    wheel = TimingWheel(clock)
    for _ in range(3):
        wheel.after(0.005, lambda: None)
        assert wheel.next_expiry() == pytest.approx(clock.monotonic() + 0.005)  # not the start of a bucket far above
        clock.advance(0.005)
        assert wheel.advance() == 1
        clock.advance(36_000.0)


def test_task_of_a_thread_that_was_held_up_is_due_at_once() -> None:
    """The thread reads the clock. Before it goes on, other threads turn the wheel past that time."""

    class HeldUp(Millis):
        hold_up: Callable[[], None] | None = None

        def monotonic(self) -> float:
            read = super().monotonic()
            others, self.hold_up = self.hold_up, None
            if others is not None:
                others()
            return read

    def others() -> None:
        clock.now += 12
        wheel.advance()
        wheel.after(0.008, partial(ran.append, "other"))  # in the slot of the time that the first thread read

    clock, ran = HeldUp(), list[str]()
    wheel = TimingWheel(clock, wheel_size=20)
    clock.hold_up = others
    wheel.after(0.0, partial(ran.append, "held up"))
    assert wheel.advance() == 1
    assert ran == ["held up"]


def test_driver_is_woken_only_for_an_earlier_task() -> None:
    wheel, woken = TimingWheel(ManualClock()), list[float | None]()
    wheel.on_earlier = lambda: woken.append(wheel.next_expiry())
    for delay in (0.015, 0.016, 0.012, 0.012, 0.5, 0.0):
        wheel.after(delay, lambda: None)
    assert woken == pytest.approx([1_000.015, 1_000.012, 1_000.0])


def test_call_is_released_once_it_was_made_or_cancelled() -> None:
    clock = ManualClock()
    wheel = TimingWheel(clock)

    timeouts, witnesses = tasks(wheel)
    timeouts[0].cancel()
    assert witnesses[0]() is None
    clock.advance(1.0)
    wheel.advance()
    assert witnesses[1]() is None
    timeouts, witnesses = tasks(wheel)
    wheel.close()
    timeouts.clear()
    assert not any(witness() for witness in witnesses)
    timeouts, witnesses = tasks(wheel)
    timeouts.clear()
    del wheel
    assert not any(witness() for witness in witnesses)


class Witness:
    def __call__(self) -> None:
        pass


def tasks(wheel: TimingWheel) -> tuple[list[Timeout], list[weakref.ref[Any]]]:
    calls = [Witness() for _ in range(3)]
    return [wheel.after(1.0, call) for call in calls], [weakref.ref(call) for call in calls]


@pytest.mark.parametrize("seconds", [1e300, float("inf"), 1e9])
def test_delay_beyond_all_wheels_is_accepted(seconds: float) -> None:
    clock = ManualClock()
    for wheel in (TimingWheel(clock), TimingWheel(clock, 1, 2), TimingWheel(clock, 1000, 65_536)):
        wheel.after(seconds, lambda: None)
        assert (wheel.next_expiry() or 0) > clock.monotonic()
        assert wheel.advance() == 0


def test_impossible_wheel_is_refused() -> None:
    for tick_ms, wheel_size in ((0, 20), (-1, 20), (86_400_001, 20), (1, 1), (1, 65_537)):
        with pytest.raises(ValueError, match="2 to 65,536 buckets"):
            TimingWheel(ManualClock(), tick_ms, wheel_size)
    with pytest.raises(ValueError, match="not a number"):
        TimingWheel(ManualClock()).after(float("nan"), lambda: None)


@in_a_child
def test_second_init_during_the_use_of_the_wheel_is_refused() -> None:
    """Else the code would take wheels of two buckets for larger wheels."""
    wheel = TimingWheel(ManualClock(), 1, 2)

    class Meddling(ManualClock):
        @property
        def monotonic(self) -> Any:
            wheel.after(0.0, lambda: None)
            return super().monotonic

    with pytest.raises(ValueError, match="initialized once"):
        wheel.__init__(Meddling(), 1, 60_000)  # type: ignore[misc]
    assert (wheel.wheel_size, len(wheel)) == (2, 1)
    for number in range(100):
        wheel.after(number / 3, lambda: None)


@pytest.mark.parametrize(("tick_ms", "wheel_size"), [(1, 2), (1, 20), (1, 65_536)])
@pytest.mark.parametrize("far", [4e11, 9.22e11, 1e300, float("inf")])
def test_clock_at_the_end_of_time_keeps_the_order(tick_ms: int, wheel_size: int, far: float) -> None:
    """An early task is still in the wheel: the wheels must reach from it to the end of time."""
    clock, ran = Far(), list[int]()
    wheel = TimingWheel(clock, tick_ms, wheel_size)
    wheel.after(0.0, partial(ran.append, 1))
    clock.now = far
    wheel.after(1e9, partial(ran.append, 3))
    wheel.after(0.0, partial(ran.append, 2))
    assert wheel.advance() == 2
    assert (ran, len(wheel)) == ([1, 2], 1)
    clock.now = float("nan")
    with pytest.raises(ValueError, match="not a number"):
        wheel.advance()


class Far(Clock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


# ---- its drivers


class Loop:
    """Notes the delay of each call, and None for each cancellation."""

    def __init__(self) -> None:
        self.delays: list[float | None] = []

    def call_later(self, delay: float, call: Callable[[], Any]) -> Loop:
        self.delays.append(delay)
        return self

    def cancel(self) -> None:
        self.delays.append(None)


def test_loop_is_armed_only_for_buckets_with_tasks() -> None:
    """The timer arms the loop for buckets with tasks, and for nothing else."""
    loop, clock = Loop(), ManualClock()
    timer = Timer(cast(Any, loop), clock)
    assert loop.delays == []
    timeout = timer.after(0.015, lambda: None)
    timer.after(0.017, lambda: None)
    assert loop.delays == pytest.approx([0.015])
    timer.after(0.002, lambda: None)
    assert loop.delays == pytest.approx([0.015, None, 0.002])
    loop.delays.clear()
    timeout.cancel()
    clock.advance(0.002)
    assert timer.advance() == 1
    assert loop.delays == pytest.approx([None, 0.015])  # past the cancelled task
    clock.advance(0.015)
    loop.delays.clear()
    assert timer.advance() == 1
    assert loop.delays == [None]


def test_loop_serves_others_between_tasks_that_are_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop ends with the first task after the slice of time is over, also where a task fails."""
    monkeypatch.setattr(timer_module, "SLICE_SECONDS", 0.0)
    happened: list[object] = []

    def fail() -> None:
        happened.append("failed")
        raise ValueError

    async def body() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)
        timer = Timer(loop, SystemClock())
        deadline = loop.time() + PATIENCE
        for number in range(3):
            timer.after(0, partial(happened.append, number))
        timer.after(0, fail)
        timer.after(0, lambda: happened.append("last"))
        while len(timer) and loop.time() < deadline:
            await asyncio.sleep(0)
            happened.append("other")

    asyncio.run(body())
    tasks = [0, 1, 2, "failed", "last"]
    assert [item for item in happened if item != "other"] == tasks
    assert all(happened[happened.index(task) + 1] == "other" for task in tasks)


class Noting(SystemClock):
    """Notes the time-out of each wait."""

    def __init__(self) -> None:
        self.waits: queue.Queue[float | None] = queue.Queue()

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        self.waits.put(timeout)
        return super().wait(lock, timeout)


def test_reaper_wakes_up_for_an_earlier_task_and_never_ticks() -> None:
    ran, clock = threading.Event(), Noting()
    wheel = TimingWheel(clock)

    def waits() -> float:
        return clock.waits.get(timeout=PATIENCE) or 0.0

    with ExpirationReaper(wheel):
        assert clock.waits.get(timeout=PATIENCE) is None
        wheel.after(600.0, lambda: None)
        assert 10 < waits() < 600
        wheel.after(0.01, ran.set)
        assert waits() <= 0.011
        assert ran.wait(PATIENCE)
        while (wait := waits()) < 10:  # the thread may wake up a bit early
            assert wait <= 0.011
    assert len(wheel) == 1


# Kafka: testReaper
def test_reaper_goes_on_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    clock, done = ManualClock(), threading.Event()
    wheel = TimingWheel(clock)
    with ExpirationReaper(wheel):
        wheel.after(0.1, partial(divide, 1, 0, []))
        wheel.after(0.1, partial(divide, 1, 0, []))
        wheel.after(0.2, done.set)
        clock.advance(0.1)
        assert not done.wait(0.02)
        clock.advance(0.1)
        assert done.wait(PATIENCE)
    assert [record.message for record in caplog.records] == ["an expired operation failed"] * 2


# Kafka: testReaperClose
def test_close_ends_the_reapers_thread() -> None:
    before = threading.active_count()
    reapers = [ExpirationReaper(TimingWheel(SystemClock())) for _ in range(3)]
    assert threading.active_count() == before + 3
    for reaper in reapers:
        reaper.close()
        reaper.close()
    assert threading.active_count() == before
