"""AIOKafkaProducer with aiokafka's arguments, defaults, futures and errors.

    from kafkabuf.compat.aiokafka import AIOKafkaProducer  # was: from aiokafka import AIOKafkaProducer

Errors are kafkabuf's, and aiokafka's too where aiokafka is installed. What differs from aiokafka: records without key
stay with a partition until it was given `max_batch_size` bytes; send_batch() may send its records in more than one
batch; a producer may be made without a running event loop; sasl_kerberos_domain_name is refused.
"""

from __future__ import annotations

import asyncio
import operator
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from kafkabuf import aio
from kafkabuf.aio._futures import AIORecordFuture
from kafkabuf.compat.aiokafka import settings as theirs
from kafkabuf.compat.aiokafka._aiokafka import Outcomes
from kafkabuf.compat.aiokafka.errors import peer_error
from kafkabuf.compat.aiokafka.records import BatchBuilder, RecordMetadata, Serializer, metadata_of, whole_ms
from kafkabuf.compat.shared.file import OfTheFile, require_of_the_file
from kafkabuf.compat.shared.late_names import LateProducer
from kafkabuf.compat.shared.names import absent, in_whole_ms, with_port
from kafkabuf.errors import FatalTransactionError, IllegalStateError, KafkaError
from kafkabuf.hints import Hint
from kafkabuf.transactions.groups import OffsetAndMetadata

if TYPE_CHECKING:
    import ssl

    from kafkabuf.aio._futures import Wait
    from kafkabuf.spool.recovered import Recovered

__all__ = ["AIOKafkaProducer", "BatchBuilder", "RecordMetadata"]

T = TypeVar("T")

# What aiokafka has and this module lacks, and what takes its place.
_ELSEWHERE = {
    "AIOKafkaConsumer": "kafkabuf has no consumer: import it from aiokafka",
    "AIOKafkaAdminClient": "kafkabuf has no admin client: import it from aiokafka.admin",
}


def __getattr__(name: str) -> Any:
    raise absent(__name__, name, _ELSEWHERE)


class _Producer(aio.AIOKafkaProducer):
    _outcomes = Outcomes()
    _kind = LateProducer

    async def new_wait(self) -> Wait:
        """A wait in the producer's loop. Raises as a call of an unopened producer."""
        if asyncio.get_running_loop() is not self._loop:
            await self._enter_loop()
        return self._ends.new_wait()

    def leaders(self, topic: str) -> Sequence[int]:
        """The leader of each partition of a topic that the producer knows; -1: no leader."""
        return self._started._metadata.snapshot.topics[topic].leaders

    def require_transaction(self) -> None:
        """aiokafka looks at the state before the arguments."""
        transactions = None if self._loop is None else self._started._sender.transactions
        if transactions is None or not transactions.has_ongoing_transaction:
            raise peer_error(IllegalStateError("there is no transaction: begin_transaction() first"))


class AIOKafkaProducer:
    """aiokafka's producer: see its documentation of the arguments.

    `buffer_memory` and the settings of a file, `buffer_path` and the like, are kafkabuf's. `partitioner` None is
    aiokafka's default, murmur2 of the key. start() raises at once where no broker answers, and
    initialises transactions. Raises ValueError (ConfigError) for arguments that are wrong.
    """

    _closed: bool | None = None  # None: start() has not been awaited

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: Any = None,
        metadata_max_age_ms: float = 300000,
        request_timeout_ms: float = 40000,
        api_version: str | None = None,
        acks: Any = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        compression_type: str | None = None,
        max_batch_size: int = 16384,
        partitioner: theirs.Partitioner | None = None,
        max_request_size: int = 1048576,
        linger_ms: float = 0,
        retry_backoff_ms: float = 100,
        security_protocol: str = "PLAINTEXT",
        ssl_context: ssl.SSLContext | None = None,
        connections_max_idle_ms: float | None = 540000,
        enable_idempotence: bool = False,
        transactional_id: str | None = None,
        transaction_timeout_ms: float = 60000,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: Any = None,
        buffer_memory: int | None = None,
        **file: Unpack[OfTheFile],
    ) -> None:
        require_of_the_file(file)
        if security_protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            known = "`security_protocol` should be SSL or PLAINTEXT, SASL_SSL or SASL_PLAINTEXT"
            raise ValueError(f"{known}; found {security_protocol!r}")
        for name, value in (("loop", loop), ("api_version", api_version)):
            if value is not None:
                text = f"`{name}` has no effect, in aiokafka neither: leave it out"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
        idempotent = enable_idempotence or transactional_id is not None
        self._tokens = None if sasl_oauth_token_provider is None else theirs.Tokens(sasl_oauth_token_provider)
        settings: dict[str, Any] = {
            "bootstrap_servers": with_port(bootstrap_servers),
            "client_id": theirs.client_name(client_id),
            "metadata_max_age_ms": metadata_max_age_ms,
            "acks": theirs.acks_of(acks, idempotent=idempotent),
            "compression_type": compression_type or "none",
            "batch_size": max_batch_size,
            "max_request_size": max_request_size,
            "security_protocol": security_protocol,
            "connections_max_idle_ms": -1 if connections_max_idle_ms is None else connections_max_idle_ms,
            "enable_idempotence": idempotent,
            "buffer_memory": buffer_memory,
            **file,
        }
        if not idempotent:
            # aiokafka has one request in flight for a partition, so that no retry changes the order.
            settings["max_in_flight_requests_per_connection"] = 1
        if transactional_id is not None:
            settings |= {"transactional_id": transactional_id, "transaction_timeout_ms": transaction_timeout_ms}
        if partitioner is not None:
            settings["partitioner_class"] = theirs.CalledPartitioner(partitioner, self._leaders)
        if security_protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
            user = sasl_plain_username, sasl_plain_password
            kerberos = sasl_kerberos_service_name, sasl_kerberos_domain_name
            settings |= theirs.sasl(sasl_mechanism, *user, self._tokens, *kerberos)
        secured = security_protocol in ("SSL", "SASL_SSL")
        if secured and ssl_context is None:
            raise ValueError(f"`ssl_context` is mandatory if security_protocol=={security_protocol!r}")
        try:
            settings |= theirs.times(request_timeout_ms, retry_backoff_ms, linger_ms)
            self._producer = _Producer(in_whole_ms(settings), ssl_context=ssl_context if secured else None)
        except KafkaError as error:
            raise peer_error(error) from error.__cause__
        # send() calls them, and not the producer beneath: the records of a batch are serialized already.
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer

    def _leaders(self, topic: str) -> Sequence[int]:
        return self._producer.leaders(topic)

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to the cluster, and initialise transactions if there is a `transactional_id`.

        A call after a success does nothing.
        """
        if self._closed is False:
            return
        if self._tokens is not None:
            self._tokens.loop = asyncio.get_running_loop()
        await _as_peer(self._producer.start())
        self._closed = False
        try:
            if self._producer.config.transactional_id is not None:
                await _as_peer(self._producer.init_transactions())
        except BaseException:
            self._closed = True
            await self._producer.stop(0)
            raise

    async def stop(self) -> None:
        """Send what is queued, and close the connections."""
        self._closed = True
        await _as_peer(self._producer.stop())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if self._closed is False:
            _warn(f"Unclosed AIOKafkaProducer {self!r}: await stop()", ResourceWarning, source=self)

    @property
    def recovered(self) -> Recovered | None:
        """As kafkabuf.KafkaProducer.recovered: what the file of `buffer_path` held, and what has come of it."""
        return self._producer.recovered

    # ---- records -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: float | None = None,
        headers: Any = None,
    ) -> AIORecordFuture:
        """Queue a record, and return the future of its RecordMetadata."""
        if value is None and key is None:
            raise AssertionError("a record needs a key or a value")
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        try:
            time_ms = None if timestamp_ms is None else whole_ms(timestamp_ms)
            future = self._producer._queue(topic, value, key, headers, partition, time_ms, None)
            if future is None:
                future = await self._producer._send_slowly(topic, value, key, headers, partition, time_ms, None)
            return future
        except KafkaError as error:
            raise peer_error(error) from error.__cause__

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: float | None = None,
        headers: Any = None,
    ) -> RecordMetadata:
        """send() a record, and wait for its acknowledgement."""
        metadata: Any = await (await self.send(topic, value, key, partition, timestamp_ms, headers))
        return cast(RecordMetadata, metadata)

    async def flush(self) -> None:
        """Wait until each record that was queued so far has an outcome."""
        await _as_peer(self._producer.flush())

    async def partitions_for(self, topic: str) -> set[int]:
        """The numbers of the topic's partitions."""
        return set(range(len((await _as_peer(self._producer.partitions_for(topic))).partitions)))

    def create_batch(self) -> BatchBuilder:
        """An empty batch of up to `max_batch_size` bytes, for send_batch()."""
        return BatchBuilder(self._producer.config.batch_size, self._key_serializer, self._value_serializer)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        """Queue the records of a batch, and return the future of the first record's RecordMetadata.

        The future raises the first error of the batch's records.
        """
        batch.close()
        count = batch.record_count()
        if not count and not self._closed:
            raise ValueError("the batch has no record: append() one")
        # A partition that has `__index__` is asked once: no record of a batch may fail when others are queued.
        is_number = hasattr(partition, "__index__") and type(partition) is not bool
        number = operator.index(partition) if is_number else partition
        columns = batch.values, batch.keys, batch.headers, [number] * count, batch.timestamps
        # First: once records are queued the call must not raise, since a caller would send them twice.
        sent = await _as_peer(self._producer.new_wait())
        outcome = asyncio.ensure_future(_first_of(sent, batch.timestamps))
        try:
            report = await self._producer.send_many(topic, *columns)
        except KafkaError as error:
            failure = peer_error(error)
            if not getattr(error, "rows_queued", 0):
                outcome.cancel()
                raise failure from error.__cause__
            sent.end(None, failure)
        except BaseException:
            outcome.cancel()
            raise
        else:
            sent.end(report, None)
        return outcome

    # ---- transactions ------------------------------------------------------------------------------------------------

    async def begin_transaction(self) -> None:
        """Begin a transaction: all records that are sent from now on belong to it."""
        await _as_peer(self._producer.begin_transaction())

    async def commit_transaction(self) -> None:
        """Send what is queued, and commit."""
        await _as_peer(self._producer.commit_transaction())

    async def abort_transaction(self) -> None:
        """Drop what is queued, and abort."""
        await _as_peer(self._producer.abort_transaction())

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """`async with producer.transaction():` commits at the end, or aborts if the block raises."""
        return _Transaction(self)

    async def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group_id: str) -> None:
        """Commit a consumer's offsets with the transaction. An offset is an int, or a pair with its metadata."""
        self._producer.require_transaction()
        if not group_id or not isinstance(group_id, str):
            raise ValueError(f"group_id must be a text, found {group_id!r}")
        if not offsets or not isinstance(offsets, Mapping):
            raise ValueError(f"offsets must be a mapping with an entry at least, found {offsets!r}")
        committed = {place: _offset(offset) for place, offset in offsets.items()}
        await _as_peer(self._producer.send_offsets_to_transaction(committed, group_id))


AIOKafkaProducer.client = Hint(  # type: ignore[attr-defined]
    "AIOKafkaProducer",
    "client",
    "kafkabuf has no client beside the producer: partitions_for(topic) asks the cluster, and start() raises where "
    "no broker answers",
)


class _Transaction:
    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None:
            await self._producer.commit_transaction()
            return
        try:
            await self._producer.abort_transaction()
        except FatalTransactionError:
            pass  # the producer can only be stopped: the user sees the error of the block


async def _first_of(sent: Wait, timestamps: Sequence[int]) -> RecordMetadata:
    report: aio.AIOBulkReport = await sent
    error = await report.exception()
    if error is not None:
        raise peer_error(error)
    (place,) = await report.ranges()
    broker_time = report.report.portions[0].batch.log_append_time
    return metadata_of(place.topic, place.partition, place.first_offset, timestamps[0], broker_time)


async def _as_peer(call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    except KafkaError as error:
        raise peer_error(error) from error.__cause__


def _offset(offset: Any) -> int | OffsetAndMetadata:
    if isinstance(offset, int):
        return offset
    try:
        number, metadata = offset
    except (TypeError, ValueError) as error:
        raise ValueError(f"an offset is an int or a pair of offset and metadata, found {offset!r}") from error
    if not isinstance(metadata, str):
        raise TypeError(f"an offset's metadata is a str, found {metadata!r}")
    return OffsetAndMetadata(number, metadata)
