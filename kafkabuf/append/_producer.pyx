# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""send(): checks, topic, partition, timestamp, encoding in place, future. producer.py has the calls per producer."""

cimport cython

from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from kafkabuf.cpython._arguments cimport apply8, arrange, by_cython, kb_quick, replace_way_in
from kafkabuf.memory._held cimport Held, hold_nothing, release_held
from kafkabuf.process._lock cimport enter_lock, leave_lock
from kafkabuf._partition cimport KeyRule, partition_by_key
from kafkabuf._records cimport LARGEST_BATCH, Record, append, has_room, hold_record, measure, size_upper_bound
from kafkabuf.process._time cimport kb_time_ms, kb_time_ms_init
from kafkabuf.wire._wire cimport kb_crc32_init
from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue, TopicQueues, uninitialized
from kafkabuf.batches._batch cimport Batch, RecordFuture, new_future

from kafkabuf.clock import SystemClock
from kafkabuf.errors import (
    ClosedError, ConfigError, InvalidPartitionsError, InvalidTimestampError, InvalidTopicError, KafkaError,
    RecordTooLargeError, SerializationError,
)
from kafkabuf.interceptors import Acknowledgement, Interceptors, ProducerRecord, pairs_of
from kafkabuf.partitioner import key_rule_of, partitioner_of
from kafkabuf.serialization import serialize_with

kb_crc32_init()
kb_time_ms_init()


# An object that no caller can pass as a topic, for the time before the first send().
cdef object NO_NAME = object()
# Attributes of every producer that are no part of its public face.
cdef object INTERNALS = frozenset({"accumulator", "check_open", "detour", "interceptors", "pool", "prepare", "topics"})
FORKED = "this call began before a fork: the parent process carries it out, and the child must make calls of its own"


cdef object serialized(object serializer, bint by_topic, str topic, object headers, object data, str field):
    try:
        return serializer(topic, headers, data) if by_topic else serializer(data)
    except Exception as error:
        raise SerializationError(f"the {field} serializer raised {type(error).__name__}: {error}") from error


cdef class TopicPolicy:
    """What a call does about a topic that it does not know. Topics in topics.py waits for metadata."""

    cpdef TopicQueues await_topic(self, str name, double timeout):
        raise NotImplementedError

    cpdef object await_partition(self, str name, int64_t partition, double timeout):
        pass

    cpdef bint may_wait(self) except -1:
        return True


cdef class ProducerCore:
    """Base class of KafkaProducer: the code that runs for every record."""

    def __cinit__(self, *args, **kwargs):
        self.closing = self.detour = True  # until _open: an object whose __init__ did not run has no accumulator
        self.last_name = NO_NAME

    def _open(self, AccumulatorCore accumulator not None, TopicPolicy topics not None, config, clock, schemas=None):
        self.last_name = NO_NAME
        self.last_topic = None
        self.accumulator = accumulator
        self.topics = topics
        self.clock = clock
        self.system_clock = type(clock) is SystemClock
        self.schemas = schemas
        self.key_by_schema, self.value_by_schema = (None, None) if schemas is None else (schemas.key, schemas.value)
        self.key_serializer, self.key_by_topic = serialize_with(
            None if self.key_by_schema is not None else config.key_serializer, "key")
        self.value_serializer, self.value_by_topic = serialize_with(
            None if self.value_by_schema is not None else config.value_serializer, "value")
        self.partitioner = partitioner_of(config.partitioner_class)
        self.interceptors = Interceptors(config) if config.interceptor_classes else None
        self.max_request_size = min(<int64_t>config.max_request_size, <int64_t>LARGEST_BATCH)
        self.max_block = config.max_block_ms / 1000
        self.key_rule = <KeyRule><int>key_rule_of(config.partitioner_class, config.partitioner_ignore_keys)
        self.detour = not (self.key_serializer is None and self.value_serializer is None and self.partitioner is None
                           and self.interceptors is None and schemas is None)
        self.takes_opaque = config.on_acknowledged is not None
        self.closing = self.disowned = False
        self.reopen = None

    def _begin_close(self, str because="the producer is closed"):
        self.closing = self.detour = True
        self.disowned = False
        self.reopen = None
        self.closed_because = because

    def _close_in_child(self, reopen=None):
        """In a forked child, unless the producer was closed: later calls raise, or call `reopen` first."""
        if not self.closing:
            self._begin_close(FORKED)
            self.disowned = True
            self.reopen = reopen

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, callback=None,
             opaque=None):
        """Queue one record and return a RecordFuture (KafkaProducer.send).

        Args:
            topic: the topic's name. For an unknown topic send() fetches metadata, for up to `max.block.ms`.
            value, key: bytes-like or None, or what the configured serializers take. None is Kafka's null; b"" is not.
            headers: pairs of (str, bytes or None), or a dict of them.
            partition: a number; None: `partitioner.class` chooses. Without a partitioner the key's murmur2 hash
                chooses, as in Java; a record without key goes to the sticky partition.
            timestamp_ms: milliseconds since the epoch; None: the present time.
            callback: `callback(metadata, error)`; the Sender's thread calls it. `error` is None for a delivered record.
            opaque: any object; it comes back in the BatchOutcome that `on_acknowledged` gets for the record's batch.

        Raises:
            SerializationError, RecordTooLargeError, InvalidTopicError, InvalidPartitionsError, InvalidTimestampError,
                TypeError: an argument is wrong.
            IllegalStateError, AbortableTransactionError, FatalTransactionError: the producer has a `transactional.id`,
                and no transaction that takes the record.
            TimeoutError: there was no metadata within `max.block.ms`.
            BufferExhaustedError: there was no memory within the rest of `max.block.ms`.
            ClosedError: after close().
            ConfigError: `opaque` was given to a producer without `on_acknowledged`.
            The record was not queued if send() raises.
        """
        return send_record(self, topic, value, key, headers, partition, timestamp_ms, callback, opaque)

    cdef RecordFuture send_by_detour(
        self, object topic, object value, object key, object headers, object partition, object timestamp_ms,
        object callback, object opaque
    ):
        cdef TopicQueues queues
        cdef AccumulatorCore begun
        cdef double waited = 0
        self.check_open()
        begun = self.accumulator
        if self.interceptors is not None and type(callback) is not Acknowledgement:
            record = ProducerRecord(topic, value, key, pairs_of(headers), partition, timestamp_ms)
            return self.send_intercepted(record, callback, opaque)
        queues = self.topic_of(topic, &waited)
        if self.schemas is not None and self.lacks_schema(queues.name, key, value):
            self.await_schemas(queues.name, key, value, &waited)
            self.check_still_open(begun)
        key, value, headers, partition = self.prepared(queues, key, value, headers, partition)
        self.check_still_open(begun)  # a serializer or partitioner may have closed the producer, or forked
        return self.queue_record(topic, value, key, headers, partition, timestamp_ms, callback, opaque, waited)

    @cython.final
    cdef RecordFuture queue_record(
        self, object name, object value, object key, object headers, object partition, object timestamp_ms,
        object callback, object opaque, double waited
    ):
        cdef Record r
        cdef Held held
        cdef TopicQueues topic
        enter_lock(&self.accumulator.pool.guard)
        if name is self.last_name:
            topic = self.last_topic
            leave_lock(&self.accumulator.pool.guard)
        else:
            leave_lock(&self.accumulator.pool.guard)
            topic = self.topic_of(name, &waited)
        r.timestamp = self.now_ms() if timestamp_ms is None else checked_timestamp(timestamp_ms)
        hold_nothing(&held)
        try:
            hold_record(&held, &r, key, value, headers)
            return self.enqueue(topic, partition, callback, opaque, &r, waited)
        finally:
            release_held(&held)

    @cython.final
    cdef RecordFuture enqueue(
        self, TopicQueues topic, object partition, object callback, object opaque, Record* r, double waited
    ):
        cdef PartitionQueue queue
        cdef RecordFuture future
        cdef Batch batch, before
        cdef int32_t number
        cdef bint sticky = False, news = False
        if size_upper_bound(self.accumulator.magic, r) > self.max_request_size or r.header_count:
            self.check_size(r)
        if partition is not None:
            queue = self.queue_of_partition(topic, partition_number(partition), &waited)
        enter_lock(&self.accumulator.pool.guard)
        try:
            if partition is None:
                number = partition_by_key(self.key_rule, &r.key, topic.partitions)
                sticky = number < 0
                queue = topic.sticky if sticky else <PartitionQueue>topic.queues[number]
            batch = queue.open
            if batch is None or not has_room(&batch.stored.builder, r):
                before = batch
                batch = self.room_for(topic, queue, sticky, r, waited)
                news = batch is not before  # which is full
            # Or a call that opened the batch has failed before its append, and nobody has woken the Sender.
            news = news or batch.stored.builder.count == 0
            future = new_future(batch, batch.stored.builder.count, r.timestamp, r.key.size, r.value.size)
            if callback is not None or opaque is not None:
                batch.keep(callback, opaque, future)
            append(&batch.stored.builder, r)
            self.records_sent += 1
        finally:
            leave_lock(&self.accumulator.pool.guard)
        if news and (self.accumulator.shortcut is None or not self.accumulator.shortcut.send_now(batch)):
            self.accumulator.wakeup()
        return future

    cdef Batch room_for(self, TopicQueues topic, PartitionQueue queue, bint sticky, Record* r, double waited):
        cdef Batch batch = queue.open
        if self.disowned or topic.slow_nodes is not self.accumulator.slow_nodes:
            raise ClosedError(FORKED)  # code that this call ran has forked, and perhaps opened the child's producer
        if sticky and (batch is None or not self.accumulator.grown(batch, r)):
            queue.close_open_batch()
            topic.leave(queue, size_upper_bound(self.accumulator.magic, r))
            queue = topic.sticky
        batch = self.accumulator.open_batch(queue, r, self.max_block - waited)
        measure(&batch.stored.builder, r)
        return batch

    # ---- the user's serializers, partitioner and interceptors --------------------------------------------------------

    def __dir__(self):
        """Without the names that only kafkabuf itself uses: a shell does not complete these."""
        return [name for name in object.__dir__(self) if name not in INTERNALS]

    def prepare(self, topic, key, value, headers, partition):
        """(key, value, headers, partition) as send() would queue them. AIOKafkaProducer does the other steps itself."""
        cdef double waited = 0
        self.check_open()
        return self.prepared(self.topic_of(topic, &waited), key, value, headers, partition)

    def _lacks_schema(self, str topic not None, key, value):
        """For AIOKafkaProducer: whether _await_schemas() must come before prepare()."""
        return self.lacks_schema(topic, key, value)

    def _await_schemas(self, str topic not None, key, value, double timeout):
        """For AIOKafkaProducer: ask the Schema Registry, for up to `timeout` seconds."""
        cdef double waited = max(self.max_block - timeout, 0.0)
        self.check_open()
        self.await_schemas(topic, key, value, &waited)

    cdef bint lacks_schema(self, str topic, object key, object value) except -1:
        return (key is not None and is_stale(self, self.key_by_schema, topic)
                or value is not None and is_stale(self, self.value_by_schema, topic))

    cdef int await_schemas(self, str topic, object key, object value, double* waited) except -1:
        cdef double started
        for field, data, by_schema in (("key", key, self.key_by_schema), ("value", value, self.value_by_schema)):
            if data is not None and is_stale(self, by_schema, topic):
                started = self.clock.monotonic()
                self.schemas.resolve(field, topic, self.patience(waited), self.topics.may_wait())
                waited[0] += <double>self.clock.monotonic() - started
        return 0

    cdef tuple prepared(self, TopicQueues topic, object key, object value, object headers, object partition):
        if self.key_by_topic or self.value_by_topic:
            headers = pairs_of(headers)  # a list, to which a serializer may add
        if self.key_serializer is not None:
            key = serialized(self.key_serializer, self.key_by_topic, topic.name, headers, key, "key")
        elif self.key_by_schema is not None and key is not None:
            serializer, header, _ = self.key_by_schema[topic.name]
            key = serialized(serializer, False, None, None, key, "key")
            if header is not None:
                headers = [*pairs_of(headers), header]
        if self.value_serializer is not None:
            value = serialized(self.value_serializer, self.value_by_topic, topic.name, headers, value, "value")
        elif self.value_by_schema is not None and value is not None:
            serializer, header, _ = self.value_by_schema[topic.name]
            value = serialized(serializer, False, None, None, value, "value")
            if header is not None:
                headers = [*pairs_of(headers), header]
        if partition is None and self.partitioner is not None:
            partition = self.partition_by(topic, key, value)
        return key, value, headers, partition

    cdef object partition_by(self, TopicQueues topic, object key, object value):
        cdef int64_t number
        try:
            chosen = self.partitioner(topic.name, key, value, topic.partitions)
        except Exception as error:
            raise InvalidPartitionsError(f"the partitioner raised {type(error).__name__}: {error}") from error
        if chosen is None:
            return None
        try:
            number = whole_number(chosen)
            if 0 <= number < topic.partitions:
                return number
        except (TypeError, OverflowError):
            pass
        raise InvalidPartitionsError(f"the partitioner returned {chosen!r} for topic {topic.name!r}: it must return an "
                                     f"int from 0 to {topic.partitions - 1}, or None to leave the choice to kafkabuf")

    cdef RecordFuture send_intercepted(self, object record, object callback, object opaque):
        cdef AccumulatorCore begun = self.accumulator
        record = self.interceptors.on_send(record)
        try:
            self.check_still_open(begun)
            return ProducerCore.send(self, *record, callback=self.interceptors.acknowledgement(record, callback),
                                     opaque=opaque)
        except Exception as error:
            self.interceptors.on_send_error(record, error)
            raise

    cdef int check_takes_columns(self) except -1:
        for name, user_object in (("key.serializer", self.key_serializer), ("value.serializer", self.value_serializer),
                                  ("key.serializer", self.key_by_schema), ("value.serializer", self.value_by_schema),
                                  ("partitioner.class", self.partitioner), ("interceptor.classes", self.interceptors)):
            if user_object is not None:
                raise ConfigError(f"send_arrow sends the bytes of the columns as they are and cannot apply {name}: use "
                                  f"send_many(), or a producer without {name}")
        return 0

    # ---- topic, partition, time, size --------------------------------------------------------------------------------

    cpdef int check_open(self) except -1:
        if self.reopen is not None:
            self.reopen()
        elif self.closing:
            raise ClosedError(self.closed_because or "the producer is not open")
        return 0

    cdef int check_still_open(self, AccumulatorCore begun) except -1:
        if self.accumulator is not begun:
            raise ClosedError(FORKED)
        if self.closing:
            raise ClosedError(self.closed_because)
        return 0

    cdef TopicQueues topic_of(self, object name, double* waited):
        cdef TopicQueues topic
        cdef double started
        if type(name) is not str:
            raise InvalidTopicError(f"a topic's name must be a str, found {type(name).__name__}: {name!r}")
        if self.accumulator is None:
            raise uninitialized(self)
        topic = self.accumulator.topics.get(name)
        if topic is None:
            self.check_open()  # code that this call ran may have closed the producer, or forked
            started = self.clock.monotonic()
            topic = self.topics.await_topic(name, self.patience(waited))
            if topic is None:
                raise TypeError(f"{type(self.topics).__name__}.await_topic() returned None: it must return a topic or "
                                f"raise")
            waited[0] += <double>self.clock.monotonic() - started
        enter_lock(&self.accumulator.pool.guard)
        self.last_name = name
        self.last_topic = topic
        leave_lock(&self.accumulator.pool.guard)
        return topic

    cdef PartitionQueue queue_of_partition(self, TopicQueues topic, int64_t number, double* waited):
        cdef double started
        if number >= topic.partitions:
            self.check_open()  # as in topic_of()
            started = self.clock.monotonic()
            self.topics.await_partition(topic.name, number, self.patience(waited))
            waited[0] += <double>self.clock.monotonic() - started
        if number < 0 or number >= topic.partitions:
            raise InvalidPartitionsError(
                f"partition {number} of topic {topic.name!r} does not exist: the topic has {topic.partitions} "
                f"partition(s), 0 to {topic.partitions - 1}")
        return <PartitionQueue>topic.queues[number]

    cdef double patience(self, double* waited) noexcept:
        return max(self.max_block - waited[0], 0.0)

    @cython.final
    cdef int64_t now_ms(self) except -1:
        return kb_time_ms() if self.system_clock else self.clock.time_ms()

    cdef int check_size(self, const Record* r) except -1:
        cdef int64_t size = size_upper_bound(self.accumulator.magic, r)
        if r.header_count and self.accumulator.magic < 2:
            raise SerializationError(
                "record.magic is 1, and that format has no headers: send no headers, or set record.magic to 2")
        if size > self.max_request_size:
            raise RecordTooLargeError(
                f"the record needs up to {size} bytes, more than max.request.size ({self.max_request_size}): raise "
                f"max.request.size, or send smaller records")
        return 0


# ---- send(): the way of every record ---------------------------------------------------------------------------------

cdef inline object send_record(
    object self, object topic, object value, object key, object headers, object partition, object timestamp_ms,
    object callback, object opaque
):
    cdef ProducerCore producer = <ProducerCore>self
    if callback is not None or opaque is not None:
        check_user_objects(producer, callback, opaque)
    if producer.detour:
        return producer.send_by_detour(topic, value, key, headers, partition, timestamp_ms, callback, opaque)
    return producer.queue_record(topic, value, key, headers, partition, timestamp_ms, callback, opaque, 0)


cdef int check_user_objects(ProducerCore producer, object callback, object opaque) except -1:
    if callback is not None and not callable(callback):
        raise user_object_error(callback)
    if opaque is not None and not producer.takes_opaque:
        raise user_object_error(None)
    return 0


# Apart from the checks, which each record with a callback passes: here the registers of their caller would be saved.
# `callback`: the object that cannot be called; None: an opaque object has no use.
cdef object user_object_error(object callback):
    if callback is not None:
        return TypeError(
            f"callback must be callable with (metadata, error), found {type(callback).__name__}: {callback!r}")
    return ConfigError("opaque comes back in on_acknowledged, which this producer does not have: give it "
                       "on_acknowledged, or bind the object to a callback")


cdef object send_quickly(object self, PyObject** given, Py_ssize_t count, PyObject* names):
    cdef PyObject* arguments[8]
    if not arrange(&quick_send, 8, given, count, names, arguments):
        return by_cython(&quick_send, self, given, count, names)
    return apply8(send_record, self, arguments)


cdef kb_quick quick_send
replace_way_in(
    &quick_send, ProducerCore, b"send",
    ("topic", "value", "key", "headers", "partition", "timestamp_ms", "callback", "opaque"), send_quickly,
    KafkaError)


cdef bint is_stale(ProducerCore producer, dict by_schema, str topic) except -1:
    cdef tuple entry
    if by_schema is None:
        return False
    entry = by_schema.get(topic)
    return entry is None or producer.now_ms() >= <double>entry[2]


cdef int64_t whole_number(object number) except? -1:
    # Cython's conversion would read a bool as 0 or 1 and truncate a float.
    if type(number) is bool:
        raise TypeError
    return PyNumber_Index(number)


cdef int64_t partition_number(object partition) except? -1:
    try:
        return whole_number(partition)
    except (TypeError, OverflowError):
        raise InvalidPartitionsError(f"a partition must be an int, found {partition!r}") from None


cdef int64_t checked_timestamp(object timestamp_ms) except -1:
    cdef int64_t value
    try:
        value = whole_number(timestamp_ms)
    except (TypeError, OverflowError):
        raise InvalidTimestampError(f"timestamp_ms must be an int of milliseconds, found {timestamp_ms!r}") from None
    if value < 0:
        raise InvalidTimestampError(f"timestamp_ms must not be negative, found {value}")
    return value
