"""AIOKafkaProducer: KafkaProducer for an event loop, which it never blocks.

send() in the loop's thread is KafkaProducer's own, over the same queues, but it never waits: where it would,
it raises `_MustWait`, and the record stands in line, with those of its topic that come after it, until threads have
fetched what it lacks: metadata, or memory. A thread that waits for memory gets a Slab, which goes back by itself where
nobody takes it. So the record is queued by the loop or not at all, and a task that is cancelled loses nothing.
"""

from __future__ import annotations

import asyncio
import operator
import threading
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

from kafkabuf._buffers import Headers
from kafkabuf._pool import Slab
from kafkabuf.aio_futures import AIOBulkReport, AIORecordFuture, Ends
from kafkabuf.append._producer import ProducerCore
from kafkabuf.append.report import ROWS
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import AbortableTransactionError, ClosedError, IllegalStateError, KafkaError
from kafkabuf.interceptors import Acknowledgement, ProducerRecord, pairs_of
from kafkabuf.metadata.groups import GroupMetadata, Offsets
from kafkabuf.metadata.metadata import TopicInfo
from kafkabuf.producer import KafkaProducer, config_of
from kafkabuf.record_metadata import RecordMetadata

__all__ = ["AIOBulkReport", "AIOKafkaProducer", "AIORecordFuture"]

T = TypeVar("T")
P = ParamSpec("P")

# As many topics as may have a record waiting, and calls that may be under way, at one time; each thread is started when
# it is needed.
MAX_THREADS = 1024
# So many records are sent by tasks that never have to wait before others get their turn.
TURN = 256
_USERS: dict[str, Any] = {
    "key_serializer": None,
    "value_serializer": None,
    "partitioner_class": None,
    "interceptor_classes": (),
}


class _MustWait(Exception):
    """In the loop's thread, instead of waiting. `n_slabs`: of memory in a row; 0: for metadata."""

    def __init__(self, n_slabs: int = 0) -> None:
        super().__init__(n_slabs)
        self.n_slabs = n_slabs


class _LoopCore(ProducerCore):
    """send() for the loop's thread, of records that are prepared: over a producer's queues, but it never waits."""

    def __init__(self, producer: KafkaProducer, clock: Clock) -> None:
        self.asked = False  # the partition of the record under way has been asked for
        self.slab: Slab | None = None  # memory for the record under way
        self._open(producer.accumulator, producer.config.model_copy(update=_USERS), clock)
        self.accumulator.nonwaiting_allocators[threading.get_ident()] = self._take

    def send_with(self, slab: Slab | None, *arguments: Any) -> RecordFuture:
        """send() of a record that has waited for its metadata, and perhaps for `slab`."""
        self.asked, self.slab = True, slab
        try:
            return self.send(*arguments)
        finally:
            # A slab that was not needed, as somebody else has opened a batch with room, goes back as it is forgotten.
            self.asked, self.slab = False, None

    def _await_topic(self, name: str) -> TopicQueues:
        raise _MustWait

    def _await_partition(self, name: str, partition: int, timeout: float) -> None:
        if not self.asked:
            raise _MustWait

    def _take(self, n_slabs: int) -> int:
        if self.slab is None or self.slab.count != n_slabs:
            raise _MustWait(n_slabs)
        slab, self.slab = self.slab, None
        return slab.detach()

    def close(self) -> None:
        self._begin_close()


class _Line:
    """Records of one topic that wait, in order."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.length = 0


class AIOKafkaProducer:
    """Publishes records to Kafka from one event loop. Settings are KafkaProducer's, and so are errors and guarantees.

    ::

        async with AIOKafkaProducer(bootstrap_servers="localhost:9092") as producer:
            future = await producer.send("topic", b"value")  # queued
            metadata = await future                          # acknowledged

    Raises ConfigError for a setting that is wrong; start() also for a bootstrap list that does not resolve. Methods
    raise IllegalStateError before start() and in another event loop than that. Callbacks, serializers, partitioners and
    interceptors are called in the loop's thread by send(), in others by send_many() and when records end.
    Not thread-safe, as nothing of asyncio is. Pickles as its configuration.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | ProducerConfig | None = None,
        *,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.config = config_of(config, settings)
        self._clock = clock or SystemClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: dict[str, _Line] = {}  # topics of which records wait
        self._sent = 0
        self._detour = False  # there are serializers, a partitioner or interceptors to ask
        self._stopped = False

    def __reduce__(self) -> tuple[type[Self], tuple[ProducerConfig]]:
        return type(self), (self.config,)

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the producer, which belongs to this event loop from here on. Brokers are asked when it is used."""
        if self._loop is not None:
            raise IllegalStateError("start() is called once: this AIOKafkaProducer has been started")
        self._loop = loop = get_running_loop()
        self._threads = ThreadPoolExecutor(MAX_THREADS, f"kafkabuf-aio-{self.config.client_id}")
        try:
            self._started = await self._in_thread(KafkaProducer, self.config, clock=self._clock)
        except BaseException:
            self._loop = None
            self._threads.shutdown(wait=False)
            raise
        self._ends = Ends(loop)
        self._core = _LoopCore(self._started, self._clock)
        self._detour = self._started.detour

    async def stop(self, timeout: float | None = None) -> None:
        """Send what is buffered and stop, as KafkaProducer.close(). What waits in send() meanwhile gets ClosedError."""
        if self._loop is None:
            return
        self._check()
        if not self._stopped:
            self._core.close()
            await self._in_thread(self._producer.close, timeout)
            self._stopped = True
            self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _check(self) -> None:
        if get_running_loop() is not self._loop:
            self._refuse()

    @property
    def _producer(self) -> KafkaProducer:
        self._check()
        return self._started

    def _refuse(self) -> NoReturn:
        if self._loop is None:
            raise IllegalStateError("this AIOKafkaProducer has not been started: call start(), or use `async with`")
        raise IllegalStateError(
            "this AIOKafkaProducer was started in another event loop and belongs to that one: make one for each loop, "
            "or share a KafkaProducer"
        )

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What may wait. Where the task is cancelled, it goes on and its result is dropped."""
        self._check()
        if self._stopped:
            raise ClosedError("the producer is closed")
        context = copy_context()

        def run() -> T:
            try:
                return context.run(call, *args, **kwargs)
            except StopIteration as error:  # whoever awaits it would take it for a result, or wait for ever
                raise RuntimeError(f"{call.__name__}() raised StopIteration") from error

        return await get_running_loop().run_in_executor(self._threads, run)

    # ---- records -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AIORecordFuture:
        """Queue one record and return what resolves to its RecordMetadata. Arguments and errors: KafkaProducer.send().

        Waits for metadata and memory, up to `max.block.ms`, while other tasks run. Records of a topic are queued in the
        order in which their send() began. A task that is cancelled here has queued nothing.
        """
        if get_running_loop() is not self._loop:
            self._refuse()
        self._sent += 1
        if topic not in self._lines and not self._detour and self._sent % TURN:
            try:
                queued = self._core.send(topic, value, key, headers, partition, timestamp_ms)
            except _MustWait:
                pass
            else:
                return AIORecordFuture(queued, self._ends)
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        return AIORecordFuture(await self._send_by_detour(record), self._ends)

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """send(), and wait for the acknowledgement. A task that is cancelled may have queued the record."""
        return await (await self.send(topic, value, key, headers, partition, timestamp_ms))

    async def _send_by_detour(self, record: ProducerRecord) -> RecordFuture:
        """send() with all that it may have to ask and to wait for."""
        deadline = self._clock.monotonic() + self.config.max_block_ms / 1000
        interceptors = self._producer.interceptors
        if interceptors is None:
            return await self._send_in_line(record, None, deadline)
        record = interceptors.on_send(record._replace(headers=pairs_of(record.headers)))
        try:
            return await self._send_in_line(record, Acknowledgement(interceptors, None), deadline)
        except BaseException as error:
            interceptors.on_send_error(record, error)
            raise

    async def _send_in_line(
        self, record: ProducerRecord, callback: Acknowledgement | None, deadline: float
    ) -> RecordFuture:
        line = self._lines.setdefault(record.topic, _Line())
        line.length += 1
        try:
            async with line.turn:
                if not self._sent % TURN:
                    await asyncio.sleep(0)
                return await self._send_first_in_line(record, callback, deadline)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[record.topic]

    async def _send_first_in_line(
        self, record: ProducerRecord, callback: Acknowledgement | None, deadline: float
    ) -> RecordFuture:
        topic, value, key, headers, partition, timestamp_ms = record
        await self._await_metadata(topic, partition, deadline)
        if self._detour:
            key, value, headers, partition = self._producer.prepare(topic, key, value, headers, partition)
        slab = None
        while True:
            try:
                return self._core.send_with(slab, topic, value, key, headers, partition, timestamp_ms, callback)
            except _MustWait as wait:
                size = wait.n_slabs * self._producer.pool.slab_size
            slab = await self._in_thread(self._producer.pool.allocate, size, self._left(deadline))

    async def _await_metadata(self, topic: str, partition: int | None, deadline: float) -> None:
        topics = self._core.accumulator.topics
        if topic not in topics:
            await self._in_thread(self._producer._await_topic, topic, self._left(deadline))
        if partition is not None and _is_beyond(partition, len(topics[topic].queues)):
            await self._in_thread(self._producer._await_partition, topic, partition, self._left(deadline))

    def _left(self, deadline: float) -> float:
        return max(deadline - self._clock.monotonic(), 0.0)

    async def send_arrow(self, data: Any, topic: str | None = None, report: str = ROWS) -> AIOBulkReport:
        """KafkaProducer.send_arrow() in a thread. A task that is cancelled meanwhile leaves it going on."""
        return AIOBulkReport(await self._in_thread(self._producer.send_arrow, data, topic, report), self._ends)

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[Any] | None = None,
        partitions: Sequence[int | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        report: str = ROWS,
    ) -> AIOBulkReport:
        """KafkaProducer.send_many() in a thread. A task that is cancelled meanwhile leaves it going on."""
        arguments = (topic, values, keys, headers, partitions, timestamps_ms, report)
        return AIOBulkReport(await self._in_thread(self._producer.send_many, *arguments), self._ends)

    # ---- the rest, as KafkaProducer's --------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> TopicInfo:
        """The topic's partitions and their leaders, asked for if need be, within `max.block.ms`."""
        return await self._in_thread(self._producer.partitions_for, topic)

    async def flush(self, timeout: float | None = None) -> None:
        """Send what is buffered now and wait until all of it has an outcome. Raises TimeoutError after `timeout` s."""
        await self._in_thread(self._producer.flush, timeout)

    def purge(self, *, in_flight: bool = True) -> None:
        """Give up what is buffered, as KafkaProducer.purge(). Returns at once."""
        self._producer.purge(in_flight=in_flight)

    def metrics(self) -> dict[str, dict[str, float]]:
        """{group: {name: value}} under Java's names, as of now."""
        return self._producer.metrics()

    # ---- transactions ------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """As KafkaProducer.init_transactions()."""
        await self._in_thread(self._producer.init_transactions)

    async def begin_transaction(self) -> None:
        """What is sent from here on belongs to one transaction, until it is committed or aborted."""
        await self._in_thread(self._producer.begin_transaction)

    async def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: GroupMetadata | str | Any) -> None:
        """As KafkaProducer.send_offsets_to_transaction()."""
        await self._in_thread(self._producer.send_offsets_to_transaction, offsets, group_metadata)

    async def commit_transaction(self) -> None:
        """As KafkaProducer.commit_transaction(). A task that is cancelled meanwhile leaves the commit going on."""
        await self._in_thread(self._producer.commit_transaction)

    async def abort_transaction(self) -> None:
        """As KafkaProducer.abort_transaction()."""
        await self._in_thread(self._producer.abort_transaction)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """`async with producer.transaction():` commits at the end, or aborts where the block raises or is cancelled.

        A commit that failed for good is aborted too; one that timed out goes on (commit_transaction() waits for it).
        """
        await self.begin_transaction()
        try:
            yield
        except BaseException as error:
            await self._abort_because(error)
            raise
        try:
            await self.commit_transaction()
        except AbortableTransactionError as error:
            await self._abort_because(error)
            raise

    async def _abort_because(self, error: BaseException) -> None:
        """What went wrong first is what the user should see."""
        try:
            await self.abort_transaction()
        except KafkaError as failure:
            error.add_note(f"abort_transaction() failed, too: {failure}")


def _is_beyond(partition: int, partitions: int) -> bool:
    """What is no number at all send() will say."""
    try:
        return operator.index(partition) >= partitions
    except TypeError:
        return False
