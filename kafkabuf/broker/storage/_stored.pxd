"""A batch in a log."""

from libc.stdint cimport int64_t


cdef class StoredBatch:
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp
    cdef readonly int leader_epoch
    cdef readonly object data
