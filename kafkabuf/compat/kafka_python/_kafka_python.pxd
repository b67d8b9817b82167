# cython: language_level=3
"""send() and its future with the names of kafka-python, over a kafkabuf producer."""

from libc.stdint cimport int32_t

from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._batch cimport RecordFuture


cdef class FutureRecordMetadata:
    cdef RecordFuture sent          # None: send() refused the record
    cdef object refused             # why; None: the record was queued
    cdef int32_t header_size        # bytes of the headers' keys and values; -1: no headers

    # Does not count as a look at the error: a failure that nobody looks at is logged.
    cdef bint has_failed(self) except -1
    cdef object call_at_end(self, object f, tuple args, dict kwargs, bint on_error)
    # The error of a failed record; None for a delivered record.
    cdef object error(self)
    # The metadata of a delivered record.
    cdef object metadata(self)


cdef class SendCore:
    cdef ProducerCore producer
    cdef object prepare             # callable(topic, value, key, headers, partition) -> (value, key, partition) for the
    #                                 user's own partitioner, or None

    cdef object refuse(self, object error, object topic, object partition, object timestamp_ms)
