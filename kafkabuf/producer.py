"""KafkaProducer: opening, closing, flushing. What happens per record is its base class in _producer.pyx."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from kafkabuf._pool import BufferPool
from kafkabuf.append._bulk_arrow import append_arrow
from kafkabuf.append._bulk_many import append_many
from kafkabuf.append._producer import ProducerCore
from kafkabuf.append.report import ROWS, BulkReport
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches._batch import give_back_claims
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import (
    ClosedError,
    ConfigError,
    IllegalStateError,
    InvalidTopicError,
    KafkaError,
    TimeoutError,
)
from kafkabuf.interceptors import close_all
from kafkabuf.metadata.groups import GroupMetadata, Offsets, group_of, offsets_of
from kafkabuf.metadata.metadata import Metadata, TopicInfo
from kafkabuf.metadata.snapshot import TOPIC_RULE, is_legal_topic
from kafkabuf.metrics import Metrics
from kafkabuf.network.client import NetworkClient
from kafkabuf.sending.lifetime import Running
from kafkabuf.sending.sender import Sender
from kafkabuf.transactions.idempotence import producer_state
from kafkabuf.transactions.manager import TransactionManager

_DISOWNED = "this KafkaProducer was made before a fork and belongs to the parent process: make one in the child"


class KafkaProducer(ProducerCore):
    """Publishes records to Kafka. Thread-safe: share one among all threads.

    Settings are Kafka's, as a mapping of dotted names, as keywords, or both::

        KafkaProducer({"bootstrap.servers": "localhost:9092", "linger.ms": 20})
        KafkaProducer(bootstrap_servers="localhost:9092", linger_ms=20)

    Raises ConfigError for a setting that does not exist, is out of range, or a bootstrap list that does not resolve.
    Pickles as its configuration: the copy is a producer of its own.
    """

    _opened = False  # until __init__ has come to its end

    def __init__(
        self,
        config: Mapping[str, Any] | ProducerConfig | None = None,
        *,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.config = config_of(config, settings)
        c = self.config
        self._users = (*c.interceptor_classes, c.key_serializer, c.value_serializer, c.partitioner_class)
        self._clock = clock = clock or SystemClock()
        self.pool = BufferPool(self.config.buffer_memory, self.config.slab_size, clock=clock)
        self._metadata = Metadata(self.config, clock)
        client = self._connect(clock)
        accumulator = RecordAccumulator(
            self.config, self.pool, clock, client.wakeup, producer_state=producer_state(self.config)
        )
        self._sender = Sender(self.config, accumulator, self._metadata, client, clock)
        self._open(accumulator, self.config, clock)
        self._metrics = Metrics(self.config, clock, self.pool, self._sender.stats, client, self._metadata)
        self._running = self._runner(accumulator)
        self._thread = self._running.thread
        self._finalizer = weakref.finalize(self, self._running.abandon)
        self._finalizer.atexit = False  # then all producers end together
        try:
            self._running.start(self)
        except BaseException:
            self._begin_close("the producer is not open: its thread could not be started")
            raise
        self._opened = True

    def _connect(self, clock: Clock) -> NetworkClient:
        return NetworkClient(self.config, clock, self._metadata)

    def _runner(self, accumulator: RecordAccumulator) -> Running:
        """Who gives the Sender its turns: a thread."""
        return Running(accumulator, self._sender, f"kafkabuf-{self.config.client_id}")

    def _disown(self) -> None:
        """In a forked child: the Sender's thread is not here, and its sockets are the parent's."""
        self._begin_close(_DISOWNED)
        self._finalizer.detach()

    def __reduce__(self) -> tuple[type[Self], tuple[ProducerConfig]]:
        return type(self), (self.config,)

    # ---- topics ------------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> TopicInfo:
        """The topic's partitions and their leaders, asked for if need be, within `max.block.ms`."""
        self.check_open()
        return self._topic_info(topic, self.config.max_block_ms / 1000)

    def _topic_info(self, topic: str, timeout: float) -> TopicInfo:
        self.check_open()
        if not is_legal_topic(topic):
            raise InvalidTopicError(f"{topic!r} is no topic's name: {TOPIC_RULE}")
        if self._in_sender_thread():
            return self._known_topic(topic)
        with self._timed("metadata-wait"):
            return self._metadata.await_topic(topic, timeout)

    def _known_topic(self, name: str) -> TopicInfo:
        """In a callback, which must not wait for metadata: its own thread would fetch it."""
        try:
            return self._metadata.await_topic(name, 0)
        except TimeoutError:
            raise TimeoutError(
                f"topic {name!r} is not known yet, and a callback cannot wait for metadata: it has been asked for; "
                "call partitions_for() before, or send from another thread"
            ) from None

    def _timed(self, what: str) -> AbstractContextManager[None]:
        """Counts how long a call takes."""
        self._check_opened()
        return self._metrics.timed(what)

    def _check_opened(self) -> None:
        """Raises ClosedError where __init__ failed, or was never called; what has been closed passes."""
        if not self._opened:
            self.check_open()

    def _in_sender_thread(self) -> bool:
        """Whether this is a callback: what it waited for in vain would never come."""
        return threading.current_thread() is self._thread

    def _await_topic(self, name: str, timeout: float | None = None) -> TopicQueues:
        """For send(): the queues of a topic not used before, within `timeout` seconds (None: max.block.ms)."""
        info = self._topic_info(name, self.config.max_block_ms / 1000 if timeout is None else timeout)
        topic = self._accumulator.made_topic(name, info.leaders, info.leader_epochs, info.topic_id)
        if self._metadata.snapshot.topics.get(name) is not info:
            # Metadata changed before the Sender could see the new queues: let the listeners run once more.
            self._metadata.request_update()
        return topic

    def _await_partition(self, name: str, partition: int, timeout: float) -> None:
        """For send(): a partition we do not know may be new. Ask once, then believe the answer."""
        self._metadata.add_topic(name)
        if self._in_sender_thread():
            self._metadata.request_update()
            raise TimeoutError(
                f"partition {partition} of topic {name!r} is not known, and a callback cannot wait for metadata: it "
                "has been asked for"
            )
        with self._timed("metadata-wait"):
            self._metadata.await_update(timeout)  # and the Sender has made the queues before this thread wakes

    @property
    def _accumulator(self) -> RecordAccumulator:
        accumulator = self.accumulator
        assert isinstance(accumulator, RecordAccumulator)
        return accumulator

    # ---- bulk --------------------------------------------------------------------------------------------------------

    def send_arrow(self, data: Any, topic: str | None = None, report: str = ROWS) -> BulkReport:
        """Queue every row of Arrow data and return a BulkReport.

        A row larger than `max.request.size` or `buffer.memory` is left out and the others are sent; the report has its
        error (`exception()`, `too_large`, `error_code` 10).

        Args:
            data: anything with the Arrow PyCapsule interface (`__arrow_c_array__` or `__arrow_c_stream__`): a pyarrow
                RecordBatch or Table, a pandas or polars DataFrame. Columns, as Spark's Kafka sink names them: `value`
                (binary or string; required), `key`, `topic` (string), `partition` (int32), `timestamp` (of any unit),
                `headers` (list of struct<key: string, value: binary>). Others are left alone. Strings and binaries may
                be large or views, or dictionary-encoded. Null is Kafka's null; a null partition is chosen as send()
                does, a null timestamp is now, null headers are none; a null topic is refused.
            topic: where all rows go; takes precedence over the column.
            report: "rows" keeps the place of every row, for `result()`; "errors" keeps what failed and the ranges of
                offsets, so that its size does not grow with the rows that are delivered.

        Raises:
            SerializationError: a column is missing or of a wrong type, or the data contradicts itself or its stream
                fails. And what send() raises.
            Rows before the one at fault are queued all the same: `error.report` is their BulkReport, and
            `error.rows_queued` counts them (those left out as too large included). None after it is.
        """
        self.check_open()
        pending = BulkReport(self._clock, report)
        append_arrow(self, pending, data, topic)
        return pending

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[Any] | None = None,
        partitions: Sequence[int | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        report: str = ROWS,
    ) -> BulkReport:
        """Queue one record for each element of `values`, as send() would, and return a BulkReport.

        Args:
            topic: where all go.
            values, keys, headers, partitions, timestamps_ms: lists, or other sequences, of equal length: what send()
                takes as value, key, headers, partition and timestamp_ms. Serializers, partitioner and interceptors are
                asked as by send(). They may call flush() and close(), which serve what the call has queued so far; they
                must not wait for another thread that does.
            report: as in send_arrow().

        A record larger than `max.request.size` or `buffer.memory` is left out and the others are sent; the report has
        its error.

        Raises:
            TypeError, ValueError: an argument is no sequence, or their lengths differ. Nothing was queued.
            what send() raises, naming the record by its index. Those before it are queued all the same: `error.report`
            is their BulkReport, and `error.rows_queued` counts them. None after it is.
        """
        self.check_open()
        pending = BulkReport(self._clock, report)
        append_many(self, pending, topic, values, keys, headers, partitions, timestamps_ms)
        return pending

    # ---- transactions ------------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Once, before the first transaction: fences producers of the same `transactional.id` that came before, and
        ends what they left open. Waits up to `max.block.ms`; after a TimeoutError it may be called again.

        Raises:
            IllegalStateError: no `transactional.id`, or called before.
            FatalTransactionError: nothing can be done with this producer but close() (also TransactionalId-
                AuthorizationError, ProducerFencedError).
        """
        with self._timed("txn-init"):
            self._transaction_manager().init()

    def begin_transaction(self) -> None:
        """What is sent from here on belongs to one transaction, until it is committed or aborted."""
        with self._timed("txn-begin"):
            self._transaction_manager().begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: GroupMetadata | str | Any) -> None:
        """Commit a consumer's offsets with the transaction, if that is committed (KIP-447).

        Args:
            offsets: by (topic, partition) or an object with these attributes, the offset of the next record to read:
                a number, or an object with `offset` and perhaps `metadata` and `leader_epoch`.
            group_metadata: a GroupMetadata; an object with its attributes, as kafka-python's `group_metadata()`
                returns; a tuple of them; or a group id, which alone does not fence a consumer that has been replaced.
        """
        with self._timed("txn-send-offsets"):
            self._transaction_manager().send_offsets(offsets_of(offsets), group_of(group_metadata))

    def commit_transaction(self) -> None:
        """Send what is buffered and make the transaction visible. Waits up to `max.block.ms`; after a TimeoutError
        the commit goes on, and only it can be called again.

        Raises AbortableTransactionError where a record could not be delivered: call abort_transaction() then.
        """
        with self._timed("txn-commit"):
            self._transaction_manager().commit()

    def abort_transaction(self) -> None:
        """Drop what is buffered, and the transaction with all it wrote. Waits as commit_transaction(). Offsets that
        send_offsets_to_transaction() has timed out with are given up."""
        with self._timed("txn-abort"):
            self._transaction_manager().abort()

    def _transaction_manager(self) -> TransactionManager:
        self.check_open()
        if self._in_sender_thread():
            raise KafkaError("a callback cannot wait for a transaction, of which it is part: call it in another thread")
        give_back_claims()
        transactions = self._sender._transactions
        if transactions is None:
            raise IllegalStateError("this producer has no transactions: set transactional.id")
        return transactions

    # ---- the end -----------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send what is buffered now and wait until all of it has an outcome. Raises TimeoutError after `timeout` s.

        In a signal handler too: what a send_many() or send_arrow() that it interrupts has queued so far is sent.
        """
        _check_timeout(timeout)
        self._check_opened()
        if self.pool.disowned:
            raise ClosedError(_DISOWNED)
        if self._in_sender_thread():
            raise KafkaError("flush() in a callback would wait for itself: call it in another thread")
        if self._interrupts_itself():
            raise KafkaError(
                "flush() in this signal handler would wait for the call that it interrupts: try again later"
            )
        with self._timed("flush"):
            self._accumulator.flush(timeout)

    def _interrupts_itself(self) -> bool:
        """Whether this is a signal's handler whose own thread holds a lock that the Sender needs to go on."""
        transactions = self._sender._transactions
        return self._metadata.is_held_here() or (transactions is not None and transactions.is_held_here())

    def purge(self, *, in_flight: bool = True) -> None:
        """Give up what is buffered: its records fail with PurgedError, and the producer goes on (librdkafka's purge).

        `in_flight`: those too that were sent and have no answer, of which nobody knows whether the broker has them.
        A transaction that loses records so must be aborted. Returns at once; flush() waits until it is done.
        """
        self.check_open()
        self._sender.purge(in_flight=in_flight)

    def close(self, timeout: float | None = None) -> None:
        """Send what is buffered and stop. After `timeout` seconds what is left fails with ClosedError; with 0 at once.

        Then interceptors, serializers and the partitioner are closed. Called again it waits again. In a callback it
        returns at once, and the Sender ends when it is done. In a signal handler that interrupts send_many() or
        send_arrow() what these have queued so far is sent; when they go on they raise ClosedError, with `rows_queued`.
        In one that interrupts a call which the Sender waits for it returns at once too.
        """
        _check_timeout(timeout)
        if not self._opened or self.pool.disowned:
            return
        self._begin_close()
        self._finalizer.detach()
        if self._in_sender_thread() or self._interrupts_itself():
            self._running.finish(force=timeout == 0)
        else:
            give_back_claims()
            self._running.stop(timeout)
            self._metrics.close()
        users, self._users = self._users, ()
        close_all(users)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def metrics(self) -> dict[str, dict[str, float]]:
        """{group: {name: value}} under Java's names, as of now: see metrics.py. Costs nothing until it is asked."""
        self._check_opened()
        return self._metrics.snapshot()


def config_of(config: Mapping[str, Any] | ProducerConfig | None, settings: dict[str, Any]) -> ProducerConfig:
    """What a producer was given, both ways of naming settings together."""
    if isinstance(config, ProducerConfig):
        settings = config.given() | settings
        config = None
    if config is not None and not isinstance(config, Mapping):
        # Not what it says: it may hold a password.
        raise ConfigError(f"settings are a mapping or keywords, found {type(config).__name__}")
    return ProducerConfig.from_mapping(config or {}, settings)


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"a timeout is seconds, from 0 on, or None for no limit; found {timeout!r}")
