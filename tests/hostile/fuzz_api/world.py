"""The world of one example of the API fuzzer: its topics and producers, and the deeds that odd objects do.

The oracle is here, too: `World.judge` knows which exceptions a caller may meet, `World.close` checks what must hold at
the end.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pyarrow as pa

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import KafkaError
from kafkabuf.producer import KafkaProducer
from kafkabuf.testing import MockProducer
from rigs.producer import assert_whole

MOST_PARTITIONS = 48
_DEPTH = 2


class Mischief:
    """The base of the exceptions that odd objects raise. Every call may raise them."""


RAISED: dict[str, type[BaseException]] = {
    kind.__name__: type(f"Odd{kind.__name__}", (Mischief, kind), {})
    for kind in (
        KeyboardInterrupt, SystemExit, GeneratorExit, RecursionError, ZeroDivisionError, TypeError, ValueError,
        OverflowError, AttributeError, IndexError, KeyError, StopIteration, MemoryError, BufferError, KafkaError,
        asyncio.CancelledError,
    )
}  # fmt: skip

# Exceptions that a caller may meet. MemoryError: Python believes a length that the caller's object returns.
ALLOWED = (
    Mischief, KafkaError, TypeError, ValueError, OverflowError, BufferError, MemoryError, pickle.PicklingError,
    asyncio.CancelledError,
)  # fmt: skip
# Exceptions that no caller may meet, not even as the cause of another exception.
_NEVER = (SystemError, AssertionError, NameError)


class Judged:
    """Judges the exceptions of its block. Not a generator, since an exception may be thrown into a thread here."""

    def __init__(self, world: World, where: str) -> None:
        self._world, self._where = world, where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self._world.judge(error, self._where)
        return True


class World:
    """The objects of one example. Any thread may do a deed, in the middle of any call."""

    names = itertools.count()

    def __init__(self, cluster: EmbeddedCluster, note: Callable[[str], object], patience: float) -> None:
        self.cluster = cluster
        self.note = note
        self.patience = patience  # seconds for a close(): more than delivery.timeout.ms, for a busy machine
        self.topics = [f"t{next(self.names)}" for _ in range(2)]
        self.producers: list[KafkaProducer] = []
        self.mocks: list[MockProducer] = []
        self.futures: list[Any] = []
        self.reports: list[Any] = []
        self.lists: list[Any] = []  # arguments that may change while they are read
        self.problems: list[str] = []
        self._inside = threading.local()
        self.active = False  # a step is under way; odd objects are drawn, and printed, between steps
        for number, topic in enumerate(self.topics):
            cluster.create_topic(topic, 1 + 3 * number)

    # ---- the oracle --------------------------------------------------------------------------------------------------

    def judge(self, error: BaseException, where: str) -> None:
        """Note a problem unless a caller may meet this exception."""
        chain, link = [], error
        while link is not None and link not in chain:
            chain.append(link)
            link = link.__cause__ or link.__context__  # type: ignore[assignment]
        if type(error) is RuntimeError and any(isinstance(link, Mischief) for link in chain[1:]):
            return  # Python raises it where a generator raised StopIteration, or a lock was interrupted
        if isinstance(error, AttributeError) and type(error.obj).__name__.startswith("Odd"):
            return  # an odd object claims to be a str
        if isinstance(error, ALLOWED) and not any(
            isinstance(link, _NEVER) and not isinstance(link, Mischief) for link in chain
        ):
            return
        self.problems.append(f"{where}:\n{''.join(traceback.format_exception(error))}")

    def judged(self, where: str) -> Judged:
        return Judged(self, where)

    def require_no_problems(self) -> None:
        """End the process at a problem. hypothesis would repeat the example, in which threads may run differently."""
        if self.problems:
            self.note("\n".join(["FuzzError: " + problem for problem in self.problems]))
            os._exit(1)

    def close(self) -> None:
        """At the end of the example every record and report has an outcome, and the pool is whole."""
        self.active = False
        self.cluster.clear_faults()
        for producer in self.producers:
            began = time.monotonic()
            with self.judged("the last close()"):
                producer.close()
            if (took := time.monotonic() - began) > self.patience:
                self.problems.append(f"the last close() took {took:.1f} s")
            self.require_whole(producer)
        for outcome in (*self.futures, *self.reports):
            if not outcome.done():
                self.problems.append(f"no outcome after close(): {outcome!r}")
        for report in self.reports:
            with self.judged("a report after close()"):
                report.failures(0)
                report.ranges(0)
        for topic in self.topics:
            with self.judged("the topics' deletion"):
                self.cluster._call(lambda c: c.catalogue.delete_topic(topic))  # noqa: B023 (it waits)

    def require_whole(self, producer: KafkaProducer) -> None:
        producer._thread.join(self.patience)
        if producer._thread.is_alive():
            frame = sys._current_frames().get(producer._thread.ident or 0)
            stack = "".join(traceback.format_stack(frame))
            self.problems.append(f"the Sender's thread goes on after close():\n{stack}")
            return
        try:
            assert_whole(producer.pool)
        except AssertionError as error:
            self.problems.append(f"memory is missing: {producer.pool.accounting()}: {error}")

    # ---- deeds -------------------------------------------------------------------------------------------------------

    @property
    def producer(self) -> KafkaProducer:
        return self.producers[-1]

    @property
    def topic(self) -> str:
        return self.topics[-1]

    def in_callback(self) -> bool:
        return any(producer._running.runs_here() for producer in self.producers)

    def do(self, deed: str) -> None:
        """Do the deed of this name, unless it is nested too deeply in other deeds."""
        depth = getattr(self._inside, "depth", 0)
        if not self.active or depth >= _DEPTH or not self.producers:
            return
        if deed in RAISED:
            raise RAISED[deed]("an odd object raised")
        self._inside.depth = depth + 1
        try:
            with self.judged(f"a deed, {deed}"):
                DEEDS[deed](self)
        finally:
            self._inside.depth = depth

    @contextmanager
    def step(self) -> Iterator[None]:
        self._inside.depth = 0  # a signal may have interrupted a deed before it restored the depth
        self.active = True
        try:
            yield
        finally:
            self.active = False

    def send(self, *arguments: Any, **named: Any) -> None:
        self.futures.append(self.producer.send(*arguments, **named))

    def send_many(self, *arguments: Any, **named: Any) -> None:
        self._keep(self.producer.send_many, *arguments, **named)

    def send_arrow(self, *arguments: Any, **named: Any) -> None:
        self._keep(self.producer.send_arrow, *arguments, **named)

    def _keep(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            self.reports.append(call(*arguments, **named))
        except KafkaError as error:
            if (report := getattr(error, "report", None)) is not None:
                self.reports.append(report)
            raise

    def at_cluster(self, action: Callable[[Any], object]) -> None:
        """Have the cluster's thread do `action`, without waiting: a signal may come while this thread holds a lock."""

        def do() -> None:
            with self.judged("at the cluster"):
                action(cluster)

        cluster = self.cluster._running()
        assert self.cluster._loop is not None
        self.cluster._loop.call_soon_threadsafe(do)

    def grow(self) -> None:
        def grow(cluster: Any) -> None:
            count = len(cluster.catalogue.topic(self.topic).partitions)
            if count < MOST_PARTITIONS:
                cluster.catalogue.add_partitions(self.topic, count + 4)

        self.at_cluster(grow)
        self._update_metadata()

    def shrink(self) -> None:
        """Delete the topic and create it again with one partition."""

        def recreate(cluster: Any) -> None:
            cluster.catalogue.delete_topic(self.topic)
            cluster.catalogue.create_topic(self.topic, 1)

        self.at_cluster(recreate)
        self._update_metadata()

    def _update_metadata(self) -> None:
        """Request metadata at once; the Sender would request it later by itself."""
        self.producer._metadata.request_update()
        self.producer.accumulator.wakeup()

    def change_lists(self) -> None:
        for argument in self.lists[-4:]:
            if argument and len(argument) % 2:
                argument.clear()
            elif len(argument) < 64:
                argument.extend(argument or b"x")

    def wait(self) -> None:
        """Wait for the newest record and report: without a time-out in a callback, where the producer must refuse it.

        Elsewhere the time-out is short, since the records may need this thread.
        """
        timeout = None if self.in_callback() else 0.01
        for future in self.futures[-1:]:
            future.result(timeout)
        for report in self.reports[-1:]:
            report.wait(timeout)

    def chain(self) -> None:
        for future in self.futures[-1:]:
            future.add_done_callback(lambda _: self.do("send"))

    def copy(self) -> None:
        try:
            pickled = pickle.dumps(self.producer)
        except AttributeError:  # pickle raises it for a serializer that it cannot pickle
            return
        with pickle.loads(pickled) as copy:
            copy.send(self.topic, b"of a copy")

    def transact(self) -> None:
        producer = self.producer
        producer.init_transactions()
        producer.begin_transaction()
        self.send(self.topic, b"in a transaction")
        producer.send_offsets_to_transaction({(self.topic, 0): 5}, "group")
        producer.commit_transaction()


_TABLE = pa.table({"value": [b"a", b"bc", None] * 20})
DEEDS: dict[str, Callable[[World], object]] = {
    "nothing": lambda w: None,
    "yield": lambda w: time.sleep(0),
    "collect": lambda w: gc.collect(0),
    "change lists": World.change_lists,
    "send": lambda w: w.send(w.topic, b"v", callback=lambda *_: time.sleep(0)),
    "send large": lambda w: w.send(w.topic, bytes(3000)),
    "send_many": lambda w: w.send_many(w.topic, [b"x" * 50] * 30),
    "send_arrow": lambda w: w.send_arrow(_TABLE, w.topic),
    "flush": lambda w: w.producer.flush(None if w.in_callback() else 0.01),
    "close": lambda w: w.producer.close(),
    "close(0)": lambda w: w.producer.close(0),
    "close soon": lambda w: w.producer.close(0.02),
    "wait": World.wait,
    "chain": World.chain,
    "metrics": lambda w: w.producer.metrics(),
    "partitions_for": lambda w: w.producer.partitions_for(w.topic),
    "purge": lambda w: w.producer.purge(),
    "grow": World.grow,
    "shrink": World.shrink,
    "transact": World.transact,
    "abort": lambda w: w.producer.abort_transaction(),
    "cut": lambda w: w.at_cluster(lambda c: c.cut_connections(None)),
    "refuse": lambda w: w.at_cluster(lambda c: c.faults.fail(0, 6, 1, None)),
    "refuse size": lambda w: w.at_cluster(lambda c: c.faults.fail(0, 10, 1, None)),
    "drop": lambda w: w.at_cluster(lambda c: c.faults.drop(0, 1)),
}


@contextmanager
def alarms(world: World, deed: str, seconds: float) -> Iterator[None]:
    """A signal comes every `seconds`, and its handler does `deed`. A deed that raises is done at most once."""
    enabled = [True]

    def handler(_: int, __: FrameType | None) -> None:
        if enabled[0]:
            if deed in RAISED:
                enabled[0] = False
            world.do(deed)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, max(seconds, 2e-4))
        yield
    finally:
        enabled[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
