"""KafkaProducer: opening, bulk sends, transactions, flush, close. Its base class in append/_producer.pyx has send()."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, overload
from uuid import UUID

from kafkabuf._pool import BufferPool
from kafkabuf.append._bulk_arrow import append_arrow
from kafkabuf.append._bulk_many import append_many
from kafkabuf.append._producer import ProducerCore
from kafkabuf.append.report import BulkReport
from kafkabuf.append.topics import Topics
from kafkabuf.batches._batch import give_back_claims
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import ClosedError, ConfigError, IllegalStateError, KafkaError
from kafkabuf.formats.plan import formats_of
from kafkabuf.hints import PRODUCER, hints
from kafkabuf.interceptors import close_all
from kafkabuf.memory.buffers import Headers, K, V
from kafkabuf.metadata.metadata import Metadata, TopicInfo
from kafkabuf.metrics.snapshot import Metrics, telemetry_of
from kafkabuf.network.client import NetworkClient
from kafkabuf.process.producer_log import log_as, producer_log
from kafkabuf.process.threads import RLock, aside
from kafkabuf.sending._direct import shortcut_of
from kafkabuf.sending.check import require_brokers
from kafkabuf.sending.lifetime import Running
from kafkabuf.sending.sender import Sender
from kafkabuf.transactions.groups import GroupMetadata, Offsets, group_of, offsets_of
from kafkabuf.transactions.idempotence import ProducerState, producer_state

if TYPE_CHECKING:
    import ssl

    from kafkabuf.batches._batch import RecordFuture
    from kafkabuf.formats.plan import AnyFormat
    from kafkabuf.formats.registry import SchemaRegistry
    from kafkabuf.formats.registry.serializing import TopicSchemas
    from kafkabuf.record_metadata import RecordMetadata
    from kafkabuf.spool.recovered import Recovered
    from kafkabuf.spool.spool import Spool
    from kafkabuf.transactions.manager import TransactionManager
    from kafkabuf.typing import BytesLike, Options

log = producer_log("kafkabuf.producer")

_TRANSACTIONAL_CHILD = (
    "this KafkaProducer was created before a fork, and its transactional.id belongs to the parent process: a producer "
    "with the same id would fence the parent's. Create a producer with another transactional.id in the child process"
)


_FILE_OF_THE_PARENT = (
    "this producer was created before a fork, and the file of its kafkabuf.buffer.path belongs to the parent "
    "process: records of the child lie in memory alone. Create a producer with a file of its own in the child process"
)


def config_in_child(config: ProducerConfig) -> ProducerConfig:
    """The settings with which a forked child opens its copy of a producer. Raises ClosedError if it may not.

    The file belongs to the parent. Without it the child's records lie in memory alone, and a warning says so.
    """
    if config.transactional_id is not None:
        raise ClosedError(_TRANSACTIONAL_CHILD)
    if config.buffer_path is None:
        return config
    log.warning("%s", _FILE_OF_THE_PARENT)
    return config.replaced({"buffer_path": None})


class KafkaProducer(ProducerCore, Generic[K, V]):
    """Publishes records to Kafka. Thread-safe: share one producer among all threads.

    Settings are Kafka's, as a mapping of dotted names, as keywords, or both::

        KafkaProducer({"bootstrap.servers": "localhost:9092", "linger.ms": 20})
        KafkaProducer(bootstrap_servers="localhost:9092", linger_ms=20)

    Raises ConfigError for a setting that does not exist or is out of range, and for a bootstrap list that does not
    resolve. A pickle holds the configuration only: unpickling opens a new, independent producer. In a forked child the
    first call opens a producer of the child's own; a child of a producer with a transactional.id gets a ClosedError.

    With `check` the constructor also waits until a broker has answered, for up to `max.block.ms` and ten seconds. It
    raises the reason as soon as every bootstrap server has failed: NetworkError, AuthenticationError (its subclasses
    for TLS and SASL too), ClusterAuthorizationError for an idempotent producer without the right to write, or
    TimeoutError. `ssl_context` takes the place of all ssl.* settings, where `security.protocol` is SSL or SASL_SSL.

    For type checkers K and V are the types of keys and values: bytes-like without a serializer, else Any, unless the
    variable has an annotation such as `KafkaProducer[bytes, Order]`.
    """

    _spool: Spool | None = None  # the file of kafkabuf.buffer.path
    topics: Topics
    _opened = False  # True once the Sender's thread runs; False again in a forked child

    @overload
    def __init__(
        self: KafkaProducer[BytesLike, BytesLike],
        config: None = None,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **settings: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: KafkaProducer[Any, BytesLike],
        config: None = None,
        *,
        key_serializer: object,
        value_serializer: None = None,
        **settings: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: KafkaProducer[Any, Any],
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
        check: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        **settings: Any,
    ) -> None:
        self.config = config_of(config, settings)
        c = self.config
        self._user_objects = (*c.interceptor_classes, c.key_serializer, c.value_serializer, c.partitioner_class)
        self._clock = clock or SystemClock()
        require_ssl_context(ssl_context)
        self._ssl_context = ssl_context
        self._registry = registry_of(c, self._clock)
        schemas_of(c, self._registry, self._clock)  # raises ConfigError before anything opens
        with log_as(c.client_id):
            self._start(check=check)

    def _start(self, *, check: bool = False, beside_greenlets: bool = True) -> None:
        """Open the producer: of this process, whatever a fork has copied."""
        clock = self._clock
        if self.config.buffer_path is not None and beside_greenlets:
            from kafkabuf.spool.spool import Spool  # late: most producers have no file

            self._spool = Spool(self.config, clock, self._ssl_context)
        try:
            self._start_with_file(clock, check=check, beside_greenlets=beside_greenlets)
        except BaseException:
            self._give_up_file()
            raise

    def _give_up_file(self) -> None:
        """The producer does not open. A Sender that runs already closes the file at its end."""
        running: Running | None = getattr(self, "_running", None)
        if running is not None and running.thread.is_alive():
            running.finish(force=True)
        elif self._spool is not None:
            self._spool.close()

    def _start_with_file(self, clock: Clock, *, check: bool, beside_greenlets: bool) -> None:
        self._metadata = Metadata(self.config, clock)
        # In a forked child no other greenlet may run: it would open the producer a second time.
        client = aside(lambda: self._connect(clock), "kafkabuf-connect") if beside_greenlets else self._connect(clock)
        state = producer_state(self.config)
        if check:
            aside(lambda: require_brokers(self.config, clock, self._metadata, client, state), "kafkabuf-check")
        try:
            self._assemble(client, state)
        except BaseException:
            client.close()  # nobody else knows of its descriptors
            raise
        self._finalizer = weakref.finalize(self, self._running.abandon)
        self._finalizer.atexit = False  # at exit, sending/lifetime.py closes all producers together
        try:
            self._running.start(self)
        except BaseException as error:
            self._begin_close("the producer is not open: the Sender's thread could not be started")
            # No thread will close the client if the system has refused one. With a context the error may come from a
            # wait for the new thread, in which a signal handler raised.
            if isinstance(error, RuntimeError | MemoryError) and error.__context__ is None:
                client.close()
            raise
        self._opened = True
        if self._spool is not None:
            self._spool.start(self._sender)

    def _assemble(self, client: NetworkClient, state: ProducerState | None) -> None:
        """Make all parts of the producer around its client."""
        clock = self._clock
        memory = None if self._spool is None else self._spool.file.arena
        self.pool = BufferPool(self.config.buffer_memory, self.config.slab_size, clock=clock, memory=memory)
        tables = None if self._spool is None else self._spool.file.tables
        accumulator = RecordAccumulator(
            self.config, self.pool, clock, client.wakeup, producer_state=state, tables=tables
        )
        if self._spool is not None:
            self._spool.recover(accumulator, self._metadata)
        self._sender = Sender(self.config, accumulator, self._metadata, client, clock)
        if self._spool is not None and self._sender.transactions is not None:
            self._sender.transactions.commits = self._spool.commits
        accumulator.shortcut = shortcut_of(self._sender.core)
        counts = None if self._spool is None else self._spool.counts
        self._metrics = Metrics(self.config, clock, self.pool, self._sender.stats, client, self._metadata, counts)
        pushes = self.config.enable_metrics_push
        self._telemetry = telemetry_of(self.config, clock, client, self._metrics) if pushes else None
        client.connections.telemetry = self._telemetry
        self._running = self._runner(accumulator)
        if self._spool is not None:
            self._running.at_end = self._spool.close
            self._running.in_child = self._spool.file.leave_to_parent
        self._thread = self._running.thread
        topics = Topics(self._metadata, accumulator, self._running.runs_here, self._metrics.timed)
        # Last: from here on other threads of a forked child may send.
        self._open(accumulator, topics, self.config, clock, schemas_of(self.config, self._registry, clock))

    if TYPE_CHECKING:
        # ProducerCore.send(), with the types of keys and values.
        def send(
            self,
            topic: str,
            value: V | None = None,
            key: K | None = None,
            headers: Headers | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            callback: Callable[[RecordMetadata, KafkaError | None], object] | None = None,
            opaque: object = None,
        ) -> RecordFuture:
            """Queue one record and return a RecordFuture (KafkaProducer.send).

            An unknown `topic` fetches metadata, for up to `max.block.ms`. `value` and `key` are bytes-like or None, or
            what the configured serializers take; None is Kafka's null. `headers` are pairs of (str, bytes or None), or
            a dict of them. Without a `partition` the partitioner chooses, or the key's murmur2 hash as in Java.
            `timestamp_ms` is in milliseconds since the epoch; None: the present time. The Sender's thread calls
            `callback(metadata, error)`. `opaque` comes back in the BatchOutcome that `on_acknowledged` gets.

            Raises SerializationError, RecordTooLargeError, InvalidTopicError, InvalidPartitionsError,
            InvalidTimestampError or TypeError for a wrong argument, TimeoutError where there was no metadata or no
            memory within `max.block.ms`, and an error of the transaction's state.
            """
            ...

    def _connect(self, clock: Clock) -> NetworkClient:
        return NetworkClient(self.config, clock, self._metadata, ssl_context=self._ssl_context)

    def _runner(self, accumulator: RecordAccumulator) -> Running:
        """The thread that runs the Sender's turns. A subclass may run them in another way."""
        return Running(accumulator, self._sender, self.config.client_id)

    def _disown(self) -> None:
        """Called in a forked child, which has no Sender's thread; sockets and records belong to the parent.

        A thread of the parent may hold any lock of the producer for ever here, so the child never uses its copies.
        """
        self._close_in_child(self._open_in_child)
        self._opened = False
        self._spool = None  # the parent has the file
        self._finalizer.detach()
        self._child_lock = RLock()

    def _open_in_child(self) -> None:
        with self._child_lock, log_as(self.config.client_id):
            if not self._opened:
                self.config = config_in_child(self.config)
                self._start(beside_greenlets=False)

    def __reduce__(self) -> tuple[type[Self], tuple[ProducerConfig]]:
        require_no_context(self._ssl_context)
        return type(self), (self.config,)

    def __repr__(self) -> str:
        if not self._opened:
            return f"{type(self).__name__}(not open)"
        return f"{type(self).__name__}({described(self.config)}, {'open' if self._finalizer.alive else 'closed'})"

    # ---- topics ------------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> TopicInfo:
        """The topic's partitions and their leaders. Fetches metadata if necessary, for up to `max.block.ms`."""
        self.check_open()
        return self.topics.info(topic, self.config.max_block_ms / 1000)

    def _timed(self, call: str) -> AbstractContextManager[None]:
        """Adds the duration of the block to the metric of `call`."""
        self._check_opened()
        return self._metrics.timed(call)

    def _check_opened(self) -> None:
        """As check_open(), but a producer that was closed passes."""
        if not self._opened:
            self.check_open()

    @property
    def _accumulator(self) -> RecordAccumulator:
        accumulator = self.accumulator
        assert isinstance(accumulator, RecordAccumulator)
        return accumulator

    # ---- bulk --------------------------------------------------------------------------------------------------------

    def send_arrow(
        self,
        data: Any,
        topic: str | None = None,
        report: str = "rows",
        *,
        value_format: AnyFormat | None = None,
        key_format: AnyFormat | None = None,
        key: str | Sequence[str] | None = None,
    ) -> BulkReport:
        """Queue every row of Arrow data and return a BulkReport.

        A row larger than `max.request.size` or `buffer.memory` is left out, and the other rows are sent; the report has
        the row's error (`exception()`, `too_large`, `error_code` 10).

        Args:
            data: anything with the Arrow PyCapsule interface (`__arrow_c_array__` or `__arrow_c_stream__`): a pyarrow
                RecordBatch or Table, a pandas or polars DataFrame. The columns have the names of Spark's Kafka sink:
                `value` (binary or string; required), `key`, `topic` (string), `partition` (int32), `timestamp` (of any
                unit), `headers` (list of struct<key: string, value: binary>; the names of these two fields count, not
                their order). Other columns are ignored. Strings and binaries may be large or views, or
                dictionary-encoded. A null key or value is Kafka's null. For a null partition the producer chooses one
                as send() does; a null timestamp is the present time; null headers are no headers; a null topic is an
                error.
            topic: the topic of all rows; takes precedence over the column.
            report: "rows" keeps the place of every row, for `result()`; "errors" keeps the failures and the ranges of
                offsets, so that its size does not grow with the number of delivered rows.
            value_format: a `kafkabuf.formats.Avro` makes the value of each row: of the column `value`, whatever its
                type, or, without such a column, a record of all columns that the list above does not name. A null
                `value` stays Kafka's null. The formats' work space, up to `max.request.size` for each of the two, is
                not part of `buffer.memory`. With `schema.registry.url` the call asks the Schema Registry for the
                format's schema, for each topic before its first row, within `max.block.ms`.
            key_format: makes the key of the column `key`, or of the columns that `key` names.
            key: the name of the column that is the key in place of `key`, as it is (binary or string) or by
                key_format; or a list of names: key_format makes a record of them. These columns stay in the value.

        Raises:
            SerializationError: a column is missing or of a wrong type, the data contradicts itself, or its stream
                fails; a column does not fit the format's schema (before any row), or the value of a row does not (the
                error names row, column and value). Also the errors that send() raises.
            ConfigError: a format or `key` is of a wrong type, or a format has a prefix beside a Schema Registry's.
            SchemaRegistryError: the registry refuses the schema, in its own words. NetworkError, TimeoutError or
                AuthenticationError if it does not answer.
            The rows before the faulty row are queued all the same: `error.report` is their BulkReport, and
            `error.rows_queued` counts them (including rows that were too large). No row after the faulty row is queued.
        """
        self.check_open()
        formats = formats_of(value_format, key_format, key, self._registry, waits=not self._running.runs_here())
        pending = BulkReport(self._clock, report)
        append_arrow(self, pending, data, topic, formats)
        return pending

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[Any] | None = None,
        partitions: Sequence[int | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        report: str = "rows",
    ) -> BulkReport:
        """Queue one record for each element of `values`, as send() would, and return a BulkReport.

        Args:
            topic: the topic of all records.
            values, keys, headers, partitions, timestamps_ms: lists or other sequences of equal length, of what send()
                takes as value, key, headers, partition and timestamp_ms. The call uses serializers, partitioner and
                interceptors as send() does. These may call flush() and close(), which act on the records that the call
                has queued so far. They must not wait for another thread that calls flush() or close().
            report: as in send_arrow().

        A record larger than `max.request.size` or `buffer.memory` is left out, and the other records are sent; the
        report has the record's error.

        Raises:
            TypeError, ValueError: an argument is not a sequence, or the lengths differ. No record was queued.
            The errors that send() raises, which name the faulty record by its index. The records before the faulty
            record are queued all the same: `error.report` is their BulkReport, and `error.rows_queued` counts them. No
            record after the faulty record is queued.
        """
        self.check_open()
        pending = BulkReport(self._clock, report)
        append_many(self, pending, topic, values, keys, headers, partitions, timestamps_ms)
        return pending

    # ---- transactions ------------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Prepare for transactions. Call it once, before the first transaction.

        Fences earlier producers of the same `transactional.id` and ends the transactions that they left open. Waits up
        to `max.block.ms`; after a TimeoutError it may be called again.

        Raises:
            IllegalStateError: `transactional.id` is not set, or the method was called before.
            FatalTransactionError: this producer can only be closed (its subclasses TransactionalIdAuthorizationError
                and ProducerFencedError too).
        """
        with self._timed("txn-init"):
            self._transaction_manager().init()

    def begin_transaction(self) -> None:
        """Begin a transaction. All records sent from now on belong to it, until it is committed or aborted."""
        with self._timed("txn-begin"):
            self._transaction_manager().begin()

    def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: GroupMetadata | str | Any) -> None:
        """Add a consumer's offsets to the transaction: only its commit commits the offsets (KIP-447).

        Args:
            offsets: a mapping from (topic, partition), or an object with these attributes, to the offset of the next
                record to read: a number, or an object with `offset` and optionally `metadata` and `leader_epoch`.
            group_metadata: a GroupMetadata; an object with its attributes, as kafka-python's `group_metadata()`
                returns; the result of confluent-kafka's `consumer_group_metadata()`; a tuple of the attributes; or a
                group id, which alone does not fence a consumer that has been replaced.
        """
        with self._timed("txn-send-offsets"):
            self._transaction_manager().send_offsets(offsets_of(offsets), group_of(group_metadata))

    def commit_transaction(self) -> None:
        """Send all buffered records and commit the transaction, which makes its records visible to consumers.

        Waits up to `max.block.ms`. After a TimeoutError the commit continues, and commit_transaction() is the only
        transactional method that may be called. Raises AbortableTransactionError if a record could not be delivered:
        call abort_transaction() then.
        """
        with self._timed("txn-commit"):
            self._transaction_manager().commit()
            if self._spool is not None:
                self._spool.syncer.flushed()

    def abort_transaction(self) -> None:
        """Drop all buffered records and abort the transaction: consumers with read_committed skip its records.

        Waits as commit_transaction() does. Offsets for which send_offsets_to_transaction() timed out are dropped.
        """
        with self._timed("txn-abort"):
            self._transaction_manager().abort()

    def _transaction_manager(self) -> TransactionManager:
        self.check_open()
        if self._running.runs_here():
            raise KafkaError(
                "a callback cannot wait for a transaction, because the Sender that ends it runs the callback: call "
                "the method in another thread"
            )
        give_back_claims()
        transactions = self._sender.transactions
        if transactions is None:
            raise IllegalStateError("this producer has no transactions: set transactional.id")
        return transactions

    # ---- the end -----------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send all records buffered now and wait until each has an outcome. Raises TimeoutError after `timeout` s.

        A signal handler may call it: the records that an interrupted send_many() or send_arrow() has queued so far are
        sent too.
        """
        _check_timeout(timeout)
        self._check_opened()
        if self._running.runs_here():
            raise KafkaError(
                "flush() in a callback would wait for the callback itself to return: call it in another thread"
            )
        if self._interrupts_itself():
            raise KafkaError(
                "flush() in this signal handler would wait for the call that the signal interrupted: try again later"
            )
        with self._timed("flush"):
            try:
                self._accumulator.flush(timeout)
            finally:  # what has no outcome in time lies on the disk
                if self._spool is not None:
                    self._spool.syncer.flushed()

    def _interrupts_itself(self) -> bool:
        """Whether this is a signal handler that interrupted a call which holds a lock that the Sender needs."""
        transactions = self._sender.transactions
        return self._metadata.is_held_here() or (transactions is not None and transactions.is_held_here())

    def purge(self, *, in_flight: bool = True) -> None:
        """Drop all buffered records: they fail with PurgedError, and the producer stays usable (librdkafka's purge).

        `in_flight`: also drop records that were sent and not acknowledged; the broker may or may not have appended
        them. A transaction that loses records in this way must be aborted. Returns at once; flush() waits until the
        purge is done.
        """
        self.check_open()
        self._sender.purge(in_flight=in_flight)

    def close(self, timeout: float | None = None) -> None:
        """Send all buffered records and stop. After `timeout` seconds the remaining records fail with ClosedError.

        A `timeout` of 0 fails them at once. With `kafkabuf.buffer.path` they stay in the file, and close() without a
        `timeout` waits for `delivery.timeout.ms`. Afterwards close() closes interceptors, serializers and the
        partitioner. A second call waits again. In a callback close() returns at once, and the Sender ends after the
        remaining records.

        A call in another thread that waits for the Schema Registry ends with ClosedError.

        A signal handler may call it. If the signal interrupted send_many() or send_arrow(), the records queued so far
        are sent; the interrupted call then raises ClosedError, with `rows_queued`. If the signal interrupted a call
        that the Sender waits for, close() returns at once too.
        """
        _check_timeout(timeout)
        if timeout is None and self._spool is not None:
            timeout = self.config.delivery_timeout_ms / 1000
        if not self._opened:
            self._begin_close()  # later calls in a forked child open nothing
            return
        self._begin_close()
        with log_as(self.config.client_id):
            self._end(timeout)

    def _end(self, timeout: float | None) -> None:
        if self._registry is not None:
            self._registry.close("the producer is closed")
        if self._running.runs_here() or self._interrupts_itself():
            self._running.finish(force=timeout == 0)
            self._finalizer.detach()
        else:
            give_back_claims()
            self._running.finish(force=timeout == 0)
            # Not before: a signal handler may raise at each step, and the producer may then go without another close().
            self._finalizer.detach()
            self._running.stop(timeout)
            self._metrics.close()
        user_objects, self._user_objects = self._user_objects, ()
        close_all(user_objects)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def client_instance_id(self, timeout: float) -> UUID:
        """The id under which the cluster's operator finds this producer's metrics (KafkaProducer.clientInstanceId).

        A broker that takes metrics of clients (KIP-714) gives it. Raises IllegalStateError if `enable.metrics.push` is
        false or the brokers refuse the producer, TimeoutError if there is no id within `timeout` seconds, ValueError
        for a negative time-out, and ClosedError. A callback gets the id only if it is known.
        """
        self.check_open()
        _check_timeout(timeout)
        if self._telemetry is None:
            raise IllegalStateError("the producer pushes no metrics: set enable.metrics.push to true")
        return self._telemetry.instance_id(0 if self._running.runs_here() else timeout)

    @property
    def recovered(self) -> Recovered | None:
        """What the file of `kafkabuf.buffer.path` held when the producer opened it, and what has come of it up to now.

        None without a file.
        """
        return None if self._spool is None else self._spool.recovered

    def metrics(self) -> dict[str, dict[str, float]]:
        """The present metrics as {group: {name: value}}, computed now: metrics/snapshot.py has the names."""
        self._check_opened()
        return self._metrics.snapshot()


for _name, _hint in hints("KafkaProducer", PRODUCER).items():
    setattr(KafkaProducer, _name, _hint)


def config_of(config: Mapping[str, Any] | ProducerConfig | None, settings: dict[str, Any]) -> ProducerConfig:
    """The ProducerConfig of a mapping (or ProducerConfig) and of keyword settings together."""
    if isinstance(config, ProducerConfig):
        if not settings:
            return config
        settings = config.given() | {name: value for name, value in settings.items() if value is not None}
        config = None
    if config is not None and not isinstance(config, Mapping):
        # The error names the type and not the value, which may hold a password.
        raise ConfigError(f"settings must be a mapping or keywords, found {type(config).__name__}")
    try:
        return ProducerConfig.from_mapping(config or {}, settings)
    except ConfigError as error:
        # The user reads the own line, and not the frames of those who read the settings.
        raise error.with_traceback(None) from error.__cause__


def registry_of(config: ProducerConfig, clock: Clock) -> SchemaRegistry | None:
    """The client of the Schema Registry; None without a setting of it. Raises ConfigError. Asks no server."""
    given = config.given_to_schema_registry()
    if not given:
        return None
    from kafkabuf.formats.registry import SchemaRegistry  # late: most producers have no registry

    return SchemaRegistry(given, clock=clock)


def schemas_of(config: ProducerConfig, registry: SchemaRegistry | None, clock: Clock) -> TopicSchemas | None:
    """The serializers whose schemas the registry names, or None. Raises ConfigError. Asks no server."""
    if registry is None:
        return None
    from kafkabuf.formats.registry.serializing import TopicSchemas  # late, as above

    return TopicSchemas(config, registry, clock) or None


def require_ssl_context(ssl_context: object) -> None:
    """Raise ConfigError for an `ssl_context` that is no SSLContext. Imports ssl only where there is one."""
    if ssl_context is None:
        return
    import ssl

    if not isinstance(ssl_context, ssl.SSLContext):
        raise ConfigError(f"ssl_context must be an ssl.SSLContext, found {type(ssl_context).__name__}: {ssl_context!r}")


def require_no_context(ssl_context: ssl.SSLContext | None) -> None:
    """A pickle holds settings only: raises TypeError if the producer has an SSLContext."""
    if ssl_context is not None:
        raise TypeError("a producer with an ssl_context cannot be pickled: use the ssl.* settings")


def described(config: ProducerConfig) -> str:
    """The producer's names and cluster, for a repr: three addresses at most, and no other settings."""
    addresses = [f"{host}:{port}" for host, port in config.bootstrap_servers]
    more = f" and {len(addresses) - 3} more" if len(addresses) > 3 else ""
    names = [repr(config.client_id), *([repr(config.transactional_id)] if config.transactional_id else ())]
    return f"{', '.join(names)} to {','.join(addresses[:3])}{more}"


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout must be 0 or more seconds, or None for no limit; found {timeout!r}")
