"""The fuzzer of requests calls a hang what hangs, and nothing that is slow for a reason."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.broker import apis
from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.protocol import messages
from tests.hostile.fuzz_requests import progress as fuzz_progress
from tests.hostile.fuzz_requests import runs as fuzz_runs
from tests.hostile.fuzz_requests.faults import Fault
from tests.hostile.fuzz_requests.progress import Progress, Seen, Watch, Worker
from tests.hostile.fuzz_requests.target import Case, Target, api_of, corpus

LOOK = 0.5
CASE = Case(corpus()[0])


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    noted = Progress(tmp_path / "running")
    noted.begin(0)
    return noted


def hang(progress: Progress, seconds: float, step: Callable[[], None] = lambda: None) -> str:
    """What a supervisor finds that looks for so many seconds, with a step of the worker before each look."""
    watch, clock = Watch(), 0.0
    found = watch.look(progress.get(), LOOK)
    while not found and clock < seconds:
        step()
        clock += LOOK
        found = watch.look(progress.get(), LOOK)
    return found


# ---- the rule, on a clock that the test moves


def test_loop_that_turns_no_more_is_a_hang_after_eight_seconds(progress: Progress) -> None:
    progress.serve(0, CASE)
    assert not hang(progress, 8.0)
    assert hang(progress, 9.0) == "no turn of the loop ends in 8 s"


def test_work_in_slices_that_makes_things_may_take_longer(progress: Progress) -> None:
    """9 s for 1,000 topics with a folder each are no hang, and 14 s are."""
    progress.serve(0, CASE)
    assert not hang(progress, 9.0, lambda: progress.turn(1_000))
    assert hang(progress, 14.0, lambda: progress.turn(1_000)).startswith("is served for more than 13 s")


def test_work_in_slices_that_makes_nothing_is_a_hang_after_eight_seconds(progress: Progress) -> None:
    progress.serve(0, CASE)
    assert not hang(progress, 8.0, lambda: progress.turn(0))
    assert hang(progress, 9.0, lambda: progress.turn(0)).startswith("is served for more than 8 s, with 0 things")


def test_each_request_and_each_turn_has_its_own_time(progress: Progress) -> None:
    assert not hang(progress, 100.0, lambda: progress.serve(0, CASE))
    assert not hang(progress, 100.0, lambda: progress.rest(0))
    progress.serve(0, CASE)
    assert not hang(progress, 13.0, lambda: progress.turn(5_000))


def test_end_of_a_generation_has_one_limit_for_all_turns(progress: Progress) -> None:
    """A cluster starts in one turn of the loop, however many partitions it had."""
    progress.end(0, 1_000)
    assert not hang(progress, 35.0, lambda: progress.turn(0))
    assert hang(progress, 36.0).startswith("is served for more than 35 s")


def test_supervisor_sees_what_the_worker_notes(progress: Progress) -> None:
    progress.serve(3, CASE)
    progress.turn(2)
    progress.turn(7)
    assert progress.get() == Seen(3, 1, 2, 7, False)
    progress.end(3, 50)
    progress.turn(1)
    assert progress.get() == Seen(3, 2, 3, 50, True)
    progress.rest(3)
    assert progress.get() == Seen(3, 0, 3, 0, False)
    assert progress.cases() == [CASE]


# ---- the seconds that count


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Starts a process that does something for ever."""
    children = []

    def start(work: Callable[[], None]) -> int:
        if not (pid := os.fork()):
            while True:
                work()
        children.append(pid)
        return pid

    yield start
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def spent(pid: int, seconds: float, now: Callable[[], float] = time.monotonic) -> tuple[float, float]:
    """(seconds that count, seconds that pass) in some looks."""
    worker, began, counted = Worker(pid, now), time.monotonic(), 0.0
    while (passed := time.monotonic() - began) < seconds:
        os.sched_yield()
        counted += worker.spent()
    return counted, passed


def test_seconds_in_which_a_worker_sleeps_count(child: Callable[[Callable[[], None]], int]) -> None:
    counted, passed = spent(child(lambda: time.sleep(1000)), 0.3)
    assert 0.5 * passed < counted < 1.1 * passed


def test_seconds_in_which_a_worker_waits_for_the_machine_do_not_count(
    child: Callable[[Callable[[], None]], int],
) -> None:
    """Two processes that compute share a processor: neither has computed all the time."""
    (processor, *_) = os.sched_getaffinity(0)

    def compute_there() -> None:
        os.sched_setaffinity(0, {processor})
        while True:
            pass

    first, second = child(compute_there), child(compute_there)
    workers = [Worker(pid) for pid in (first, second)]
    began, counted = time.monotonic(), 0.0
    while (passed := time.monotonic() - began) < 0.5:
        os.sched_yield()
        counted += sum(worker.spent() for worker in workers)
    assert counted < 1.2 * passed


def test_seconds_in_which_a_worker_is_stopped_do_not_count(child: Callable[[Callable[[], None]], int]) -> None:
    pid = child(lambda: time.sleep(1000))
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert spent(pid, 0.2)[0] < 0.01


def test_seconds_in_which_nobody_looks_count_as_one(child: Callable[[Callable[[], None]], int]) -> None:
    """As of a supervisor that the machine has stopped together with its worker."""
    clock = iter(range(0, 1000, 100))
    worker = Worker(child(lambda: time.sleep(1000)), lambda: next(clock))
    while worker._state() not in "SD":
        os.sched_yield()
    assert worker.spent() == 1.0


# ---- a worker's process


def outcome(tmp_path: Path, handler: Callable[..., Any]) -> tuple[str, str]:
    apis.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(APIS, messages.LIST_GROUPS, replace(APIS[messages.LIST_GROUPS], handler=handler))
        patch.setattr(fuzz_progress, "TURN_SECONDS", 0.6)
        patch.setattr(fuzz_progress, "REQUEST_SECONDS", 1.2)
        patch.setattr("tests.hostile.fuzz_requests.target.SLOWER", 100)
        case = Case(next(frame for frame in corpus() if api_of(frame) == (messages.LIST_GROUPS, 0)))
        return fuzz_runs.outcome(Fault("memory", "hang", "", [case]), [case], tmp_path)


def works_in_slices(seconds: float, things: int) -> Callable[..., Any]:
    """A handler that changes so many things on the way."""

    def handler(node: Any, *_: Any) -> Any:
        async def work() -> Any:
            node.cluster.memory.changes += things
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                await asyncio.sleep(0)
            return {"groups": []}

        return asyncio.ensure_future(work())

    return handler


def test_worker_that_spins_is_called_a_hang(tmp_path: Path) -> None:
    def spins(*_: Any) -> Any:
        while True:
            pass

    assert outcome(tmp_path, spins) == ("hang", "no turn of the loop ends in 1 s")


def test_worker_that_works_in_slices_is_no_hang(tmp_path: Path) -> None:
    """It works for longer than a turn may last, and for longer than a request may that makes nothing."""
    assert outcome(tmp_path, works_in_slices(1.0, 0)) == ("", "")
    assert outcome(tmp_path, works_in_slices(1.5, 1_000)) == ("", "")


def test_worker_that_works_in_slices_for_ever_is_called_a_hang(tmp_path: Path) -> None:
    kind, text = outcome(tmp_path, works_in_slices(1000.0, 3))
    assert (kind, text) == ("hang", "is served for more than 1 s, with 3 things made, changed or deleted")


def test_turns_and_things_of_a_target_reach_its_worker() -> None:
    """A topic is a thing; a partition gets its folder, is made, and then gets its leader."""
    noted: list[int] = []
    target = Target("folder", noted.append)
    try:
        target.begin()
        topic = {"name": "a", "num_partitions": 20, "replication_factor": 1, "assignments": [], "configs": []}
        entity = messages.build_request(messages.CREATE_TOPICS, 7, topics=[topic], timeout=1000)
        noted.clear()
        target.serve(Case(messages.encode_request(messages.CREATE_TOPICS, 7, 1, "t", entity)))
        assert noted[0] == 0
        assert 50 < max(noted) < 70
        assert target.things_at_end() == 10 * (20 + 3 + 1)  # the topics of each world, too
    finally:
        target.close()
