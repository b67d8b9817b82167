"""The append of a partition's log, and its retention. Thread: the event loop."""

from libc.stdint cimport int64_t

from kafkabuf.broker.records._batch cimport BatchInfo
from kafkabuf.broker.storage._stored cimport StoredBatch


cdef class LogCore:
    # log.py says what each field means.
    cdef public object config
    cdef public object clock
    cdef public object segments
    cdef public object leader_epochs
    cdef public int64_t log_start_offset
    cdef public int64_t end_offset
    cdef public int64_t clean_offset
    cdef public int64_t replicated_offset
    cdef public bint closed
    # ProducerStates, or None until a producer has state: a cluster may have thousands of empty logs.
    cdef public object _producers
    # None until it is set.
    cdef public object _high_watermark

    cpdef int _keep(self, StoredBatch batch) except -1
    cpdef int _appended(self) except -1
    cpdef int _replicated(self, int64_t high_watermark) except -1
