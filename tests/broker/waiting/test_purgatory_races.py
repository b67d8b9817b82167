"""The purgatory from many threads: each operation completes once, and not too early."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

from kafkabuf.broker import DelayedOperation, ExpirationReaper, RequestPurgatory, TimingWheel
from kafkabuf.clock import ManualClock, SystemClock
from tests.effort import effort

THREADS = 8
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Makes threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Runs `work(0)`, `work(1)` and so on in parallel threads. Raises the first error of a thread."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(threads)

    def run(number: int) -> None:
        try:
            barrier.wait(PATIENCE)
            work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class Produce(DelayedOperation):
    """Waits until the high watermarks of its partitions reach its offsets. Notes how it ended."""

    def __init__(self, watermarks: list[int], wanted: dict[int, int], timeout: float) -> None:
        super().__init__(timeout)
        self.watermarks, self.wanted = watermarks, wanted
        self.deadline = SystemClock.monotonic() + timeout
        self.resigned = self.inside = False
        self.ends: list[str] = []

    def try_complete(self) -> bool:
        assert not self.inside
        self.inside = True
        reached = all(self.watermarks[partition] >= offset for partition, offset in self.wanted.items())
        self.inside = False
        return reached and self.force_complete()

    def on_complete(self) -> None:
        if all(self.watermarks[partition] >= offset for partition, offset in self.wanted.items()):
            self.ends.append("reached")
        elif self.resigned:
            self.ends.append("resigned")
        else:
            assert SystemClock.monotonic() >= self.deadline
            self.ends.append("expired")


def test_every_operation_is_completed_once_and_not_too_early() -> None:
    """8 threads park up to 100,000 operations; partitions advance and lose leaders, and some operations expire."""
    partitions, each = 40, effort(12_500)
    watermarks = [0] * partitions
    wheel = TimingWheel(SystemClock())
    purgatory = RequestPurgatory(wheel, purge_interval=5)
    everything: list[list[Produce]] = [[] for _ in range(THREADS)]

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(each):
            wanted = {partition: watermarks[partition] + rng.randrange(4) for partition in rng.sample(range(40), 3)}
            operation = Produce(watermarks, wanted, rng.choice((0.002, 0.02, 60.0)))
            everything[number].append(operation)
            purgatory.try_complete_else_watch(operation, wanted)
            partition = rng.randrange(partitions)
            if rng.random() < 0.5:
                watermarks[partition] += 1
                purgatory.check_and_complete(partition)
            elif rng.random() < 0.01:
                for cancelled in purgatory.cancel_for_key(partition):
                    assert isinstance(cancelled, Produce)
                    cancelled.resigned = True
                    cancelled.force_complete()

    with ExpirationReaper(wheel):
        in_threads(work)
        for partition in range(partitions):
            watermarks[partition] += 1_000_000
            purgatory.check_and_complete(partition)
    ends = [operation.ends for operations in everything for operation in operations]
    assert {len(end) for end in ends} == {1}
    assert len(ends) == THREADS * each
    assert {end for (end,) in ends} == {"reached", "resigned", "expired"}
    assert (purgatory.watched, purgatory.delayed, len(wheel)) == (0, 0, 0)


# Kafka: testTryCompleteWithMultipleThreads
def test_change_during_an_evaluation_is_not_missed() -> None:
    """The last of twenty attempts allows completion; no later attempt would complete the operation."""
    purgatory = RequestPurgatory(TimingWheel(ManualClock()))

    class Attempted(DelayedOperation):
        def __init__(self) -> None:
            super().__init__(10.0)
            self.attempts = count(1)
            self.may_complete = False

        def try_complete(self) -> bool:
            may_complete = self.may_complete
            for _ in range(50):  # long enough for other threads to run in between
                pass
            return may_complete and self.force_complete()

        def on_complete(self) -> None:
            pass

    operations = {number: Attempted() for number in range(400)}
    for key, operation in operations.items():
        purgatory.try_complete_else_watch(operation, [key])
    attempts = [key for key in operations for _ in range(20)]
    random.Random(1).shuffle(attempts)

    def work(number: int) -> None:
        for key in attempts[number::THREADS]:
            if next(operations[key].attempts) == 20:
                operations[key].may_complete = True
            purgatory.check_and_complete(key)

    in_threads(work)
    assert all(operation.is_completed for operation in operations.values())


def test_evaluation_never_waits_for_another_thread() -> None:
    """The check returns at once; the thread in try_complete evaluates the operation again."""
    purgatory = RequestPurgatory(TimingWheel(ManualClock()))
    inside, go_on = threading.Event(), threading.Event()

    class Slow(DelayedOperation):
        asked, may_complete = 0, False

        def try_complete(self) -> bool:
            self.asked += 1
            may_complete = self.may_complete
            if self.asked == 3:
                inside.set()
                assert go_on.wait(PATIENCE)
            return may_complete and self.force_complete()

        def on_complete(self) -> None:
            pass

    slow, completed = Slow(10.0), list[int]()
    purgatory.try_complete_else_watch(slow, ["key"])
    thread = threading.Thread(target=lambda: completed.append(purgatory.check_and_complete("key")))
    thread.start()
    assert inside.wait(PATIENCE)
    slow.may_complete = True
    assert purgatory.check_and_complete("key") == 0
    go_on.set()
    thread.join(PATIENCE)
    assert (completed, slow.asked, slow.is_completed) == ([1], 4, True)


def test_one_of_several_threads_completes_an_operation() -> None:
    wheel = TimingWheel(SystemClock())
    purgatory = RequestPurgatory(wheel)
    won = [0] * (THREADS + 1)
    operations = [Counted() for _ in range(20_000)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, "ab")

    def work(number: int) -> None:
        for operation in operations:
            won[number] += operation.force_complete()

    with ExpirationReaper(wheel):  # the operations expire at the same time
        in_threads(work)
    assert sum(won) + sum(operation.expirations for operation in operations) == len(operations)
    assert {operation.completions for operation in operations} == {1}


class Counted(DelayedOperation):
    def __init__(self) -> None:
        super().__init__(0.01)
        self.completions = self.expirations = 0

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        self.completions += 1

    def on_expiration(self) -> None:
        self.expirations += 1


class Key:
    """A key with hash and comparison in Python: other threads run in the middle of a lookup."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return sum(range(self.number % 3))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.number == self.number


def test_operation_is_found_under_a_key_that_comes_and_goes() -> None:
    """The purgatory keeps no idle key, so keys come and go. A check must still find the operation of a key."""
    purgatory = RequestPurgatory(TimingWheel(ManualClock()), purge_interval=0)

    class Waiting(DelayedOperation):
        may_complete = False

        def try_complete(self) -> bool:
            return self.may_complete and self.force_complete()

        def on_complete(self) -> None:
            pass

    asked: list[Waiting] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(1_500):
            key, operation = rng.randrange(5), Waiting(10.0)
            purgatory.try_complete_else_watch(operation, [Key(key)])
            operation.may_complete = True
            purgatory.check_and_complete(Key(key))
            asked.append(operation)  # another thread may have completed it, and may still be busy with it

    in_threads(work)
    assert all(operation.is_completed for operation in asked)
    assert (purgatory.watched, purgatory.delayed) == (0, 0)


def test_wheel_runs_each_task_of_several_threads_once() -> None:
    """All threads add, cancel and run tasks. Each task runs once, or at most once if it was cancelled."""
    clock = ManualClock()
    wheel = TimingWheel(clock, wheel_size=3)
    ran, kept = list[tuple[int, int]](), [set[tuple[int, int]]() for _ in range(THREADS)]

    def work(number: int) -> None:
        rng = random.Random(number)
        for task in range(8_000):
            name = (number, task)
            timeout = wheel.after(rng.random() ** 4, partial(ran.append, name))
            if rng.random() < 0.5:
                timeout.cancel()
            else:
                kept[number].add(name)
            if task % 50 == 0:
                clock.advance(0.001)
                wheel.advance()

    in_threads(work)
    clock.advance(1.0)
    wheel.advance()
    assert len(wheel) == 0
    assert len(ran) == len(set(ran))
    assert set(ran) >= set().union(*kept)
