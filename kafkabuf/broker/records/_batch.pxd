"""The header of a record batch, as the leader and the log use it."""

from libc.stdint cimport int32_t, int64_t


cdef class BatchInfo:
    # All fields are those of the header: see the .pyi.
    cdef readonly int64_t count
    cdef public int64_t max_timestamp
    cdef readonly int magic
    cdef readonly bint transactional
    cdef readonly bint append_time
    cdef readonly int producer_epoch
    cdef readonly int64_t producer_id
    cdef readonly int32_t base_sequence


cpdef BatchInfo check_batch(object records, int version, object limits)
cpdef int stamp(bytearray data, int64_t base_offset, int32_t leader_epoch) except -1
cdef int32_t last_sequence(BatchInfo info) noexcept
