"""What became of a batch that a leader was to append."""

from libc.stdint cimport int64_t


cdef class Appended:
    # Replica or None, KafkaError or None: see the .pyi.
    cdef readonly object leader
    cdef readonly object error
    cdef readonly object record_errors
    cdef readonly int64_t base_offset
    cdef readonly int64_t end
    cdef readonly int64_t append_time
    cdef readonly int64_t log_start_offset
