# cython: language_level=3
"""The per-record path: from send() to bytes in a slab in one frame."""

from libc.stdint cimport int64_t

from kafkabuf._accumulator cimport AccumulatorCore, PartitionQueue, TopicQueues
from kafkabuf._batch cimport RecordFuture
from kafkabuf._records cimport Record


# What a serializer makes of `data`. Raises SerializationError where it raises.
cdef object serialized(object serializer, object data, str what)
# A bool is none, nor is a float. Raises TypeError, OverflowError.
cdef int64_t whole_number(object number) except? -1
# Raises InvalidTimestampError.
cdef int64_t checked_timestamp(object timestamp_ms) except -1


cdef class ProducerCore:
    # ---- fixed at construction
    cdef readonly AccumulatorCore accumulator
    cdef object clock
    cdef bint system_clock              # timestamps come straight from the kernel's clock
    cdef object key_serializer, value_serializer
    cdef int64_t max_request_size
    cdef double max_block               # seconds
    cdef bint ignore_keys               # partitioner.ignore.keys
    # ---- guarded by the GIL
    cdef bint closing
    cdef str closed_because             # what a call after that is told
    cdef object last_name               # the topic of the send() before, by identity
    cdef TopicQueues last_topic
    cdef readonly int64_t records_sent  # records accepted

    cpdef int check_open(self) except -1
    cdef TopicQueues topic_of(self, object name)
    cdef PartitionQueue queue_of_partition(self, TopicQueues topic, object partition)
    cdef int64_t now_ms(self) except -1
    cdef int check_size(self, const Record* r) except -1
    cdef RecordFuture enqueue(self, TopicQueues topic, object partition, object callback, Record* r)
