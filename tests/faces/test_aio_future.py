"""AIORecordFuture beside asyncio.Future: whatever asyncio makes of one it makes of the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kafkabuf.aio_futures import AIORecordFuture, BatchEnds
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
    return len(done), len(pending), [one.cancelled() or one.exception() for one in futures]


async def wait_for_one(futures: Futures) -> Any:
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    return [one in done for one in futures]


async def wait_for(futures: Futures) -> Any:
    return [await asyncio.wait_for(one, PATIENCE) for one in futures]


async def shield(futures: Futures) -> Any:
    return [await asyncio.shield(one) for one in futures]


async def as_completed(futures: Futures) -> Any:
    return [await one for one in asyncio.as_completed(futures)]


async def tasks(futures: Futures) -> Any:
    async def outcome(one: Any) -> Any:
        return await one

    waiting = [asyncio.create_task(outcome(one)) for one in (*futures, *futures)]
    return await asyncio.gather(*waiting, return_exceptions=True)


async def callbacks(futures: Futures) -> Any:
    called: list[bool] = []
    for one in futures:
        one.add_done_callback(lambda done: called.append(done.cancelled()))
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
    for one in futures:
        one.cancel("enough")


def of_asyncio() -> tuple[Futures, Callable[[], object], Callable[[], object]]:
    futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
    left = iter(futures)

    def end(give: Callable[[Any], object]) -> None:
        one = next(left)
        if not one.done():
            give(one)

    return (
        futures,
        lambda: end(lambda one: one.set_result(METADATA)),
        lambda: end(lambda one: one.set_exception(FAILURE)),
    )


def of_records() -> tuple[Futures, Callable[[], object], Callable[[], object]]:
    producer = MockProducer(auto_complete=False)
    ends = BatchEnds(asyncio.get_running_loop())
    futures: Futures = [AIORecordFuture(producer.send("t", b"v"), ends) for _ in range(2)]
    return futures, producer.complete_next, lambda: producer.error_next(FAILURE)


def told(found: Any) -> Any:
    """Without what differs: the metadata of records, and an error's identity."""
    if isinstance(found, list | tuple) and not isinstance(found, RecordMetadata):
        return [told(one) for one in found]
    if isinstance(found, BaseException):
        return type(found), found.args
    return found if isinstance(found, bool | int | None) else METADATA


async def outcome(make: Callable[[], Any], use: Callable[[Futures], Awaitable[Any]], fate: Fate, before: bool) -> Any:
    futures, succeed, fail = make()
    if before:
        fate(futures, succeed, fail)
        await asyncio.sleep(0)
    using = asyncio.ensure_future(use(futures))
    if not before:
        await asyncio.sleep(0.001)
        fate(futures, succeed, fail)
    # Not wait_for(): what does not end may not be cancelled either.
    done, _ = await asyncio.wait([using], timeout=PATIENCE)
    assert done, "it never ends"
    return told([] if using.cancelled() else using.exception() or using.result())


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
