# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""send_many: encodes the elements of Python sequences as records."""

cimport cython
from libc.stdint cimport int32_t, int64_t

from collections.abc import Mapping, Set

from kafkabuf.memory._held cimport Held, hold_nothing, release_held
from kafkabuf._records cimport Record, hold_record
from kafkabuf.cpython._sealed cimport seal
from kafkabuf.wire._wire cimport kb_crc32_init
from kafkabuf.append._bulk cimport (
    BAD_PARTITION, END, BulkAppend, Portion, Stop, append_record, choose_partition, tell_error,
)
from kafkabuf.append._producer cimport ProducerCore, checked_timestamp, partition_number
from kafkabuf.batches._batch cimport Batch, new_future

from kafkabuf.errors import InvalidPartitionsError, InvalidTimestampError, SerializationError
from kafkabuf.interceptors import ProducerRecord, pairs_of

kb_crc32_init()


@cython.final
cdef class SequenceWalker:
    """Visits the records of one send_many call and encodes them."""

    cdef int append_all(self) except -1:
        cdef BulkAppend bulk = self.bulk
        cdef Py_ssize_t count = len(self.values)
        bulk.begin(count, self.timestamps is not None or self.interceptors is not None)
        try:
            while bulk.row < count:
                self.append_next()
        except (SerializationError, InvalidPartitionsError, InvalidTimestampError) as error:
            raise type(error)(f"record {bulk.row}: {error}") from error
        finally:
            bulk.end()
        return 0

    cdef int append_next(self) except -1:
        cdef BulkAppend bulk = self.bulk
        cdef int64_t row = bulk.row
        value = self.values[row]
        key = self.keys[row] if self.keys is not None else None
        headers = self.headers[row] if self.headers is not None else None
        partition = self.wanted_partitions[row] if self.wanted_partitions is not None else None
        timestamp = self.timestamps[row] if self.timestamps is not None else None
        if self.interceptors is None:
            self.append_prepared(value, key, headers, partition, timestamp)
            return 0
        bulk.producer.check_still_open(bulk.accumulator)
        record = ProducerRecord(self.topic_name, value, key, pairs_of(headers), partition, timestamp)
        return self.append_intercepted(self.interceptors.on_send(record))

    cdef int append_intercepted(self, object record) except -1:
        cdef BulkAppend bulk = self.bulk
        if self.acknowledgement is None or self.interceptors.take_headers:
            self.acknowledgement = self.interceptors.acknowledgement(record)
        try:
            if bulk.topic is None or record.topic != bulk.topic.name:
                bulk.give_back_all()
                bulk.use_topic(bulk.producer.topic_of(record.topic, &bulk.waited))
            appended = self.append_prepared(
                record.value, record.key, record.headers, record.partition, record.timestamp_ms)
        except Exception as error:
            self.interceptors.on_send_error(record, error)
            raise
        if not appended:
            self.interceptors.on_send_error(record, bulk.too_large)
        return 0

    cdef int add_callback(self, object callback) except -1:
        cdef Record* r = &self.bulk.record
        cdef Batch batch = (<Portion>self.bulk.claimed[self.bulk.partition]).batch
        return batch.add_callback(
            callback, new_future(batch, batch.stored.builder.count - 1, r.timestamp, r.key.size, r.value.size))

    cdef bint append_prepared(
        self, object value, object key, object headers, object partition, object timestamp
    ) except -1:
        cdef BulkAppend bulk = self.bulk
        cdef Record* r = &bulk.record
        cdef Held held
        cdef int32_t wanted = -1
        cdef bint appended
        if bulk.producer.detour:
            bulk.producer.check_still_open(bulk.accumulator)
            if bulk.producer.schemas is not None and bulk.producer.lacks_schema(bulk.topic.name, key, value):
                self.await_schemas(key, value)
            key, value, headers, partition = bulk.producer.prepared(bulk.topic, key, value, headers, partition)
        r.timestamp = bulk.now if timestamp is None else checked_timestamp(timestamp)
        if partition is not None:
            wanted = self.wanted_partition(partition)
        hold_nothing(&held)
        try:
            hold_record(&held, r, key, value, headers)
            appended = self.append_held(wanted)
        finally:
            release_held(&held)
        return appended

    cdef int await_schemas(self, object key, object value) except -1:
        cdef BulkAppend bulk = self.bulk
        bulk.give_back_all()  # no batch may be claimed during the wait
        bulk.producer.await_schemas(bulk.topic.name, key, value, &bulk.waited)
        bulk.producer.check_still_open(bulk.accumulator)
        bulk.use_topic(bulk.topic)
        return 0

    cdef bint append_held(self, int32_t wanted) except -1:
        cdef BulkAppend bulk = self.bulk
        cdef Stop stop = END
        cdef int64_t row = bulk.row
        if bulk.record.header_count and bulk.magic < 2:
            raise SerializationError(
                "record.magic is 1, and that format has no headers: send no headers, or set record.magic to 2")
        while bulk.row == row:
            choose_partition(bulk, wanted)
            stop = append_record(bulk)
            if stop != END:
                bulk.serve(stop)
                while bulk.row == row and wanted >= bulk.partitions:  # the topic has lost it: fetch metadata or raise
                    bulk.partition = wanted
                    bulk.serve(BAD_PARTITION)
        # Added at once: releasing the record may run Python code, which may give the claim back.
        if stop == END and self.acknowledgement is not None:
            self.add_callback(self.acknowledgement)
        return stop == END

    cdef int32_t wanted_partition(self, object partition) except -2:
        cdef BulkAppend bulk = self.bulk
        cdef int64_t number = partition_number(partition)
        if number < 0 or number >= bulk.partitions:
            # The partition may be new: fetch metadata once; raises if it does not exist. No batch may be claimed during
            # the wait.
            bulk.give_back_all()
            bulk.producer.queue_of_partition(bulk.topic, number, &bulk.waited)
            bulk.use_topic(bulk.topic)
        return <int32_t>number


seal(SequenceWalker)


cdef bint is_no_sequence(argument) except -1:
    # One type at a time: with a tuple of types Cython's isinstance() drops an error that `__class__` raises.
    for kind in (str, bytes, bytearray, memoryview, Mapping, Set):
        if isinstance(argument, kind):
            return True
    return False


cdef tuple column_of(str name, argument, Py_ssize_t count):
    """The argument as a tuple: other threads may change the caller's list during the call, but not the tuple."""
    cdef tuple column
    if is_no_sequence(argument) or not hasattr(argument, "__len__"):
        raise TypeError(f"{name} must be a list, or another sequence, with one element for each record, found "
                        f"{type(argument).__name__}")
    column = tuple(argument)
    if count >= 0 and len(column) != count:
        raise ValueError(f"{name} has {len(column)} elements and values has {count}: give one for each record")
    return column


def append_many(ProducerCore producer not None, report, topic, values, keys, headers, partitions, timestamps_ms):
    """See KafkaProducer.send_many. `report` gets all records that were queued or left out, also if the call raises."""
    cdef SequenceWalker walker
    cdef tuple values_column = column_of("values", values, -1)
    cdef Py_ssize_t count = len(values_column)
    cdef list other_columns = []
    for name, argument in (
            ("keys", keys), ("headers", headers), ("partitions", partitions), ("timestamps_ms", timestamps_ms)):
        other_columns.append(None if argument is None else column_of(name, argument, count))
    try:
        producer.check_open()
        walker = SequenceWalker.__new__(SequenceWalker)
        walker.bulk = BulkAppend.__new__(BulkAppend, producer, report)
        walker.topic_name = topic
        walker.interceptors = producer.interceptors
        if walker.interceptors is None:
            walker.bulk.use_topic(producer.topic_of(topic, &walker.bulk.waited))
        walker.values = values_column
        walker.keys, walker.headers, walker.wanted_partitions, walker.timestamps = other_columns
        walker.append_all()
    except BaseException as error:  # KeyboardInterrupt, too: a wait may have raised it
        tell_error(error, report)
        raise
