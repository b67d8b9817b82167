"""Producer with confluent-kafka's settings, arguments, callbacks and errors.

    from kafkabuf.compat.confluent import Producer

`KafkaError`, `KafkaException` are confluent-kafka's own classes where confluent-kafka is installed, and classes of the
same shape elsewhere. Keys stay in their partitions: the default partitioner is librdkafka's consistent_random.
Idempotence is on unless a setting contradicts it. A record without callback needs no poll().
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kafkabuf.admin.admin import Admin
from kafkabuf.compat.confluent._confluent import SLICE, Message, ProduceCore
from kafkabuf.compat.confluent.arguments import config_of, limit_of, read_batch
from kafkabuf.compat.confluent.errors import classes, exception, new_error, peers_errors, refuse
from kafkabuf.compat.confluent.lines import Lines
from kafkabuf.compat.confluent.log import Forwarding
from kafkabuf.compat.confluent.metadata import ClusterMetadata, cluster_metadata
from kafkabuf.compat.confluent.opened import ConnectionErrors, Opened, all_down, core_of
from kafkabuf.compat.confluent.settings import translated
from kafkabuf.compat.confluent.throttle import ThrottleEvent, Throttles
from kafkabuf.compat.shared.names import absent
from kafkabuf.errors import AbortableTransactionError, ConfigError, NetworkError, TimeoutError
from kafkabuf.errors import KafkaError as OwnError
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import RLock
from kafkabuf.producer import described
from kafkabuf.transactions.groups import group_of, offsets_of

if TYPE_CHECKING:
    from kafkabuf.compat.confluent._confluent import Source
    from kafkabuf.spool.recovered import Recovered

log = producer_log("kafkabuf.compat")

TIMESTAMP_NOT_AVAILABLE, TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME = 0, 1, 2

__all__ = ["KafkaError", "KafkaException", "Message", "Producer", "ThrottleEvent"]

# What confluent-kafka has and this module lacks, and what takes its place.
_ELSEWHERE = {
    "SerializingProducer": "give kafkabuf.KafkaProducer the serializers, as key_serializer and value_serializer: it "
    "takes confluent-kafka's, too",
    "AvroProducer": "give kafkabuf.KafkaProducer a value_serializer: kafkabuf.formats has Avro, and confluent-kafka's "
    "AvroSerializer fits, too",
    "AIOProducer": "use kafkabuf.aio.AIOKafkaProducer, or kafkabuf.compat.aiokafka",
    "Consumer": "kafkabuf has no consumer: import it from confluent_kafka",
    "DeserializingConsumer": "kafkabuf has no consumer: import it from confluent_kafka",
    "TopicPartition": "import it from confluent_kafka, whose consumer goes with it",
    "AdminClient": "kafkabuf has no admin client: import it from confluent_kafka.admin",
}


def __getattr__(name: str) -> Any:
    if name == "KafkaError":
        return classes().error
    if name == "KafkaException":
        return classes().exception
    raise absent(__name__, name, _ELSEWHERE)


class Producer(ProduceCore):
    """confluent-kafka's Producer. Thread-safe.

    The settings are librdkafka's, in a dict; keywords override them. The constructor connects to no broker and resolves
    no name. Raises KafkaException for a setting that does not exist, is wrong or cannot be had here.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "_producer" in self.__dict__:
            raise RuntimeError("Producer already __init__:ialized")
        with peers_errors():
            self._settings = translated(config_of(args, kwargs))
            self._watchers: list[ConnectionErrors | Throttles] = []
            if self._settings.error_cb is not None:
                self._watchers.append(ConnectionErrors(self._settings.error_cb))
            if self._settings.throttle_cb is not None:
                self._watchers.append(Throttles(self._settings.throttle_cb))
            self._producer = Opened(self._settings.own, self, self._watchers)
        self._unfinished: str | None = None  # the transactional call that has timed out
        self._lost: OwnError | None = None  # of a record that was in no batch, in the present transaction
        self._end_log = self._begin_log()
        self._begin()

    def _begin_log(self) -> Callable[[], object]:
        """Log to the setting `logger` until the result is called, or the producer is collected."""
        if self._settings.logger is None:
            for text in self._settings.warnings:
                log.warning("%s", text)
            return lambda: None
        forwarding = Forwarding(self._settings.logger, self._producer)
        forwarding.write(logging.INFO, "INIT", "kafkabuf's producer is open")
        for text in self._settings.warnings:
            forwarding.write(logging.WARNING, "CONFWARN", text)
        return weakref.finalize(self, forwarding.end)

    def _begin(self) -> None:
        """Take records from now on: for the producer that is open in this process."""
        settings, producer = self._settings, self._producer
        timeout = producer.config.delivery_timeout_ms / 1000
        self._lines = Lines(self, producer, timeout, settings.propagation)
        waiting = weakref.WeakMethod(self._lines.__len__)
        producer._running.waiting = lambda: (waiting() or _none)()
        sources: list[Source] = [*self._watchers]
        if settings.stats_cb is not None and settings.stats_interval > 0:
            from kafkabuf.compat.confluent.statistics import Statistics

            interval, most = settings.stats_interval, settings.max_messages
            held = weakref.WeakMethod(self._held)
            sources.append(Statistics(producer, settings.stats_cb, interval, most, lambda: (held() or _nothing)()))
        clock, most = producer._clock, settings.max_messages
        self._open(core_of(producer), self._lines, clock, settings.on_delivery, settings.only_errors, sources, most)

    def _held(self) -> tuple[int, int]:
        return len(self), self._due()

    def __del__(self) -> None:
        """Nobody can call flush() or poll() any more: say what is lost with the producer.

        Records in the queues are sent in the background. At the interpreter's end sending/lifetime.py has warned.
        """
        lines = self.__dict__.get("_lines")
        if lines is not None and self._is_open() and not self._producer._running.warned and (left := len(lines)):
            log.warning(
                "a Producer was dropped without flush(): %d records are lost, which waited for a broker to describe "
                "their topic",
                left,
            )

    def _disown(self) -> None:
        """In a forked child, where the records are the parent's: the next call opens a producer of the child's own."""
        if self._is_open():
            self._child_lock = RLock()
            self._shut(self._open_in_child)
            forgotten = self._forget()
            del forgotten  # only now: a callback's __del__ may call the producer

    def _open_in_child(self) -> None:
        with self._child_lock:
            if self._reopen is not None:
                with peers_errors():
                    self._producer.check_open()
                self._begin()

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
        default = on_delivery if on_delivery is not None else callback
        queued = 0
        records = read_batch(topic, messages, partition, default)
        for message, record in zip(messages, records, strict=True):
            try:
                self.produce(topic, record.value, record.key, record.partition, record.callback, headers=record.headers)
                queued += 1
            except BufferError as error:
                dict.__setitem__(message, "_error", new_error("_QUEUE_FULL", str(error)))
            except classes().exception as error:
                dict.__setitem__(message, "_error", error.args[0])
        return queued

    def _fail(self, message: Message, on_delivery: Any, error: OwnError) -> None:
        self._lost = error
        super()._fail(message, on_delivery, error)

    def flush(self, timeout: float | None = -1) -> int:
        """Wait until each record has an outcome, up to `timeout` seconds (below 0, or None: for ever), and poll().

        Returns the number of records and delivery reports that are left.
        """
        self._check_open()
        clock = self._producer._clock
        deadline = float("inf") if timeout is None or timeout < 0 else clock.monotonic() + timeout
        while True:
            self._serve()
            left = len(self)
            seconds = min(deadline - clock.monotonic(), SLICE)
            if not left or (seconds <= 0 and deadline != float("inf")):
                return left
            try:
                self._producer.flush(seconds)
            except TimeoutError:
                continue
            except OwnError as error:
                refuse(error)
            if self._lines.by_topic:
                self._await_report(seconds)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fail the records that are queued, and with `in_flight` those that are sent and not acknowledged.

        kafkabuf cannot fail the records in flight alone: without `in_queue` the call does nothing.
        """
        self._check_open()
        if in_queue:
            self._lines.purge("purge() has dropped the record")
            with peers_errors():
                self._producer.purge(in_flight=in_flight)

    def __len__(self) -> int:
        """The number of records without an outcome, and of delivery reports that poll() has to serve."""
        if not self._is_open():
            return 0
        waiting = len(self._lines)  # first: a record that moves meanwhile is counted twice, and never missed
        queued = sum(batch.count for batch in self._producer.accumulator.incomplete_batches())
        return waiting + queued + self._due()

    @property
    def recovered(self) -> Recovered | None:
        """As kafkabuf.KafkaProducer.recovered: what the file of kafkabuf.buffer.path held, and what has come of it."""
        return self._producer.recovered

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if not self._is_open():
            return f"{type(self).__name__}(not open)"
        return f"{type(self).__name__}({described(self._producer.config)}, open)"

    # ---- the cluster -------------------------------------------------------------------------------------------------

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """Brokers and topics (None: all topics), with confluent-kafka's names. Creates no topic."""
        self._check_open()
        config = self._producer.config
        if timeout is not None and timeout >= 0:
            config = config.replaced({"max_block_ms": int(timeout * 1000)})
        with peers_errors():
            try:
                with Admin(config) as admin:
                    try:
                        response = admin.describe_cluster(None if topic is None else [topic])
                        return cluster_metadata(response, admin.answered_by)
                    except TimeoutError as error:
                        if all_down(admin._client.connections):
                            raise NetworkError(f"Failed to get metadata: {error}") from error
                        raise
            except ConfigError as error:  # no bootstrap server can be resolved
                raise NetworkError(str(error)) from error

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use another name and password for the connections that are opened from now on."""
        if not isinstance(username, str) or not isinstance(password, str):
            raise TypeError("username and password must be str")
        self._check_open()
        with peers_errors():
            self._producer.set_credentials(username, password)

    def cluster_id(self, timeout: float | None = -1) -> str | None:
        return self.list_topics("", timeout).cluster_id

    # ---- transactions ------------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float | None = -1) -> None:
        """Prepare for transactions. The time-outs of this and the next four are seconds; below 0: max.block.ms."""
        with self._transactional("init_transactions"):
            self._producer._transaction_manager().init(limit_of(timeout))

    def begin_transaction(self) -> None:
        with self._transactional("begin_transaction"):
            # Another thread's record may have come into a line while the transaction before was committed.
            self._lines.purge("its transaction has ended")
            self._producer.begin_transaction()
            self._lost = None

    def send_offsets_to_transaction(
        self, positions: Sequence[Any], group_metadata: Any, timeout: float | None = -1
    ) -> None:
        """Add a consumer's offsets (a list of TopicPartition) to the transaction.

        `group_metadata` is confluent-kafka's consumer_group_metadata(), a GroupMetadata of kafkabuf, or a group id.
        """
        offsets = {(each.topic, each.partition): each for each in positions if each.offset >= 0}
        group = group_of(group_metadata)
        with self._transactional("send_offsets_to_transaction"):
            self._producer._transaction_manager().send_offsets(offsets_of(offsets), group, limit_of(timeout))

    def commit_transaction(self, timeout: float | None = -1) -> None:
        """flush(), and commit the transaction."""
        with self._transactional("commit_transaction"):
            if self._lines.by_topic:
                self.flush(timeout)
                if self._lines.by_topic:
                    raise TimeoutError(f"{len(self._lines)} records still wait for their topic: call flush()")
            if self._lost is not None:
                raise AbortableTransactionError(f"a record of the transaction has failed: {self._lost}")
            self._producer._transaction_manager().commit(limit_of(timeout))
        self._serve()

    def abort_transaction(self, timeout: float | None = -1) -> None:
        """Drop the records that are queued, and abort the transaction."""
        with self._transactional("abort_transaction"):
            self._lines.purge("the transaction was aborted")
            self._producer._transaction_manager().abort(limit_of(timeout))
            self._lost = None
        self._serve()

    @contextmanager
    def _transactional(self, call: str) -> Iterator[None]:
        self._check_open()
        if self._producer.config.transactional_id is None:
            text = "The Transactional API requires transactional.id to be configured"
            raise classes().exception(new_error("_NOT_CONFIGURED", text))
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
            raise exception(error, of_transaction=True) from error
        self._unfinished = None

    # ---- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """flush() and stop. A second call does nothing."""
        if not self._is_open():
            self._shut()
            return True
        try:
            self.flush()
        finally:
            self._shut()
            self._producer.close()
            self._end_log()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _none() -> int:
    """The lines are gone."""
    return 0


def _nothing() -> tuple[int, int]:
    """The producer is gone."""
    return 0, 0
