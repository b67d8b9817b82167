"""AIORecordFuture beside asyncio.Future: asyncio's functions give the same results for both."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from kafkabuf.aio._futures import BatchEnds
from kafkabuf.errors import RecordTooLargeError
from kafkabuf.record_metadata import RecordMetadata
from kafkabuf.testing import MockProducer
from rigs.producer import PATIENCE

FAILURE = RecordTooLargeError("too large")
METADATA = "a RecordMetadata"
Futures = list[Any]
Fate = Callable[[Futures, Callable[[], object], Callable[[], object]], object]


async def gather(futures: Futures) -> Any:
    return await asyncio.gather(*futures)


async def gather_all(futures: Futures) -> Any:
    return await asyncio.gather(*futures, return_exceptions=True)


async def wait(futures: Futures) -> Any:
    done, pending = await asyncio.wait(futures)
    return len(done), len(pending), [future.cancelled() or future.exception() for future in futures]


async def wait_for_one(futures: Futures) -> Any:
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    return [future in done for future in futures]


async def wait_for(futures: Futures) -> Any:
    return [await asyncio.wait_for(future, PATIENCE) for future in futures]


async def shield(futures: Futures) -> Any:
    return [await asyncio.shield(future) for future in futures]


async def as_completed(futures: Futures) -> Any:
    return [await future for future in asyncio.as_completed(futures)]


async def tasks(futures: Futures) -> Any:
    async def outcome(future: Any) -> Any:
        return await future

    waiting = [asyncio.create_task(outcome(future)) for future in (*futures, *futures)]
    return await asyncio.gather(*waiting, return_exceptions=True)


async def callbacks(futures: Futures) -> Any:
    called: list[bool] = []
    for future in futures:
        future.add_done_callback(lambda done: called.append(done.cancelled()))
    await asyncio.wait(futures)
    await asyncio.sleep(0)
    return called


def all_succeed(futures: Futures, succeed: Callable[[], object], fail: Callable[[], object]) -> None:
    succeed()
    succeed()


def first_fails(futures: Futures, succeed: Callable[[], object], fail: Callable[[], object]) -> None:
    fail()
    succeed()


def first_is_cancelled(futures: Futures, succeed: Callable[[], object], fail: Callable[[], object]) -> None:
    futures[0].cancel()
    succeed()
    succeed()


def all_are_cancelled_with_a_message(
    futures: Futures, succeed: Callable[[], object], fail: Callable[[], object]
) -> None:
    for future in futures:
        future.cancel("enough")


def of_asyncio() -> tuple[Futures, Callable[[], object], Callable[[], object]]:
    futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
    unfinished = iter(futures)

    def end_next(end: Callable[[Any], object]) -> None:
        future = next(unfinished)
        if not future.done():
            end(future)

    return (
        futures,
        lambda: end_next(lambda future: future.set_result(METADATA)),
        lambda: end_next(lambda future: future.set_exception(FAILURE)),
    )


def of_records() -> tuple[Futures, Callable[[], object], Callable[[], object]]:
    producer = MockProducer(auto_complete=False)
    ends = BatchEnds(asyncio.get_running_loop())
    futures: Futures = [ends.future_of(producer.send("t", b"v")) for _ in range(2)]
    return futures, producer.complete_next, lambda: producer.error_next(FAILURE)


def comparable(result: Any) -> Any:
    """The result without its expected differences: the metadata of records, and the identity of errors."""
    if isinstance(result, list | tuple) and not isinstance(result, RecordMetadata):
        return [comparable(entry) for entry in result]
    if isinstance(result, BaseException):
        return type(result), result.args
    return result if isinstance(result, bool | int | None) else METADATA


async def outcome(make: Callable[[], Any], use: Callable[[Futures], Awaitable[Any]], fate: Fate, before: bool) -> Any:
    futures, succeed, fail = make()
    if before:
        fate(futures, succeed, fail)
        await asyncio.sleep(0)
    using = asyncio.ensure_future(use(futures))
    if not before:
        await asyncio.sleep(0.001)
        fate(futures, succeed, fail)
    # Not wait_for(), which cancels the task and waits for it: a task that never ends may not react to that either.
    done, _ = await asyncio.wait([using], timeout=PATIENCE)
    assert done, "it never ends"
    return comparable([] if using.cancelled() else using.exception() or using.result())


@pytest.mark.parametrize(
    "use", [gather, gather_all, wait, wait_for_one, wait_for, shield, as_completed, tasks, callbacks]
)
@pytest.mark.parametrize("fate", [all_succeed, first_fails, first_is_cancelled, all_are_cancelled_with_a_message])
@pytest.mark.parametrize("before", [True, False], ids=["before", "meanwhile"])
def test_asyncio_treats_a_record_future_as_its_own(
    use: Callable[[Futures], Awaitable[Any]], fate: Fate, before: bool
) -> None:
    async def both() -> tuple[Any, Any]:
        return await outcome(of_records, use, fate, before), await outcome(of_asyncio, use, fate, before)

    ours, theirs = asyncio.run(both())
    assert ours == theirs


# ---- how tasks and callbacks wake ------------------------------------------------------------------------------------


def test_interrupt_in_a_callback_loses_no_other_wake_up() -> None:
    """asyncio runs what is left when the loop goes on, as it does to cancel the tasks after a Ctrl-C."""
    woken: list[str] = []

    def interrupt(done: Any) -> None:
        raise KeyboardInterrupt

    async def awaiting(future: Any) -> None:
        await future
        woken.append("task")

    loop = asyncio.new_event_loop()

    async def start() -> list[asyncio.Task[None]]:
        (first, second), succeed, _ = of_records()
        first.add_done_callback(interrupt)
        first.add_done_callback(lambda done: woken.append("callback"))
        tasks = [asyncio.create_task(awaiting(future)) for future in (first, second)]
        await asyncio.sleep(0)
        loop.call_soon(succeed)
        loop.call_soon(succeed)
        return tasks

    tasks = loop.run_until_complete(start())
    assert not woken
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.sleep(PATIENCE))
    loop.run_until_complete(asyncio.wait_for(asyncio.wait(tasks), PATIENCE))
    loop.close()
    assert woken == ["callback", "task", "task"]


def test_error_in_a_callback_goes_to_the_handler_of_the_loop() -> None:
    async def test() -> None:
        told: list[Any] = []
        (future, other), succeed, _ = of_records()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        future.add_done_callback(lambda done: 1 // 0)
        succeed()
        succeed()
        await other
        await asyncio.sleep(0)
        assert [type(error) for error in told] == [ZeroDivisionError]

    asyncio.run(test())


def test_task_that_is_cancelled_while_it_wakes_ends_cancelled_and_leaves_the_others_alone() -> None:
    async def test() -> None:
        (future, _), succeed, _ = of_records()

        async def awaiting() -> None:
            await future

        def cancel_second(done: Any) -> None:
            waiting[1].cancel("enough")

        future.add_done_callback(cancel_second)
        waiting = [asyncio.create_task(awaiting()) for _ in range(3)]
        await asyncio.sleep(0)
        succeed()
        done, _ = await asyncio.wait(waiting, timeout=PATIENCE)
        assert len(done) == 3
        assert [task.cancelled() for task in waiting] == [False, True, False]

    asyncio.run(test())


def test_context_of_a_task_and_of_a_callback_is_its_own() -> None:
    name: ContextVar[str] = ContextVar("name", default="none")
    seen: list[str] = []

    async def awaiting(future: Any, called: str) -> None:
        name.set(called)
        future.add_done_callback(lambda done: seen.append(name.get()))
        await future
        seen.append(name.get())

    async def test() -> None:
        (future, _), succeed, _ = of_records()
        tasks = [asyncio.create_task(awaiting(future, called)) for called in ("a", "b")]
        await asyncio.sleep(0)
        succeed()
        await asyncio.gather(*tasks)

    asyncio.run(test())
    assert seen == ["a", "a", "b", "b"]


def test_await_can_be_driven_by_hand() -> None:
    """As a generator drives it, without the slot through which CPython's await gets the result."""

    async def test() -> None:
        (future, other), succeed, fail = of_records()
        waiting = future.__await__()
        assert next(waiting) is waiting
        with pytest.raises(ZeroDivisionError):
            waiting.throw(ZeroDivisionError())
        waiting = future.__await__()
        waiting.send(None)
        succeed()
        with pytest.raises(StopIteration) as stopped:
            waiting.send(None)
        assert isinstance(stopped.value.value, RecordMetadata)
        waiting = other.__await__()
        next(waiting)
        waiting.close()
        fail()
        with pytest.raises(RecordTooLargeError):
            next(other.__await__())

    asyncio.run(test())


@pytest.mark.parametrize("woken", [0, 1], ids=["closed before the first end", "closed before it ran the first wake"])
def test_closed_loop_keeps_nothing_that_waited(woken: int) -> None:
    freed: list[bool] = []
    producer = MockProducer(auto_complete=False)
    loop = asyncio.new_event_loop()
    ends = BatchEnds(loop)

    def wait_for_a_record() -> None:
        future = ends.future_of(producer.send("t", b"v"))

        def callback(done: Any) -> None:
            raise AssertionError(future)

        weakref.finalize(callback, freed.append, True)
        future.add_done_callback(callback)

    for _ in range(3):
        wait_for_a_record()
    for _ in range(woken):
        producer.complete_next()
    loop.close()
    while producer.complete_next():
        pass
    gc.collect()
    assert freed == [True] * 3
    assert ends
