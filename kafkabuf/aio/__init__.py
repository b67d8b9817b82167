"""AIOKafkaProducer: KafkaProducer for an event loop. It never blocks the loop.

In the loop's thread the producer calls KafkaProducer's own send(), over the same queues, but this send() never waits:
if the record must wait, it raises `MustWait`. The record then stands in the topic's line, in front of later records of
its topic, while another thread waits for metadata or memory. A thread that waits for memory returns a Slab, which
releases itself if no record uses it. So only the loop's thread queues records, and a cancelled task has queued nothing.
"""

from __future__ import annotations

import asyncio
import operator
import os
import weakref
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from kafkabuf._pool import Slab
from kafkabuf.aio._core import TURN, LoopCore, MustWait
from kafkabuf.aio._futures import AIORecordFuture, BatchEnds, Line
from kafkabuf.aio.futures import AIOBulkReport
from kafkabuf.aio.threads import Call, Threads
from kafkabuf.append._producer import TopicPolicy
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import AbortableTransactionError, ClosedError, IllegalStateError, KafkaError
from kafkabuf.interceptors import Acknowledgement, ProducerRecord, pairs_of
from kafkabuf.memory.buffers import Headers, K, V
from kafkabuf.metadata.metadata import TopicInfo
from kafkabuf.partitioner import rule_named
from kafkabuf.process.producer_log import log_as
from kafkabuf.producer import (
    KafkaProducer,
    config_in_child,
    config_of,
    described,
    registry_of,
    require_no_context,
    schemas_of,
)
from kafkabuf.record_metadata import RecordMetadata
from kafkabuf.shown import also_unfinished
from kafkabuf.tracebacks import without_ours
from kafkabuf.transactions.groups import GroupMetadata, Offsets

if TYPE_CHECKING:
    import ssl

    from kafkabuf.aio._futures import Outcomes
    from kafkabuf.append.report import BulkReport
    from kafkabuf.formats.plan import AnyFormat
    from kafkabuf.spool.recovered import Recovered
    from kafkabuf.typing import BytesLike, Options

__all__ = ["AIOBulkReport", "AIOKafkaProducer", "AIORecordFuture"]

T = TypeVar("T")
P = ParamSpec("P")

# Limits how many topics may have a record that waits, plus how many other calls may run, at one time. The pool starts a
# thread only when a call needs it.
MAX_THREADS = 1024
# The user's objects have prepared a record before _LoopCore sends it, so _LoopCore must not call them again.
_NO_USER_OBJECTS: dict[str, Any] = {
    "key_serializer": None,
    "value_serializer": None,
    "interceptor_classes": (),
}


class _LoopTopics(TopicPolicy):
    """The loop's thread does not wait for metadata: another thread does."""

    partition_looked_up = False  # metadata was requested for the partition of the present record

    def await_topic(self, name: str, timeout: float) -> NoReturn:
        raise MustWait(0)

    def await_partition(self, name: str, partition: int, timeout: float) -> None:
        if not self.partition_looked_up:
            raise MustWait(0)


class _LoopCore(LoopCore):
    """send() of prepared records in the loop's thread: it appends to a producer's queues and never waits."""

    topics: _LoopTopics

    def __init__(self, producer: KafkaProducer, clock: Clock) -> None:
        self.slab: Slab | None = None  # memory for the present record
        config = producer.config
        # A rule for keys is no object of the user: this core applies it.
        left = _NO_USER_OBJECTS | {"partitioner_class": rule_named(config.partitioner_class)}
        self._open(producer.accumulator, _LoopTopics(), config.replaced(left), clock)
        self.accumulator.loop_allocator = self._take_slab

    def send_with(self, slab: Slab | None, *arguments: Any) -> RecordFuture:
        """send() of a record that has waited for its metadata, and perhaps for `slab`."""
        self.topics.partition_looked_up, self.slab = True, slab
        try:
            return self.send(*arguments)
        finally:
            # If another record has opened a batch with room meanwhile, or send() raises, it did not use the slab. An
            # error that the user keeps holds this frame, and must not hold the memory.
            unused, self.topics.partition_looked_up, self.slab = self.slab, False, None
            if unused is not None:
                unused.release()

    def _take_slab(self, nbytes: int) -> tuple[int, int]:
        if self.slab is None or self.slab.nbytes < nbytes:
            raise MustWait(nbytes)
        slab, self.slab = self.slab, None
        return slab.detach(), slab.extent

    def close(self) -> None:
        self._begin_close()


class AIOKafkaProducer(Generic[K, V]):
    """Publishes records to Kafka from one event loop, with the settings, errors and guarantees of KafkaProducer.

    ::

        async with AIOKafkaProducer(bootstrap_servers="localhost:9092") as producer:
            future = await producer.send("topic", b"value")  # queued
            metadata = await future                          # acknowledged

    The constructor raises ConfigError for a setting that is wrong; start() raises it for a bootstrap list that does not
    resolve, and unless `check` is False the errors of KafkaProducer(check=True) where no broker answers. Methods raise
    IllegalStateError before start(), and in any event loop other than that of start(). In a forked child the first
    coroutine method that is awaited opens a producer of the child's own, in the running event loop; a child of a
    producer with a transactional.id gets a ClosedError.
    send() calls serializers, partitioner and interceptors in the loop's thread; send_many() calls them in another
    thread. For a queued record interceptors hear of the acknowledgement in the Sender's thread. Not thread-safe, like
    the rest of asyncio. A pickle holds the configuration only.
    """

    _outcomes: Outcomes | None = None
    _kind: type[KafkaProducer[Any, Any]] = KafkaProducer

    @overload
    def __init__(
        self: AIOKafkaProducer[BytesLike, BytesLike],
        config: None = None,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **settings: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: AIOKafkaProducer[Any, BytesLike],
        config: None = None,
        *,
        key_serializer: object,
        value_serializer: None = None,
        **settings: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: AIOKafkaProducer[Any, Any],
        config: Mapping[str, Any] | ProducerConfig | None = None,
        *,
        key_serializer: object = None,
        value_serializer: object = None,
        **settings: Unpack[Options],
    ) -> None: ...
    def __init__(
        self,
        config: Mapping[str, Any] | ProducerConfig | None = None,
        *,
        clock: Clock | None = None,
        check: bool = True,
        ssl_context: ssl.SSLContext | None = None,
        **settings: Any,
    ) -> None:
        self.config = config_of(config, settings)
        self._clock = clock or SystemClock()
        # Both raise ConfigError here, and not in start().
        schemas_of(self.config, registry_of(self.config, self._clock), self._clock)
        self._check = check
        self._ssl_context = ssl_context
        self._loop: asyncio.AbstractEventLoop | None = None  # set while the producer is open
        self._starting = False
        self._lines: dict[str, Line] = {}  # by topic, if a record of the topic waits
        self._queue = _queue_nothing
        self._stopped = False
        self._entering: asyncio.Lock | None = None  # in a forked child that has not opened the producer yet

    def __reduce__(self) -> tuple[type[Self], tuple[ProducerConfig]]:
        require_no_context(self._ssl_context)
        return type(self), (self.config,)

    @also_unfinished
    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "not started" if self._loop is None else "started"
        return f"{type(self).__name__}({described(self.config)}, {state})"

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the producer, which belongs to this event loop from now on. Unless `check` is False, wait for a broker.

        Raises ConfigError, and with `check` what KafkaProducer(check=True) raises: at once if every bootstrap server
        refuses, and after ten seconds or `max.block.ms` if none answers.
        """
        if self._loop is not None or self._starting or self._stopped:
            raise IllegalStateError(
                "start() is called once: this AIOKafkaProducer has been started already, and belongs to the event loop "
                "of that start(). Make one producer for each loop, or share a KafkaProducer"
            )
        await self._start(check=self._check)

    async def _start(self, *, check: bool) -> None:
        if self._entering is not None:  # in a forked child
            with log_as(self.config.client_id):
                self.config = config_in_child(self.config)
        self._starting = True
        loop = get_running_loop()
        self._threads = Threads(MAX_THREADS, f"kafkabuf-aio-{self.config.client_id}")
        self._ends = BatchEnds(loop, self._outcomes)
        try:
            self._started = await self._run(
                self._kind, self.config, clock=self._clock, check=check, ssl_context=self._ssl_context
            )
        except BaseException:
            # A cancelled task does not wait for the thread, in which the constructor still runs.
            self._threads.end()
            raise
        finally:
            self._starting = False
        self._core = _LoopCore(self._started, self._clock)
        self._core._enter(loop, self._ends, self._lines, self._started.detour)
        self._queue = self._core.queue
        self._loop, self._entering = loop, None
        _started.add(self)

    def _disown(self) -> None:
        """In a forked child: the next coroutine method reopens the producer. See _enter_loop()."""
        if not self._stopped:
            self._core._close_in_child()  # only a call that began in the parent still has this object
            self._ends.forget()
            self._loop, self._lines, self._entering = None, {}, asyncio.Lock()
            self._queue = _queue_nothing

    async def _enter_loop(self) -> None:
        """The running event loop is not the producer's. Raises, except in a forked child."""
        if self._entering is None:
            self._refuse_loop()
        async with self._entering:
            if self._loop is None:
                await self._start(check=False)

    async def stop(self, timeout: float | None = None) -> None:
        """Send all buffered records and stop, as KafkaProducer.close(). A send() that waits raises ClosedError."""
        if self._loop is None:
            if self._entering is not None:  # in a forked child: later calls open nothing
                self._entering, self._stopped = None, True
            return
        self._check_loop()
        if not self._stopped:
            self._core.close()
            await self._in_thread(KafkaProducer.close, timeout)
            self._stopped = True
            self._threads.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _check_loop(self) -> None:
        if get_running_loop() is not self._loop:
            self._refuse_loop()

    @property
    def _producer(self) -> KafkaProducer:
        self._check_loop()
        return self._started

    def _refuse_loop(self) -> NoReturn:
        if self._loop is None and self._stopped:
            raise ClosedError("the producer is closed")
        if self._entering is not None:
            raise ClosedError("in a forked child an AIOKafkaProducer opens with the first coroutine method: await one")
        if self._loop is None:
            raise IllegalStateError("this AIOKafkaProducer has not been started: call start(), or use `async with`")
        raise IllegalStateError(
            "this AIOKafkaProducer was started in another event loop and belongs to that loop: create a producer for "
            "each loop, or share a KafkaProducer"
        )

    async def _in_thread(
        self, method: Callable[Concatenate[KafkaProducer, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a method of the producer, which may wait, in a thread. If the task is cancelled, the call continues."""
        if get_running_loop() is not self._loop:
            await self._enter_loop()
        if self._stopped:
            raise ClosedError("the producer is closed")
        return await self._run(method, self._started, *args, **kwargs)

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in a thread. If the task is cancelled, the call continues; its result is dropped.

        A MemoryError of this method itself means that nobody makes the call.
        """
        outcome = self._ends.new_wait()
        self._threads.start(Call(call.__name__, partial(copy_context().run, call, *args, **kwargs), outcome))
        while True:
            try:
                return await outcome  # type: ignore[no-any-return]
            except MemoryError:
                if outcome.taken:  # by the call. Otherwise asyncio found no memory to wake the task
                    raise

    # ---- records -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        opaque: object = None,
    ) -> AIORecordFuture:
        """Queue one record and return a future of its RecordMetadata. Arguments and errors: KafkaProducer.send().

        Waits for metadata and memory, up to `max.block.ms`, while other tasks run. Records of a topic are queued in the
        order in which their send() began. A task that is cancelled here has queued nothing.
        """
        try:
            future = self._queue(topic, value, key, headers, partition, timestamp_ms, opaque)
            if future is None:
                return await self._send_slowly(topic, value, key, headers, partition, timestamp_ms, opaque)
        except KafkaError as error:
            raise without_ours(error) from error.__cause__
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        opaque: object = None,
    ) -> RecordMetadata:
        """send() the record and wait for its acknowledgement. A task that is cancelled may have queued the record."""
        try:
            future = self._queue(topic, value, key, headers, partition, timestamp_ms, opaque)
            if future is None:
                future = await self._send_slowly(topic, value, key, headers, partition, timestamp_ms, opaque)
        except KafkaError as error:
            raise without_ours(error) from error.__cause__
        return await future

    async def _send_slowly(
        self,
        topic: str,
        value: V | None,
        key: K | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        opaque: object,
    ) -> AIORecordFuture:
        """send() of a record that queue() has not taken."""
        if get_running_loop() is not self._loop:
            await self._enter_loop()
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        future = self._ends.empty_future()  # first: once the record is queued, nothing may raise
        self._ends.fill(future, await self._send_by_detour(record, opaque))
        return future

    async def _send_by_detour(self, record: ProducerRecord, opaque: object) -> RecordFuture:
        """send() with interceptors, serializers and partitioner, and with the waits for metadata and memory."""
        deadline = self._clock.monotonic() + self.config.max_block_ms / 1000
        interceptors = self._producer.interceptors
        if interceptors is None:
            return await self._send_in_line(record, None, opaque, deadline)
        record = interceptors.on_send(record._replace(headers=pairs_of(record.headers)))
        try:
            return await self._send_in_line(record, interceptors.acknowledgement(record), opaque, deadline)
        except BaseException as error:
            interceptors.on_send_error(record, error)
            raise

    async def _send_in_line(
        self, record: ProducerRecord, callback: Acknowledgement | None, opaque: object, deadline: float
    ) -> RecordFuture:
        line = self._lines.get(record.topic)
        if line is None:
            line = self._lines[record.topic] = Line(self._ends)
        turn = line.enter()
        try:
            await turn
            if not self._core.sent % TURN:
                await asyncio.sleep(0)
            return await self._send_first_in_line(record, callback, opaque, deadline)
        finally:
            line.leave(turn)
            if not line.length:
                self._lines.pop(record.topic, None)  # a forked child has emptied the table

    async def _send_first_in_line(
        self, record: ProducerRecord, callback: Acknowledgement | None, opaque: object, deadline: float
    ) -> RecordFuture:
        topic, value, key, headers, partition, timestamp_ms = record
        await self._await_metadata(topic, partition, deadline)
        if self._started.detour:
            if self._producer._lacks_schema(topic, key, value):
                await self._in_thread(KafkaProducer._await_schemas, topic, key, value, self._seconds_until(deadline))
            key, value, headers, partition = self._producer.prepare(topic, key, value, headers, partition)
        slab = None
        while True:
            try:
                return self._core.send_with(slab, topic, value, key, headers, partition, timestamp_ms, callback, opaque)
            except MustWait as wait:
                (size,) = wait.args
            slab = None  # too small: a record that waits holds no memory
            slab = await self._in_thread(_allocate, size, self._seconds_until(deadline))

    async def _await_metadata(self, topic: str, partition: int | None, deadline: float) -> None:
        topics = self._core.accumulator.topics
        if topic not in topics:
            await self._in_thread(_await_topic, topic, self._seconds_until(deadline))
        if partition is not None and _is_beyond(partition, len(topics[topic].queues)):
            await self._in_thread(_await_partition, topic, partition, self._seconds_until(deadline))

    def _seconds_until(self, deadline: float) -> float:
        return max(deadline - self._clock.monotonic(), 0.0)

    async def send_arrow(
        self,
        data: Any,
        topic: str | None = None,
        report: str = "rows",
        *,
        value_format: AnyFormat | None = None,
        key_format: AnyFormat | None = None,
        key: str | Sequence[str] | None = None,
    ) -> AIOBulkReport:
        """KafkaProducer.send_arrow() in a thread. If the task is cancelled, the call still continues."""
        return await self._report_of(
            KafkaProducer.send_arrow, data, topic, report, value_format=value_format, key_format=key_format, key=key
        )

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[Any] | None = None,
        partitions: Sequence[int | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        report: str = "rows",
    ) -> AIOBulkReport:
        """KafkaProducer.send_many() in a thread. If the task is cancelled, the call still continues."""
        return await self._report_of(
            KafkaProducer.send_many, topic, values, keys, headers, partitions, timestamps_ms, report
        )

    async def _report_of(
        self, method: Callable[Concatenate[KafkaProducer, P], BulkReport], *args: P.args, **kwargs: P.kwargs
    ) -> AIOBulkReport:
        report = AIOBulkReport.yet_to_come()  # first: once rows are queued, nothing may raise

        @wraps(method)
        def call(producer: KafkaProducer, /, *args: P.args, **kwargs: P.kwargs) -> None:
            report.report = method(producer, *args, **kwargs)

        try:
            await self._in_thread(call, *args, **kwargs)
        except MemoryError:
            if report.report is None:  # otherwise the rows are queued, and Python found no memory to come back here
                raise
        report._ends = self._ends
        return report

    # ---- the rest, as KafkaProducer's --------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> TopicInfo:
        """The topic's partitions and their leaders. Fetches metadata if necessary, for up to `max.block.ms`."""
        return await self._in_thread(KafkaProducer.partitions_for, topic)

    async def client_instance_id(self, timeout: float) -> UUID:
        """The id of the producer in the metrics of the cluster's operator: KafkaProducer.client_instance_id()."""
        return await self._in_thread(KafkaProducer.client_instance_id, timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Send all records buffered now and wait until each has an outcome. Raises TimeoutError after `timeout` s."""
        await self._in_thread(KafkaProducer.flush, timeout)

    def purge(self, *, in_flight: bool = True) -> None:
        """Drop all buffered records, as KafkaProducer.purge(). Returns at once."""
        self._producer.purge(in_flight=in_flight)

    @property
    def recovered(self) -> Recovered | None:
        """As KafkaProducer.recovered."""
        return self._producer.recovered

    def metrics(self) -> dict[str, dict[str, float]]:
        """The present metrics as {group: {name: value}}, under Java's names."""
        return self._producer.metrics()

    # ---- transactions ------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """As KafkaProducer.init_transactions()."""
        await self._in_thread(KafkaProducer.init_transactions)

    async def begin_transaction(self) -> None:
        """Begin a transaction. All records sent from now on belong to it, until it is committed or aborted."""
        await self._in_thread(KafkaProducer.begin_transaction)

    async def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: GroupMetadata | str | Any) -> None:
        """As KafkaProducer.send_offsets_to_transaction()."""
        await self._in_thread(KafkaProducer.send_offsets_to_transaction, offsets, group_metadata)

    async def commit_transaction(self) -> None:
        """As KafkaProducer.commit_transaction(). If the task is cancelled, the commit still continues."""
        await self._in_thread(KafkaProducer.commit_transaction)

    async def abort_transaction(self) -> None:
        """As KafkaProducer.abort_transaction()."""
        await self._in_thread(KafkaProducer.abort_transaction)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """`async with producer.transaction():` commits at the end, or aborts if the block raises or is cancelled.

        A task that is cancelled in the commit ends with it, so that another transaction may follow. If the commit
        raises AbortableTransactionError, the transaction is aborted too. A commit that timed out continues, and
        commit_transaction() waits for it.
        """
        begin = asyncio.ensure_future(self.begin_transaction())
        try:
            await _ended(begin)
            yield
        except BaseException as error:
            if begin.done() and not begin.cancelled() and begin.exception() is None:
                await self._abort_because(error)
            raise
        commit = asyncio.ensure_future(self.commit_transaction())
        try:
            await _ended(commit)
        except BaseException as error:
            if commit.done() and not commit.cancelled() and isinstance(commit.exception(), AbortableTransactionError):
                await self._abort_because(error)
            raise

    async def _abort_because(self, error: BaseException) -> None:
        """Abort. The user sees `error`, even if the abort fails too."""
        try:
            await _ended(asyncio.ensure_future(self.abort_transaction()))
        except KafkaError as failure:
            error.add_note(f"abort_transaction() failed, too: {failure}")


async def _ended(call: asyncio.Future[None]) -> None:
    """Wait for a call that goes on though the task is cancelled: the task is cancelled at the call's end.

    A second cancellation ends the wait.
    """
    try:
        await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        if not call.cancelled():
            call.exception()  # asyncio would log an error that nobody asked for
        raise


def _queue_nothing(*record: Any) -> AIORecordFuture | None:
    """Stands for LoopCore.queue() before start(), and in a forked child that has not opened its producer yet."""
    return None


def _is_beyond(partition: int, partitions: int) -> bool:
    """Whether the number lies past the known partitions. False for any other object: send() refuses it."""
    try:
        return operator.index(partition) >= partitions
    except TypeError:
        return False


def _await_topic(producer: KafkaProducer, name: str, timeout: float) -> None:
    producer.check_open()
    producer.topics.await_topic(name, timeout)


def _await_partition(producer: KafkaProducer, name: str, partition: int, timeout: float) -> None:
    producer.check_open()
    producer.topics.await_partition(name, partition, timeout)


def _allocate(producer: KafkaProducer, size: int, timeout: float) -> Slab:
    return producer.pool.allocate(size, timeout)


# The producers that are open, and those that a fork has copied.
_started: weakref.WeakSet[AIOKafkaProducer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for producer in list(_started):
        producer._disown()


os.register_at_fork(after_in_child=_after_fork_in_child)
