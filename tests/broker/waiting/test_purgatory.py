"""The purgatory in one thread, on a manual clock."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future

import pytest

from kafkabuf.broker import DelayedOperation, RequestPurgatory, TimingWheel
from kafkabuf.clock import ManualClock
from tests.effort import effort
from tests.hostile.forked import in_a_child


class Operation(DelayedOperation):
    """Completes once `may_complete` is set, and counts its calls."""

    def __init__(self, timeout: float = 100.0) -> None:
        super().__init__(timeout)
        self.may_complete = False
        self.asked = self.completions = self.expirations = 0

    def try_complete(self) -> bool:
        self.asked += 1
        return self.may_complete and self.force_complete()

    def on_complete(self) -> None:
        assert self.is_completed
        self.completions += 1

    def on_expiration(self) -> None:
        assert self.completions == 1
        self.expirations += 1


class World:
    def __init__(self, purge_interval: int = 1000) -> None:
        self.clock = ManualClock()
        self.wheel = TimingWheel(self.clock)
        self.purgatory = RequestPurgatory(self.wheel, purge_interval)

    def park(self, *keys: Hashable, timeout: float = 100.0) -> Operation:
        operation = Operation(timeout)
        assert not self.purgatory.try_complete_else_watch(operation, keys)
        return operation

    def advance(self, seconds: float) -> int:
        self.clock.advance(seconds)
        return self.wheel.advance()

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.purgatory.watched, self.purgatory.delayed, len(self.wheel)


@pytest.fixture
def world() -> World:
    return World()


# Kafka: testRequestSatisfaction
def test_operation_completes_once_when_its_key_is_checked(world: World) -> None:
    check = world.purgatory.check_and_complete
    assert check("one") == 0
    one, two = world.park("one"), world.park("two")
    assert check("one") == check("two") == 0
    one.may_complete = True
    assert check("two") == 0
    assert not one.is_completed
    assert check("one") == 1
    assert check("one") == 0
    two.may_complete = True
    assert check("two") == 1
    assert (one.completions, two.completions, one.expirations) == (1, 1, 0)
    assert world.counts == (0, 0, 0)


# Kafka: testSafeTryCompleteOrElse
def test_operation_is_evaluated_again_once_it_is_watched(world: World) -> None:
    """Without the second evaluation a change between the first evaluation and the watch would be missed."""

    class Changing(Operation):
        def try_complete(self) -> bool:
            self.may_complete = self.asked == 1
            return super().try_complete()

    operation = Changing()
    assert world.purgatory.try_complete_else_watch(operation, ["key"])
    assert (operation.asked, operation.completions) == (2, 1)
    assert world.counts == (0, 0, 0)
    satisfied = Operation()
    satisfied.may_complete = True
    assert world.purgatory.try_complete_else_watch(satisfied, ["key"])
    assert (satisfied.asked, satisfied.completions) == (1, 1)


# Kafka: testRequestExpiry
def test_operation_expires_at_its_timeout(world: World) -> None:
    soon, late = world.park("one", timeout=0.02), world.park("one", timeout=200.0)
    assert world.advance(0.019) == 0
    assert world.advance(0.001) == 1
    assert (soon.completions, soon.expirations) == (1, 1)
    assert not late.is_completed
    assert world.counts == (1, 1, 1)
    assert not soon.force_complete()
    assert world.purgatory.check_and_complete("one") == 0
    assert (soon.completions, soon.expirations) == (1, 1)


# Kafka: testRequestPurge
def test_completed_operation_leaves_all_its_keys(world: World) -> None:
    world.park("a")
    two, three = world.park("a", "b"), world.park("a", "b", "c")
    assert world.counts == (6, 3, 3)
    two.may_complete = three.may_complete = True
    assert two.try_complete()
    assert world.counts == (4, 2, 2)
    assert three.try_complete()
    assert world.counts == (1, 1, 1)
    assert [world.purgatory.check_and_complete(key) for key in "abc"] == [0, 0, 0]


# Kafka: shouldCancelForKeyReturningCancelledOperations, shouldReturnNilOperationsOnCancelForKeyWhenKeyDoesntExist
def test_cancelled_operation_leaves_everything_uncompleted(world: World) -> None:
    first, second, other = world.park("key"), world.park("key", "key2"), world.park("key2")
    assert world.purgatory.cancel_for_key("nothing") == []
    assert world.purgatory.cancel_for_key("key") == [first, second]
    assert world.counts == (1, 1, 1)
    second.may_complete = True
    assert world.purgatory.check_and_complete("key2") == 0
    assert world.advance(1000.0) == 1
    assert (first.completions, second.completions, other.completions) == (0, 0, 1)
    assert first.force_complete()  # the caller of cancel_for_key completes it
    assert world.purgatory.cancel_all() == []
    waiting = [world.park("a", "b"), world.park("b")]
    assert world.purgatory.cancel_all() == waiting
    assert world.counts == (0, 0, 0)


def test_completed_operation_is_released_at_once(world: World) -> None:
    """Its timeout has an hour to go, and no garbage collection runs (KAFKA-19763)."""

    def witness(end: Callable[[Operation], object]) -> weakref.ref[Operation]:
        operation = world.park("a", "b", timeout=3600.0)
        end(operation)
        return weakref.ref(operation)

    def check(operation: Operation) -> int:
        operation.may_complete = True
        return world.purgatory.check_and_complete("b")

    gc.disable()
    try:
        ends = [Operation.force_complete, check, lambda _: world.purgatory.cancel_for_key("a")]
        assert [witness(end)() for end in ends] == [None] * 3
        expired = weakref.ref(world.park("a", timeout=1.0))
        world.advance(1.0)
        assert expired() is None
    finally:
        gc.enable()


class Key:
    """A key that a weak set can count."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number % 7  # keys collide in the dict, and are compared

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.number == self.number


def test_idle_keys_are_purged() -> None:
    world, keys = World(purge_interval=3), weakref.WeakSet[Key]()
    for number in range(20):
        key = Key(number)
        keys.add(key)
        world.park(key).force_complete()
        del key
        world.park(Key(0)).force_complete()  # used again and again: this key stays
    assert sorted(key.number for key in keys) == [0, 18, 19]
    kept = world.park(Key(18))
    for number in range(20, 25):
        world.park(Key(number)).force_complete()
    assert world.counts == (1, 1, 1)
    kept.may_complete = True
    assert world.purgatory.check_and_complete(Key(18)) == 1
    with pytest.raises(ValueError, match="0 or more"):
        RequestPurgatory(world.wheel, -1)


def test_up_to_a_million_completed_operations_leave_nothing_behind() -> None:
    """Kafka may keep `purge_interval` stale operations. Here no operation is stale, and at most as many keys are
    kept."""
    world, operations, shuffle = World(), list[DelayedOperation](), random.Random(6).shuffle
    named = [Name() for _ in range(3000)]
    keys, park = weakref.WeakSet(named), world.purgatory.try_complete_else_watch
    for number in range(effort(1_000_000)):
        operations.append(Quick(0.2))
        park(operations[-1], (named[number % 3000], named[number % 7], number))
        if len(operations) == 1000:
            shuffle(operations)
            for operation in operations[:500]:
                operation.force_complete()
            del operations[:500]
            world.advance(0.05)
    world.advance(1.0)
    assert world.counts == (0, 0, 0)
    named.clear()
    assert len(keys) <= world.purgatory.purge_interval


class Name:
    """A key by identity, that a weak set can count."""


class Quick(DelayedOperation):
    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass


# Kafka: testDelayedFuture
def test_operation_for_several_futures_waits_for_all_of_them(world: World) -> None:
    """Any hashable is a key: here each future is a key, and checks itself when it is done."""

    class WaitForAll(Operation):
        def __init__(self, futures: list[Future[int]]) -> None:
            super().__init__(2.0)
            self.futures = futures
            self.total = -1

        def try_complete(self) -> bool:
            return all(future.done() for future in self.futures) and self.force_complete()

        def on_complete(self) -> None:
            super().on_complete()
            self.total = sum(future.result() for future in self.futures if future.done())

    def wait_for(*results: int | None) -> WaitForAll:
        futures = [Future[int]() for _ in results]
        operation = WaitForAll(futures)
        for future, result in zip(futures, results, strict=True):
            future.add_done_callback(world.purgatory.check_and_complete)
            if result is not None:
                future.set_result(result)
        world.purgatory.try_complete_else_watch(operation, futures)
        return operation

    assert wait_for(10, 11).total == 21
    both, one = wait_for(None, None), wait_for(None, 31)
    both.futures[0].set_result(20)
    assert not both.is_completed
    both.futures[1].set_result(21)
    one.futures[0].set_result(30)
    assert (both.total, one.total) == (41, 61)
    late = wait_for(None, 40)
    world.advance(2.0)
    assert (late.total, late.expirations) == (40, 1)
    assert world.counts == (0, 0, 0)


# ---- operations that misbehave, and those that act from within


def test_error_of_one_operation_leaves_the_others_evaluated(world: World) -> None:
    class Broken(Operation):
        def on_complete(self) -> None:
            raise ZeroDivisionError

    def park_broken() -> Broken:
        operation = Broken()
        world.purgatory.try_complete_else_watch(operation, ["key"])
        return operation

    operations = [park_broken(), world.park("key"), park_broken(), world.park("key")]
    operations[0].may_complete = operations[1].may_complete = True
    with pytest.raises(ZeroDivisionError):
        world.purgatory.check_and_complete("key")
    assert [operation.is_completed for operation in operations] == [True, True, False, False]
    assert world.counts == (2, 2, 2)
    operations.append(park_broken())
    for operation in operations:
        operation.may_complete = True
    with pytest.raises(ExceptionGroup) as caught:
        world.purgatory.check_and_complete("key")
    assert len(caught.value.exceptions) == 2
    assert world.counts == (0, 0, 0)
    assert operations[3].completions == 1


def test_operation_that_cannot_be_watched_leaves_no_trace(world: World) -> None:
    class Failing(Operation):
        def try_complete(self) -> bool:
            super().try_complete()
            if self.asked == 2:
                raise ZeroDivisionError
            return False

    with pytest.raises(ZeroDivisionError):
        world.purgatory.try_complete_else_watch(Failing(), ["a", "b"])
    with pytest.raises(TypeError, match="unhashable"):
        world.purgatory.try_complete_else_watch(Operation(), ["a", []])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="not a number"):
        world.purgatory.try_complete_else_watch(Operation(float("nan")), ["a"])
    with pytest.raises(ValueError, match="found none"):
        world.purgatory.try_complete_else_watch(Operation(), [])
    assert world.counts == (0, 0, 0)


def test_waiting_operation_is_not_admitted_again(world: World) -> None:
    operation = world.park("a")
    with pytest.raises(ValueError, match="waits in a purgatory already"):
        RequestPurgatory(world.wheel).try_complete_else_watch(operation, ["b"])
    assert world.counts == (1, 1, 1)
    operation.force_complete()
    assert not world.purgatory.try_complete_else_watch(operation, ["b"])
    assert world.counts == (0, 0, 0)


def test_base_class_must_be_subclassed(world: World) -> None:
    with pytest.raises(NotImplementedError, match="DelayedOperation must define try_complete"):
        world.purgatory.try_complete_else_watch(DelayedOperation(1.0), ["a"])
    with pytest.raises(NotImplementedError, match="DelayedOperation must define on_complete"):
        DelayedOperation(1.0).force_complete()


# Kafka: testLockInTryCompleteElseWatch
def test_operation_that_checks_its_own_key_is_evaluated_without_recursion(world: World) -> None:
    class Curious(Operation):
        def try_complete(self) -> bool:
            if self.asked < 5:
                assert world.purgatory.check_and_complete("key") == 0
                self.may_complete = self.asked == 4
            return super().try_complete()

    operation = Curious()
    assert world.purgatory.try_complete_else_watch(operation, ["key"])
    assert (operation.asked, operation.completions) == (5, 1)


def test_check_does_not_evaluate_operations_that_are_parked_during_it(world: World) -> None:
    class Breeding(Operation):
        def try_complete(self) -> bool:
            if self.asked == 2 and len(children) < 100:  # the first two evaluations are those of its own parking
                children.append(Breeding())
                world.purgatory.try_complete_else_watch(children[-1], ["key"])
            return super().try_complete()

    children = [Breeding()]
    world.purgatory.try_complete_else_watch(children[0], ["key"])
    for generation in range(2, 5):
        assert world.purgatory.check_and_complete("key") == 0
        assert len(children) == generation


@pytest.mark.parametrize("seed", range(effort(20)))
def test_walk_along_a_key_survives_whatever_operations_do(seed: int) -> None:
    """While they are evaluated, operations complete and cancel others, park others and check the same key."""
    world, rng, everything = World(purge_interval=2), random.Random(seed), list[Operation]()
    keys = "abc"

    class Busy(Operation):
        def try_complete(self) -> bool:
            if rng.random() < 0.1:
                rng.choice(everything).force_complete()
            if rng.random() < 0.05:
                cancelled.extend(world.purgatory.cancel_for_key(rng.choice(keys)))
            if rng.random() < 0.1 and len(everything) < 500:
                park()
            if rng.random() < 0.05:
                world.purgatory.check_and_complete(rng.choice(keys))
            return super().try_complete()

    def park() -> None:
        everything.append(Busy())
        world.purgatory.try_complete_else_watch(everything[-1], rng.sample(keys, rng.randint(1, 3)))

    cancelled: list[DelayedOperation] = []
    while len(everything) < 500:
        park()
        everything[rng.randrange(len(everything))].may_complete = True
        world.purgatory.check_and_complete(rng.choice(keys))
    assert world.counts[1] == world.counts[2]
    world.advance(1000.0)
    assert world.counts == (0, 0, 0)
    left = [operation for operation in everything if not operation.is_completed]
    assert set(left) == {operation for operation in cancelled if not operation.is_completed}
    assert all(operation.completions <= 1 for operation in everything)


def test_keys_may_be_any_iterable_of_hashables(world: World) -> None:
    keys: list[Iterable[Hashable]] = [("a", 1), ["a", ("t", 0)], {"a", "b"}, iter("ab"), "ab"]
    for some in keys:
        world.purgatory.try_complete_else_watch(Operation(), some)
    assert world.counts == (10, 5, 5)


# ---- keys that lie, and purgatories that never opened


class Lying:
    """A key that runs `hook`, once, when it is hashed, and equals `twin`."""

    def __init__(self, twin: object = None) -> None:
        self.hook: Callable[[], object] | None = None
        self.twin = twin

    def __hash__(self) -> int:
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return 7

    def __eq__(self, other: object) -> bool:
        return other is self.twin


@in_a_child
def test_purgatory_is_initialized_exactly_once(world: World) -> None:
    bare = RequestPurgatory.__new__(RequestPurgatory)
    with pytest.raises(TypeError, match="__init__ was not called"):
        bare.try_complete_else_watch(Operation(), ["key"])
    with pytest.raises(ValueError, match="initialized once"):
        world.purgatory.__init__(TimingWheel(world.clock))
    assert world.purgatory.timer is world.wheel


@in_a_child
def test_operation_that_a_key_admits_again_waits_for_the_keys_of_the_last_admission(world: World) -> None:
    """The first admission has a watch for each of seven keys, the second for three: later keys of the first get
    none."""
    operation, key = Operation(), Lying()

    def again() -> None:
        assert world.purgatory.cancel_for_key("a") == [operation]
        world.purgatory.try_complete_else_watch(operation, ["x", "y", "z"])

    key.hook = again
    assert not world.purgatory.try_complete_else_watch(operation, ["a", key, "c", "d", "e", "f", "g"])
    assert world.counts == (3, 1, 1)
    assert world.purgatory.cancel_for_key("d") == []
    assert world.purgatory.cancel_for_key("y") == [operation]
    assert world.counts == (0, 0, 0)


def test_error_of_an_overtaken_admission_leaves_the_last_admission_waiting(world: World) -> None:
    operation, key = Operation(), Lying()

    def again() -> None:
        world.purgatory.cancel_for_key("a")
        world.purgatory.try_complete_else_watch(operation, ["x"])
        raise ZeroDivisionError

    key.hook = again
    with pytest.raises(ZeroDivisionError):
        world.purgatory.try_complete_else_watch(operation, ["a", key])
    assert world.counts == (1, 1, 1)


@in_a_child
def test_keys_that_become_equal_are_purged_one_by_one() -> None:
    world = World(purge_interval=0)
    first, second = Lying(), Lying()
    waits, idle = world.park(first), world.park(second)
    first.twin, second.twin = second, first
    assert idle.force_complete()
    assert world.counts == (1, 1, 1)
    waits.may_complete = True
    assert world.purgatory.check_and_complete(first) == 1
    assert world.counts == (0, 0, 0)


def test_key_is_purged_without_hashing_or_comparing_it() -> None:
    """An error or a call of the key's methods would otherwise disturb the purge."""
    world = World(purge_interval=0)
    key, other = Lying(), Lying()
    idle, waits = world.park(key), world.park(other)
    key.hook = other.hook = lambda: 1 // 0
    assert idle.force_complete()
    assert waits.force_complete()
    assert world.counts == (0, 0, 0)
    key.hook = other.hook = None
    again = world.park(key)
    again.may_complete = True
    assert world.purgatory.check_and_complete(key) == 1


def test_cancel_all_removes_operations_whose_keys_have_changed(world: World) -> None:
    class Changing(Lying):
        number = 1

        def __hash__(self) -> int:
            return self.number

    key = Changing()
    operation = world.park(key)
    key.number = 2
    assert world.purgatory.cancel_for_key(key) == []
    assert world.purgatory.cancel_all() == [operation]
    assert world.counts == (0, 0, 0)
