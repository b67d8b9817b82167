"""Producer with confluent-kafka's settings, arguments, callbacks and errors, over kafkabuf's KafkaProducer.

    from kafkabuf.compat.confluent import Producer

`KafkaError`, `KafkaException` are confluent-kafka's own classes where confluent-kafka is installed, and classes of the
same shape elsewhere. Keys stay in their partitions: the default partitioner is librdkafka's consistent_random. Idempotence
is on unless a setting contradicts it. A record without callback needs no poll().
"""

from __future__ import annotations

import json
import logging
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self

from kafkabuf.append._producer import ProducerCore
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.clock import Clock, SystemClock
from kafkabuf.compat._confluent import Message, MustWait, ProduceCore
from kafkabuf.compat.confluent_errors import call_error, classes, exception, new_error
from kafkabuf.compat.confluent_lines import Lines
from kafkabuf.compat.confluent_metadata import ClusterMetadata, cluster_metadata
from kafkabuf.compat.confluent_settings import translated
from kafkabuf.errors import (
    AuthenticationError,
    BufferExhaustedError,
    ClosedError,
    KafkaError as OwnError,
    NetworkError,
    RecordTooLargeError,
    TimeoutError,
    UnknownTopicOrPartitionError,
)
from kafkabuf.metadata.groups import GroupMetadata, group_of, offsets_of
from kafkabuf.network import resolve
from kafkabuf.network.client import NetworkClient
from kafkabuf.network.resolve import Address
from kafkabuf.producer import KafkaProducer

TIMESTAMP_NOT_AVAILABLE, TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME = 0, 1, 2
# How long poll() and flush() wait at a time, while records wait for their topic or errors are watched. Seconds.
SLICE = 0.05
# Bytes that a record takes at most besides its key, value and headers.
OVERHEAD = 100

__all__ = ["KafkaError", "KafkaException", "Message", "Producer"]


def __getattr__(name: str) -> Any:
    if name == "KafkaError":
        return classes().error
    if name == "KafkaException":
        return classes().exception
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Producer(ProduceCore):
    """confluent-kafka's Producer. Thread-safe.

    The settings are librdkafka's, in a dict; keywords override them. The constructor connects to no broker and resolves
    no name. Raises KafkaException for a setting that does not exist, is wrong or cannot be had here.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = _config_of(args, kwargs)
        with _peers_errors():
            settings = translated(config)
            self._producer = producer = _Opened(settings.own)
            self._admin_settings = settings.own
            own = producer.config
            metadata = producer._metadata
            timeout = own.delivery_timeout_ms / 1000
            self._lines = Lines(self._send, metadata, timeout, settings.propagation)
            self._error_cb = settings.error_cb
            self._last_error: OwnError | None = None
            self._unfinished: str | None = None  # the transactional call that has timed out
            self._log = _Forwarding(settings.logger, own.client_id) if settings.logger is not None else None
            self._open(
                _Core(producer, producer._clock),
                self._lines.by_topic,
                settings.on_delivery,
                settings.only_errors,
                settings.error_cb is not None,
                settings.max_messages,
            )

    # ---- records -----------------------------------------------------------------------------------------------------

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Callable[..., object] | None = None,
        on_delivery: Callable[..., object] | None = None,
    ) -> int:
        """produce() each dict (`value`, `key`, `partition`, `callback`, `headers`) and return how many were queued.

        A dict whose record was not queued gets the KafkaError as `_error`. Raises TypeError, ValueError before the
        first record is queued.
        """
        self._check_open()
        _check_batch(topic, messages, partition)
        default = on_delivery if on_delivery is not None else callback
        queued = 0
        for message in messages:
            on_end = message.get("callback") or message.get("on_delivery") or default
            try:
                self.produce(
                    topic,
                    message.get("value"),
                    message.get("key"),
                    message.get("partition", partition),
                    on_end,
                    headers=message.get("headers"),
                )
                queued += 1
            except BufferError as error:
                message["_error"] = new_error("_QUEUE_FULL", str(error), retriable=True)
            except classes().exception as error:
                message["_error"] = error.args[0]
        return queued

    def _stand_in_line(self, message: Message) -> None:
        size = sum(len(data) for data in (message.key(), message.value()) if data is not None)
        largest = self._producer.config.max_request_size
        if size + OVERHEAD > largest:
            raise RecordTooLargeError(f"the record needs up to {size + OVERHEAD} bytes: message.max.bytes is {largest}")
        self._lines.add(message)

    def _refuse(self, error: OwnError) -> NoReturn:
        if isinstance(error, BufferExhaustedError):
            raise BufferError(f"Local: Queue full: {error}") from None
        if isinstance(error, TypeError):  # key, value or headers are not bytes
            raise TypeError(str(error)) from None
        raise exception(error) from None

    def flush(self, timeout: float | None = -1) -> int:
        """Wait until each record has an outcome, up to `timeout` seconds (below 0, or None: for ever), and poll().

        Returns the number of records and delivery reports that are left.
        """
        self._check_open()
        clock = self._producer._clock
        deadline = float("inf") if timeout is None or timeout < 0 else clock.monotonic() + timeout
        while True:
            self._serve_all()
            left = len(self)
            seconds = min(deadline - clock.monotonic(), SLICE)
            if not left or (seconds <= 0 and deadline != float("inf")):
                return left
            try:
                self._producer.flush(seconds)
            except TimeoutError:
                continue
            except OwnError as error:
                self._refuse(error)
            if self._lines.by_topic:
                self._await_report(seconds)

    def _poll(self, timeout: float) -> int:
        clock = self._producer._clock
        deadline = float("inf") if timeout < 0 else clock.monotonic() + timeout
        while True:
            served = self._serve_all()
            left = deadline - clock.monotonic()
            if served or left <= 0:
                return served
            watching = self._error_cb is not None or self._lines.by_topic
            self._await_report(min(left, SLICE) if watching else min(left, threading.TIMEOUT_MAX))

    def _serve_all(self) -> int:
        """Calls every callback that is due."""
        if self._lines.by_topic:
            self._lines.expire()
        if self._error_cb is not None:
            self._report_error(self._error_cb)
        return self._serve()

    def _report_error(self, error_cb: Callable[[Any], object]) -> None:
        error = self._producer._metadata._last_error
        if error is not None and error is not self._last_error:
            self._last_error = error
            error_cb(call_error(error))

    def _await_report(self, seconds: float) -> None:
        waiter = threading.Lock()
        waiter.acquire()
        if self._add_waiter(waiter):
            try:
                waiter.acquire(timeout=seconds)
            finally:
                self._remove_waiter(waiter)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fail the records that are queued, and with `in_flight` those that are sent and not acknowledged.

        kafkabuf cannot fail the records in flight alone: without `in_queue` the call does nothing.
        """
        self._check_open()
        if in_queue:
            self._lines.purge("purge() has dropped the record")
            with _peers_errors():
                self._producer.purge(in_flight=in_flight)

    def __len__(self) -> int:
        """The number of records without an outcome, and of delivery reports that poll() has to serve."""
        producer = getattr(self, "_producer", None)
        if producer is None:
            return 0
        queued = sum(batch.count for batch in list(producer.accumulator.incomplete))
        return queued + len(self._lines) + len(self.reports)

    def __bool__(self) -> bool:
        return True

    # ---- the cluster -------------------------------------------------------------------------------------------------

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """Brokers and topics (None: all topics), with confluent-kafka's names. Creates no topic."""
        self._check_open()
        from kafkabuf.metadata.admin import Admin

        config = self._producer.config
        if timeout is not None and timeout >= 0:
            config = config.replaced({"max_block_ms": int(timeout * 1000)})
        with _peers_errors():
            with Admin(config) as admin:  # type: ignore[arg-type]
                return cluster_metadata(admin.describe_cluster(None if topic is None else [topic]))

    def cluster_id(self, timeout: float | None = -1) -> str | None:
        return self.list_topics("", timeout).cluster_id

    # ---- transactions ------------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float | None = -1) -> None:
        """Prepare for transactions. The time-outs of this and the next four are seconds; below 0: max.block.ms."""
        with self._transactional("init_transactions"):
            self._producer._transaction_manager().init(_limit(timeout))

    def begin_transaction(self) -> None:
        with self._transactional("begin_transaction"):
            self._producer.begin_transaction()

    def send_offsets_to_transaction(
        self, positions: Sequence[Any], group_metadata: Any, timeout: float | None = -1
    ) -> None:
        """Add a consumer's offsets (a list of TopicPartition) to the transaction.

        `group_metadata` is confluent-kafka's consumer_group_metadata(), a GroupMetadata of kafkabuf, or a group id.
        """
        offsets = {(each.topic, each.partition): each for each in positions if each.offset >= 0}
        group = _group_in(group_metadata) if isinstance(group_metadata, bytes) else group_of(group_metadata)
        with self._transactional("send_offsets_to_transaction"):
            self._producer._transaction_manager().send_offsets(offsets_of(offsets), group, _limit(timeout))

    def commit_transaction(self, timeout: float | None = -1) -> None:
        """flush(), and commit the transaction."""
        with self._transactional("commit_transaction"):
            self._producer._transaction_manager().commit(_limit(timeout))
        self._serve_all()

    def abort_transaction(self, timeout: float | None = -1) -> None:
        """Drop the records that are queued, and abort the transaction."""
        with self._transactional("abort_transaction"):
            self._lines.purge("the transaction was aborted")
            self._producer._transaction_manager().abort(_limit(timeout))
        self._serve_all()

    @contextmanager
    def _transactional(self, call: str) -> Iterator[None]:
        self._check_open()
        if self._unfinished not in (None, call):
            text = f"{self._unfinished}() has timed out and goes on: call it again before {call}()"
            raise classes().exception(new_error("_CONFLICT", text, retriable=True))
        try:
            yield
        except TimeoutError as error:
            self._unfinished = call
            raise classes().exception(new_error("_TIMED_OUT", str(error), retriable=True)) from error
        except OwnError as error:
            self._unfinished = None
            raise exception(error) from error
        self._unfinished = None

    # ---- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """flush() and stop. A second call does nothing."""
        if getattr(self, "_producer", None) is None:
            return True
        try:
            self._check_open()
        except RuntimeError:
            return True
        try:
            self.flush()
        finally:
            self._shut()
            self._producer.close()
            if self._log is not None:
                self._log.end()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Core(ProducerCore):
    """send() of a producer's queues that never waits: for metadata it raises MustWait, for memory BufferExhaustedError."""

    def __init__(self, producer: KafkaProducer, clock: Clock) -> None:
        self._producer = producer
        self._open(producer.accumulator, producer.config.replaced({"max_block_ms": 0}), clock)  # type: ignore[arg-type]

    def _await_topic(self, name: str) -> TopicQueues:
        try:
            return self._producer._await_topic(name, 0)
        except (TimeoutError, UnknownTopicOrPartitionError):
            raise MustWait from None

    def _await_partition(self, name: str, partition: int, timeout: float) -> None:
        """Nothing to wait for: a partition that is unknown now is refused. Metadata is requested for the next try."""
        self._producer._metadata.add_topic(name)
        self._producer._metadata.request_update()


class _LateResolver:
    """Resolves names when the client connects. The constructor of a NetworkClient resolves them, too: too early."""

    connecting = False

    def __call__(self, host: str, port: int) -> list[Address]:
        if not self.connecting:
            return []
        if host.endswith(".invalid"):
            raise NetworkError("bootstrap.servers is not set")
        return resolve.resolve(host, port)


class _Opened(KafkaProducer):
    """kafkabuf's producer, which opens though no bootstrap server can be resolved yet."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)

    def _connect(self, clock: Clock) -> NetworkClient:
        resolver = _LateResolver()
        client = NetworkClient(self.config, clock, self._metadata, resolver=resolver)
        resolver.connecting = True
        return client


class _Forwarding(logging.Handler):
    """Hands the records of kafkabuf's loggers to the user's logger, until the producer is closed."""

    def __init__(self, logger: logging.Logger, client_id: str) -> None:
        super().__init__()
        self._logger = logger
        self._source = logging.getLogger("kafkabuf")
        self._source.addHandler(self)
        logger.info("INIT kafkabuf producer %s", client_id)

    def emit(self, record: logging.LogRecord) -> None:
        if self._logger.isEnabledFor(record.levelno) and not record.name.startswith("kafkabuf.broker"):
            self._logger.handle(record)

    def end(self) -> None:
        self._source.removeHandler(self)


@contextmanager
def _peers_errors() -> Iterator[None]:
    try:
        yield
    except OwnError as error:
        raise exception(error) from error


def _config_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if len(args) > 1 or (args and not isinstance(args[0], dict)) or not (args or kwargs):
        raise TypeError("expected configuration dict")
    keywords = {name if name.endswith("_cb") or name == "on_delivery" else name.replace("_", "."): value
                for name, value in kwargs.items()}  # fmt: skip
    return {**(args[0] if args else {}), **keywords}


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else timeout


def _check_batch(topic: Any, messages: Any, partition: Any) -> None:
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, found {type(topic).__name__}")
    if not isinstance(messages, list):
        raise TypeError("messages must be a list")
    if not isinstance(partition, int):
        raise TypeError("partition must be int")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise TypeError(f"Message at index {index} must be a dict")
        if message.get("timestamp"):
            raise NotImplementedError("Message timestamps are not currently supported: use produce()")
        for name in ("value", "key"):
            if not isinstance(message.get(name), bytes | bytearray | memoryview | str | None):
                raise TypeError(f"Message {name} at index {index} must be bytes or str")
        if not isinstance(message.get("partition", -1), int):
            raise TypeError(f"Message partition at index {index} must be int")


# librdkafka's form of a consumer's group metadata: this, the generation, the group id, the member id, whether there is
# no instance id, the instance id. Each text ends with a zero byte; the number has the machine's byte order.
_GROUP_FORM = b"CGMDv2:"


def _group_in(written: bytes) -> GroupMetadata:
    """The group metadata that confluent-kafka's consumer_group_metadata() returns. Raises ValueError."""
    if not written.startswith(_GROUP_FORM):
        raise ValueError(f"group metadata of a form that kafkabuf does not know: {written!r}")
    rest = written.removeprefix(_GROUP_FORM)
    (generation,) = struct.unpack_from("=i", rest)
    group, member, instance = rest[4:].split(b"\0", 2)
    has_instance = instance[:1] == b"\0"
    instance_id = instance[1:].rstrip(b"\0").decode() if has_instance else None
    return GroupMetadata(group.decode(), generation, member.decode(), instance_id or None)
