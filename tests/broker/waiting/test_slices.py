"""Long work in slices (waiting/slices.py): what it does in one turn of the loop, and who waits for whom."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from kafkabuf.broker.waiting import slices as slices_module
from kafkabuf.broker.waiting.slices import SLICE_SECONDS, SLICE_STEPS, Slices, Work, at_once, finish
from kafkabuf.clock import ManualClock
from kafkabuf.errors import InvalidRequestError

Test = Callable[[Slices, ManualClock], Coroutine[Any, Any, None]]


def in_loop(test: Test) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def body() -> None:
            clock = ManualClock()
            await test(Slices(asyncio.get_running_loop(), clock), clock)

        asyncio.run(body())

    del run.__wrapped__  # pytest would look for fixtures
    return run


def steps(number: int, done: list[str], name: str = "") -> Work[str]:
    for _ in range(number):
        yield
    done.append(name)
    return name


@in_loop
async def test_work_of_one_slice_has_its_result_at_once(slices: Slices, clock: ManualClock) -> None:
    assert slices.run(steps(SLICE_STEPS - 1, [], "short")) == "short"


def test_steps_are_done_at_once_where_nobody_else_waits() -> None:
    done: list[str] = []
    assert at_once(steps)(3 * SLICE_STEPS, done, name="long") == "long"
    assert done == ["long"]


@in_loop
async def test_other_callbacks_run_between_two_slices(slices: Slices, clock: ManualClock) -> None:
    done: list[str] = []
    future = slices.run(steps(3 * SLICE_STEPS, done, "long"))
    assert isinstance(future, asyncio.Future)
    turns = 0
    while not future.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 3
    assert future.result() == "long"


@pytest.mark.parametrize(("frozen", "counts"), [(7, 2), (0, 18)])
def test_frozen_objects_are_counted_once_a_minute(monkeypatch: pytest.MonkeyPatch, frozen: int, counts: int) -> None:
    """To count them takes Python longer than a slice, where a program has frozen a million."""
    counted: list[int] = []

    def count() -> int:
        counted.append(frozen)
        return frozen

    @in_loop
    async def run(slices: Slices, clock: ManualClock) -> None:
        for _ in range(2):
            work = slices.run(steps(11 * SLICE_STEPS - 1, []))
            assert isinstance(work, asyncio.Future)
            await work
            clock.advance(61)

    monkeypatch.setattr(gc, "get_freeze_count", count)
    run()
    assert len(counted) == counts


def test_collector_is_spared_a_number_of_objects_between_two_full_collections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not count them. So where works follow one another, it would not look at all objects any more."""
    froze: list[int] = []
    stats = {"collections": 3}

    @in_loop
    async def run(slices: Slices, clock: ManualClock) -> None:
        for stats["collections"] in (3, 4):
            for _ in range(2):
                work = slices.run(steps(11 * SLICE_STEPS - 1, []))
                assert isinstance(work, asyncio.Future)
                await work

    monkeypatch.setattr(slices_module, "_MOST_SPARED", 100)
    monkeypatch.setattr(slices_module, "_HAS_MIDDLE", True)
    monkeypatch.setattr(gc, "get_count", lambda: (10, 2, 99))
    monkeypatch.setattr(gc, "get_threshold", lambda: (10, 99, 99))
    monkeypatch.setattr(gc, "get_stats", lambda: [{"collections": 99}, {"collections": 99}, stats])
    monkeypatch.setattr(gc, "freeze", lambda: froze.append(stats["collections"]))
    run()
    assert froze == [3, 3, 3, 4, 4, 4]


@in_loop
async def test_slice_ends_when_its_time_is_over(slices: Slices, clock: ManualClock) -> None:
    def slow() -> Work[int]:
        for _ in range(4):
            clock.advance(SLICE_SECONDS)
            yield
        return 4

    future = slices.run(slow())
    assert isinstance(future, asyncio.Future)
    assert not future.done()
    await asyncio.sleep(0)
    assert not future.done()
    assert await future == 4


@in_loop
async def test_exclusive_works_follow_one_another(slices: Slices, clock: ManualClock) -> None:
    done: list[str] = []
    long = [slices.run(steps(5 * SLICE_STEPS, done, name), exclusive=True) for name in ("first", "second")]
    short = slices.run(steps(1, done, "third"), exclusive=True)
    assert slices.run(steps(1, done, "not exclusive")) == "not exclusive"
    for future in (*long, short):
        assert isinstance(future, asyncio.Future)
        await future
    assert done == ["not exclusive", "first", "second", "third"]


@in_loop
async def test_works_with_one_turn_follow_one_another(slices: Slices, clock: ManualClock) -> None:
    done: list[str] = []
    futures = [
        slices.run(steps(number * SLICE_STEPS, done, name), turn=name[0])
        for number, name in ((9, "a1"), (2, "b1"), (1, "a2"), (1, "b2"), (1, "a3"))
    ]
    assert slices.run(steps(1, done, "c1"), turn="c") == "c1"
    assert not slices.changing
    for future in futures:
        assert isinstance(future, asyncio.Future)
        await future
    assert done == ["c1", "b1", "b2", "a1", "a2", "a3"]
    assert slices.run(steps(1, done, "a4"), turn="a") == "a4"


@in_loop
async def test_cancelled_work_ends_unless_it_goes_on(slices: Slices, clock: ManualClock) -> None:
    done: list[str] = []
    futures = [
        slices.run(steps(5 * SLICE_STEPS, done, "given up")),
        slices.run(steps(5 * SLICE_STEPS, done, "goes on"), goes_on=True),
        slices.run(steps(5 * SLICE_STEPS, done, "exclusive"), exclusive=True),
    ]
    for future in futures:
        assert isinstance(future, asyncio.Future)
        future.cancel()
    for _ in range(30):
        await asyncio.sleep(0)
    assert sorted(done) == ["exclusive", "goes on"]


@in_loop
async def test_error_of_work_reaches_its_caller(slices: Slices, clock: ManualClock) -> None:
    def failing(number: int) -> Work[None]:
        for _ in range(number):
            yield
        raise InvalidRequestError("no")

    with pytest.raises(InvalidRequestError):
        slices.run(failing(0))
    future = slices.run(failing(2 * SLICE_STEPS), exclusive=True)
    assert isinstance(future, asyncio.Future)
    with pytest.raises(InvalidRequestError):
        await future
    assert slices.run(steps(1, [], "next"), exclusive=True) == "next"


@in_loop
async def test_close_leaves_no_future_behind(slices: Slices, clock: ManualClock) -> None:
    futures = [slices.run(steps(5 * SLICE_STEPS, []), exclusive=True) for _ in range(2)]
    slices.close()
    assert all(isinstance(future, asyncio.Future) and future.cancelled() for future in futures)


def test_finish_does_all_the_work() -> None:
    done: list[str] = []
    assert finish(steps(10 * SLICE_STEPS, done, "all")) == "all"


def test_long_work_leaves_the_tuples_of_other_threads_alone() -> None:
    """CPython raises SystemError in a thread whose unfinished tuple somebody else has found."""
    bad: list[SystemError] = []
    over = threading.Event()

    def build_tuples() -> None:
        while not over.is_set():
            try:
                tuple(number for number in range(50))
            except SystemError as error:
                bad.append(error)

    @in_loop
    async def run(slices: Slices, clock: ManualClock) -> None:
        work = slices.run(steps(1_000 * SLICE_STEPS, []))
        assert isinstance(work, asyncio.Future)
        await work

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=build_tuples)
    thread.start()
    try:
        run()
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not bad
