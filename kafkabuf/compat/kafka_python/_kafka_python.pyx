# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The per-record path of compat/kafka_python/__init__.py: KafkaProducer.send() and its future."""

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t

from functools import partial
from typing import NamedTuple

from kafkabuf.cpython._hints cimport refuse_await
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._batch cimport FAILED, RecordFuture

from kafkabuf.compat.kafka_python.errors import as_peer, from_wait
from kafkabuf.errors import ClosedError, KafkaError, SerializationError, TopicAuthorizationError


class TopicPartition(NamedTuple):
    """kafka-python's tuple of that name; equal to it."""

    topic: str
    partition: int


class RecordMetadata(NamedTuple):
    """kafka-python's tuple of that name: `checksum` is None, and a size is -1 for a null key, a null value or no
    headers."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    checksum: None
    serialized_key_size: int
    serialized_value_size: int
    serialized_header_size: int


@cython.final
cdef class Call:
    """A callback of a record: calls `fn` with the metadata, or with the error if `on_error`."""
    cdef FutureRecordMetadata future
    cdef object fn
    cdef bint on_error

    def __call__(self, sent):
        if self.on_error and self.future.has_failed():
            self.fn(as_peer(self.future.error()))
        elif not self.on_error and not self.future.has_failed():
            self.fn(self.future.metadata())


seal(Call)


@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class FutureRecordMetadata:
    """The pending result of one send() (kafka-python's class of that name)."""

    def __init__(self):
        raise TypeError("a FutureRecordMetadata comes from KafkaProducer.send()")

    @property
    def is_done(self):
        """Whether the record has an outcome."""
        return self.sent is None or self.sent.done()

    @property
    def value(self):
        """The RecordMetadata of a delivered record, else None."""
        return self.metadata() if self.succeeded() else None

    @property
    def exception(self):
        """The error of a failed record, else None."""
        return as_peer(self.error()) if self.has_failed() else None

    def succeeded(self):
        return self.is_done and not self.has_failed()

    def failed(self):
        return self.has_failed()

    def retriable(self):
        return self.has_failed() and self.error().retriable

    def get(self, timeout=None):
        """The RecordMetadata, after a wait of up to `timeout` seconds (None: for ever).

        Raises KafkaTimeoutError after that time, or the error with which the record failed.
        """
        try:
            error = self.refused if self.sent is None else self.sent.exception(timeout)
        except KafkaError as interrupted:
            error = interrupted
        if error is not None:
            raise as_peer(error)
        return self.metadata()

    def add_callback(self, f, *args, **kwargs):
        """Call `f(*args, metadata, **kwargs)` once the record is delivered, in the Sender's thread; now if it is."""
        return self.call_at_end(f, args, kwargs, False)

    def add_errback(self, f, *args, **kwargs):
        """Call `f(*args, error, **kwargs)` once the record has failed, in the Sender's thread; now if it has."""
        return self.call_at_end(f, args, kwargs, True)

    def chain(self, future):
        """Give this future's outcome to `future.success(metadata)` or `future.failure(error)`."""
        self.call_at_end(future.success, (), {}, False)
        return self.call_at_end(future.failure, (), {}, True)

    def add_both(self, f, *args, **kwargs):
        self.call_at_end(f, args, kwargs, False)
        return self.call_at_end(f, args, kwargs, True)

    cdef object call_at_end(self, object f, tuple args, dict kwargs, bint on_error):
        cdef Call call = Call.__new__(Call)
        call.future = self
        call.fn = partial(f, *args, **kwargs) if args or kwargs else f
        call.on_error = on_error
        if self.sent is None:
            call(None)
        else:
            self.sent.add_done_callback(call)
        return self

    cdef bint has_failed(self) except -1:
        return self.sent is None or self.sent.part().outcome == FAILED

    cdef object error(self):
        return self.refused if self.sent is None else self.sent.exception(0)

    cdef object metadata(self):
        topic, partition, offset, timestamp, key_size, value_size = self.sent.metadata()
        return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, timestamp, None, key_size,
                              value_size, self.header_size)

    def __repr__(self):
        return f"FutureRecordMetadata({self.refused!r})" if self.sent is None else repr(self.sent)


seal(FutureRecordMetadata)
refuse_await(FutureRecordMetadata)


cdef list plain_headers(object headers, int32_t* size):
    """A copy of the headers without the user's lists and tuples, whose methods could run code of the user's.

    Raises TypeError: kafka-python takes a list of (str, bytes) only.
    """
    cdef list plain = []
    cdef Py_ssize_t name_size, i = 0
    if not isinstance(headers, list):
        raise TypeError(f"headers must be a list of tuples (str, bytes), found {type(headers).__name__}")
    size[0] = 0
    while i < len(<list>headers):
        header = (<list>headers)[i]
        if not is_pair(header):
            raise TypeError(f"each of the headers must be a tuple (str, bytes), found {header!r}")
        name, value = <object>PyTuple_GET_ITEM(header, 0), <object>PyTuple_GET_ITEM(header, 1)
        PyUnicode_AsUTF8AndSize(name, &name_size)
        size[0] += <int32_t>(name_size + PyBytes_GET_SIZE(value))
        plain.append((name, value))
        i += 1
    if not plain:
        size[0] = -1
    return plain


cdef bint is_pair(object header) except -1:
    if not isinstance(header, tuple) or PyTuple_GET_SIZE(header) != 2:
        return False
    name, value = <object>PyTuple_GET_ITEM(header, 0), <object>PyTuple_GET_ITEM(header, 1)
    return isinstance(name, str) and isinstance(value, bytes)


cdef bint is_whole(object number) except -1:
    return number is None or (hasattr(number, "__index__") and not isinstance(number, bool))


cdef bint is_number(object partition) except -1:
    """kafka-python compares the partition with numbers: a float is one that the topic does not have."""
    return partition is None or hasattr(partition, "__index__") or isinstance(partition, float)


cdef class SendCore:
    """Base class of compat.kafka_python.KafkaProducer: the code that runs for every record."""

    def _open(self, ProducerCore producer not None, prepare):
        self.producer = producer
        self.prepare = prepare

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        """Queue one record and return its FutureRecordMetadata. Arguments: kafka-python's KafkaProducer.send().

        Raises:
            ValueError: key and value are None; the topic, the partition or the timestamp is not valid.
            TypeError: key, value or headers are not bytes and have no serializer.
            MessageSizeTooLargeError: the record is larger than max_request_size.
            KafkaTimeoutError: there was no metadata, or no memory, within max_block_ms.
            IllegalStateError: the producer is closed, or needs a transaction.
            A serializer's and a partitioner's own errors.
        """
        cdef FutureRecordMetadata future
        cdef RecordFuture sent = None
        cdef object refused = None
        cdef int32_t header_size = -1
        if value is None and key is None:
            raise ValueError("a record needs a key or a value: both are None")
        if headers is not None:
            plain_headers(headers, &header_size)
        if self.producer is None:
            raise as_peer(ClosedError("the producer is not open"))
        try:
            if self.prepare is not None:
                value, key, partition = self.prepare(topic, value, key, headers, partition)
            # A serializer may have changed the headers. Once the record is queued nothing here may fail.
            if headers is not None:
                headers = plain_headers(headers, &header_size)
            future = FutureRecordMetadata.__new__(FutureRecordMetadata)
            future.header_size = header_size
            if self.producer.detour:
                sent = self.producer.send(topic, value, key, headers, partition, timestamp_ms)
            else:
                sent = self.producer.queue_record(topic, value, key, headers, partition, timestamp_ms, None, None, 0)
        except KafkaError as error:
            refused = self.refuse(error, topic, partition, timestamp_ms)
        if refused is not None:
            return refused
        future.sent = sent
        return future

    cdef object refuse(self, object error, object topic, object partition, object timestamp_ms):
        """As kafka-python: a topic that the user may not see fails the future, other errors are raised."""
        cdef FutureRecordMetadata future
        if not (isinstance(topic, str) and is_number(partition) and is_whole(timestamp_ms)):
            raise TypeError(str(error)) from error
        if isinstance(error, SerializationError) and error.__cause__ is not None:
            raise error.__cause__
        if not isinstance(error, TopicAuthorizationError):
            raise from_wait(error)
        future = FutureRecordMetadata.__new__(FutureRecordMetadata)
        future.refused = error
        future.header_size = -1
        return future
