"""What one example of the API fuzzer has: topics, producers, and deeds that odd objects do whenever they are asked.

The oracle is here, too: `World.judge` knows what exceptions a caller may meet, `World.close` what must hold at the end.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import signal
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
    """Of exceptions that odd objects raise: they may come out of every call."""


RAISED: dict[str, type[BaseException]] = {
    kind.__name__: type(f"Odd{kind.__name__}", (Mischief, kind), {})
    for kind in (
        KeyboardInterrupt, SystemExit, GeneratorExit, RecursionError, ZeroDivisionError, TypeError, ValueError,
        OverflowError, AttributeError, IndexError, KeyError, StopIteration, MemoryError, BufferError, KafkaError,
        asyncio.CancelledError,
    )
}  # fmt: skip

# What a caller may meet beside what he himself raises. MemoryError: where a length that he names is believed by Python.
ALLOWED = (
    Mischief, KafkaError, TypeError, ValueError, OverflowError, BufferError, MemoryError, pickle.PicklingError,
    asyncio.CancelledError,
)  # fmt: skip
# What nobody may, not even as the cause of another.
_NEVER = (SystemError, AssertionError, NameError)


class Judged:
    """What is raised within is judged. No generator: an exception may be thrown into a thread while it is here."""

    def __init__(self, world: World, where: str) -> None:
        self._world, self._where = world, where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self._world.judge(error, self._where)
        return True


class World:
    """Of one example. `deeds` may be done by any thread, in the middle of any call."""

    names = itertools.count()

    def __init__(self, cluster: EmbeddedCluster, note: Callable[[str], object], patience: float) -> None:
        self.cluster = cluster
        self.note = note
        self.patience = patience  # seconds for an end: more than delivery.timeout.ms, and room for a busy machine
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
        """Whether a caller may meet this."""
        chain, one = [], error
        while one is not None and one not in chain:
            chain.append(one)
            one = one.__cause__ or one.__context__  # type: ignore[assignment]
        if type(error) is RuntimeError and any(isinstance(one, Mischief) for one in chain[1:]):
            return  # Python's own: of a generator that raised StopIteration, of a lock that was interrupted
        if isinstance(error, AttributeError) and type(error.obj).__name__.startswith("Odd"):
            return  # of what says that it is a str, and is none
        if isinstance(error, ALLOWED) and not any(
            isinstance(one, _NEVER) and not isinstance(one, Mischief) for one in chain
        ):
            return
        self.problems.append(f"{where}:\n{''.join(traceback.format_exception(error))}")

    def judged(self, where: str) -> Judged:
        return Judged(self, where)

    def require_none(self) -> None:
        """The process ends where there are problems: hypothesis would try again, and threads would do otherwise."""
        if self.problems:
            self.note("\n".join(["FuzzError: " + problem for problem in self.problems]))
            os._exit(1)

    def close(self) -> None:
        """The example is over: everything has an end, and everything is given back."""
        self.active = False
        self.cluster.clear_faults()
        for producer in self.producers:
            began = time.monotonic()
            with self.judged("the last close()"):
                producer.close()
            if (took := time.monotonic() - began) > self.patience:
                self.problems.append(f"the last close() took {took:.1f} s")
            self.require_whole(producer)
        for one in (*self.futures, *self.reports):
            if not one.done():
                self.problems.append(f"no outcome after close(): {one!r}")
        for report in self.reports:
            with self.judged("a report after close()"):
                report.failures(0)
                report.ranges(0)
        for topic in self.topics:
            with self.judged("the topics' end"):
                self.cluster._call(lambda c: c.catalogue.delete_topic(topic))  # noqa: B023 (it waits)

    def require_whole(self, producer: KafkaProducer) -> None:
        producer._thread.join(self.patience)
        if producer._thread.is_alive():
            self.problems.append("the Sender's thread goes on after close()")
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
        return any(one._in_sender_thread() for one in self.producers)

    def do(self, deed: str) -> None:
        """By name. Deeds within deeds end at some depth."""
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
        self._inside.depth = 0  # even if a signal broke off the deed that was under way
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

    def at_cluster(self, what: Callable[[Any], object]) -> None:
        """In the cluster's thread, without waiting for it: a signal may have come while this one holds a lock."""

        def do() -> None:
            with self.judged("at the cluster"):
                what(cluster)

        cluster = self.cluster._running()
        assert self.cluster._loop is not None
        self.cluster._loop.call_soon_threadsafe(do)

    def grow(self) -> None:
        def grow(cluster: Any) -> None:
            have = len(cluster.catalogue.topic(self.topic).partitions)
            if have < MOST_PARTITIONS:
                cluster.catalogue.add_partitions(self.topic, have + 4)

        self.at_cluster(grow)
        self._learn()

    def shrink(self) -> None:
        """Deleted, and made again with one partition."""

        def again(cluster: Any) -> None:
            cluster.catalogue.delete_topic(self.topic)
            cluster.catalogue.create_topic(self.topic, 1)

        self.at_cluster(again)
        self._learn()

    def _learn(self) -> None:
        """Ask at once, as the Sender does on its own now and then."""
        self.producer._metadata.request_update()
        self.producer.accumulator.wakeup()

    def change_lists(self) -> None:
        for one in self.lists[-4:]:
            if one and len(one) % 2:
                one.clear()
            elif len(one) < 64:
                one.extend(one or b"x")

    def wait(self) -> None:
        """In a callback without an end, since there waiting must be refused; elsewhere records may need this thread."""
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
        except AttributeError:  # Python's, of a serializer that cannot be pickled
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
    """A signal after `seconds` and ever again, whose handler does `deed`; it raises once at most."""
    open_ = [True]

    def handler(_: int, __: FrameType | None) -> None:
        if open_[0]:
            if deed in RAISED:
                open_[0] = False
            world.do(deed)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, max(seconds, 2e-4))
        yield
    finally:
        open_[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
