"""The result for one partition's records, in a response to Produce."""

from libc.stdint cimport int32_t, int64_t


cdef class PartitionResult:
    # See the .pyi.
    cdef public int32_t partition
    cdef public int error_code
    cdef public int64_t base_offset
    cdef public int64_t log_append_time_ms
    cdef public int64_t log_start_offset
    cdef public object error_message
    cdef public object leader
    cdef public object record_errors
