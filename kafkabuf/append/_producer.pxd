# cython: language_level=3
"""The per-record path: one Cython frame from send() to the bytes in a slab. A policy finds unknown topics."""

from libc.stdint cimport int64_t

from kafkabuf._partition cimport KeyRule
from kafkabuf._records cimport Record
from kafkabuf.batches._accumulator cimport AccumulatorCore, PartitionQueue, TopicQueues
from kafkabuf.batches._batch cimport Batch, RecordFuture


# The value of an int or an object with __index__. Raises TypeError, for a bool and a float too, and OverflowError.
cdef int64_t whole_number(object number) except? -1
# The only conversion of the caller's object: the number that is checked is the number that is used. Raises
# InvalidPartitionsError.
cdef int64_t partition_number(object partition) except? -1
# Raises InvalidTimestampError.
cdef int64_t checked_timestamp(object timestamp_ms) except -1


cdef class TopicPolicy:
    """What a call does about a topic or a partition that the accumulator does not have."""
    # The queues of a topic not used before. Waits for metadata, up to `timeout` seconds. Raises TimeoutError.
    cpdef TopicQueues await_topic(self, str name, double timeout)
    # The topic does not have the partition yet: wait for newer metadata, up to `timeout` seconds. The default does
    # nothing: the topic never gets more partitions.
    cpdef object await_partition(self, str name, int64_t partition, double timeout)
    # Whether the calling thread may wait for a Schema Registry. The Sender's thread may not; by default any may.
    cpdef bint may_wait(self) except -1


cdef class ProducerCore:
    # ---- fixed at construction
    cdef readonly AccumulatorCore accumulator
    cdef readonly TopicPolicy topics
    cdef object clock
    cdef bint system_clock              # timestamps come straight from the kernel's clock
    cdef object key_serializer, value_serializer    # called with (data), or None
    cdef bint key_by_topic, value_by_topic          # called with (topic, headers, data) instead
    # {topic: (serializer, header or None, when it is stale)} of a format whose schema a registry names, or None. With
    # it the serializer above is None. `schemas` fills both: formats/registry/serializing.py.
    cdef dict key_by_schema, value_by_schema
    cdef object schemas
    cdef object partitioner             # callable(topic, key, value, partitions), or None
    cdef readonly object interceptors   # interceptors.Interceptors, or None
    cdef bint takes_opaque              # on_acknowledged is set
    cdef int64_t max_request_size
    cdef double max_block               # seconds
    cdef KeyRule key_rule               # partitioner.class (if it names a rule), partitioner.ignore.keys
    # ---- guarded by the producer's lock (batches/_accumulator.pxd)
    cdef bint closing
    cdef bint disowned                  # with `closing`: a fork made this copy
    cdef object reopen                  # opens a disowned producer for the child, or raises. None: it stays closed
    cdef readonly bint detour           # send() must check `closing`, or call one of the user's objects above
    cdef str closed_because             # the text of the ClosedError that later calls raise
    cdef object last_name               # the topic object of the previous send(), compared by identity; else NO_NAME
    cdef TopicQueues last_topic
    cdef readonly int64_t records_sent  # records that were queued

    # Every public call begins with this. In a forked child it opens a producer of the child's own.
    cpdef int check_open(self) except -1
    # In the middle of a call, after the user's code ran: raises ClosedError if the producer was closed, or if the
    # process is a child that was forked in that code. `begun`: the accumulator with which the call began.
    cdef int check_still_open(self, AccumulatorCore begun) except -1
    # Calls the user's serializers and partitioner. Returns key and value as bytes-like objects, headers and partition.
    # Raises SerializationError, InvalidPartitionsError.
    cdef tuple prepared(self, TopicQueues topic, object key, object value, object headers, object partition)
    # Whether await_schemas() must come before prepared(). A null needs no schema.
    cdef bint lacks_schema(self, str topic, object key, object value) except -1
    # Asks the Schema Registry, and adds the seconds of that wait to `waited`. Raises its errors.
    cdef int await_schemas(self, str topic, object key, object value, double* waited) except -1
    cdef object partition_by(self, TopicQueues topic, object key, object value)
    cdef RecordFuture send_intercepted(self, object record, object callback, object opaque)
    # Raises ConfigError for settings that send_arrow does not support.
    cdef int check_takes_columns(self) except -1
    # Both may wait for metadata, and add the seconds of that wait to `waited`: max.block.ms bounds the waits for
    # metadata and memory together.
    cdef TopicQueues topic_of(self, object name, double* waited)
    cdef PartitionQueue queue_of_partition(self, TopicQueues topic, int64_t number, double* waited)
    cdef double patience(self, double* waited) noexcept     # seconds of max.block.ms that are left
    cdef int64_t now_ms(self) except -1
    cdef int check_size(self, const Record* r) except -1
    # The way of a record that meets one of the user's objects, or a producer that is not open.
    cdef RecordFuture send_by_detour(
        self, object topic, object value, object key, object headers, object partition, object timestamp_ms,
        object callback, object opaque
    )
    # The end of send(): queue the bytes of a record. A caller that is not send() first finds that the producer needs no
    # detour. `waited`: the seconds for which the call has waited for metadata.
    cdef RecordFuture queue_record(
        self, object name, object value, object key, object headers, object partition, object timestamp_ms,
        object callback, object opaque, double waited
    )
    cdef RecordFuture enqueue(
        self, TopicQueues topic, object partition, object callback, object opaque, Record* r, double waited
    )
    # The open batch has no room for the record, or no batch is open: a batch that has room. The caller holds the
    # producer's lock, and appends before anything that could let another thread run.
    cdef Batch room_for(self, TopicQueues topic, PartitionQueue queue, bint sticky, Record* r, double waited)
