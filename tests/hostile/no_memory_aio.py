"""The calls of an event loop without memory: kafkabuf.aio and compat.aiokafka. A part of tests/hostile/no_memory.py.

The tasks of a call are made with memory; then the loop runs, and lacks memory, until they are done. asyncio itself may
lose a task there: it takes a handle from its queue and finds no memory to go on with it. That is told apart: the
record, the thread or the line that the task waits for has ended and has woken the task, and asyncio has reported a
callback of its own. Any other task that does not end is a fault, and so is an error in a callback of ours.

Each call also counts records: a record whose send() raised was not sent, and one whose send() returned was sent once.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.aio._futures import BatchEnds
from kafkabuf.aio.threads import Threads
from kafkabuf.compat.aiokafka import AIOKafkaProducer as PeersProducer
from kafkabuf.errors import KafkaError
from tests.hostile import no_memory
from tests.hostile.no_memory import PATIENCE, QUICK, TOPIC, Fault

IDLE = 50  # turns of the loop after which a task that is not done waits for something


class InLoop(no_memory.Case):
    """A call that one or several tasks make."""

    returns_queued = True  # a call that raises has queued nothing
    records = 1  # of each task

    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self.on_error)
        self.raised: list[dict[str, Any]] = []
        self.has_lost = False  # asyncio has lost a callback
        self.aio = self.made()
        self.run(self.aio.start())
        self.began()

    def began(self) -> None:
        self.next = self.run(self.aio.send_and_wait(TOPIC, b"first")).offset + 1

    def made(self) -> Any:
        settings: dict[str, Any] = {"linger_ms": 0, **QUICK, **self.settings}
        return AIOKafkaProducer(bootstrap_servers=self.servers, **settings)

    def core(self) -> KafkaProducer[Any, Any]:
        return self.aio._started  # type: ignore[no-any-return]

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        self.forget_that_it_runs()
        return self.loop.run_until_complete(asyncio.wait_for(call, PATIENCE))

    def on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.has_lost = True  # first: there may be no memory for more
        self.raised.append(context)

    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        """What the tasks do. A call that returns a future has queued a record."""
        raise NotImplementedError

    def call(self) -> None:
        self.errors: list[str] = []
        self.raised.clear()
        self.has_lost = False
        tasks = [self.loop.create_task(call) for call in self.calls()]
        with self.scarce():
            self.drive(tasks)
        self.drive(tasks)
        if not all(task.done() for task in tasks):
            self.await_threads()  # of a task that asyncio has lost
        least = most = 0
        for task in tasks:
            queued = self.queued(task)
            least, most = least + queued[0], most + queued[1]
        self.check_callbacks()
        self.least, self.most = least, most

    def drive(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Run the loop until the tasks are done, or have been lost."""
        until, turns = time.monotonic() + PATIENCE, 0
        while not self.are_over(tasks, turns):
            turns += 1
            self.forget_that_it_runs()
            try:
                # One turn. An error ends run_forever(): a program that runs its loop again goes on.
                self.loop.stop()
                self.loop.run_forever()
            except BaseException as error:
                self.has_lost = True
                self.raised.append({"exception": error})
                raise
            if turns > IDLE:
                time.sleep(0.001)
                self.repeat_lost_wakes()
            if time.monotonic() > until:
                waits = [task._fut_waiter for task in tasks if not task.done()]  # type: ignore[attr-defined]
                raise Fault(f"a task does not end: it waits for {waits}; {self.raised}")

    def await_threads(self) -> None:
        until, threads = time.monotonic() + PATIENCE, self.threads()
        while threads.count > len(threads._idle):
            if time.monotonic() > until:
                raise Fault("a thread of the loop's producer does not end its call")
            time.sleep(0.001)

    def threads(self) -> Threads:
        return self.aio._threads  # type: ignore[no-any-return]

    def forget_that_it_runs(self) -> None:
        """asyncio takes the loop for a running one where run_forever() found no memory at its beginning or its end."""
        asyncio._set_running_loop(None)
        self.loop._thread_id = None  # type: ignore[attr-defined]

    def repeat_lost_wakes(self) -> None:
        """Where asyncio has taken our callback from its queue and found no memory to call it, call it.

        In a program the next batch that ends does so, some seconds later.
        """
        if self.has_lost:
            self.loop.call_soon(self.batch_ends()._wake_waiters)

    def batch_ends(self) -> BatchEnds:
        return self.aio._ends  # type: ignore[no-any-return]

    def are_over(self, tasks: list[asyncio.Task[Any]], turns: int) -> bool:
        for task in tasks:  # not by all(): a generator that finds no memory says so on stderr
            is_over = task.done() or (turns > IDLE and self.is_lost(task))
            if not is_over:
                return False
        return True

    def is_lost(self, task: asyncio.Task[Any]) -> bool:
        """Whether asyncio has lost the task: what it waits for has woken it, or it waits for nothing."""
        waiter = task._fut_waiter  # type: ignore[attr-defined]
        return waiter is None or (self.has_lost and waiter.done())

    def queued(self, task: asyncio.Task[Any]) -> tuple[int, int]:
        """How many records the task has sent: at least, and at most."""
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            return 0, self.records
        error = task.exception()
        if error is None:
            self.arrived(task.result())
            return self.records, self.records
        is_expected = isinstance(error, MemoryError | SystemError | KafkaError) or "can't" in str(error)
        if not is_expected:
            raise error
        self.errors.append("".join(traceback.format_exception(error)))
        if error.__traceback__ is None:  # asyncio found no memory to go on with the coroutine, and gave it up
            return 0, self.records
        if queued := getattr(error, "rows_queued", 0):  # of a bulk append: the error tells
            return queued, queued
        return 0, 0 if self.returns_queued else self.records

    def arrived(self, future: Any) -> None:
        """The record has been acknowledged."""
        self.run(_of(future))

    def check_callbacks(self) -> None:
        for context in self.raised:
            handle, frames = context.get("handle"), traceback.extract_tb(_traceback_of(context))
            if "BatchEnds" in repr(handle) and any("aio/_futures" in frame.filename for frame in frames):
                raise Fault(f"a callback of ours raised in the loop: {context}")

    def check(self) -> None:
        super().check()
        after = self.run(self.aio.send_and_wait(TOPIC, b"counted")).offset
        count = after - self.next - 1  # the record of super().check()
        self.next = after + 1
        if not self.least <= count <= self.most:
            raise Fault(f"{count} records were sent, and not {self.least} to {self.most}: {self.errors}")

    def close(self) -> None:
        self.run(self.aio.stop())
        self.loop.close()


def _traceback_of(context: dict[str, Any]) -> TracebackType | None:
    return context["exception"].__traceback__ if "exception" in context else None


async def _of(future: Any) -> Any:
    return await future


class AioSend(InLoop):
    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        return [self.aio.send(TOPIC, b"value", b"key")]


class AioSendSlowly(AioSend):
    """With an object of the user each record takes its place in its topic's line."""

    settings: ClassVar[dict[str, Any]] = {"value_serializer": lambda value: value}


class AioSendInLine(AioSendSlowly):
    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        return [self.aio.send(TOPIC, b"value") for _ in range(3)]


class AioSendAndWait(InLoop):
    returns_queued = False

    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        return [self.aio.send_and_wait(TOPIC, b"value") for _ in range(2)]

    def arrived(self, future: Any) -> None:
        """The result is the metadata."""


class AioSendMany(InLoop):
    records = 3

    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        return [self.aio.send_many(TOPIC, [b"one", b"two", b"three"])]

    def arrived(self, future: Any) -> None:
        self.run(future.result())


class AioReport(InLoop):
    """result() of a report."""

    records = 3

    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        report = self.run(self.aio.send_many(TOPIC, [b"one", b"two", b"three"]))
        return [report.result(), report.wait()]

    def queued(self, task: asyncio.Task[Any]) -> tuple[int, int]:
        super().queued(task)
        return 0, 0

    def call(self) -> None:
        super().call()
        self.least = self.most = self.records

    def arrived(self, future: Any) -> None: ...


class AioFlush(InLoop):
    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        self.future = self.run(self.aio.send(TOPIC, b"value"))
        return [self.aio.flush()]

    def queued(self, task: asyncio.Task[Any]) -> tuple[int, int]:
        super().queued(task)
        self.run(_of(self.future))
        return 1, 1

    def arrived(self, future: Any) -> None: ...


class AioStop(InLoop):
    """The producer is opened anew for each call."""

    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        self.futures = [self.run(self.aio.send(TOPIC, b"value")) for _ in range(3)]
        return [self.aio.stop()]

    def call(self) -> None:
        thread = self.core()._running.thread
        super().call()
        self.run(self.aio.stop())
        thread.join(PATIENCE)
        if thread.is_alive():
            raise Fault("the Sender's thread goes on after stop()")
        for future in self.futures:
            self.run(_of(future))
        self.loop.close()
        self.open()
        self.least = self.most = 0

    def arrived(self, future: Any) -> None: ...


class AioTransaction(InLoop):
    settings: ClassVar[dict[str, Any]] = {"transactional_id": "no-memory-aio"}
    ends = "commit_transaction"

    def began(self) -> None:
        self.run(self.aio.init_transactions())

    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        return [self.transaction()]

    async def transaction(self) -> None:
        await self.aio.begin_transaction()
        await self.aio.send(TOPIC, b"value")
        await getattr(self.aio, self.ends)()

    def call(self) -> None:
        super().call()
        for end in (self.ends, "abort_transaction"):
            with suppress(KafkaError):  # the call may be under way, and there may be no transaction any more
                self.run(getattr(self.aio, end)())

    def queued(self, task: asyncio.Task[Any]) -> tuple[int, int]:
        with suppress(KafkaError):
            return super().queued(task)
        return 0, 1

    def arrived(self, future: Any) -> None: ...

    def check(self) -> None:
        if not self.core()._running.thread.is_alive():
            raise Fault("the Sender's thread has ended")
        self.run(self.whole())
        no_memory.check_whole(self.core())

    async def whole(self) -> None:
        await self.aio.begin_transaction()
        later = await self.aio.send(TOPIC, b"after")
        await self.aio.commit_transaction()
        later.result()


class AioAbort(AioTransaction):
    ends = "abort_transaction"


class OfPeer(InLoop):
    """The face of aiokafka. Its producer numbers records, so that a request that is repeated doubles none."""

    def made(self) -> Any:
        return PeersProducer(bootstrap_servers=self.servers, retry_backoff_ms=5, enable_idempotence=True)

    def core(self) -> KafkaProducer[Any, Any]:
        return self.aio._producer._started  # type: ignore[no-any-return]

    def batch_ends(self) -> BatchEnds:
        return self.aio._producer._ends  # type: ignore[no-any-return]

    def threads(self) -> Threads:
        return self.aio._producer._threads  # type: ignore[no-any-return]


class AioKafkaSend(OfPeer, AioSend):
    pass


class AioKafkaSendAndWait(OfPeer, AioSendAndWait):
    pass


class AioKafkaFlush(OfPeer, AioFlush):
    pass


class AioKafkaStop(OfPeer, AioStop):
    pass


class AioKafkaBatch(OfPeer):
    records = 2

    def calls(self) -> list[Coroutine[Any, Any, Any]]:
        batch = self.aio.create_batch()
        for value in (b"one", b"two"):
            batch.append(timestamp=None, key=None, value=value)
        return [self.aio.send_batch(batch, TOPIC, partition=0)]

    def arrived(self, future: Any) -> None:
        self.drive([future])  # a task, which asyncio may lose


CASES: dict[str, type[no_memory.Case]] = {
    case.__name__: case
    for case in (
        AioSend, AioSendSlowly, AioSendInLine, AioSendAndWait, AioSendMany, AioReport, AioFlush, AioStop,
        AioTransaction, AioAbort, AioKafkaSend, AioKafkaSendAndWait, AioKafkaFlush, AioKafkaStop, AioKafkaBatch,
    )
}  # fmt: skip
no_memory.CASES.update(CASES)


def main_with_loops() -> int:
    return no_memory.main()
